package kafka_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/kafka"
)

// readTopic reads up to n committed records of a topic, from its beginning; it
// gives what has come when nothing more does.
func readTopic(t *testing.T, brokers []string, topic string, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var out []*kgo.Record
	for len(out) < n {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		fetches := client.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			break
		}
		out = append(out, fetches.Records()...)
	}
	return out[:min(n, len(out))]
}

// progress tells that a pipeline goes on: a barrier is announced when all tasks
// have committed the one before it.
type progress struct{ announced chan struct{} }

func newProgress() *progress { return &progress{announced: make(chan struct{}, 1)} }

// observe is for kafka.Config.Observe.
func (p *progress) observe(o kafka.Observation) {
	if o.Announced == nil {
		return
	}
	select {
	case p.announced <- struct{}{}:
	default:
	}
}

// await waits until at least n more barriers have been announced.
func (p *progress) await(t *testing.T, n int, when string) {
	t.Helper()
	for range n + 1 { // the first may have waited in the channel
		select {
		case <-p.announced:
		case <-time.After(time.Minute):
			t.Fatalf("no barrier is announced %s", when)
		}
	}
}

// testLog passes the engine's log to the test's.
func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type testWriter struct{ t *testing.T }

// Write implements io.Writer.
func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p))
	return len(p), nil
}
