package kafka_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

func TestBadRecordsAreDeadLettersAndTheRestIsExact(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			broker := kind.New(t, kafkatest.Topics{"earthquakes": 1})
			client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			at := time.UnixMilli(1517365391000)
			bad := []*kgo.Record{
				{Key: []byte("x1"), Value: []byte(`{"id":"x1",`)},
				{Key: []byte("x2"), Value: []byte(`{"id":"x2","mag":1,"place":"nowhere","updated":1517365391000}`)},
				{Key: []byte("x3"), Value: []byte(`{"id":"x3","time":1900000000000,"mag":1,"place":"nowhere"}`)},
				{Key: nil, Value: []byte("\x00\xff\xfe")},
				{Key: []byte("x5"), Value: nil},
			}
			for _, r := range bad {
				r.Topic, r.Timestamp = "earthquakes", at
				r.Headers = []kgo.RecordHeader{{Key: "trace", Value: []byte{1, 2, 3}}}
			}
			if err := client.ProduceSync(t.Context(), bad...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			loadQuakes(t, broker.Brokers())
			url := pgtest.New(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = kafka.New(kafka.Config{
				Topology: processors.NewTopology(quakesPlan(t), 1), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
				DataDir: t.TempDir(), UntilEnd: true, OpenOntology: openPostgres(url),
			}).Run(ctx)
			if err != nil {
				t.Fatal(err)
			}
			compareQuakes(t, url)
			letters := readTopic(t, broker.Brokers(), "strom.earthquakes.deadletter", len(bad)+1)
			if len(letters) != len(bad) {
				t.Fatalf("%d dead letters, want %d", len(letters), len(bad))
			}
			for i, want := range []string{"not_json", "no_event_time", "ahead", "not_json", "null_value"} {
				checkLetter(t, letters[i], bad[i], want)
			}
		})
	}
}

func checkLetter(t *testing.T, got, sent *kgo.Record, cause string) {
	t.Helper()
	headers := map[string]string{}
	for _, h := range got.Headers {
		headers[h.Key] = string(h.Value)
	}
	if string(got.Key) != string(sent.Key) || string(got.Value) != string(sent.Value) || (got.Value == nil) != (sent.Value == nil) || !got.Timestamp.Equal(sent.Timestamp) {
		t.Errorf("dead letter %q %q %s, sent %q %q %s", got.Key, got.Value, got.Timestamp, sent.Key, sent.Value, sent.Timestamp)
	}
	if headers["trace"] != "\x01\x02\x03" || headers["strom.cause"] != cause || headers["strom.topic"] != "earthquakes" ||
		headers["strom.partition"] != "0" || headers["strom.message"] == "" || headers["strom.stage"] != "ingest.quakes" {
		t.Errorf("headers of %q: %v, want cause %s", sent.Value, maps.Collect(maps.All(headers)), cause)
	}
}
