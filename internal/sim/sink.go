package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/sinks/ontology"
)

// database is the ontology's database: an ontology in memory behind a
// connection that may be away.
type database struct {
	store *ontology.Memory
	away  bool
	// overwritten is the progress of those who did not compare (NoCompareAndSet).
	overwritten map[event.Partition]ontology.Progress
}

func (d *database) progress() (map[event.Partition]ontology.Progress, error) {
	p, err := d.store.Progress(context.Background())
	maps.Copy(p, d.overwritten)
	return p, err
}

// horizon is what the ontology makes of the progress.
func (d *database) horizon() event.RecordedTime {
	h := d.store.Horizon()
	for _, p := range d.overwritten {
		h = min(h, p.Recorded)
	}
	return h
}

func (d *database) apply(chunks []ontology.Chunk, blind bool) error {
	ctx := context.Background()
	err := d.store.Apply(ctx, chunks)
	if err == nil {
		for i := range chunks {
			delete(d.overwritten, chunks[i].Partition)
		}
	}
	if !blind || !errors.Is(err, ontology.ErrFenced) {
		return err
	}
	stored, err := d.store.Progress(ctx)
	if err != nil {
		return err
	}
	if d.overwritten == nil {
		d.overwritten = map[event.Partition]ontology.Progress{}
	}
	for i := range chunks {
		c := chunks[i]
		at := stored[c.Partition]
		if c.To.Offset <= at.Offset { // rows that were there before are discarded by their numbers
			d.overwritten[c.Partition] = c.To
			continue
		}
		delete(d.overwritten, c.Partition)
		c.From = at
		c.Rows = slices.DeleteFunc(slices.Clone(c.Rows), func(r ontology.Row) bool { return r.Offset < at.Offset })
		err = errors.Join(err, d.store.Apply(ctx, []ontology.Chunk{c}))
	}
	return err
}

// query asks the database, and again until it answers: what ontology.Postgres
// does inside.
func query[T any](e *engine, p *process, what string, goOn func() error, do func() (T, error)) (T, error) {
	db := &e.sim.database
	for wait := 50 * millisecond; ; wait = min(2*wait, 2*second) {
		v, err := ask(p, what, goOn, func() (T, error) {
			if db.away {
				var none T
				return none, errNoReply
			}
			return do()
		})
		if !errors.Is(err, errNoReply) {
			return v, err
		}
		if err := p.sleep(wait/2 + p.world.upTo(wait/2)); err != nil {
			return v, err
		}
	}
}

func (e *engine) progress(p *process, goOn func() error) (map[event.Partition]ontology.Progress, error) {
	return query(e, p, "progress", goOn, func() (map[event.Partition]ontology.Progress, error) {
		return e.sim.database.progress()
	})
}

// runSink feeds the results topic into the ontology: kafka's runSink.
func (e *engine) runSink(p *process) error {
	for wait := 50 * millisecond; ; wait = min(2*wait, 5*second) {
		g := e.newMembership(p, e.sim.topology.SinkGroup())
		err := e.sinkOnce(p, g)
		if errors.Is(err, errKilled) {
			return err
		}
		if err := g.leave(p); err != nil {
			return err
		}
		switch {
		case e.stopping:
			return errStopping
		case errors.Is(err, ontology.ErrFenced), passing(err):
			p.world.tracef("%s reads its progress again: %v", p.name, err)
			if errors.Is(err, ontology.ErrFenced) {
				p.world.meet("sink fenced")
			}
		default:
			return err
		}
		if err := p.sleep(wait/2 + p.world.upTo(wait/2)); err != nil {
			return err
		}
	}
}

// sinkOnce is one life of the sink's group consumer.
func (e *engine) sinkOnce(p *process, g *membership) error {
	for {
		if err := g.join(p); err != nil {
			return err
		}
		progress, err := e.progress(p, g.goOn)
		parts := map[event.Partition]*sinkPartition{}
		if err == nil {
			for _, n := range g.assigned {
				parts[n] = newSinkPartition(e, n, progress[n])
			}
			err = e.sinkPoll(p, g, parts)
		}
		switch {
		case errors.Is(err, errKilled) || e.stopping:
			return err
		case g.lost:
			g.id = ""
			continue
		case g.rejoin:
			continue
		}
		return err
	}
}

func (e *engine) sinkPoll(p *process, g *membership, parts map[event.Partition]*sinkPartition) error {
	order := slices.Sorted(maps.Keys(parts))
	for {
		var ready []*sinkPartition
		look := func() bool {
			ready = ready[:0]
			for _, n := range order {
				if parts[n].source.Has(parts[n].fetched) {
					ready = append(ready, parts[n])
				}
			}
			return len(ready) > 0
		}
		if _, err := p.await(func() bool { return g.goOn() != nil || look() }, forever); err != nil {
			return err
		}
		if err := g.goOn(); err != nil {
			return err
		}
		look()
		// Between a poll and AllowRebalance the parts stay, whatever the group does.
		for _, part := range ready {
			if err := e.sinkFetch(p, part); err != nil {
				return err
			}
		}
		if err := e.applyReady(p, order, parts); err != nil {
			return err
		}
	}
}

// sinkFetch fetches what there is of a partition.
func (e *engine) sinkFetch(p *process, part *sinkPartition) error {
	got, err := ask(p, "fetch results", e.goOn, func() (fetched, error) {
		recs, stable, err := part.source.Fetch(part.fetched, 1+p.world.rng.IntN(2*e.sim.setup.sinkChunk))
		return fetched{recs, stable}, err
	})
	if errors.Is(err, errNoReply) {
		return nil // it is asked again
	}
	if err != nil {
		return err
	}
	for i := range got.records {
		part.fetched = got.records[i].Offset + 1
		if err := part.take(&got.records[i]); err != nil {
			return fmt.Errorf("results/%s offset %s: %w", part.partition, got.records[i].Offset, err)
		}
	}
	return nil
}

func (e *engine) applyReady(p *process, order []event.Partition, parts map[event.Partition]*sinkPartition) error {
	for {
		var chunks []ontology.Chunk
		for _, n := range order {
			if c, ok := parts[n].next(); ok {
				chunks = append(chunks, c)
			}
		}
		if len(chunks) == 0 {
			return nil
		}
		if err := p.reach("sink.apply"); err != nil {
			return err
		}
		_, err := query(e, p, showChunks(chunks), e.goOn, plain(func() error { return e.sim.apply(chunks) }))
		if err != nil {
			return err
		}
		if err := p.reach("sink.applied"); err != nil {
			return err
		}
		for i := range chunks {
			parts[chunks[i].Partition].applied(&chunks[i])
		}
	}
}

func showChunks(chunks []ontology.Chunk) string {
	var out strings.Builder
	out.WriteString("apply")
	for i := range chunks {
		fmt.Fprintf(&out, " %s:%s-%s", chunks[i].Partition, chunks[i].From.Offset, chunks[i].To.Offset)
	}
	return out.String()
}

// sinkPartition gathers the rows of one results partition and knows when an
// epoch is complete there: kafka's sinkPartition.
type sinkPartition struct {
	partition event.Partition
	source    *broker.Partition
	fetched   event.Offset
	upstream  map[string]int32 // tasks by stage
	chunk     int
	stored    ontology.Progress
	// segments lie behind stored: each ends at a completed epoch, but the last.
	segments []*segment
}

type segment struct {
	rows []ontology.Row
	to   ontology.Progress
	done bool
}

func newSinkPartition(e *engine, n event.Partition, at ontology.Progress) *sinkPartition {
	if e.sim.bug == SeenForgotten {
		at.Seen = nil
	}
	return &sinkPartition{
		partition: n, source: e.sim.broker.Topic(e.sim.topology.ResultsTopic())[n], fetched: at.Offset,
		upstream: e.sim.taskCounts(), chunk: e.sim.setup.sinkChunk, stored: at,
	}
}

// open returns the segment that is being filled.
func (s *sinkPartition) open() *segment {
	if n := len(s.segments); n > 0 && !s.segments[n-1].done {
		return s.segments[n-1]
	}
	from := s.stored
	if n := len(s.segments); n > 0 {
		from = s.segments[n-1].to
	}
	g := &segment{to: from}
	g.to.Seen = cloneSeen(from.Seen)
	s.segments = append(s.segments, g)
	return g
}

func cloneSeen(seen map[string][]event.Partition) map[string][]event.Partition {
	out := map[string][]event.Partition{}
	for stage, tasks := range seen {
		out[stage] = slices.Clone(tasks)
	}
	return out
}

func (s *sinkPartition) take(r *broker.Record) error {
	if r.Control {
		return nil
	}
	kind, err := event.RowKindOf(r.Value)
	if err != nil {
		return err
	}
	g := s.open()
	next := r.Offset + 1
	if kind == event.RowMarker {
		m, err := event.DecodeMarker(r.Value)
		if err != nil {
			return err
		}
		g.to.Offset = next
		return s.mark(g, &m)
	}
	row, err := event.DecodeResult(r.Value)
	if err != nil {
		return err
	}
	if err := s.expect(g, row.Epoch); err != nil {
		return err
	}
	g.rows = append(g.rows, ontology.Row{Offset: r.Offset, Result: row})
	g.to.Offset = next
	return nil
}

// expect makes sure that rows of one epoch only stand before its markers.
func (s *sinkPartition) expect(g *segment, n event.Epoch) error {
	if n <= g.to.Epoch {
		return fmt.Errorf("%w: a row of epoch %s behind the markers of %s", event.ErrCorrupt, n, g.to.Epoch)
	}
	if g.to.UnderWay != 0 && g.to.UnderWay != n {
		return fmt.Errorf("%w: a row of epoch %s while %s is not complete", event.ErrCorrupt, n, g.to.UnderWay)
	}
	g.to.UnderWay = n
	return nil
}

func (s *sinkPartition) mark(g *segment, m *event.Marker) error {
	if m.Epoch <= g.to.Epoch {
		return nil // of an epoch that is complete
	}
	if err := s.expect(g, m.Epoch); err != nil {
		return err
	}
	for _, p := range m.Tasks {
		if !slices.Contains(g.to.Seen[m.Stage], p) {
			g.to.Seen[m.Stage] = append(g.to.Seen[m.Stage], p)
		}
	}
	for stage, n := range s.upstream {
		if len(g.to.Seen[stage]) < int(n) {
			return nil
		}
	}
	g.to.Epoch, g.to.Recorded, g.to.UnderWay, g.to.Seen = m.Epoch, m.Recorded, 0, nil
	g.done = true
	return nil
}

// next gives the chunk to apply now: as many complete epochs as fit, or a part
// of an epoch that is larger than a chunk.
func (s *sinkPartition) next() (ontology.Chunk, bool) {
	c := ontology.Chunk{Partition: s.partition, From: s.stored}
	some := false
	for _, g := range s.segments {
		if !g.done || (some && len(c.Rows)+len(g.rows) > s.chunk) {
			break
		}
		c.Rows = append(c.Rows, g.rows...)
		c.To = g.to
		some = true
	}
	if some {
		return c, true
	}
	if len(s.segments) == 1 && len(s.segments[0].rows) >= s.chunk {
		g := s.segments[0]
		c.Rows, c.To = g.rows, g.to
		c.To.Seen = cloneSeen(g.to.Seen)
		return c, true
	}
	return c, false
}

// applied says that the ontology has the chunk.
func (s *sinkPartition) applied(c *ontology.Chunk) {
	s.stored = c.To
	i := slices.IndexFunc(s.segments, func(g *segment) bool { return !g.done || g.to.Offset > c.To.Offset })
	if i < 0 {
		i = len(s.segments)
	}
	s.segments = s.segments[i:]
	if len(s.segments) > 0 && !s.segments[0].done && s.segments[0].to.Offset == c.To.Offset {
		s.segments[0].rows = nil
	}
}
