package mapping

import (
	"fmt"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
)

// exprType is what is known of an expression's result without an event.
type exprType uint8

const (
	typeAny exprType = iota // known only with an event
	typeNull
	typeText
	typeNumber
	typeBool
)

// String gives the type's name as error texts use it.
func (t exprType) String() string {
	switch t {
	case typeNull:
		return "null"
	case typeText:
		return "text"
	case typeNumber:
		return "number"
	case typeBool:
		return "boolean"
	case typeAny:
	}
	return "any"
}

// evalError says why an expression failed on an event.
type evalError struct{ message string }

func evalFault(format string, args ...any) *evalError {
	return &evalError{message: fmt.Sprintf(format, args...)}
}

// node is a compiled operation. It has no state.
//
// Rules that all nodes share: an operand that is absent or null makes the
// result absent or null (absent if any operand is absent), except where a
// comment says otherwise; a condition takes either for false.
type node interface {
	eval(f formats.Fields) (event.Scalar, *evalError)
}

// condition is a node whose result is a boolean.
type condition interface {
	node
	test(f formats.Fields) (bool, *evalError)
}

func boolScalar(b bool) event.Scalar { return event.Scalar{Type: event.ScalarBool, Bool: b} }

func textScalar(s string) event.Scalar { return event.Scalar{Type: event.ScalarText, Text: s} }

// missing gives the result of an operation with an absent or null operand.
func missing(a, b event.Scalar) event.Scalar {
	if a.Type == event.ScalarAbsent || b.Type == event.ScalarAbsent {
		return event.Scalar{}
	}
	return event.Scalar{Type: event.ScalarNull}
}

// test evaluates n as a condition.
func test(n node, f formats.Fields) (bool, *evalError) {
	if c, ok := n.(condition); ok {
		return c.test(f)
	}
	v, err := n.eval(f)
	switch {
	case err != nil:
		return false, err
	case v.Missing():
		return false, nil
	case v.Type != event.ScalarBool:
		return false, evalFault("a condition must be true or false, this is %s", aType(v.Type))
	}
	return v.Bool, nil
}

// truth makes a value of what a condition's test gives.
func truth(ok bool, err *evalError) (event.Scalar, *evalError) {
	if err != nil {
		return event.Scalar{}, err
	}
	return boolScalar(ok), nil
}

// fieldNode is a field of the event.
type fieldNode struct{ slot int }

func (n fieldNode) eval(f formats.Fields) (event.Scalar, *evalError) { return f[n.slot], nil }

// constNode is a literal.
type constNode struct{ value event.Scalar }

func (n constNode) eval(formats.Fields) (event.Scalar, *evalError) { return n.value, nil }

// notNode negates a condition.
type notNode struct{ of node }

func (n notNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n notNode) test(f formats.Fields) (bool, *evalError) {
	ok, err := test(n.of, f)
	return !ok, err
}

// logicNode is and, or; the right side is evaluated only where it decides.
type logicNode struct {
	or          bool
	left, right node
}

func (n logicNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n logicNode) test(f formats.Fields) (bool, *evalError) {
	ok, err := test(n.left, f)
	if err != nil || ok == n.or {
		return ok, err
	}
	return test(n.right, f)
}

// equalNode is == or !=. Null and absent are equal to each other and to
// nothing else.
type equalNode struct {
	not         bool
	left, right node
}

func (n equalNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n equalNode) test(f formats.Fields) (bool, *evalError) {
	a, err := n.left.eval(f)
	if err != nil {
		return false, err
	}
	b, err := n.right.eval(f)
	if err != nil {
		return false, err
	}
	eq, err := equal(a, b)
	return eq != n.not && err == nil, err
}

func equal(a, b event.Scalar) (bool, *evalError) {
	if a.Missing() || b.Missing() {
		return a.Missing() && b.Missing(), nil
	}
	if a.Type != b.Type || a.Type == event.ScalarJSON {
		return false, evalFault("cannot compare %s with %s", a.Type, b.Type)
	}
	switch a.Type {
	case event.ScalarText:
		return a.Text == b.Text, nil
	case event.ScalarNumber:
		return a.Num.Equal(b.Num), nil
	default:
		return a.Bool == b.Bool, nil
	}
}

// textEqualsNode is the commonest condition, field == "text", without the
// detours of equalNode.
type textEqualsNode struct {
	slot int
	text string
	not  bool
}

func (n textEqualsNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	return truth(n.test(f))
}

func (n textEqualsNode) test(f formats.Fields) (bool, *evalError) {
	switch v := &f[n.slot]; v.Type {
	case event.ScalarText:
		return (v.Text == n.text) != n.not, nil
	case event.ScalarAbsent, event.ScalarNull:
		return n.not, nil
	default:
		return false, evalFault("cannot compare %s with text", v.Type)
	}
}

// orderNode is < <= > >=: of two numbers, or of two texts by their bytes.
// With an operand that is absent or null it is false.
type orderNode struct {
	op          string
	left, right node
}

func (n orderNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n orderNode) test(f formats.Fields) (bool, *evalError) {
	a, err := n.left.eval(f)
	if err != nil {
		return false, err
	}
	b, err := n.right.eval(f)
	if err != nil {
		return false, err
	}
	if a.Missing() || b.Missing() {
		return false, nil
	}
	var c int
	switch {
	case a.Type == event.ScalarNumber && b.Type == event.ScalarNumber:
		c = a.Num.Cmp(b.Num)
	case a.Type == event.ScalarText && b.Type == event.ScalarText:
		c = strings.Compare(a.Text, b.Text)
	default:
		return false, evalFault("cannot compare %s with %s by %s", a.Type, b.Type, n.op)
	}
	switch n.op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	default:
		return c >= 0, nil
	}
}

// inNode is x in [a, b, c]: equal to one of them.
type inNode struct {
	of   node
	list []node
}

func (n inNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n inNode) test(f formats.Fields) (bool, *evalError) {
	v, err := n.of.eval(f)
	if err != nil {
		return false, err
	}
	for _, item := range n.list {
		w, err := item.eval(f)
		if err != nil {
			return false, err
		}
		if eq, err := equal(v, w); err != nil || eq {
			return eq, err
		}
	}
	return false, nil
}

// arithNode is + - * of numbers, and + of texts.
type arithNode struct {
	op          string
	left, right node
}

// maxText bounds a text that an expression puts together, in bytes.
const maxText = 1 << 20

func (n arithNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	a, err := n.left.eval(f)
	if err != nil {
		return a, err
	}
	b, err := n.right.eval(f)
	switch {
	case err != nil:
		return b, err
	case a.Missing() || b.Missing():
		return missing(a, b), nil
	case a.Type == event.ScalarNumber && b.Type == event.ScalarNumber:
		d, err := calculate(n.op, a.Num, b.Num)
		if err != nil {
			return event.Scalar{}, evalFault("%s %s %s: %v", a.Num, n.op, b.Num, err)
		}
		return event.Scalar{Type: event.ScalarNumber, Num: d}, nil
	case n.op == "+" && a.Type == event.ScalarText && b.Type == event.ScalarText:
		if len(a.Text)+len(b.Text) > maxText {
			return event.Scalar{}, evalFault("the text would be longer than %d bytes", maxText)
		}
		return textScalar(a.Text + b.Text), nil
	}
	return event.Scalar{}, evalFault("cannot calculate %s %s %s", a.Type, n.op, b.Type)
}

// coalesceNode is a ?? b: b where a is absent or null.
type coalesceNode struct{ left, right node }

func (n coalesceNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	if v, err := n.left.eval(f); err != nil || !v.Missing() {
		return v, err
	}
	return n.right.eval(f)
}

// chooseNode is cond ? yes : no.
type chooseNode struct{ cond, yes, no node }

func (n chooseNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	ok, err := test(n.cond, f)
	switch {
	case err != nil:
		return event.Scalar{}, err
	case ok:
		return n.yes.eval(f)
	default:
		return n.no.eval(f)
	}
}
