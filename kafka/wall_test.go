package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// The pipeline has what the earthquakes have not: the wall clock, several
// partitions, an aggregate that is fused with its stream, one behind a
// repartition topic, and two streams.
const meters = `
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
      tens:
        from: readings
        id: meter
        window: {tumbling: 10s}
        values: {n: count(), total: {sum: v}}
  Street:
    aggregates:
      tens:
        from: readings
        id: street
        window: {tumbling: 10s}
        values: {n: count(), mean: {avg: v}}
  House:
    aggregates:
      visits:
        from: visits
        id: house
        window: {tumbling: 1m}
        values: {n: count()}
`

// meterData makes records, and the sums that they must end in, by a fold that
// knows nothing of epochs.
func meterData(seed uint64, n int) (records []*kgo.Record, want string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	base := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	type sum struct{ n, total int64 }
	sums := map[string]*sum{}
	add := func(format string, at, width, v int64, args ...any) {
		start := event.EventTime(event.FloorDiv(at, width) * width * 1000)
		k := fmt.Sprintf(format, args...) + " " + start.String()
		if sums[k] == nil {
			sums[k] = &sum{}
		}
		sums[k].n++
		sums[k].total += v
	}
	for i := range int64(n) {
		at := base + i*40 - rng.Int64N(3000)
		if rng.IntN(10) == 0 {
			at -= rng.Int64N(120_000) // far behind
		}
		meter, street, v := fmt.Sprintf("m%d", rng.IntN(20)), fmt.Sprintf("s%d", rng.IntN(3)), rng.Int64N(100)
		value := fmt.Sprintf(`{"id":"r%d","meter":%q,"street":%q,"at":%d,"v":%d}`, i, meter, street, at, v)
		records = append(records, &kgo.Record{Topic: "readings", Key: []byte(meter), Value: []byte(value)})
		if rng.IntN(50) == 0 { // sent twice
			records = append(records, &kgo.Record{Topic: "readings", Key: []byte(meter), Value: []byte(value)})
		}
		add("Meter %s", at, 10_000, v, meter)
		add("Street %s", at, 10_000, v, street)
		if rng.IntN(3) == 0 {
			house := fmt.Sprintf("h%d", rng.IntN(5))
			records = append(records, &kgo.Record{Topic: "visits", Key: []byte(house),
				Value: fmt.Appendf(nil, `{"id":%d,"house":%q,"at":%d}`, i, house, at)})
			add("House %s", at, 60_000, 0, house)
		}
	}
	var lines []string
	for k, s := range sums {
		lines = append(lines, fmt.Sprintf("%s n=%d", k, s.n))
	}
	sort.Strings(lines)
	return records, strings.Join(lines, "\n")
}

// produceMeters produces records as a producer that partitions by key does.
func produceMeters(t *testing.T, brokers []string, records []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// believedCounts lists every count that the ontology believes now.
func believedCounts(t *testing.T, url string) string {
	t.Helper()
	reader, err := ontology.OpenReader(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(url)}, ontology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	bounds, err := reader.Bounds(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for f, err := range reader.AsOf(t.Context(), ontology.Question{Recorded: bounds.Horizon}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f.Property, ".n") {
			lines = append(lines, fmt.Sprintf("%s %s %s n=%s", f.Type, f.ID, f.ValidFrom, f.Value.Text))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func metersPlan(t *testing.T) *mapping.Plan {
	t.Helper()
	plan, err := mapping.Parse("meters.yaml", []byte(meters), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// metersTopics are the inputs of the pipeline.
func metersTopics() kafkatest.Topics { return kafkatest.Topics{"readings": 3, "visits": 2} }

func TestAPlannedStopAndARestartLoseAndDoubleNothing(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			const records = 6000
			broker := kind.New(t, metersTopics())
			url, dir := pgtest.New(t), t.TempDir()
			data, want := meterData(7, records)
			client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			run := func(ctx context.Context, untilEnd bool, observe func(kafka.Observation)) {
				t.Helper()
				err := kafka.New(kafka.Config{
					Topology: processors.NewTopology(metersPlan(t), 1), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
					DataDir: dir, UntilEnd: untilEnd, Observe: observe, Log: testLog(t), OpenOntology: openPostgres(url),
				}).Run(ctx)
				if err != nil {
					t.Fatal(err)
				}
			}
			// Stop in the middle of a stream that goes on.
			client.Produce(t.Context(), data[0], nil)
			for part := range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				for _, r := range data[max(1, part*len(data)/3) : (part+1)*len(data)/3] {
					client.Produce(t.Context(), r, nil)
				}
				seen := &observer{counters: map[processors.TaskID]processors.Counters{}}
				enough := int64((part*3 + 1) * records / 9)
				run(ctx, false, func(o kafka.Observation) {
					seen.observe(o)
					if seen.total().Events > enough {
						cancel()
					}
				})
				cancel()
			}
			if err := client.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			last := &observer{counters: map[processors.TaskID]processors.Counters{}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			run(ctx, true, last.observe)
			if got := believedCounts(t, url); got != want {
				t.Errorf("%s", firstDifference(got, want))
			}
			t.Logf("%+v", last.total())
		})
	}
}
