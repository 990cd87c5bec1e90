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
	// First is the input of the earliest event that has one: by event time, then
	// by the tie order of events. Of nothing: null.
	First Func = 7
	// Last is the input of the latest such event. Of nothing: null.
	Last Func = 8
	// Any is true where a condition holds for some event. Of nothing: null.
	Any Func = 9
	// All is true where it holds for every event that has one. Of nothing: null.
	All Func = 10
)

var funcNames = [...]string{"unknown", "count", "sum", "min", "max", "avg", "count_values", "first", "last", "any", "all"}

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
	// convert has the converters of First and Last at the places of their steps;
	// ends is how many of these there are.
	convert []Converter
	ends    int
}

// NewLayout builds the layout of functions, in the order in which their values
// are published. First and Last among them publish texts; see NewLayoutOf.
func NewLayout(funcs []Func) *Layout {
	steps := make([]Step, len(funcs))
	for i, f := range funcs {
		steps[i] = Step{Func: f, Convert: textOnly}
	}
	return NewLayoutOf(steps)
}

func textOnly(s event.Scalar) (event.Value, *event.Reject) {
	if s.Type != event.ScalarText {
		return event.Value{}, event.Rejectf(event.ReasonBadValue, "%s is not a text", withArticle(s.Type))
	}
	return event.Value{Text: s.Text}, nil
}

// NewLayoutOf is NewLayout with the converters of First and Last.
func NewLayoutOf(steps []Step) *Layout {
	l := &Layout{}
	for _, s := range steps {
		l.Funcs = append(l.Funcs, s.Func)
		if !s.Func.HasInput() {
			continue
		}
		l.steps, l.convert = append(l.steps, s.Func), append(l.convert, s.Convert)
		if s.Func == First || s.Func == Last {
			l.ends++
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
	ends   []end // of First and Last, in order
}

// cell is the accumulator of one function with an input.
//
//	CountValues: n counts the inputs, num is 0
//	Avg:         n counts the inputs, num is their sum
//	First, Last: n is 1 once there was an input; the value is in ends
//	Any, All:    n is 1 once there was an input; num is 1 for true
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
	if l.ends > 0 {
		a.ends = make([]end, l.ends)
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
	if l.ends > 0 {
		ends := make([]end, n*l.ends)
		for i := range accs {
			accs[i].ends = ends[i*l.ends : (i+1)*l.ends : (i+1)*l.ends]
		}
	}
	return accs
}

// Check says whether Add would accept the values; nil if so. It refuses, with
// ReasonBadValue, what is no number where a number is needed (a text or a boolean
// is never taken for one), what is no condition where one is, and what First and
// Last cannot publish.
func (l *Layout) Check(values []event.Scalar) *event.Reject {
	if len(values) != len(l.steps) {
		return event.Rejectf(event.ReasonBadValue, "%d values for %d aggregate functions that have an input",
			len(values), len(l.steps))
	}
	for i := range values {
		t := values[i].Type
		if t == event.ScalarNumber && l.steps[i] <= CountValues || values[i].Missing() || l.steps[i] == CountValues {
			continue
		}
		if reject := l.refuse(i, &values[i]); reject != nil {
			return reject
		}
	}
	return nil
}

// refuse is Check of a value that is there, and no number for a function of numbers.
func (l *Layout) refuse(i int, v *event.Scalar) *event.Reject {
	needs := "a number"
	switch f := l.steps[i]; f {
	case First, Last:
		if _, reject := l.convert[i](*v); reject != nil {
			return event.Rejectf(event.ReasonBadValue, "%s (input %d of the aggregate, of %s)", reject.Message, i+1, f)
		}
		return nil
	case Any, All:
		if v.Type == event.ScalarBool {
			return nil
		}
		needs = "a condition"
	default:
	}
	return event.Rejectf(event.ReasonBadValue, "%s needs %s, the event has %s (input %d of the aggregate)", l.steps[i], needs, withArticle(v.Type), i+1)
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

// Add counts one event, for all functions but First and Last, which AddEvent
// serves as well. The values must have passed Check. It keeps no memory of theirs
// and allocates nothing as long as numbers fit 64 bits.
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
		case Any:
			c.num = event.FromInt64(max(truth(v.Bool), holds(c)))
			c.n = 1
		case All:
			c.num = event.FromInt64(truth(v.Bool) * (1 - c.n + holds(c)))
			c.n = 1
		default: // Count has no step; First and Last are not for Add
		}
	}
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// holds is 1 where the cell of Any or All has true.
func holds(c *cell) int64 {
	if c.num.IsZero() {
		return 0
	}
	return 1
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
		case Any:
			d.num = event.FromInt64(max(holds(d), holds(s)))
			d.n = 1
		case All:
			d.num = event.FromInt64(holds(s) * (1 - d.n + holds(d)))
			d.n = 1
		default: // Count has no step
		}
	}
	if l.ends > 0 {
		l.mergeEnds(dst, src)
	}
}
