package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

const (
	// backlogEvents is how many events the rate of the sink is found with.
	backlogEvents = 100_000
	// pollEvery is how often the horizon is asked for: a latency is at most so
	// much too long, and never too short.
	pollEvery = 5 * time.Millisecond
	// produceEvery is how often the producer looks what is due; produceLinger is
	// how long its client waits for more.
	produceEvery  = time.Millisecond
	produceLinger = time.Millisecond
)

// latencyRun produces events at a constant rate and notes for each how long it
// takes until the ontology's readers see what comes of it.
//
// The latency of an event counts from when it was due, not from when it was
// produced: a producer that is held up does not hide what its events waited
// (Tene: How not to measure latency, 2013).
func (h *harness) latencyRun(ctx context.Context, r *liveRun) (err error) {
	r.in.Keys = maxKeys // every event is an object of its own
	r.spec.Shape = shapePuts
	backlog, rate := int64(0), h.config.Rate
	if rate == 0 {
		backlog = backlogEvents
		h.say("finding out what the sink takes: %d events", backlog)
		if err := r.produce(ctx, r.in.records(r.spec.Input, backlog)); err != nil {
			return err
		}
	}
	l, err := r.start(ctx)
	if err != nil {
		return err
	}
	so, err := l.awaitRows(ctx, backlog)
	if err != nil {
		return err
	}
	note := "as asked for"
	if rate == 0 {
		takes := float64(backlog) / so.appliedAt.Sub(so.started).Seconds()
		rate = max(1, int64(takes/2))
		note = fmt.Sprintf("half of the %.0f that a backlog of %d went in with", takes, backlog)
	}
	m := &latencies{
		in: r.in, topic: r.spec.Input, backlog: backlog, rate: rate, events: max(1, rate*int64(h.config.For)/int64(time.Second)),
	}
	h.say("producing %d events/s for %s", rate, h.config.For)
	if err := m.observe(ctx, r, l); err != nil {
		return err
	}
	if err := r.stop(nil); err != nil {
		return err
	}
	h.say("looking for each event in the ontology")
	if err := m.find(ctx, r); err != nil {
		return err
	}
	r.run.Events = m.events
	r.run.Seconds = h.config.For.Seconds()
	r.run.StartSeconds = so.started.Sub(r.launched).Seconds()
	r.run.Figures = m.figures(h.config, note)
	return nil
}

// latencies are those of one run.
type latencies struct {
	in    Input
	topic string
	// backlog events came before; of the events after it the nth is due at
	// began + n/rate.
	backlog, events, rate int64
	began                 time.Time
	late                  time.Duration // by which the producer was late at most
	visible               horizonSteps
	// asked is a recorded time that covers all events.
	asked event.RecordedTime
	// took is the latency of each event.
	took []time.Duration
}

// due is when event n behind the backlog is to be produced.
func (m *latencies) due(n int64) time.Time {
	return m.began.Add(time.Duration(float64(n) / float64(m.rate) * float64(time.Second)))
}

// observe produces the events and watches the horizon until all can be seen.
func (m *latencies) observe(ctx context.Context, r *liveRun, l *live) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() {
		watched <- r.harness.databases.do(watching, r.database, func(conn *pgx.Conn) error {
			return m.visible.watch(watching, conn, r.spec.Group)
		})
	}()
	err := m.produce(ctx, r.harness.broker.addrs)
	var so soFar
	if err == nil {
		so, err = l.awaitRows(ctx, m.backlog+m.events)
	}
	m.asked = so.recorded
	for err == nil && m.visible.newest() < m.asked {
		select {
		case err = <-watched:
			return errors.Join(err, errors.New("the horizon is not watched any more"))
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-time.After(pollEvery):
		}
	}
	stop()
	if w := <-watched; err == nil && !errors.Is(w, context.Canceled) {
		err = w
	}
	return err
}

// produce produces every event when it is due.
func (m *latencies) produce(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerLinger(produceLinger), kgo.MaxBufferedRecords(1_000_000))
	if err != nil {
		return err
	}
	defer client.Close()
	failed := make(chan error, 1)
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	tick := time.NewTicker(produceEvery)
	defer tick.Stop()
	m.began = time.Now().Add(produceEvery)
	for next := int64(0); next < m.events; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-failed:
			return fmt.Errorf("produce to %s: %w", m.topic, err)
		case <-tick.C:
		}
		for ; next < m.events; next++ {
			late := time.Since(m.due(next))
			if late < 0 {
				break
			}
			m.late = max(m.late, late)
			i := m.backlog + next
			client.Produce(ctx, m.in.record(m.topic, i, m.in.Event(i)), promise)
		}
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return fmt.Errorf("produce to %s: %w", m.topic, err)
	default:
		return nil
	}
}

// horizonSteps says since when the horizon has been seen to be where.
type horizonSteps struct {
	mu    sync.Mutex // guards steps
	steps []horizonStep
}

type horizonStep struct {
	horizon event.RecordedTime
	at      time.Time
}

const horizonSQL = `SELECT (extract(epoch FROM horizon) * 1000000)::bigint
	FROM strom.pipeline_horizon WHERE name = $1 AND horizon > '-infinity'`

// watch asks for the horizon until ctx ends. A step is dated when the answer is
// here.
func (s *horizonSteps) watch(ctx context.Context, conn *pgx.Conn, pipeline string) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		var micros int64
		err := conn.QueryRow(ctx, horizonSQL, pipeline).Scan(&micros)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, pgx.ErrNoRows): // before the first complete epoch
		case err != nil:
			return fmt.Errorf("ask for the horizon: %w", err)
		default:
			s.add(event.RecordedTime(micros), time.Now())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *horizonSteps) add(horizon event.RecordedTime, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.steps); n == 0 || s.steps[n-1].horizon < horizon {
		s.steps = append(s.steps, horizonStep{horizon, at})
	}
}

func (s *horizonSteps) newest() event.RecordedTime {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.steps) == 0 {
		return event.RecordedUnknown
	}
	return s.steps[len(s.steps)-1].horizon
}

// since is when what was recorded could first be seen. The watch has ended.
func (s *horizonSteps) since(recorded event.RecordedTime) (time.Time, bool) {
	n := sort.Search(len(s.steps), func(i int) bool { return s.steps[i].horizon >= recorded })
	if n == len(s.steps) {
		return time.Time{}, false
	}
	return s.steps[n].at, true
}

// find looks for every event in the ontology, exactly once, and computes its
// latency.
func (m *latencies) find(ctx context.Context, r *liveRun) error {
	reader, err := ontology.OpenReader(ctx, mapping.Ontology{Postgres: mapping.NewSecret(r.database)}, ontology.Options{})
	if err != nil {
		return err
	}
	defer reader.Close()
	found, err := m.readPuts(ctx, reader)
	if err != nil {
		return err
	}
	if diff := found.diff(&m.in); diff != "" {
		r.wrongIf(diff, "in the ontology")
	}
	r.run.Result = found.hash()
	m.took = make([]time.Duration, m.events)
	for n := range m.events {
		at, ok := m.visible.since(found.recorded[m.backlog+n])
		if !ok {
			r.wrongIf(fmt.Sprintf("event %d is never seen", m.backlog+n), "by the horizon")
			break
		}
		m.took[n] = at.Sub(m.due(n))
	}
	return nil
}

// puts are what the ontology has of events, each an object of its own.
type puts struct {
	values   []int // facts, by event
	recorded []event.RecordedTime
	amounts  []int64
	// strange is a fact that no event makes, or one of another epoch than the
	// others of its event.
	strange string
}

func (m *latencies) readPuts(ctx context.Context, reader *ontology.Reader) (*puts, error) {
	all := m.backlog + m.events
	p := &puts{values: make([]int, all), recorded: make([]event.RecordedTime, all), amounts: make([]int64, all)}
	byKey := make(map[int64]int64, all)
	for i := range all {
		byKey[keyOf(i, m.in.Keys)] = i
	}
	for fact, err := range reader.AsOf(ctx, ontology.Question{Type: "Click", Recorded: m.asked}) {
		if err != nil {
			return nil, err
		}
		key, err := parseKey(fact.ID)
		if err != nil {
			return nil, err
		}
		i, ok := byKey[key]
		if !ok || (p.values[i] > 0 && p.recorded[i] != fact.RecordedFrom) {
			p.strange = fmt.Sprintf("%s of %s, recorded %s", fact.Property, fact.ID, fact.RecordedFrom)
			continue
		}
		p.values[i]++
		p.recorded[i] = fact.RecordedFrom
		if fact.Property == "amount" {
			if p.amounts[i], err = strconv.ParseInt(fact.Value.Text, 10, 64); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// diff says how it differs from what the events are.
func (p *puts) diff(in *Input) string {
	if p.strange != "" {
		return "no event makes " + p.strange
	}
	for i, n := range p.values {
		e := in.Event(int64(i))
		if n != valuesOfRow || p.amounts[i] != e.Amount {
			return fmt.Sprintf("event %d has %d values and amount %d, want %d, %d", i, n, p.amounts[i], valuesOfRow, e.Amount)
		}
	}
	return ""
}

func (p *puts) hash() string {
	d := xxhash.New()
	var b [16]byte
	for i, n := range p.values {
		binary.BigEndian.PutUint64(b[:8], uint64(n))
		binary.BigEndian.PutUint64(b[8:], uint64(p.amounts[i]))
		_, _ = d.Write(b[:]) // never fails
	}
	return fmt.Sprintf("%d:%016x", len(p.values), d.Sum64())
}

// percentile is the least value that a share of all does not exceed; the values
// are sorted.
func percentile(sorted []time.Duration, share float64) time.Duration {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

func (m *latencies) figures(c *Config, note string) []Figure {
	slices.Sort(m.took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	counts := c.For >= MinTime
	goal := ms(2*c.Commit + 100*time.Millisecond)
	return []Figure{
		{Name: "rate", Value: float64(m.rate), Unit: "events/s", Note: note, Counts: counts},
		{Name: "p50", Value: ms(percentile(m.took, 0.50)), Unit: "ms", Counts: counts},
		{Name: "p99", Value: ms(percentile(m.took, 0.99)), Unit: "ms", Goal: goal, Counts: counts},
		{Name: "p99.9", Value: ms(percentile(m.took, 0.999)), Unit: "ms", Counts: counts},
		{
			Name: "max", Value: ms(percentile(m.took, 1)), Unit: "ms", Counts: counts,
			Note: fmt.Sprintf("of %d events in %d steps of the horizon; the producer was at most %.1f ms late", m.events, len(m.visible.steps), ms(m.late)),
		},
	}
}
