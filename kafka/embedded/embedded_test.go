package embedded_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
)

func newClient(t *testing.T, b brokers, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.FetchMaxWait(50 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestBrokerListensOnLoopbackOnlyAndOnTheWantedPort(t *testing.T) {
	first := kafkatest.New(t)
	host, port, err := net.SplitHostPort(first.Addr())
	if err != nil || host != "127.0.0.1" {
		t.Fatalf("address %s", first.Addr())
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatalf("second Stop: %v", err)
	}
	addr, err := net.ResolveTCPAddr("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	second, err := embedded.Start(t.Context(), embedded.Options{Port: addr.Port})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Stop() }()
	if second.Addr() != first.Addr() {
		t.Fatalf("got %s, want %s", second.Addr(), first.Addr())
	}
	_, err = embedded.Start(t.Context(), embedded.Options{Port: addr.Port})
	if inUse, ok := errors.AsType[*embedded.PortInUseError](err); !ok || inUse.Port != addr.Port {
		t.Fatalf("got %v, want a PortInUseError for %d", err, addr.Port)
	}
}

func TestTopicsAreThereAndKeepTheirPartitions(t *testing.T) {
	dir := t.TempDir()
	first := kafkatest.New(t, kafkatest.DataDir(dir), kafkatest.Topic("a", 3))
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := kafkatest.New(t, kafkatest.DataDir(dir), kafkatest.Topic("a", 3), kafkatest.Topic("b", 5))
	topics, err := kadm.NewClient(newClient(t, second)).ListTopics(withTimeout(t))
	if err != nil || len(topics["a"].Partitions) != 3 || len(topics["b"].Partitions) != 5 {
		t.Fatalf("got %v, %v", topics, err)
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	_, err = embedded.Start(t.Context(), embedded.Options{DataDir: dir, Topics: map[string]int32{"a": 4}})
	if wrong, ok := errors.AsType[*embedded.TopicError](err); !ok || wrong.Topic != "a" {
		t.Fatalf("got %v, want a TopicError for a", err)
	}
	third := kafkatest.New(t, kafkatest.DataDir(dir)) // the refused start has let go of the directory
	_ = third
}

func TestUnknownTopicIsNotMadeByUse(t *testing.T) {
	b := kafkatest.New(t)
	client := newClient(t, b, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(1))
	err := client.ProduceSync(withTimeout(t), &kgo.Record{Topic: "typo", Value: []byte("x")}).FirstErr()
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Fatalf("got %v, want UNKNOWN_TOPIC_OR_PARTITION", err)
	}
}

func TestDataDirServesOneBrokerAtATime(t *testing.T) {
	dir := t.TempDir()
	b := kafkatest.New(t, kafkatest.DataDir(dir))
	_, err := embedded.Start(t.Context(), embedded.Options{DataDir: dir})
	if inUse, ok := errors.AsType[*embedded.DataDirInUseError](err); !ok || inUse.PID != os.Getpid() || inUse.Dir != dir {
		t.Fatalf("got %v, want a DataDirInUseError that names process %d", err, os.Getpid())
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	kafkatest.New(t, kafkatest.DataDir(dir))
}

func TestBadOptionsAreReportedTogether(t *testing.T) {
	_, err := embedded.Start(t.Context(), embedded.Options{Port: -1, Nodes: -1, Topics: map[string]int32{"none": 0}})
	for _, want := range []string{"port -1", "nodes -1", `"none"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %s", err, want)
		}
	}
}

func TestShortGroupSessionsAreAllowed(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Topic("in", 1))
	ctx := withTimeout(t)
	client := newClient(t, b, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in"), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(embedded.MinSessionTimeout), kgo.HeartbeatInterval(embedded.MinSessionTimeout/4))
	if err := newClient(t, b).ProduceSync(ctx, &kgo.Record{Topic: "in", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if fetches := client.PollFetches(ctx); fetches.NumRecords() != 1 {
		t.Fatalf("got %d records, errors %v", fetches.NumRecords(), fetches.Errors())
	}
}

func TestOldRecordsDoNotExpire(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Topic("history", 1))
	ctx := withTimeout(t)
	client := newClient(t, b)
	old := &kgo.Record{Topic: "history", Value: []byte("x"), Timestamp: time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC)}
	if err := client.ProduceSync(ctx, old).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.Cluster().ApplyRetention()
	starts, err := kadm.NewClient(client).ListStartOffsets(ctx, "history")
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := starts.Lookup("history", 0); o.Offset != 0 {
		t.Fatalf("the log begins at %d", o.Offset)
	}
}

func TestFailedWriteShowsOnStop(t *testing.T) {
	dir := t.TempDir()
	var said atomic.Int64
	b, err := embedded.Start(t.Context(), embedded.Options{
		DataDir: dir,
		Topics:  map[string]int32{"a": 1},
		Log: func(level slog.Level, _ string) {
			if level >= slog.LevelWarn {
				said.Add(1)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The directory vanishes, and a file takes its place.
	if err := os.RemoveAll(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(); err == nil || !strings.Contains(err.Error(), "could not keep its data") {
		t.Fatalf("Stop = %v, want that it could not keep its data", err)
	}
	if said.Load() == 0 {
		t.Fatal("the log says nothing of it")
	}
}
