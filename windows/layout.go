package windows

import (
	"errors"
	"fmt"

	"github.com/forge-platform/strom/event"
)

// Func is an aggregate function. The numbers are stored; they never change
// their meaning.
type Func uint8

// The functions. A missing input (absent or null) is skipped by every function
// that has one; what a function gives of no input at all is said here.
const (
	// Count counts every event. It has no input. Of nothing: 0.
	Count Func = 1
	// Sum adds numbers exactly. Of nothing: null.
	Sum Func = 2
	// Min is the smallest number. Of nothing: null.
	Min Func = 3
	// Max is the largest number. Of nothing: null.
	Max Func = 4
	// Avg is the exact sum divided by how many numbers there were, rounded as
	// event.Decimal.Div says. Of nothing: null.
	Avg Func = 5
	// CountValues counts the inputs of any type that are not missing. Of
	// nothing: 0.
	CountValues Func = 6
)

var funcNames = [...]string{"unknown", "count", "sum", "min", "max", "avg", "count_values"}

// String gives the function's name.
func (f Func) String() string {
	if int(f) < len(funcNames) {
		return funcNames[f]
	}
	return fmt.Sprintf("func(%d)", uint8(f))
}

// HasInput reports whether the function reads a value of the event.
func (f Func) HasInput() bool { return f != Count }

// ErrLayout is wrapped when an accumulator was written for other functions
// than those that are to read it: the mapping has changed, the state has not.
var ErrLayout = errors.New("the state was written for other aggregate functions")

// Layout says which functions a pane computes. It never changes once built.
type Layout struct {
	// Funcs are the functions in the order of the published values. They are
	// not to be changed.
	Funcs []Func

	// steps has one entry for each function with an input, in order: steps[i]
	// reads values[i] and keeps what it has in cells[i].
	steps []Func
}

// NewLayout builds the layout of functions, in the order in which their values
// are published.
func NewLayout(funcs []Func) *Layout {
	l := &Layout{Funcs: append([]Func(nil), funcs...)}
	for _, f := range funcs {
		if f.HasInput() {
			l.steps = append(l.steps, f)
		}
	}
	return l
}

// Inputs returns how many values Check and Add take: one for each function
// that has an input, in the order of Funcs. Count has none.
func (l *Layout) Inputs() int { return len(l.steps) }

// Acc holds the accumulators of one pane. It belongs to one goroutine at a
// time, and to the Layout that made it.
type Acc struct {
	events int64
	cells  []cell
}

// cell is the accumulator of one function with an input.
//
//	CountValues: n counts the inputs, num is 0
//	Avg:         n counts the inputs, num is their sum
//	else:        n is 1 once there was an input, else 0; num is the value.
//	             That the published value alone rebuilds the cell is why n
//	             does not count there.
type cell struct {
	n   int64
	num event.Decimal
}

// Events returns how many events were counted. An accumulator that came from
// Restore knows it exactly where Count is among the functions; else it starts
// at the number of events that its values prove. For information: no result
// depends on it.
func (a *Acc) Events() int64 { return a.events }

// New returns an empty pane.
func (l *Layout) New() *Acc {
	a := &Acc{}
	if n := len(l.steps); n > 0 {
		a.cells = make([]cell, n)
	}
	return a
}

// Block returns n empty panes side by side in memory: for those that come and
// go together, it costs two allocations where New costs two for each.
func (l *Layout) Block(n int) []Acc {
	accs, width := make([]Acc, n), len(l.steps)
	cells := make([]cell, n*width)
	for i := range accs {
		accs[i].cells = cells[i*width : (i+1)*width : (i+1)*width]
	}
	return accs
}

// Check says whether Add would accept the values; nil if so. It refuses, with
// ReasonBadValue, what is no number where a number is needed: a text or a
// boolean is never taken for one.
func (l *Layout) Check(values []event.Scalar) *event.Reject {
	if len(values) != len(l.steps) {
		return event.Rejectf(event.ReasonBadValue, "%d values for %d aggregate functions that have an input",
			len(values), len(l.steps))
	}
	for i := range values {
		t := values[i].Type
		if t == event.ScalarNumber || values[i].Missing() || l.steps[i] == CountValues {
			continue
		}
		return event.Rejectf(event.ReasonBadValue, "%s needs a number, the event has %s (input %d of the aggregate)",
			l.steps[i], withArticle(t), i+1)
	}
	return nil
}

func withArticle(t event.ScalarType) string {
	switch t {
	case event.ScalarText:
		return "a text"
	case event.ScalarBool:
		return "a boolean"
	case event.ScalarJSON:
		return "an object or array"
	case event.ScalarAbsent, event.ScalarNull, event.ScalarNumber:
	}
	return t.String()
}

// Add counts one event. The values must have passed Check. It keeps no memory
// of theirs and allocates nothing as long as numbers fit 64 bits.
func (l *Layout) Add(a *Acc, values []event.Scalar) {
	a.events++
	for i, f := range l.steps {
		v := &values[i]
		if v.Type <= event.ScalarNull { // absent or null
			continue
		}
		c := &a.cells[i]
		switch f {
		case Sum:
			c.num = c.num.Add(v.Num)
			c.n = 1
		case Min:
			if c.n == 0 || v.Num.Cmp(c.num) < 0 {
				c.n, c.num = 1, v.Num
			}
		case Max:
			if c.n == 0 || v.Num.Cmp(c.num) > 0 {
				c.n, c.num = 1, v.Num
			}
		case Avg:
			c.num = c.num.Add(v.Num)
			c.n++
		case CountValues:
			c.n++
		default: // Count has no step
		}
	}
}

// Merge adds src to dst, as if every event of src had been added to dst. It is
// commutative and associative. src stays as it is.
func (l *Layout) Merge(dst, src *Acc) {
	dst.events += src.events
	for i, f := range l.steps {
		d, s := &dst.cells[i], &src.cells[i]
		if s.n == 0 {
			continue
		}
		switch f {
		case Sum:
			d.num = d.num.Add(s.num)
			d.n = 1
		case Min:
			if d.n == 0 || s.num.Cmp(d.num) < 0 {
				*d = *s
			}
		case Max:
			if d.n == 0 || s.num.Cmp(d.num) > 0 {
				*d = *s
			}
		case Avg:
			d.num = d.num.Add(s.num)
			d.n += s.n
		case CountValues:
			d.n += s.n
		default: // Count has no step
		}
	}
}
