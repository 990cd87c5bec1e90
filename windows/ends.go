package windows

import (
	"fmt"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
)

// endVersion is the first byte of the state that is published with a first or a
// last.
const endVersion = 1

// Converter gives the published text of a function's input, or why it has none.
// It is pure, and is not asked for what is missing.
type Converter func(event.Scalar) (event.Value, *event.Reject)

// Step is one function of a layout.
type Step struct {
	Func Func
	// Convert is for First and Last, which publish their input as it is.
	Convert Converter
}

// end is the accumulator of First and Last: the value, and where it stands. Time
// decides, and the tie order between events of one time, so that neither depends
// on the order in which events come.
type end struct {
	at   event.EventTime
	tie  event.Tie
	text string
}

// before says whether an event stands before the one of e.
func (e *end) before(at event.EventTime, tie event.Tie) bool {
	if at != e.at {
		return at < e.at
	}
	return tie.Compare(e.tie) < 0
}

// takes says whether an event takes the place of what the cell has.
func (e *end) takes(f Func, c *cell, at event.EventTime, tie event.Tie) bool {
	switch {
	case c.n == 0:
		return true
	case f == First:
		return e.before(at, tie)
	}
	// The same event again is none: an aggregate counts it once.
	return !e.before(at, tie)
}

// AddEvent is Add for an event whose place decides: what First and Last need.
// The values must have passed Check.
func (l *Layout) AddEvent(a *Acc, c *event.Contribution) {
	l.Add(a, c.Values)
	if l.ends == 0 {
		return
	}
	next := 0
	for i, f := range l.steps {
		if f != First && f != Last {
			continue
		}
		e := &a.ends[next]
		next++
		v := &c.Values[i]
		if v.Missing() || !e.takes(f, &a.cells[i], c.Time, c.Tie) {
			continue
		}
		text, reject := l.convert[i](*v)
		if reject != nil {
			continue // it has not passed Check
		}
		a.cells[i].n = 1
		e.at, e.tie, e.text = c.Time, c.Tie, strings.Clone(text.Text) // it may alias the record
	}
}

// mergeEnds is Merge for First and Last.
func (l *Layout) mergeEnds(dst, src *Acc) {
	next := 0
	for i, f := range l.steps {
		if f != First && f != Last {
			continue
		}
		d, s := &dst.ends[next], &src.ends[next]
		next++
		if src.cells[i].n > 0 && d.takes(f, &dst.cells[i], s.at, s.tie) {
			*d = *s
			dst.cells[i].n = 1
		}
	}
}

func appendEnd(dst []byte, e *end) []byte {
	dst = wire.AppendInt(dst, int64(e.at))
	dst = event.AppendTie(dst, e.tie)
	return wire.AppendString(dst, e.text)
}

func readEnd(rd *wire.Reader) end {
	return end{at: event.EventTime(rd.Int()), tie: event.ReadTie(rd), text: rd.String()}
}

// appendEndState is what is published beside the value, to go on from it.
func appendEndState(e *end) []byte {
	dst := wire.AppendInt([]byte{endVersion}, int64(e.at))
	return event.AppendTie(dst, e.tie)
}

func restoreEnd(c *cell, e *end, o *Output) error {
	if o.Value.Null {
		if len(o.State) != 0 {
			return fmt.Errorf("%w: a state of %d bytes without a value", event.ErrCorrupt, len(o.State))
		}
		return nil
	}
	rd := wire.NewReader(o.State)
	if v := rd.Byte(); rd.Err() == nil && v != endVersion {
		return fmt.Errorf("%w: version %d of its state, this build knows %d", event.ErrVersion, v, endVersion)
	}
	c.n = 1
	e.at, e.tie, e.text = event.EventTime(rd.Int()), event.ReadTie(rd), o.Value.Text
	if err := rd.Close(); err != nil {
		return fmt.Errorf("%w: %w", event.ErrCorrupt, err)
	}
	return nil
}
