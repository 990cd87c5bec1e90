package mapping

import (
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
)

// Expr is a compiled expression over the fields of one stream's events.
//
// The language is a part of that of expr-lang/expr, whose parser reads it; the
// meaning is Strom's own: exact numbers, and absent or null fields that have a
// defined result everywhere. docs/mapping.md describes it. What was tried and
// rejected: running on expr's virtual machine with every operator replaced by
// a call of ours. Each operand was boxed, a number literal had been a float
// before we saw it, and its type checker judged by other rules.
//
// An Expr holds no state: any number of goroutines may evaluate it at once.
type Expr struct {
	text string
	// canon is the expression written in one way only: expressions that differ
	// in nothing but layout have the same.
	canon string
	// slot is the field that the whole expression names, or -1. It is the path
	// of most expressions, and costs an index.
	slot   int
	root   node
	static exprType
}

// Text gives the expression as the mapping wrote it.
func (e *Expr) Text() string { return e.text }

// Canonical gives the expression written in one way only.
func (e *Expr) Canonical() string { return e.canon }

// Eval evaluates the expression. Its error is an *event.Reject. Texts of the
// result may alias the record, see formats.Fields.
func (e *Expr) Eval(f formats.Fields) (event.Scalar, error) {
	if e.slot >= 0 {
		return f[e.slot], nil
	}
	v, err := e.root.eval(f)
	if err != nil {
		return event.Scalar{}, e.reject(err)
	}
	return v, nil
}

// Test evaluates the expression as a condition: absent and null count as
// false, and what is no boolean is an error. Its error is an *event.Reject.
func (e *Expr) Test(f formats.Fields) (bool, error) {
	ok, err := test(e.root, f)
	if err != nil {
		return false, e.reject(err)
	}
	return ok, nil
}

func (e *Expr) reject(err *evalError) error {
	return event.Rejectf(event.ReasonExpression, "%s: %s", shorten(e.text), err.message)
}
