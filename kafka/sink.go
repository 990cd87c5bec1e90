package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology"
)

// sinkRows is Config.SinkRows where it is 0.
const sinkRows = 5000

// runSink feeds the results topic into the ontology. It starts from the
// progress in the database, never from the group's offset, which is committed
// only behind it, for lag tools.
func (e *Engine) runSink(ctx context.Context) error {
	wait := newBackoff()
	balancer := newStickyBalancer(e.topology.ResultsTopic(), nil)
	for ctx.Err() == nil {
		err := e.sinkOnce(ctx, balancer)
		var fenced *ontology.FencedError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &fenced), retriable(err):
			e.log.Info("the sink reads its progress again", "why", err.Error())
			wait.wait(ctx)
		default:
			return err
		}
	}
	return ctx.Err()
}

// sinkOnce is one life of the sink's group consumer.
func (e *Engine) sinkOnce(ctx context.Context, balancer *stickyBalancer) (err error) {
	topic, running := e.topology.ResultsTopic(), ctx
	var mu sync.Mutex // guards parts
	parts := map[event.Partition]*sinkPartition{}
	gone := func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
		mu.Lock()
		defer mu.Unlock()
		for _, p := range gone[topic] {
			delete(parts, event.Partition(p))
		}
	}
	client, err := e.newClient(append(e.groupOptions(e.topology.SinkGroup(), balancer),
		kgo.BlockRebalanceOnPoll(), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.AdjustFetchOffsetsFn(func(ctx context.Context, o map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			progress, err := e.store.Progress(ctx)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			for p := range o[topic] {
				at := progress[event.Partition(p)]
				part := newSinkPartition(e, event.Partition(p), at)
				part.heard = func(n event.Epoch) error { return e.hub.awaitHeard(running, n) }
				parts[event.Partition(p)] = part
				o[topic][p] = kgo.NewOffset().At(int64(at.Offset)).WithEpoch(-1)
			}
			return o, nil
		}),
		kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone),
	)...)
	if err != nil {
		return err
	}
	defer func() {
		if replaced := e.replaced(ctx, client); replaced != nil {
			err = replaced
		}
		e.leave(client)
	}()
	defer e.monitor.joins(SinkName, client)()
	for {
		fetches := client.PollRecords(ctx, sinkRows)
		if err := fetchError(ctx, fetches); err != nil {
			return err
		}
		mu.Lock()
		held := maps.Clone(parts)
		mu.Unlock()
		if err := e.sinkFetches(ctx, client, held, fetches); err != nil {
			return err
		}
		client.AllowRebalance()
	}
}

func (e *Engine) sinkFetches(ctx context.Context, client *kgo.Client, parts map[event.Partition]*sinkPartition, fetches kgo.Fetches) error {
	var bad error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		part := parts[event.Partition(p.Partition)]
		for _, r := range p.Records {
			if part == nil || bad != nil {
				return
			}
			if err := part.take(r); err != nil {
				bad = fmt.Errorf("%s/%d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
			}
		}
	})
	if bad != nil {
		return bad
	}
	for {
		var chunks []ontology.Chunk
		for _, p := range slices.Sorted(maps.Keys(parts)) {
			if c, ok := parts[p].next(); ok {
				chunks = append(chunks, c)
			}
		}
		if len(chunks) == 0 {
			return nil
		}
		if err := e.apply(ctx, client, parts, chunks); err != nil {
			return err
		}
	}
}

func (e *Engine) apply(ctx context.Context, client *kgo.Client, parts map[event.Partition]*sinkPartition, chunks []ontology.Chunk) error {
	e.config.At("sink.apply")
	started, rows := time.Now(), 0
	if err := e.store.Apply(ctx, chunks); err != nil {
		return err
	}
	e.config.At("sink.applied")
	e.asks.wake()
	took := time.Since(started)
	offsets := map[int32]kgo.EpochOffset{}
	for i := range chunks {
		c := &chunks[i]
		rows += len(c.Rows)
		parts[c.Partition].applied(c)
		offsets[int32(c.Partition)] = kgo.EpochOffset{Epoch: -1, Offset: int64(c.To.Offset)}
		e.config.Observe(Observation{Applied: &c.To, Partition: c.Partition})
		if c.To.UnderWay != 0 {
			e.config.At("sink.between")
		}
	}
	e.config.Observe(Observation{Batch: &Batch{Partitions: len(chunks), Rows: rows, Took: took}})
	// For lag tools only: an error here means nothing.
	client.CommitOffsets(ctx, map[string]map[int32]kgo.EpochOffset{e.topology.ResultsTopic(): offsets}, nil)
	return nil
}

// sinkPartition gathers the rows of one results partition and knows when an
// epoch is complete there: when its markers name every task of every stage.
type sinkPartition struct {
	partition event.Partition
	chunk     int              // rows that are applied at once
	upstream  map[string]int32 // tasks by stage
	stored    ontology.Progress
	// repeated is the last epoch whose rows the ontology has from an earlier
	// generation: they come again, and are passed over.
	repeated event.Epoch
	// heard waits until the engine knows that an epoch's barrier was announced,
	// and so under which mapping: rows behind another one are not this engine's.
	heard   func(event.Epoch) error
	heardOf event.Epoch
	// segments lie behind stored: each ends at a completed epoch, but the last.
	segments []*segment
}

type segment struct {
	rows []ontology.Row
	to   ontology.Progress
	done bool
	// applied rows are gone from rows; the segment's own start has moved.
}

func newSinkPartition(e *Engine, p event.Partition, at ontology.Progress) *sinkPartition {
	return &sinkPartition{partition: p, chunk: e.config.SinkRows, upstream: e.layout.tasks, stored: at, repeated: e.origin.applied}
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

func (s *sinkPartition) take(r *kgo.Record) error {
	kind, err := event.RowKindOf(r.Value)
	if err != nil {
		return err
	}
	g := s.open()
	next := event.Offset(r.Offset) + 1
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
	if row.Epoch <= s.repeated {
		g.to.Offset = next
		return nil
	}
	if err := s.expect(g, row.Epoch); err != nil {
		return err
	}
	g.rows = append(g.rows, ontology.Row{Offset: event.Offset(r.Offset), Result: row})
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
	if s.heard != nil && n > s.heardOf {
		if err := s.heard(n); err != nil {
			return err
		}
		s.heardOf = n
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
	// The epoch under way has grown larger than a chunk: apply what is there.
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
	n := sort.Search(len(s.segments), func(i int) bool {
		return !s.segments[i].done || s.segments[i].to.Offset > c.To.Offset
	})
	s.segments = s.segments[n:]
	if len(s.segments) > 0 && !s.segments[0].done && s.segments[0].to.Offset == c.To.Offset {
		s.segments[0].rows = nil
	}
}
