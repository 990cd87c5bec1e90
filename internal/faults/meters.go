package faults

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/sinks/ontology"
)

// metersMapping has what the earthquakes have not: the clock on the wall, two
// streams, several partitions, an aggregate that is fused with its stream beside
// one behind a repartition topic, totals without a window, repeats, rejected
// records of several kinds, and late events in a fused and in a repartitioned
// aggregate.
const metersMapping = `
pipeline: meters
epoch: {clock: wall, interval: 20ms}
streams:
  readings:
    topic: readings
    key: meter
    partitioned_by: key
    identity: {event_id: id, horizon: 24h}
    event_time: {field: at, format: ms, max_ahead: 24h}
    watermark: {out_of_orderness: 1s, idle_after: 1s}
    allowed_lateness: 20s
  visits:
    topic: visits
    key: id
    event_time: {field: at, format: ms, max_ahead: 24h}
    watermark: {out_of_orderness: 0s, idle_after: 1s}
    allowed_lateness: 0s
objects:
  Meter:
    from: readings
    id: meter
    properties:
      level: {value: v, kind: integer}
    aggregates:
      tens: {from: readings, id: meter, window: {tumbling: 10s}, values: {n: count(), total: sum(v)}}
      ever: {from: readings, id: meter, window: none, values: {n: count(), total: sum(v)}}
  Street:
    aggregates:
      ever: {from: readings, id: street, window: none, values: {n: count(), total: sum(v), mean: avg(v)}}
  House:
    aggregates:
      visits: {from: visits, id: house, window: {tumbling: 1m}, values: {n: count()}}
`

// metersBalance finds the recorded times at which a reading counts for its
// meter and not for its street, or the other way round: the two are counted in
// different stages.
const metersBalance = `
WITH h AS (SELECT min(horizon) AS horizon FROM strom.pipeline_horizon),
     totals AS (
       SELECT t.name AS type, a.recorded_from, a.recorded_to, a.value::bigint AS n
       FROM strom.assertion_row a
       JOIN strom.property p ON p.property_id = a.property_id
       JOIN strom.object_type t ON t.type_id = p.type_id
       WHERE p.name = 'ever.n' AND t.name IN ('Meter', 'Street')),
     instants AS (SELECT DISTINCT e.recorded FROM strom.epoch e, h WHERE e.recorded <= h.horizon)
SELECT i.recorded::text || ': ' || coalesce(sum(n) FILTER (WHERE type = 'Meter'), 0)::text || ' readings of meters, ' ||
       coalesce(sum(n) FILTER (WHERE type = 'Street'), 0)::text || ' of streets'
FROM instants i LEFT JOIN totals t ON t.recorded_from <= i.recorded AND t.recorded_to > i.recorded
GROUP BY i.recorded
HAVING coalesce(sum(n) FILTER (WHERE type = 'Meter'), 0) <> coalesce(sum(n) FILTER (WHERE type = 'Street'), 0)
ORDER BY i.recorded`

func meters(suffix string, seed uint64, n int) *workload {
	readings, visits := "readings-"+suffix, "visits-"+suffix
	return &workload{
		mapping: renamed(metersMapping, "meters-"+suffix, map[string]string{"readings": readings, "visits": visits}),
		topics:  map[string]int32{readings: 3, visits: 2},
		inputs:  []string{readings, visits},
		records: meterRecords(readings, visits, seed, n),
		want: func(inputs []*kgo.Record) (outcome, error) {
			var records []oracle.MeterRecord
			for _, r := range inputs {
				records = append(records, oracle.MeterRecord{Visit: r.Topic == visits, Value: r.Value})
			}
			fold, err := oracle.FoldMeters(records, oracle.Micros(time.Now().UnixMicro()))
			return outcome{believed: fold.Believed, deadLetters: fold.DeadLetters}, err
		},
		got: metersGot, balance: metersBalance,
	}
}

// meterSource makes records.
type meterSource struct {
	rng              *rand.Rand
	readings, visits string
	sent             []*kgo.Record // good readings
	out              []*kgo.Record
}

// meterRecords makes about n readings, and a third as many visits.
func meterRecords(readings, visits string, seed uint64, n int) []*kgo.Record {
	s := &meterSource{rng: rand.New(rand.NewPCG(seed, 1)), readings: readings, visits: visits}
	base := time.Date(2020, 3, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	for i := range int64(n) {
		at := base + i*40 - s.rng.Int64N(3000)
		if s.rng.IntN(10) == 0 {
			at -= s.rng.Int64N(120_000) // far behind
		}
		s.reading(i, at)
		if s.rng.IntN(30) == 0 {
			s.out = append(s.out, again(s.sent[s.rng.IntN(len(s.sent))])) // sent twice
		}
		if s.rng.IntN(60) == 0 {
			s.bad(i, at)
		}
		if s.rng.IntN(3) == 0 {
			s.visit(i, at)
		}
	}
	return s.out
}

func again(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value}
}

const readingText = `{"id":"r%d","meter":%q,"street":"s%d","at":%d,"v":%d}`

func (s *meterSource) reading(i, at int64) {
	meter := fmt.Sprintf("m%d", s.rng.IntN(20))
	r := &kgo.Record{
		Topic: s.readings, Key: []byte(meter),
		Value: fmt.Appendf(nil, readingText, i, meter, s.rng.IntN(5), at, s.rng.Int64N(100)),
	}
	s.sent, s.out = append(s.sent, r), append(s.out, r)
}

// bad makes a record that is to be rejected.
func (s *meterSource) bad(i, at int64) {
	r := again(s.sent[s.rng.IntN(len(s.sent))])
	meter := string(r.Key)
	switch s.rng.IntN(4) {
	case 0:
		r.Value = fmt.Appendf(nil, `{"id":"x%d"`, i)
	case 1:
		r.Value = fmt.Appendf(nil, `{"id":"x%d","meter":%q,"street":"s0","v":1}`, i, meter)
	case 2:
		const farOff = 4102444800000 // the year 2100
		r.Value = fmt.Appendf(nil, readingText, 1_000_000+i, meter, 0, farOff+at%1000, 1)
	case 3: // a known id with other content
		id, _, _ := strings.Cut(strings.TrimPrefix(string(r.Value), `{"id":`), ",")
		r.Value = fmt.Appendf(nil, `{"id":%s,"meter":%q,"street":"other","at":%d,"v":1}`, id, meter, at)
	}
	s.out = append(s.out, r)
}

func (s *meterSource) visit(i, at int64) {
	s.out = append(s.out, &kgo.Record{
		Topic: s.visits, Key: fmt.Appendf(nil, "%d", i),
		Value: fmt.Appendf(nil, `{"id":%d,"house":"h%d","at":%d}`, i, s.rng.IntN(6), at),
	})
}

// metersGot is what is believed at the horizon, as the oracle writes it.
func metersGot(ctx context.Context, r *ontology.Reader) ([]string, error) {
	bounds, err := r.Bounds(ctx, "")
	if err != nil {
		return nil, err
	}
	var facts []ontology.Fact
	for f, err := range r.AsOf(ctx, ontology.Question{Recorded: bounds.Horizon}) {
		if err != nil {
			return nil, err
		}
		facts = append(facts, f)
	}
	slices.SortStableFunc(facts, func(a, b ontology.Fact) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Property, b.Property), cmp.Compare(a.ValidFrom, b.ValidFrom))
	})
	var lines []string
	for i := 0; i < len(facts); i++ {
		f := facts[i]
		if f.Property == "level" {
			for i+1 < len(facts) && goesOn(&f, &facts[i+1]) {
				i++
				f.ValidTo = facts[i].ValidTo
			}
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s", f.Type, f.ID, f.Property, interval(&f), f.Value.Text))
	}
	slices.Sort(lines)
	return lines, nil
}

// goesOn says that one fact goes on where another of the same value ends.
func goesOn(f, next *ontology.Fact) bool {
	return next.Type == f.Type && next.ID == f.ID && next.Property == f.Property && next.ValidFrom == f.ValidTo && next.Value == f.Value
}

func interval(f *ontology.Fact) string {
	switch {
	case f.ValidFrom == event.MinEventTime && f.ValidTo == event.OpenEnd:
		return "always always"
	case f.ValidTo == event.OpenEnd:
		return micros(f.ValidFrom) + " open"
	}
	return micros(f.ValidFrom) + " " + micros(f.ValidTo)
}
