package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

const ticks = `
pipeline: ticks
epoch: {clock: %s}
streams:
  ticks:
    topic: ticks
    key: k
    %s
    event_time: {field: at, format: ms, max_ahead: 24h}
    watermark: {out_of_orderness: 0s, idle_after: 1s}
objects:
  Thing:
    aggregates:
      days:
        from: ticks
        id: k
        window: {tumbling: 24h}
        values: {n: count()}
`

// steady is one pipeline over one broker and one database.
type steady struct {
	broker   *embedded.Broker // nil for one of another kind
	brokers  []string
	postgres string
	dir      string
	client   *kgo.Client
}

func newSteady(t *testing.T, partitions int32) *steady {
	t.Helper()
	broker := kafkatest.New(t, kafkatest.Topic("ticks", partitions))
	r := newSteadyOn(t, broker.Brokers())
	r.broker = broker
	return r
}

// newSteadyOn takes brokers that have the topic.
func newSteadyOn(t *testing.T, brokers []string) *steady {
	t.Helper()
	r := &steady{brokers: brokers, postgres: pgtest.New(t), dir: t.TempDir()}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r.client = client
	return r
}

func (r *steady) produce(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	if err := r.client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func tick(p int32, at int64, more string) *kgo.Record {
	return &kgo.Record{Topic: "ticks", Partition: p, Timestamp: time.UnixMilli(at),
		Value: fmt.Appendf(nil, `{"k":"k%d","at":%d%s}`, at%3, at, more)}
}

func (r *steady) config(t *testing.T, text string) kafka.Config {
	t.Helper()
	plan, err := mapping.Parse("ticks.yaml", []byte(text), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return kafka.Config{
		Topology: processors.NewTopology(plan, 1), Kafka: mapping.Kafka{Brokers: r.brokers},
		DataDir: r.dir, Log: testLog(t), OpenOntology: openPostgres(r.postgres), SessionTimeout: 2 * time.Second,
	}
}

var errDidNotEnd = errors.New("the engine did not end")

// within runs an engine for at most so long; then it is stopped, and the error
// is errDidNotEnd.
func within(t *testing.T, c kafka.Config, d time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var engine atomic.Pointer[kafka.Engine]
	// Only one that does not end is looked at.
	look := time.AfterFunc(d*9/10, func() {
		if e := engine.Load(); e != nil && t.Context().Err() == nil {
			stacks := make([]byte, 1<<20)
			t.Logf("it has not ended: %+v\n%s", e.Snapshot(), stacks[:runtime.Stack(stacks, true)])
		}
	})
	err := kafka.Run(ctx, c, engine.Store)
	look.Stop()
	if err == nil && ctx.Err() != nil {
		return errDidNotEnd
	}
	return err
}

// pause lets so much time pass: where the time itself is the case.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// until runs an engine until so many events have been acknowledged.
func until(t *testing.T, c kafka.Config, events int64) {
	t.Helper()
	seen := &observer{counters: map[processors.TaskID]processors.Counters{}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c.Observe = func(o kafka.Observation) {
		seen.observe(o)
		if seen.total().Events >= events {
			cancel()
		}
	}
	if err := kafka.New(c).Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := seen.total().Events; got < events {
		t.Fatalf("%d events, want %d", got, events)
	}
}

// Under the log clock a partition is fed only when R has come to its records,
// and R waits for the next record of the others: a full queue must not stop the
// polling of those.
func TestAPartitionFarAheadDoesNotStarveTheOthers(t *testing.T) {
	r := newSteady(t, 2)
	const n = 30_000
	var records []*kgo.Record
	for i := range int64(n) {
		records = append(records, tick(0, 1_600_000_000_000+i*1000, ""), tick(1, 1_500_000_000_000+i*1000, ""))
	}
	r.produce(t, records...)
	c := r.config(t, fmt.Sprintf(ticks, "log, step: 1h", ""))
	c.UntilEnd, c.QueueBytes = true, 256<<10
	if err := within(t, c, 15*time.Second); err != nil {
		t.Error(err)
	}
}

// The same, under the wall clock, where one partition has halted.
func TestAHaltedPartitionDoesNotStopTheOthers(t *testing.T) {
	r := newSteady(t, 2)
	const n = 30_000
	at := time.Now().UnixMilli()
	var records []*kgo.Record
	for range n {
		// One key in both partitions: it is wrong in one of them.
		records = append(records, tick(0, at, ""), tick(1, at, ""))
	}
	r.produce(t, records...)
	c := r.config(t, fmt.Sprintf(ticks, "wall", "partitioned_by: key"))
	c.QueueBytes = 256 << 10
	until(t, c, n)
}

// The ids that one task saw in one epoch may be more than one record of the
// changelog can hold.
func TestManyIdsInOneEpochCommit(t *testing.T) {
	r := newSteady(t, 1)
	const n = 200_000
	var records []*kgo.Record
	for i := range int64(n) {
		records = append(records, tick(0, 1_600_000_000_000+i, fmt.Sprintf(`,"id":"%036d"`, i)))
	}
	r.produce(t, records...)
	c := r.config(t, fmt.Sprintf(ticks, "log, step: 1h", "identity: {event_id: id, horizon: 24h}"))
	c.UntilEnd = true
	if err := within(t, c, 40*time.Second); err != nil {
		t.Error(err)
	}
}

// Retention has passed the committed offset: a clear stop, not a stage that
// joins its group again for ever.
func TestRetentionThatPassedUsIsAClearStop(t *testing.T) {
	r := newSteady(t, 1)
	at := time.Now().UnixMilli()
	for i := range int64(100) {
		r.produce(t, tick(0, at+i, ""))
	}
	text := fmt.Sprintf(ticks, "wall", "")
	until(t, r.config(t, text), 100)
	for i := range int64(100) {
		r.produce(t, tick(0, at+i, ""))
	}
	to := kadm.Offsets{}
	to.Add(kadm.Offset{Topic: "ticks", At: 150})
	if _, err := kadm.NewClient(r.client).DeleteRecords(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if err := within(t, r.config(t, text), 8*time.Second); err == nil || errors.Is(err, errDidNotEnd) {
		t.Errorf("got %v, want an error that names the topic and both offsets", err)
	}
}

// The input topic is deleted under a running engine.
func TestADeletedInputTopicIsAClearStop(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, tick(0, time.Now().UnixMilli(), ""))
	c := r.config(t, fmt.Sprintf(ticks, "wall", ""))
	var once atomic.Bool
	c.Observe = func(o kafka.Observation) {
		if o.Acked != nil && o.Acked.Counters.Events > 0 && once.CompareAndSwap(false, true) {
			go func() { _, _ = kadm.NewClient(r.client).DeleteTopics(context.Background(), "ticks") }()
		}
	}
	if err := within(t, c, 20*time.Second); err == nil || errors.Is(err, errDidNotEnd) {
		t.Errorf("got %v, want an error that names the topic", err)
	}
}

// A task is taken over, and nothing is committed before the next takeover: the
// store has the changelog's position of the first, and the progress record that
// stands there.
func TestAStopBeforeTheFirstEpochIsHarmless(t *testing.T) {
	r := newSteady(t, 1)
	c := r.config(t, fmt.Sprintf(ticks, "log, step: 1h", ""))
	for range 2 {
		if err := within(t, c, 2*time.Second); !errors.Is(err, errDidNotEnd) {
			t.Fatal(err)
		}
	}
}

// Nobody lets the engine write its results.
func TestADeniedTopicIsAClearStop(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, tick(0, time.Now().UnixMilli(), ""))
	c := r.config(t, fmt.Sprintf(ticks, "wall", ""))
	r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: c.Topology.ResultsTopic(), Err: kerr.TopicAuthorizationFailed, Count: -1})
	if err := within(t, c, 8*time.Second); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("got %v, want %v", err, kerr.TopicAuthorizationFailed)
	}
}

// A record of 1 MB whose text is the value of twelve properties makes a row of
// 12 MB: it is a dead letter, and stops nothing.
func TestARowTooLargeIsADeadLetter(t *testing.T) {
	r := newSteady(t, 1)
	text := fmt.Sprintf(ticks, "wall", "") + "    from: ticks\n    id: k\n    properties:\n"
	for i := range 12 {
		text += fmt.Sprintf("      p%d: {value: text, kind: text}\n", i)
	}
	r.produce(t, tick(0, time.Now().UnixMilli(), fmt.Sprintf(`,"text":%q`, strings.Repeat("x", 900_000))))
	for range 10 {
		r.produce(t, tick(0, time.Now().UnixMilli(), ""))
	}
	until(t, r.config(t, text), 10)
}

// The mapping of a pipeline that has run gets another aggregate.
func TestAChangedMappingIsRefusedClearly(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, tick(0, time.Now().UnixMilli(), ""))
	text := fmt.Sprintf(ticks, "wall", "")
	until(t, r.config(t, text), 1)
	more := text + "      hours:\n        from: ticks\n        id: k\n        window: {tumbling: 1h}\n        values: {n: count()}\n"
	err := within(t, r.config(t, more), 15*time.Second)
	if err == nil || !strings.Contains(err.Error(), "mapping") {
		t.Errorf("got %v, want an error that speaks of the mapping", err)
	}
}

// A process that slept for longer than the session timeout (a closed laptop, a
// paused machine) joins its groups again; the coordinator's must not end it.
func TestALostSessionOfTheCoordinatorEndsNothing(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, tick(0, time.Now().UnixMilli(), ""))
	c := r.config(t, fmt.Sprintf(ticks, "wall", ""))
	var once atomic.Bool
	c.Observe = func(o kafka.Observation) {
		if o.Acked != nil && o.Acked.Counters.Events > 0 && once.CompareAndSwap(false, true) {
			r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: c.Topology.CoordinatorGroup(), Err: kerr.UnknownMemberID, Count: 1})
		}
	}
	if err := within(t, c, 8*time.Second); !errors.Is(err, errDidNotEnd) {
		t.Errorf("the engine ended: %v", err)
	}
}

// A stop while a changelog is being read does not wait for the broker.
func TestAStopDuringATakeoverIsPrompt(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, tick(0, time.Now().UnixMilli(), ""))
	text := fmt.Sprintf(ticks, "wall", "partitioned_by: key")
	until(t, r.config(t, text), 1)
	r.dir = t.TempDir() // the state is to be read again
	c := r.config(t, text)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.At = func(point string) {
		if point == "recovery.tables" {
			r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: c.Topology.Changelog(c.Topology.Stages[0]), Err: kerr.NotLeaderForPartition, Count: -1})
			time.AfterFunc(500*time.Millisecond, cancel)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- kafka.New(c).Run(ctx) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the engine hangs")
	}
}

// The same event twice, the second time while the epoch of the first is
// committed in Kafka and not yet in the store.
func TestARepeatBetweenCommitAndApplyIsKnown(t *testing.T) {
	r := newSteady(t, 1)
	at := time.Now().UnixMilli()
	r.produce(t, tick(0, at, `,"id":"x"`))
	c := r.config(t, fmt.Sprintf(ticks, "wall, interval: 50ms", "partitioned_by: key\n    identity: {event_id: id, horizon: 24h}"))
	seen := &observer{counters: map[processors.TaskID]processors.Counters{}}
	var once atomic.Bool
	c.At = func(point string) {
		if point == "commit.ended" {
			pause(t, time.Second) // a slow disk
		}
	}
	c.Observe = func(o kafka.Observation) {
		seen.observe(o)
		if seen.total().Events == 1 && once.CompareAndSwap(false, true) {
			time.AfterFunc(500*time.Millisecond, func() { r.produce(t, tick(0, at, `,"id":"x"`)) })
		}
	}
	if err := within(t, c, 7*time.Second); !errors.Is(err, errDidNotEnd) {
		t.Fatal(err)
	}
	if got := seen.total(); got.Events != 1 || got.Repeats != 1 {
		t.Errorf("%d events and %d repeats, want 1 and 1", got.Events, got.Repeats)
	}
}

// A run until the end, then more records, then another: it must read them or
// say why not.
func TestASecondRunUntilTheEndDoesNotPassOverRecords(t *testing.T) {
	r := newSteady(t, 1)
	at := time.Now().UnixMilli()
	c := r.config(t, fmt.Sprintf(ticks, "wall", ""))
	c.UntilEnd = true
	for n := range int64(2) {
		r.produce(t, tick(0, at+n, ""))
		seen := &observer{counters: map[processors.TaskID]processors.Counters{}}
		c.Observe = seen.observe
		if err := within(t, c, 10*time.Second); err != nil {
			t.Logf("run %d: %v", n+1, err)
			return
		}
		if got := seen.total().Events; got != n+1 {
			t.Errorf("run %d ended well with %d of %d events", n+1, got, n+1)
		}
	}
}

// A broker that has just become the leader of a partition may not know the epoch
// of what was read there last. No reader goes back to the beginning for that.
func TestALeaderThatMovesSendsNoReaderBack(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("ticks", 1), kafkatest.Nodes(2))
	r := &steady{broker: broker, brokers: broker.Brokers(), postgres: pgtest.New(t), dir: t.TempDir()}
	c := r.config(t, fmt.Sprintf(ticks, "wall, interval: 20ms", ""))
	var announced atomic.Int64
	c.Observe = func(o kafka.Observation) {
		if o.Announced != nil {
			announced.Add(1)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for node := int32(0); ctx.Err() == nil; node = 1 - node {
			<-tick.C
			_ = r.broker.Cluster().MoveTopicPartition(c.Topology.ControlTopic(), 0, node) // not there yet at first
		}
	}()
	if err := kafka.New(c).Run(ctx); err != nil {
		t.Error(err)
	}
	if announced.Load() == 0 {
		t.Error("nothing was announced")
	}
}
