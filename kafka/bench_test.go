package kafka_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

const clicks = `
pipeline: clicks
epoch: {clock: wall, interval: 200ms}
streams:
  clicks:
    topic: clicks
    key: user
    %s
    event_time: {field: at, format: ms, max_ahead: 24h}
    watermark: {out_of_orderness: 1s, idle_after: 1s}
    allowed_lateness: 10s
objects:
  User:
    aggregates:
      tens:
        from: clicks
        id: user
        window: {tumbling: 10s}
        values: {n: count(), total: {sum: amount}, least: {min: amount}, most: {max: amount}}
`

// click is an event of about 140 bytes; 20 of them are a millisecond of event time.
func click(i, keys int64) *kgo.Record {
	base := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	user := fmt.Sprintf("user-%05d", i*7919%keys)
	return &kgo.Record{Topic: "clicks", Key: []byte(user), Value: fmt.Appendf(nil,
		`{"user":%q,"at":%d,"amount":%d,"page":"/products/%07d","agent":"Mozilla/5.0 (X11; Linux x86_64)","session":"%016x"}`,
		user, base+i/20, i%1000, i%100_000, i*2654435761)}
}

// BenchmarkPath runs events of about 140 bytes, ten thousand keys, all the way
// from a topic into PostgreSQL, broker and database on the same machine.
//
//	go test ./kafka -run '^$' -bench Path -benchtime 1x
func BenchmarkPath(b *testing.B) {
	const events, keys, partitions = 1_000_000, 10_000, 4
	broker := kafkatest.New(b, kafkatest.Topic("clicks", partitions))
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	for i := range int64(events) {
		client.Produce(b.Context(), click(i, keys), nil)
	}
	if err := client.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, by := range []string{"fused", "repartitioned"} {
		b.Run(by, func(b *testing.B) {
			stream := ""
			if by == "fused" {
				stream = "partitioned_by: key"
			}
			for range b.N {
				plan, err := mapping.Parse("clicks.yaml", fmt.Appendf(nil, clicks, stream), os.LookupEnv)
				if err != nil {
					b.Fatal(err)
				}
				plan.Pipeline = fmt.Sprintf("clicks-%s-%d", by, time.Now().UnixNano())
				started := time.Now()
				err = kafka.New(kafka.Config{
					Topology: processors.NewTopology(plan, 1), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
					DataDir: b.TempDir(), UntilEnd: true, OpenOntology: openPostgres(pgtest.New(b)),
				}).Run(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(events/time.Since(started).Seconds(), "events/s")
			}
		})
	}
}

// BenchmarkCommit gives how long an epoch takes to commit while events come at
// an even pace, about half of what BenchmarkPath reaches on two cores.
//
//	go test ./kafka -run '^$' -bench Commit -benchtime 1x
func BenchmarkCommit(b *testing.B) {
	const perSecond, seconds, keys = 100_000, 10, 10_000
	for range b.N {
		broker := kafkatest.New(b, kafkatest.Topic("clicks", 4))
		plan, err := mapping.Parse("clicks.yaml", fmt.Appendf(nil, clicks, "partitioned_by: key"), os.LookupEnv)
		if err != nil {
			b.Fatal(err)
		}
		var mu sync.Mutex // guards took
		var took []time.Duration
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		engine := kafka.New(kafka.Config{
			Topology: processors.NewTopology(plan, 1), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
			DataDir: b.TempDir(), OpenOntology: openPostgres(pgtest.New(b)),
			Observe: func(o kafka.Observation) {
				if o.Committed != nil && o.Committed.Records > 10 {
					mu.Lock()
					defer mu.Unlock()
					took = append(took, o.Committed.Took)
				}
			},
		})
		go func() { ended <- engine.Run(ctx) }()
		producePaced(b, broker.Brokers(), perSecond, perSecond*seconds, keys)
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
		if len(took) < seconds {
			b.Fatalf("only %d epochs", len(took))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/commit(median)")
		b.ReportMetric(float64(took[len(took)*9/10].Microseconds())/1000, "ms/commit(p90)")
		b.ReportMetric(float64(len(took)), "epochs")
	}
}

func producePaced(b *testing.B, brokers []string, perSecond, n, keys int64) {
	b.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for sent := int64(0); sent < n; <-tick.C {
		for due := min(n, int64(time.Since(began).Seconds()*float64(perSecond))); sent < due; sent++ {
			client.Produce(b.Context(), click(sent, keys), nil)
		}
	}
	if err := client.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
}
