package ontology

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

// Memory keeps an ontology in memory, with every assertion version, and
// behaves as Postgres does. It serves runs without a database and simulations;
// it grows with every assertion and is gone with the process.
type Memory struct {
	pipeline Pipeline
	catalog  *catalog

	mu       sync.Mutex // guards what follows
	progress map[event.Partition]Progress
	objects  map[object]*memoryObject
	versions []memoryVersion // in the order of assertion; a head's slot is its index
}

type memoryObject struct {
	applied number
	lines   map[factKey][]timeline.Head // the key's object is 0
}

type memoryVersion struct {
	object   object
	property int32
	a        timeline.Assertion
	to       event.RecordedTime
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty ontology for the pipeline. A pipeline that Open
// would refuse for what it says of itself (no name, no generation, a name
// twice) fails with the first Apply.
func NewMemory(p Pipeline) *Memory {
	m := &Memory{
		pipeline: p,
		progress: make(map[event.Partition]Progress),
		objects:  make(map[object]*memoryObject),
	}
	for i := range p.ResultsPartitions {
		m.progress[event.Partition(i)] = Progress{}
	}
	return m
}

// Progress gives one entry for each results partition.
func (m *Memory) Progress(context.Context) (map[event.Partition]Progress, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[event.Partition]Progress, len(m.progress))
	for p, pr := range m.progress {
		out[p] = cloneProgress(pr)
	}
	return out, nil
}

// Probe gives progress and horizon.
func (m *Memory) Probe(ctx context.Context) (Standing, error) {
	progress, err := m.Progress(ctx)
	return Standing{Progress: progress, Horizon: m.Horizon()}, err
}

// Apply applies the chunks as Store says.
func (m *Memory) Apply(_ context.Context, chunks []Chunk) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.open(); err != nil {
		return err
	}
	w, err := newWork(&m.pipeline, m.catalog, chunks)
	if err != nil {
		return err
	}
	for i := range chunks {
		ch := &chunks[i]
		if found := m.progress[ch.Partition]; found.Epoch != ch.From.Epoch || found.Offset != ch.From.Offset {
			return &FencedError{
				Pipeline: m.pipeline.Name, Generation: m.pipeline.Generation,
				Partition: ch.Partition, Expected: ch.From, Found: cloneProgress(found),
			}
		}
	}
	if err := w.discard(m.applied(w)); err != nil {
		return err
	}
	edits, err := m.compute(w)
	if err != nil {
		return err
	}
	for i := range edits {
		m.edit(w, &edits[i])
	}
	for i, o := range w.objects {
		mo := m.object(o)
		if mo.applied.before(w.last[i]) {
			mo.applied = w.last[i]
		}
	}
	for i := range chunks {
		m.progress[chunks[i].Partition] = cloneProgress(chunks[i].To)
	}
	return nil
}

func (m *Memory) open() error {
	if m.catalog != nil {
		return nil
	}
	c, err := newCatalog(&m.pipeline)
	m.catalog = c
	return err
}

func (m *Memory) applied(w *work) []number {
	out := make([]number, len(w.objects))
	for i, o := range w.objects {
		out[i].offset = event.OffsetNone
		if mo, ok := m.objects[o]; ok {
			out[i] = mo.applied
		}
	}
	return out
}

func (m *Memory) object(o object) *memoryObject {
	mo, ok := m.objects[o]
	if !ok {
		mo = &memoryObject{applied: number{offset: event.OffsetNone}, lines: make(map[factKey][]timeline.Head)}
		m.objects[o] = mo
	}
	return mo
}

// memoryEdit replaces the heads [lo, hi) of one fact by those of the line.
type memoryEdit struct {
	key    factKey
	lo, hi int
	line   timeline.Line
}

// compute changes nothing, so that a refused call leaves no trace.
func (m *Memory) compute(w *work) ([]memoryEdit, error) {
	var edits []memoryEdit
	err := w.facts(func(key factKey, items []item) error {
		e := memoryEdit{key: key}
		if mo, ok := m.objects[w.objects[key.object]]; ok {
			key.object = 0
			heads := mo.lines[key]
			e.lo, e.hi = reach(heads, items)
			e.line.Heads = slices.Clone(heads[e.lo:e.hi])
		}
		err := w.apply(&e.line, items)
		edits = append(edits, e)
		return err
	})
	return edits, err
}

// reach gives the range of heads that the items can touch.
func reach(heads []timeline.Head, items []item) (lo, hi int) {
	if len(heads) == 0 {
		return 0, 0
	}
	least, most := items[0].row.Result.ValidFrom, items[0].row.Result.ValidFrom
	for i := range items {
		v := items[i].row.Result.ValidFrom
		least, most = min(least, v), max(most, v)
	}
	l := timeline.Line{Heads: heads}
	lo = max(l.Covering(least), 0)
	return lo, max(l.Covering(most), 0) + 1
}

func (m *Memory) edit(w *work, e *memoryEdit) {
	o := w.objects[e.key.object]
	for i := range e.line.Closed {
		c := &e.line.Closed[i]
		if c.Slot != timeline.NoSlot {
			m.versions[c.Slot].to = c.RecordedTo
			continue
		}
		m.versions = append(m.versions, memoryVersion{o, e.key.property, c.Assertion, c.RecordedTo})
	}
	for i := range e.line.Heads {
		h := &e.line.Heads[i]
		if !h.Dirty {
			continue
		}
		h.Slot, h.Dirty = len(m.versions), false
		m.versions = append(m.versions, memoryVersion{o, e.key.property, h.Assertion, event.RecordedNever})
	}
	mo := m.object(o)
	key := e.key
	key.object = 0
	mo.lines[key] = slices.Replace(mo.lines[key], e.lo, e.hi, e.line.Heads...)
}

// ReadBack gives the believed values of windows.
func (m *Memory) ReadBack(_ context.Context, refs []WindowRef) ([]WindowState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.open(); err != nil {
		return nil, err
	}
	out := make([]WindowState, len(refs))
	for i := range refs {
		ref := &refs[i]
		b := newReadBack(ref)
		names, err := m.catalog.names(ref.Type)
		if err != nil {
			return nil, err
		}
		mo := m.objects[object{ref.Type, ref.ID}]
		for v, name := range ref.Values {
			p, err := m.catalog.find(ref.Type, names, full(ref.Aggregate, name), true)
			if err != nil {
				return nil, err
			}
			if mo == nil {
				continue
			}
			if ref.At != nil {
				m.readPast(b, v, ref, p)
				continue
			}
			for _, h := range mo.lines[factKey{property: p, from: ref.Start, to: ref.End}] {
				b.add(v, h.Version, h.Cause, h.Value, h.State)
			}
		}
		out[i] = b.state
	}
	return out, nil
}

// readPast reads one value of a window as it was believed at ref.At.
func (m *Memory) readPast(b *readBack, v int, ref *WindowRef, property int32) {
	for i := range m.versions {
		h := &m.versions[i]
		if h.object == (object{ref.Type, ref.ID}) && h.property == property && h.a.ValidFrom == ref.Start && h.a.ValidTo == ref.End &&
			h.a.RecordedFrom <= *ref.At && h.to > *ref.At {
			b.add(v, h.a.Version, h.a.Cause, h.a.Value, h.a.State)
		}
	}
}

// Close does nothing.
func (m *Memory) Close() {}

// readBack gathers one WindowState.
type readBack struct{ state WindowState }

func newReadBack(ref *WindowRef) *readBack {
	b := &readBack{WindowState{Values: make([]event.Property, len(ref.Values))}}
	for i, name := range ref.Values {
		b.state.Values[i] = event.Property{Name: name, Value: event.Value{Null: true}}
	}
	return b
}

func (b *readBack) add(i int, version uint32, cause event.Cause, value event.Value, state []byte) {
	b.state.Version = max(b.state.Version, version)
	if cause == event.CauseRetraction {
		return
	}
	b.state.Found = true
	b.state.Values[i].Value = value
	if len(state) > 0 {
		b.state.Values[i].State = slices.Clone(state)
	}
}

func cloneProgress(p Progress) Progress {
	if len(p.Seen) == 0 {
		p.Seen = nil
		return p
	}
	p.Seen = maps.Clone(p.Seen)
	for stage, tasks := range p.Seen {
		p.Seen[stage] = slices.Clone(tasks)
	}
	return p
}

// String names the store for logs.
func (m *Memory) String() string {
	return fmt.Sprintf("in-memory ontology of pipeline %q", m.pipeline.Name)
}
