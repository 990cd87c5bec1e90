package windows

import (
	"fmt"
	"math"
	"strconv"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
)

const (
	// accVersion is the first byte of an encoded Acc.
	accVersion = 1
	// avgVersion is the first byte of the state that is published with an avg.
	avgVersion = 1
)

// Output is one published value with what is needed to go on from it.
type Output struct {
	Value event.Value
	// State is the sum and count behind an avg, and the place of a first or a
	// last; empty for the other functions, whose value suffices.
	State []byte
}

// Append appends the versioned encoding of a:
//
//	version (1 byte), number of functions (varint), the functions (1 byte each),
//	events (varint), then for each function with an input
//	  CountValues:   n (varint)
//	  Avg:           n (varint), and where n > 0 the sum
//	  Sum, Min, Max: n (varint, 0 or 1), and where n = 1 the value
//	  Any, All:      n (varint, 0 or 1), and where n = 1 1 for true and 0 for false
//	  First, Last:   n (varint, 0 or 1), and where n = 1 the time and the tie of
//	                 the event, and the value as a text
//
// Accumulators that counted the same events have the same bytes, in whatever
// order they did.
func (l *Layout) Append(dst []byte, a *Acc) []byte {
	dst = append(dst, accVersion)
	dst = wire.AppendUint(dst, uint64(len(l.Funcs)))
	for _, f := range l.Funcs {
		dst = append(dst, byte(f))
	}
	dst = wire.AppendUint(dst, uint64(a.events))
	end := 0
	for i, f := range l.steps {
		c := &a.cells[i]
		dst = wire.AppendUint(dst, uint64(c.n))
		switch {
		case f == First || f == Last:
			if c.n > 0 {
				dst = appendEnd(dst, &a.ends[end])
			}
			end++
		case c.n > 0 && f != CountValues:
			dst = event.AppendDecimal(dst, c.num)
		}
	}
	return dst
}

// Decode reads what Append wrote. The error wraps event.ErrVersion for a
// version that this build does not know, ErrLayout for an accumulator of other
// functions, event.ErrCorrupt for bytes that are none. It takes no more memory
// than the input's length accounts for.
func (l *Layout) Decode(b []byte) (*Acc, error) {
	a := l.New()
	if err := l.DecodeInto(a, b); err != nil {
		return nil, err
	}
	return a, nil
}

// DecodeInto is Decode into a pane that this layout has made; what that held
// is forgotten. After an error it is not to be used before another DecodeInto.
func (l *Layout) DecodeInto(a *Acc, b []byte) error {
	clear(a.cells)
	clear(a.ends)
	rd := wire.NewReader(b)
	if v := rd.Byte(); rd.Err() == nil && v != accVersion {
		return fmt.Errorf("%w: accumulator version %d, this build knows %d", event.ErrVersion, v, accVersion)
	}
	if err := l.readFuncs(rd); err != nil {
		return err
	}
	var err error
	if a.events, err = readCount(rd); err != nil {
		return err
	}
	end := 0
	for i, f := range l.steps {
		if err := readCell(rd, f, &a.cells[i]); err != nil {
			return fmt.Errorf("accumulator of %s: %w", f, err)
		}
		if f == First || f == Last {
			if a.cells[i].n > 0 {
				a.ends[end] = readEnd(rd)
			}
			end++
		}
	}
	if err := rd.Close(); err != nil {
		return fmt.Errorf("%w: accumulator: %w", event.ErrCorrupt, err)
	}
	for i, f := range l.steps {
		if n := a.cells[i].n; n > a.events {
			return fmt.Errorf("%w: accumulator of %s counts %d of %d events", event.ErrCorrupt, f, n, a.events)
		}
	}
	return nil
}

// readFuncs reads the functions that the accumulator was written for.
func (l *Layout) readFuncs(rd *wire.Reader) error {
	n := rd.Count()
	if err := rd.Err(); err != nil {
		return fmt.Errorf("%w: accumulator: %w", event.ErrCorrupt, err)
	}
	if n != len(l.Funcs) {
		return fmt.Errorf("%w: for %d, not for %d", ErrLayout, n, len(l.Funcs))
	}
	for i, want := range l.Funcs {
		if f := Func(rd.Byte()); f != want {
			return fmt.Errorf("%w: function %d was %s and is %s", ErrLayout, i+1, f, want)
		}
	}
	return nil
}

func readCell(rd *wire.Reader, f Func, c *cell) (err error) {
	if c.n, err = readCount(rd); err != nil || c.n == 0 || f == CountValues {
		return err
	}
	if f != Avg && c.n != 1 {
		return fmt.Errorf("%w: %d values where there can be one", event.ErrCorrupt, c.n)
	}
	switch f {
	case First, Last:
		return nil // the rest stands behind it
	case Any, All:
		if c.num, err = event.ReadDecimal(rd); err == nil && !c.num.IsZero() && !c.num.Equal(event.FromInt64(1)) {
			err = fmt.Errorf("%w: %s for true or false", event.ErrCorrupt, c.num)
		}
		return err
	default:
	}
	c.num, err = event.ReadDecimal(rd)
	return err
}

// readCount reads a number of events. The reader's own errors come out where
// it is closed.
func readCount(rd *wire.Reader) (int64, error) {
	n := rd.Uint()
	if n > math.MaxInt64 {
		return 0, fmt.Errorf("%w: a count of %d", event.ErrCorrupt, n)
	}
	return int64(n), nil
}

// Results gives the published values, one for each function in order.
func (l *Layout) Results(a *Acc) []Output { return l.AppendResults(nil, a) }

// AppendResults appends what Results gives. Their texts share one allocation.
func (l *Layout) AppendResults(dst []Output, a *Acc) []Output {
	texts, ends := make([]byte, 0, 96), make([]int, 0, 16)
	first, next, end := len(dst), 0, 0
	for _, f := range l.Funcs {
		var out Output
		c := a.cellOf(f, &next)
		if f == First || f == Last {
			end++
		}
		switch {
		case f == Count:
			texts = strconv.AppendInt(texts, a.events, 10)
		case f == CountValues:
			texts = strconv.AppendInt(texts, c.n, 10)
		case c.n == 0:
			out.Value.Null = true
		case f == Avg:
			texts = c.num.Div(c.n).AppendText(texts)
			out.State = appendAvg(nil, c)
		case f == First || f == Last:
			texts = append(texts, a.ends[end-1].text...)
			out.State = appendEndState(&a.ends[end-1])
		case f == Any || f == All:
			texts = strconv.AppendBool(texts, holds(c) == 1)
		default:
			texts = c.num.AppendText(texts)
		}
		dst, ends = append(dst, out), append(ends, len(texts))
	}
	all, from := string(texts), 0
	for i, end := range ends {
		dst[first+i].Value.Text = all[from:end]
		from = end
	}
	return dst
}

// cellOf gives the cell of the next function, nil for Count, which has none.
func (a *Acc) cellOf(f Func, next *int) *cell {
	if f == Count {
		return nil
	}
	*next++
	return &a.cells[*next-1]
}

// Restore rebuilds a pane from what was published, such that going on from it
// gives what going on from the original would have given. The error wraps
// event.ErrVersion, ErrLayout (another number of values) or event.ErrCorrupt.
func (l *Layout) Restore(outputs []Output) (*Acc, error) {
	if len(outputs) != len(l.Funcs) {
		return nil, fmt.Errorf("%w: %d published values for %d functions", ErrLayout, len(outputs), len(l.Funcs))
	}
	a := l.New()
	next, end := 0, 0
	events, proven := int64(-1), int64(0)
	for i := range outputs {
		var c cell
		f := l.Funcs[i]
		var err error
		if f == First || f == Last {
			err = restoreEnd(&c, &a.ends[end], &outputs[i])
			end++
		} else {
			err = restoreCell(&c, f, &outputs[i])
		}
		if err != nil {
			return nil, fmt.Errorf("published %s: %w", f, err)
		}
		if f == Count {
			if events >= 0 && events != c.n {
				return nil, fmt.Errorf("%w: two counts of one window, %d and %d", event.ErrCorrupt, events, c.n)
			}
			events = c.n
			continue
		}
		a.cells[next] = c
		next++
		proven = max(proven, c.n)
	}
	if events >= 0 && proven > events {
		return nil, fmt.Errorf("%w: %d events published with %d values", event.ErrCorrupt, events, proven)
	}
	a.events = max(events, proven)
	return a, nil
}

// restoreCell rebuilds one cell; that of Count holds the events.
func restoreCell(c *cell, f Func, o *Output) error {
	v := o.Value
	if f != Avg && len(o.State) != 0 {
		return fmt.Errorf("%w: a state of %d bytes where the value suffices", event.ErrCorrupt, len(o.State))
	}
	switch f {
	case Count, CountValues:
		d, err := event.ParseCanonical(v.Text)
		n, exact := d.Int64()
		if v.Null || err != nil || !exact || n < 0 {
			return fmt.Errorf("%w: %.40q is not a count", event.ErrCorrupt, v)
		}
		c.n = n
	case Sum, Min, Max:
		if v.Null {
			return nil
		}
		d, err := event.ParseCanonical(v.Text)
		if err != nil {
			return fmt.Errorf("%w: %w", event.ErrCorrupt, err)
		}
		c.n, c.num = 1, d
	case Avg:
		return restoreAvg(c, o)
	case Any, All:
		if v.Null {
			return nil
		}
		if v.Text != "true" && v.Text != "false" {
			return fmt.Errorf("%w: %.40q is neither true nor false", event.ErrCorrupt, v)
		}
		c.n, c.num = 1, event.FromInt64(truth(v.Text == "true"))
	default:
		return fmt.Errorf("%w: unknown function", ErrLayout)
	}
	return nil
}

func appendAvg(dst []byte, c *cell) []byte {
	dst = append(dst, avgVersion)
	dst = wire.AppendUint(dst, uint64(c.n))
	return event.AppendDecimal(dst, c.num)
}

func restoreAvg(c *cell, o *Output) error {
	if o.Value.Null {
		if len(o.State) != 0 {
			return fmt.Errorf("%w: a state of %d bytes without a value", event.ErrCorrupt, len(o.State))
		}
		return nil
	}
	rd := wire.NewReader(o.State)
	if v := rd.Byte(); rd.Err() == nil && v != avgVersion {
		return fmt.Errorf("%w: version %d of its state, this build knows %d", event.ErrVersion, v, avgVersion)
	}
	var err error
	if c.n, err = readCount(rd); err != nil {
		return err
	}
	if c.num, err = event.ReadDecimal(rd); err != nil {
		return err
	}
	if err := rd.Close(); err != nil {
		return fmt.Errorf("%w: %w", event.ErrCorrupt, err)
	}
	if c.n == 0 || c.num.Div(c.n).String() != o.Value.Text {
		return fmt.Errorf("%w: %.40q is not what its sum and count give", event.ErrCorrupt, o.Value)
	}
	return nil
}
