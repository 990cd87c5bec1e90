package processors

import (
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/windows"
)

const parkedVersion = 1

// MaxParked is the number of windows of one task that may wait for a read-back
// before the sources are told to hold; the log then takes the backlog.
const MaxParked = 100_000

// parkedWindow holds the late events of a window whose state is gone: their
// sum, until the window's accumulator has been read back and granted.
type parkedWindow struct {
	number uint64
	// after is the last epoch that can have published the window before.
	after  event.Epoch
	id     string
	window windows.Window
	acc    *windows.Acc
	origin origin
	agg    *aggregator

	dirty  bool
	answer *Answer
}

func parkedKey(number uint64) []byte {
	return wire.AppendOrdered64([]byte{state.KeyParked}, int64(number))
}

func (p *parkedWindow) encode() []byte {
	dst := append([]byte(nil), parkedVersion)
	dst = wire.AppendString(dst, p.agg.agg.StageName())
	dst = wire.AppendString(dst, p.id)
	dst = wire.AppendInt(dst, int64(p.window.Start))
	dst = wire.AppendInt(dst, int64(p.window.End))
	dst = wire.AppendInt(dst, int64(p.after))
	dst = p.origin.append(dst)
	return p.agg.agg.Layout.Append(dst, p.acc)
}

func (p *parkedWindow) readBack() ReadBack {
	a := p.agg.agg
	rb := ReadBack{
		Number: p.number, After: p.after, Type: a.Type, ID: p.id, Aggregate: a.Name,
		Start: p.window.Start, End: p.window.End,
	}
	for _, v := range a.Values {
		rb.Values = append(rb.Values, v.Name)
	}
	return rb
}

// parking numbers the parked windows of a task and knows which are answered.
type parking struct {
	last     uint64 // number of the last window ever parked
	granted  uint64 // every window up to it has been taken up again
	answered uint64 // every window up to it is answered
	waiting  map[uint64]*parkedWindow
	fresh    []*parkedWindow // parked since the last barrier
}

func newParking() *parking { return &parking{waiting: map[uint64]*parkedWindow{}} }

func (k *parking) park(a *aggregator, id string, w windows.Window, after event.Epoch) *parkedWindow {
	k.last++
	p := &parkedWindow{number: k.last, after: after, id: id, window: w, acc: a.agg.Layout.New(), agg: a}
	k.waiting[p.number] = p
	k.fresh = append(k.fresh, p)
	return p
}

func (k *parking) answer(answers []Answer) {
	for i := range answers {
		if p := k.waiting[answers[i].Number]; p != nil && p.answer == nil {
			p.answer = &answers[i]
		}
	}
	for k.answered < k.last {
		p := k.waiting[k.answered+1]
		if p != nil && p.answer == nil {
			return
		}
		k.answered++
	}
}

// grant takes the windows up to number, in order, out of the parking.
func (k *parking) grant(number uint64) ([]*parkedWindow, error) {
	var out []*parkedWindow
	for ; k.granted < number && k.granted < k.last; k.granted++ {
		p := k.waiting[k.granted+1]
		if p == nil {
			continue
		}
		if p.answer == nil {
			return nil, fmt.Errorf("parked window %d was granted before it was answered", p.number)
		}
		delete(k.waiting, p.number)
		out = append(out, p)
	}
	k.answered = max(k.answered, k.granted)
	return out, nil
}

func (k *parking) takeFresh() []ReadBack {
	var out []ReadBack
	for _, p := range k.fresh {
		if p.answer == nil {
			out = append(out, p.readBack())
		}
	}
	k.fresh = nil
	return out
}

func (k *parking) unanswered() []ReadBack {
	var out []ReadBack
	for n := k.answered + 1; n <= k.last; n++ {
		if p := k.waiting[n]; p != nil && p.answer == nil {
			out = append(out, p.readBack())
		}
	}
	return out
}

// restore reads the parked windows of a task from its state.
func (k *parking) restore(r state.Reader, last uint64, find func(name string) *aggregator) error {
	k.last = last
	first := uint64(0)
	err := r.Scan(state.PrefixRange([]byte{state.KeyParked}), func(key, value []byte) (bool, error) {
		p, err := decodeParked(key, value, find)
		if err != nil {
			return false, err
		}
		if first == 0 {
			first = p.number
		}
		k.waiting[p.number] = p
		p.agg.parked[paneID{p.window, p.id}] = p
		return true, nil
	})
	if first == 0 {
		first = last + 1
	}
	k.granted, k.answered = first-1, first-1
	return err
}

func decodeParked(key, b []byte, find func(name string) *aggregator) (*parkedWindow, error) {
	if len(key) != 9 || len(b) == 0 {
		return nil, fmt.Errorf("%w: parked window", event.ErrCorrupt)
	}
	if b[0] != parkedVersion {
		return nil, fmt.Errorf("%w: parked window version %d, this build knows %d", event.ErrVersion, b[0], parkedVersion)
	}
	rd := wire.NewReader(b[1:])
	name := rd.String()
	p := &parkedWindow{
		number: uint64(wire.Ordered64(key[1:])), id: rd.String(),
		window: windows.Window{Start: event.EventTime(rd.Int()), End: event.EventTime(rd.Int())},
		after:  event.Epoch(rd.Int()), origin: readOrigin(rd),
	}
	if err := rd.Err(); err != nil {
		return nil, fmt.Errorf("%w: parked window: %w", event.ErrCorrupt, err)
	}
	if p.agg = find(name); p.agg == nil {
		return nil, fmt.Errorf("%w: late events are parked for aggregate %q, which the mapping no longer has", event.ErrCorrupt, name)
	}
	var err error
	p.acc, err = p.agg.agg.Layout.Decode(b[len(b)-rd.Len():])
	return p, err
}
