package processors

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/windows"
)

type paneID struct {
	window windows.Window
	id     string
}

// aggregator counts the contributions to one aggregate in one task.
//
// Invariants, between barriers, for announced watermark W:
//
//  1. a pane of a window that ends at or before W - lateness is neither in the
//     cache nor in the store;
//  2. a dirty pane is in the cache;
//  3. panes in the cache equal what state.Reader shows, unless dirty.
//
// An aggregate without a window has one pane for each object. It never closes
// and nothing is late for it: each barrier publishes the next version of the
// panes that have changed.
type aggregator struct {
	agg      *mapping.Aggregate
	total    bool // without a window
	keys     paneKeys
	state    state.Reader
	counters *Counters
	parking  *parking

	watermark event.Watermark
	epoch     event.Epoch // the epoch under way
	buckets   map[windows.Window]*bucket
	last      *bucket
	cached    int
	// mostCached bounds the decoded panes that are kept across barriers.
	mostCached int
	dirty      []*pane
	corrected  []*pane
	// parked holds the first of each chain of parked windows; late are those
	// that this epoch has parked.
	parked  map[paneID]*parkedWindow
	late    []*parkedWindow
	scratch []windows.Window
}

func newAggregator(a *mapping.Aggregate, c *TaskConfig, n *Counters, k *parking) *aggregator {
	return &aggregator{
		agg: a, total: windows.IsWhole(a.Assigner), keys: newPaneKeys(a), state: c.State, counters: n, parking: k,
		watermark: event.WatermarkUnknown, mostCached: 2 * c.BudgetBytes / paneBytes,
		buckets: map[windows.Window]*bucket{}, parked: map[paneID]*parkedWindow{},
	}
}

// add counts one contribution; its texts may alias memory of the record.
func (a *aggregator) add(c *event.Contribution) error {
	a.scratch = a.agg.Assigner.Assign(c.Time, a.scratch[:0])
	for _, w := range a.scratch {
		if err := a.addTo(w, c); err != nil {
			return err
		}
	}
	return nil
}

func (a *aggregator) addTo(w windows.Window, c *event.Contribution) error {
	timing := windows.OnTime
	if !a.total {
		timing = windows.Classify(w, a.watermark, a.agg.Stream.AllowedLateness)
	}
	if timing == windows.Gone {
		a.counters.Late++
		a.park(w, c)
		return nil
	}
	p, err := a.pane(w, c.ID)
	if err != nil {
		return err
	}
	closed := timing == windows.Late
	if closed && p.shared {
		p = p.bucket.replace(a.agg.Layout, p)
	}
	a.agg.Layout.AddEvent(p.acc, c)
	if !closed {
		a.counters.OnTime++
		p.origin.observe(c, 0)
		if a.total {
			p.observeFresh(c, 0)
		}
	} else {
		a.counters.Corrections++
		late := lateness(a.watermark, c.Time)
		p.origin.observe(c, late)
		p.observeFresh(c, late)
	}
	a.touch(p, closed)
	return nil
}

func (a *aggregator) touch(p *pane, closed bool) {
	if !p.dirty {
		p.dirty = true
		a.dirty = append(a.dirty, p)
	}
	if closed && !p.corrected {
		p.corrected = true
		a.corrected = append(a.corrected, p)
	}
}

func (a *aggregator) park(w windows.Window, c *event.Contribution) {
	pid := paneID{w, c.ID}
	p := a.parked[pid].last()
	if p == nil || p.epoch != a.epoch {
		pid.id = strings.Clone(c.ID)
		p = a.parking.park(a, pid.id, w, a.epoch, p)
		if a.parked[pid] == nil {
			a.parked[pid] = p
		}
		a.late = append(a.late, p)
	}
	a.agg.Layout.AddEvent(p.acc, c)
	p.origin.observe(c, lateness(a.watermark, c.Time))
}

// lateness says how far t lies behind the watermark; at the end of the input
// there is no distance to speak of.
func lateness(w event.Watermark, t event.EventTime) int64 {
	if w == event.WatermarkEnd || w == event.WatermarkUnknown {
		return 0
	}
	return max(0, event.SaturatingAdd(int64(w), -int64(t)))
}

// pane returns the pane of a window that is not gone, making it if need be.
func (a *aggregator) pane(w windows.Window, id string) (*pane, error) {
	b := a.last
	if b == nil || b.window != w {
		var err error
		if b, err = a.bucket(w); err != nil {
			return nil, err
		}
		a.last = b
	}
	if p := b.panes[id]; p != nil {
		return p, nil
	}
	a.cached++
	if b.complete {
		return b.add(a.agg.Layout, id), nil
	}
	return a.load(b, id)
}

// load makes a pane that the store may have.
func (a *aggregator) load(b *bucket, id string) (*pane, error) {
	raw, ok, err := a.state.Get(a.keys.key(b.window, id))
	if err != nil {
		return nil, err
	}
	p := b.add(a.agg.Layout, id)
	if !ok {
		return p, nil
	}
	return p, a.decode(p, raw, b.window, id)
}

func (a *aggregator) decode(p *pane, raw []byte, w windows.Window, id string) error {
	if err := p.decode(a.agg.Layout, raw); err != nil {
		return fmt.Errorf("aggregate %s, object %q, window from %s: %w", a.agg.StageName(), id, w.Start, err)
	}
	return nil
}

func (a *aggregator) bucket(w windows.Window) (*bucket, error) {
	if b := a.buckets[w]; b != nil {
		return b, nil
	}
	b := &bucket{window: w, panes: map[string]*pane{}, complete: true}
	err := a.state.Scan(a.keys.window(w), func(_, _ []byte) (bool, error) {
		b.complete = false
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	a.buckets[w] = b
	return b, nil
}

// closing is what one aggregator does at a barrier.
type closing struct {
	changes []state.Change
	// results are the corrections; windows that close are streamed.
	results []event.Result
	expired []state.Range
	// closeRange holds the panes of the windows that close. Where memory has all
	// of a window they are taken from there: inMemory, in the order of the keys.
	closeRange state.Range
	closes     bool
	inMemory   []closedWindow
}

// closedWindow are all panes of a window at the barrier that closes it. Nobody
// changes them any more, see pane.shared.
type closedWindow struct {
	window windows.Window
	panes  []*pane
}

func (a *aggregator) barrier(b *Barrier) (*closing, error) {
	next := max(a.watermark, b.Watermark(a.agg.Stream.Name))
	c := &closing{}
	if err := a.takeUp(c, b); err != nil {
		return nil, err
	}
	if err := a.correct(c, b); err != nil {
		return nil, err
	}
	if a.total {
		a.publish(c, b)
	}
	a.write(c)
	for _, p := range a.late {
		c.changes = append(c.changes, state.Change{Key: parkedKey(p.number), Value: p.encode()})
	}
	a.late = nil
	if !a.total {
		c.closeRange, c.closes = a.keys.endingIn(a.watermark, next)
		a.share(c, next)
		a.expire(c, next)
	}
	a.watermark, a.epoch = next, b.Epoch+1
	a.evict()
	return c, nil
}

// write gives the entries of the panes that the epoch has changed.
func (a *aggregator) write(c *closing) {
	var out arena
	c.changes = slices.Grow(c.changes, len(a.dirty))
	for _, p := range a.dirty {
		p.dirty = false
		c.changes = append(c.changes, state.Change{
			Key:   out.keep(a.keys.append(out.room(), p.bucket.window, p.id)),
			Value: out.keep(appendPane(out.room(), a.agg.Layout, p)),
		})
	}
	if cap(a.dirty) > 4*len(a.dirty) {
		a.dirty = nil // one large epoch must not hold its memory for ever
	}
	clear(a.dirty)
	a.dirty = a.dirty[:0]
}

// takeUp corrects the windows that were read back and are granted now.
func (a *aggregator) takeUp(c *closing, b *Barrier) error {
	granted := []paneID{}
	for id, p := range a.parked {
		if p.epoch <= b.Granted {
			granted = append(granted, id)
		}
	}
	slices.SortFunc(granted, comparePaneIDs)
	for _, id := range granted {
		head := a.parked[id]
		if head.base == nil {
			return fmt.Errorf("aggregate %s, object %q, window from %s: granted before it was answered", a.agg.StageName(), id.id, id.window.Start)
		}
		sum, numbers, rest := a.parking.take(head, b.Granted)
		for _, n := range numbers {
			c.changes = append(c.changes, state.Change{Key: parkedKey(n)})
		}
		now := &base{version: sum.base.version + 1, acc: sum.base.acc}
		a.agg.Layout.Merge(now.acc, sum.acc)
		c.results = append(c.results, a.result(b, id.window, id.id, now.acc, now.version, event.CauseLateCorrection, &sum.origin))
		if rest == nil {
			delete(a.parked, id)
			continue
		}
		a.parked[id] = rest
		a.parking.resume(rest, b.Epoch, now)
		a.late = append(a.late, rest)
	}
	return nil
}

// base takes up a window as the ontology has it: empty where it knows none.
func (a *aggregator) base(p *parkedWindow, ans *Answer) (*base, error) {
	if !ans.Found {
		return &base{version: ans.Version, acc: a.agg.Layout.New()}, nil
	}
	acc, err := a.agg.Layout.Restore(a.outputs(ans))
	if err != nil {
		return nil, fmt.Errorf("aggregate %s, object %q, window from %s: what the ontology holds cannot be taken up again: %w",
			a.agg.StageName(), p.id, p.window.Start, err)
	}
	return &base{version: ans.Version, acc: acc}, nil
}

// outputs orders the answer's values as the layout wants them; what is not
// believed is null.
func (a *aggregator) outputs(ans *Answer) []windows.Output {
	out := make([]windows.Output, len(a.agg.Values))
	for i, v := range a.agg.Values {
		out[i].Value.Null = true
		for _, p := range ans.Properties {
			if p.Name == v.Name {
				out[i] = windows.Output{Value: p.Value, State: p.State}
			}
		}
	}
	return out
}

// correct publishes the next version of the closed windows that late events
// within the allowed lateness have changed.
func (a *aggregator) correct(c *closing, b *Barrier) error {
	slices.SortFunc(a.corrected, comparePanes)
	for _, p := range a.corrected {
		published, err := a.published(p)
		if err != nil {
			return err
		}
		p.version = published + 1
		p.corrected = false
		c.results = append(c.results, a.freshResult(b, p, event.CauseCorrection))
	}
	clear(a.corrected)
	a.corrected = a.corrected[:0]
	return nil
}

// publish publishes the next version of what has changed in this epoch.
func (a *aggregator) publish(c *closing, b *Barrier) {
	slices.SortFunc(a.dirty, comparePanes)
	for _, p := range a.dirty {
		p.version++
		c.results = append(c.results, a.freshResult(b, p, event.CauseOnTime))
	}
}

// freshResult is a pane's next result, owed to what this epoch has added.
func (a *aggregator) freshResult(b *Barrier, p *pane, cause event.Cause) event.Result {
	r := a.result(b, p.bucket.window, p.id, p.acc, p.version, cause, p.fresh)
	*p.fresh = origin{}
	return r
}

// published is the version that a closed window has published so far: what its
// pane says, or 1 where the window closed on time, or 0 where it never was
// before this epoch. The store shows which: it has the state at the last barrier.
func (a *aggregator) published(p *pane) (uint32, error) {
	if p.version > 0 {
		return p.version, nil
	}
	_, existed, err := a.state.Get(a.keys.key(p.bucket.window, p.id))
	if err != nil || !existed {
		return 0, err
	}
	return 1, nil
}

func comparePanes(x, y *pane) int {
	return comparePaneIDs(paneID{x.bucket.window, x.id}, paneID{y.bucket.window, y.id})
}

func comparePaneIDs(x, y paneID) int {
	if d := cmp.Compare(x.window.End, y.window.End); d != 0 {
		return d
	}
	if d := cmp.Compare(x.window.Start, y.window.Start); d != 0 {
		return d
	}
	return strings.Compare(x.id, y.id)
}

// share hands over the panes of the windows that close, where memory has them all.
func (a *aggregator) share(c *closing, next event.Watermark) {
	for w, b := range a.buckets {
		if !b.complete || !c.closes || !next.Passed(w.End) || a.watermark.Passed(w.End) {
			continue
		}
		closed := closedWindow{window: w, panes: make([]*pane, 0, len(b.panes))}
		for _, p := range b.panes {
			p.shared = true
			closed.panes = append(closed.panes, p)
		}
		c.inMemory = append(c.inMemory, closed)
	}
	slices.SortFunc(c.inMemory, func(x, y closedWindow) int {
		return comparePaneIDs(paneID{window: x.window}, paneID{window: y.window})
	})
}

// expire drops the windows whose allowed lateness has passed.
func (a *aggregator) expire(c *closing, next event.Watermark) {
	limit := a.expiry(next)
	r, some := a.keys.endingIn(a.expiry(a.watermark), limit)
	if !some {
		return
	}
	c.expired = append(c.expired, r)
	for w, b := range a.buckets {
		if limit.Passed(w.End) {
			a.cached -= len(b.panes)
			delete(a.buckets, w)
		}
	}
	a.last = nil
}

// expiry is the instant up to which windows have expired by watermark w.
func (a *aggregator) expiry(w event.Watermark) event.Watermark {
	if w == event.WatermarkUnknown || w == event.WatermarkEnd {
		return w
	}
	return event.Watermark(event.SaturatingAdd(int64(w), -a.agg.Stream.AllowedLateness))
}

// evict empties the cache when it is too large. What it held has been handed
// over, and state.Reader shows that.
func (a *aggregator) evict() {
	if a.cached <= a.mostCached {
		return
	}
	a.buckets, a.last, a.cached = map[windows.Window]*bucket{}, nil, 0
}

// stream passes on the results of the windows that close, in key order.
func (a *aggregator) stream(c *closing, b *Barrier, at state.Reader, emit func(*event.Result) error) error {
	for i := range c.results {
		if err := emit(&c.results[i]); err != nil {
			return err
		}
	}
	if !c.closes {
		return nil
	}
	out := closedRows{aggregator: a, barrier: b, emit: emit}
	rest := c.closeRange
	for i := range c.inMemory {
		w := &c.inMemory[i]
		own := a.keys.window(w.window)
		if err := out.stored(at, state.Range{From: rest.From, To: own.From}); err != nil {
			return err
		}
		rest.From = own.To
		slices.SortFunc(w.panes, func(x, y *pane) int { return strings.Compare(x.id, y.id) })
		for _, p := range w.panes {
			if err := out.row(w.window, p.id, p); err != nil {
				return err
			}
		}
	}
	return out.stored(at, rest)
}

// closedRows writes the results of windows that close. Its buffers serve every row.
type closedRows struct {
	aggregator *aggregator
	barrier    *Barrier
	emit       func(*event.Result) error
	result     event.Result
	outs       []windows.Output
}

func (c *closedRows) row(w windows.Window, id string, p *pane) error {
	a := c.aggregator
	c.outs = a.agg.Layout.AppendResults(c.outs[:0], p.acc)
	a.fill(&c.result, c.barrier, w, id, c.outs, 1, event.CauseOnTime, &p.origin)
	return c.emit(&c.result)
}

// stored writes those of the windows that the store has in a range.
func (c *closedRows) stored(at state.Reader, r state.Range) error {
	a := c.aggregator
	p := pane{acc: a.agg.Layout.New()}
	return at.Scan(r, func(key, value []byte) (bool, error) {
		w, id, err := a.keys.parse(key)
		if err != nil {
			return false, err
		}
		if err := a.decode(&p, value, w, id); err != nil {
			return false, err
		}
		return true, c.row(w, id, &p)
	})
}

func (a *aggregator) result(b *Barrier, w windows.Window, id string, acc *windows.Acc, version uint32, cause event.Cause, o *origin) event.Result {
	var r event.Result
	a.fill(&r, b, w, id, a.agg.Layout.Results(acc), version, cause, o)
	return r
}

// fill makes r a result, in the memory of the properties that it has.
func (a *aggregator) fill(r *event.Result, b *Barrier, w windows.Window, id string, outs []windows.Output, version uint32, cause event.Cause, o *origin) {
	props := r.Properties[:0]
	*r = event.Result{
		Kind: event.RowWindow, Epoch: b.Epoch, Recorded: b.Recorded,
		Type: a.agg.Type, ID: id, Aggregate: a.agg.Name, ValidFrom: w.Start, ValidTo: w.End,
		Version: version, Cause: cause, Lateness: o.lateness, Tie: o.tie, Place: o.place(a.agg.Stream.Topic),
	}
	for i := range outs {
		props = append(props, event.Property{Name: a.agg.Values[i].Name, Value: outs[i].Value, State: outs[i].State})
	}
	r.Properties = props
}
