// Package timeline is the bitemporal core of the ontology: pure functions from
// what is believed of one fact, and what an epoch says about it, to what is
// believed then and what that closed.
//
// A Line is one fact: one property of one object that events put, or one
// property of one window of one object. Its heads are the assertions that are
// believed now.
//
// Contract
//
//  1. Heads are sorted by ValidFrom and do not overlap. Every head has
//     ValidFrom < ValidTo. A line of puts holds no gap from the first head it
//     was given to the last, except where its caller left heads out that no
//     put reaches (see Put); a window's line has at most one head.
//  2. An assertion that leaves the heads goes to Closed with RecordedTo = R,
//     and whoever takes its place has RecordedFrom = R: recorded intervals
//     neither overlap nor leave a gap. RecordedFrom never falls; an epoch that
//     is older than what is believed is refused (ErrOrder).
//  3. What a reader at a recorded time sees of a line of puts is a function of
//     the set of puts recorded until then, whatever their order and however
//     they were cut into calls, as long as a tie names one event.
//  4. A Closed with RecordedTo = RecordedFrom was superseded within its own
//     epoch: it is kept, and stands outside every answer.
//  5. Nothing here does input or output, reads a clock, or starts a goroutine.
//     A Line has one user at a time.
package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
)

// ErrOrder says that an epoch came whose recorded time lies before that of an
// assertion which it would close. The caller stops: two orders of recorded
// time met, and neither may be rewritten.
var ErrOrder = errors.New("recorded time runs backwards")

// ErrHeads says that the heads which the caller gave do not cover what a put
// needs. It is a bug of the caller.
var ErrHeads = errors.New("the heads given do not cover the put")

// Assertion is one version of one fact, without its recorded end.
type Assertion struct {
	ValidFrom, ValidTo event.EventTime
	Value              event.Value
	// State is the accumulator behind the value of a window, where the value
	// alone does not suffice.
	State        []byte
	RecordedFrom event.RecordedTime
	Epoch        event.Epoch
	Generation   event.Generation
	Cause        event.Cause
	// Reasserted marks the trimmed rest of an assertion whose valid end moved:
	// value, tie, place and lateness are still those of its own event.
	Reasserted bool
	Lateness   int64 // microseconds
	Version    uint32
	Tie        event.Tie
	Place      event.Place
	KeyID      uint32
}

// NoSlot is the slot of a head that nothing is stored for yet.
const NoSlot = -1

// Head is an assertion that is believed now.
type Head struct {
	Assertion
	// Slot is the caller's number for the stored row whose place this head
	// takes, or NoSlot.
	Slot int
	// Dirty: the head differs from what is stored in its slot.
	Dirty bool
}

// Closed is an assertion that is believed no longer.
type Closed struct {
	Assertion
	RecordedTo event.RecordedTime
	// Slot is the stored row that this is, exactly; NoSlot if it was never
	// stored (it was asserted and closed between two readings).
	Slot int
}

// Line is one fact with what is believed of it.
type Line struct {
	Heads  []Head
	Closed []Closed
	// Repeats counts puts that said again what is believed already: same
	// valid time, same tie, same value.
	Repeats int
}

// Put applies the puts of one epoch, which all have the same RecordedFrom R.
// It sorts them by valid time and tie; their ValidTo is ignored.
//
// Of the stored heads it needs those that contain a put's ValidFrom, and for a
// put before all heads the first one; others may be missing.
func (l *Line) Put(puts []Assertion) error {
	slices.SortStableFunc(puts, func(a, b Assertion) int {
		return cmp.Or(cmp.Compare(a.ValidFrom, b.ValidFrom), a.Tie.Compare(b.Tie))
	})
	for i := range puts {
		if err := l.put(puts[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *Line) put(p Assertion) error {
	i := l.Covering(p.ValidFrom)
	if i < 0 {
		p.ValidTo = event.OpenEnd
		if len(l.Heads) > 0 {
			p.ValidTo = l.Heads[0].ValidFrom
		}
		l.Heads = slices.Insert(l.Heads, 0, Head{Assertion: p, Slot: NoSlot, Dirty: true})
		return nil
	}
	h := &l.Heads[i]
	if h.ValidTo <= p.ValidFrom {
		return fmt.Errorf("%w: none contains %s", ErrHeads, p.ValidFrom)
	}
	if h.RecordedFrom > p.RecordedFrom {
		return orderError(h.RecordedFrom, p.RecordedFrom)
	}
	p.ValidTo = h.ValidTo
	if h.ValidFrom == p.ValidFrom {
		l.contest(h, p)
		return nil
	}
	l.trim(h, p.ValidFrom, &p)
	l.Heads = slices.Insert(l.Heads, i+1, Head{Assertion: p, Slot: NoSlot, Dirty: true})
	return nil
}

// Covering gives the last head that begins at t or before, -1 if none does.
func (l *Line) Covering(t event.EventTime) int {
	i, found := slices.BinarySearchFunc(l.Heads, t, func(h Head, t event.EventTime) int {
		return cmp.Compare(h.ValidFrom, t)
	})
	if found {
		return i
	}
	return i - 1
}

// contest decides between a head and a put of the same valid time.
func (l *Line) contest(h *Head, p Assertion) {
	switch c := p.Tie.Compare(h.Tie); {
	case c == 0 && p.Value == h.Value && p.KeyID == h.KeyID:
		l.Repeats++
	case c < 0:
		l.Closed = append(l.Closed, Closed{Assertion: p, RecordedTo: p.RecordedFrom, Slot: NoSlot})
	default:
		l.replace(h, p)
	}
}

// trim ends the valid interval of h at the given instant, because of p.
func (l *Line) trim(h *Head, at event.EventTime, p *Assertion) {
	if h.Dirty && h.RecordedFrom == p.RecordedFrom {
		// Nobody has stored this version: the epoch has not said it yet.
		h.ValidTo = at
		return
	}
	rest := h.Assertion
	rest.Cause = restCause(h, p.RecordedFrom)
	rest.ValidTo = at
	rest.RecordedFrom = p.RecordedFrom
	rest.Epoch = p.Epoch
	rest.Generation = p.Generation
	// A rest within the own epoch of its event is still that event's assertion.
	rest.Reasserted = h.Reasserted || h.RecordedFrom != p.RecordedFrom
	l.replace(h, rest)
}

// restCause says why the trimmed rest of h is asserted again. An end that was
// open has become known, which corrects nothing; an end that was known turns
// out to be wrong. It depends on the belief before the epoch alone, so the
// cuts between calls of one epoch have no say.
func restCause(h *Head, r event.RecordedTime) event.Cause {
	if h.RecordedFrom == r || h.ValidTo == event.OpenEnd {
		return h.Cause
	}
	return event.CauseCorrection
}

// replace closes what h holds at a.RecordedFrom and puts a in its place.
func (l *Line) replace(h *Head, a Assertion) {
	c := Closed{Assertion: h.Assertion, RecordedTo: a.RecordedFrom, Slot: NoSlot}
	if !h.Dirty {
		c.Slot = h.Slot
	}
	l.Closed = append(l.Closed, c)
	h.Assertion = a
	h.Dirty = true
}

// Window applies one absolute result of a window. The line holds this window
// only. Every result is kept, an equal one too.
func (l *Line) Window(a Assertion) error {
	if len(l.Heads) == 0 {
		l.Heads = append(l.Heads, Head{Assertion: a, Slot: NoSlot, Dirty: true})
		return nil
	}
	h := &l.Heads[0]
	if h.RecordedFrom > a.RecordedFrom {
		return orderError(h.RecordedFrom, a.RecordedFrom)
	}
	l.replace(h, a)
	return nil
}

func orderError(believed, came event.RecordedTime) error {
	return fmt.Errorf("%w: believed since %s, the epoch's is %s", ErrOrder, believed, came)
}
