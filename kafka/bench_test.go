package kafka_test

import (
	"fmt"
	"os"
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
	base := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	for i := range int64(events) {
		user := fmt.Sprintf("user-%05d", i*7919%keys)
		value := fmt.Appendf(nil, `{"user":%q,"at":%d,"amount":%d,"page":"/products/%07d","agent":"Mozilla/5.0 (X11; Linux x86_64)","session":"%016x"}`,
			user, base+i/20, i%1000, i%100_000, i*2654435761)
		client.Produce(b.Context(), &kgo.Record{Topic: "clicks", Key: []byte(user), Value: value}, nil)
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
