package processors

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/windows"
)

const parkedVersion = 1

// MaxParked is the number of windows of one task that may wait for a read-back
// before the sources are told to hold; the log then takes the backlog.
const MaxParked = 100_000

// parkedWindow holds the events of one epoch that were late for a window whose
// state is gone: their sum, until the window's accumulator has been read back
// and the epoch granted.
//
// A grant is for whole epochs, in all tasks of the pipeline at once, so that
// all that one late event corrects is corrected at one recorded time.
type parkedWindow struct {
	number uint64
	epoch  event.Epoch
	// after is the last epoch that can have published the window before: the
	// read-back is final when the sink has applied it.
	after  event.Epoch
	id     string
	window windows.Window
	acc    *windows.Acc
	origin origin
	agg    *aggregator
	// base is the window as published: read back, or, for a window that was
	// taken up while later events waited, what was published then.
	base *base
	// next holds the events of a later epoch for the same window. Only the
	// first of such a chain is read back; the others build on it.
	next *parkedWindow
}

// base is a window's last published version.
type base struct {
	version uint32
	acc     *windows.Acc
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
	dst = wire.AppendInt(dst, int64(p.epoch))
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

// parking knows the parked windows of a task and which are answered.
type parking struct {
	last  uint64 // number of the last window ever parked
	heads map[uint64]*parkedWindow
	// waiting is the number of windows parked, those behind a head counted.
	waiting int
	// unanswered counts the heads without an answer by the epoch that parked them.
	unanswered map[event.Epoch]int
	fresh      []*parkedWindow // heads parked since the last barrier
}

func newParking() *parking {
	return &parking{heads: map[uint64]*parkedWindow{}, unanswered: map[event.Epoch]int{}}
}

// park adds a window that epoch n found gone, behind what waits for it already.
func (k *parking) park(a *aggregator, id string, w windows.Window, n event.Epoch, before *parkedWindow) *parkedWindow {
	k.last++
	p := &parkedWindow{number: k.last, epoch: n, after: n - 1, id: id, window: w, acc: a.agg.Layout.New(), agg: a}
	k.add(p, before)
	if before == nil {
		k.fresh = append(k.fresh, p)
	}
	return p
}

func (k *parking) add(p, before *parkedWindow) {
	k.waiting++
	if before != nil {
		before.next = p
		return
	}
	k.heads[p.number] = p
	k.unanswered[p.epoch]++
}

func (k *parking) answer(answers []Answer) error {
	for i := range answers {
		p := k.heads[answers[i].Number]
		if p == nil || p.base != nil {
			continue
		}
		var err error
		if p.base, err = p.agg.base(p, &answers[i]); err != nil {
			return err
		}
		k.settled(p.epoch)
	}
	return nil
}

func (k *parking) settled(n event.Epoch) {
	k.unanswered[n]--
	if k.unanswered[n] == 0 {
		delete(k.unanswered, n)
	}
}

// answered is the epoch up to which everything parked is answered.
func (k *parking) answered() event.Epoch {
	upTo := event.Epoch(math.MaxInt64)
	for n := range k.unanswered {
		upTo = min(upTo, n-1)
	}
	return upTo
}

// take takes the events parked up to the granted epoch out of a chain: their
// sum, whom it is owed to, the numbers to forget, and what remains.
func (k *parking) take(head *parkedWindow, granted event.Epoch) (sum *parkedWindow, numbers []uint64, rest *parkedWindow) {
	sum = &parkedWindow{id: head.id, window: head.window, acc: head.acc, origin: head.origin, base: head.base}
	numbers = append(numbers, head.number)
	rest = head.next
	for rest != nil && rest.epoch <= granted {
		head.agg.agg.Layout.Merge(sum.acc, rest.acc)
		sum.origin.merge(&rest.origin)
		numbers = append(numbers, rest.number)
		rest = rest.next
	}
	k.waiting -= len(numbers)
	delete(k.heads, head.number)
	return sum, numbers, rest
}

// resume makes the rest of a chain its head: the window as published at
// barrier n is what it builds on.
func (k *parking) resume(p *parkedWindow, n event.Epoch, b *base) {
	p.base, p.after = b, n
	k.heads[p.number] = p
}

func (k *parking) takeFresh() []ReadBack {
	var out []ReadBack
	for _, p := range k.fresh {
		if p.base == nil {
			out = append(out, p.readBack())
		}
	}
	k.fresh = nil
	return out
}

func (k *parking) ask() []ReadBack {
	var out []ReadBack
	for _, n := range slices.Sorted(maps.Keys(k.heads)) {
		if p := k.heads[n]; p.base == nil {
			out = append(out, p.readBack())
		}
	}
	return out
}

// restore reads the parked windows of a task from its state.
func (k *parking) restore(r state.Reader, last uint64, find func(name string) *aggregator) error {
	k.last = last
	tails := map[*parkedWindow]*parkedWindow{} // the last of each chain by its head
	return r.Scan(state.PrefixRange([]byte{state.KeyParked}), func(key, value []byte) (bool, error) {
		p, err := decodeParked(key, value, find)
		if err != nil {
			return false, err
		}
		id := paneID{p.window, p.id}
		head := p.agg.parked[id]
		k.add(p, tails[head])
		if head == nil {
			head = p
			p.agg.parked[id] = p
		}
		tails[head] = p
		return true, nil
	})
}

// last is the end of the chain that p heads.
func (p *parkedWindow) last() *parkedWindow {
	for p != nil && p.next != nil {
		p = p.next
	}
	return p
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
		epoch:  event.Epoch(rd.Int()), after: event.Epoch(rd.Int()), origin: readOrigin(rd),
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
