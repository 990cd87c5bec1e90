package kafka_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
)

// fusedTicks is the pipeline of ticks as one task, so that the points of a
// commit are those of the epoch that has the records.
func fusedTicks() string {
	return fmt.Sprintf(ticks, "wall, interval: 50ms", "partitioned_by: key") +
		"    from: ticks\n    id: k\n    properties:\n      last: {value: at, kind: integer}\n"
}

// keyed gives ticks the key that a producer which partitions by it would.
func keyed(records []*kgo.Record) []*kgo.Record {
	for _, r := range records {
		r.Key = fmt.Appendf(nil, "k%d", r.Timestamp.UnixMilli()%3)
	}
	return records
}

// killed makes the same pipeline for children that are killed and for engines
// of this process.
func killed(t *testing.T) (*steady, *child) {
	t.Helper()
	r := newSteady(t, 1)
	return r, &child{pipeline: "ticks", brokers: r.broker.Brokers(), postgres: r.postgres, dataDir: r.dir}
}

// kill runs the child until it dies at the point.
func (c *child) kill(t *testing.T, point string) {
	t.Helper()
	if !c.run(t, point) {
		t.Fatalf("the point %s was not reached", point)
	}
	c.bury(t)
}

// A count of five, and a process that dies at every step of a commit, before
// and after it: five it is in the end.
func TestACounterThatIsKilledStaysWhatItIs(t *testing.T) {
	r, c := killed(t)
	var five []*kgo.Record
	for i := range int64(5) {
		five = append(five, tick(0, day+3*i, ""))
	}
	r.produce(t, keyed(five)...)
	for _, point := range []string{"handover:1", "commit.offsets:1", "commit.rows:2", "commit.flushed:2", "commit.ended:2", "commit.applied:2", "commit.applied:1"} {
		c.kill(t, point)
	}
	want := countedByHand(five)
	if !strings.HasSuffix(want, " n=5") {
		t.Fatalf("five of one key are %s", want)
	}
	r.finish(t, r.config(t, fusedTicks()), want)
}

// The transaction is committed and the local batch is not: the store is behind,
// and the changelog has what it lacks.
func TestACrashBetweenTheCommitAndTheLocalBatchIsCaughtUp(t *testing.T) {
	r, c := killed(t)
	first, second := keyed(some(0, 100)), keyed(some(1, 50))
	r.produce(t, first[:50]...)
	until(t, r.config(t, fusedTicks()), 50) // what a planned stop leaves is on the disk
	r.produce(t, first[50:]...)
	c.kill(t, "commit.ended:1")
	r.produce(t, second...)
	config, d := r.config(t, fusedTicks()), watchDecisions(t)
	config.Log = slog.New(d)
	r.finish(t, config, countedByHand(first, second))
	d.want(t, 1, "decision", "catch up", "store", "behind", "age", "fresh")
	d.want(t, 1, "decision", "continue", "barrier", "agree")
}

// Records come all the time, every second one of them bad. A process dies when
// everything of an epoch is written and nothing is committed: rows, dead letters
// and windows stand there once all the same.
func TestWhatACrashLeavesUncommittedIsPublishedOnce(t *testing.T) {
	r, c := killed(t)
	var good []*kgo.Record
	bad := 0
	stop := make(chan struct{})
	var producing sync.WaitGroup
	producing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			pair := keyed([]*kgo.Record{tick(0, day+int64(i), ""), tick(0, day+int64(i), "")})
			pair[1].Value = []byte("no event")
			if err := r.client.ProduceSync(t.Context(), pair...).FirstErr(); err != nil {
				t.Error(err)
				return
			}
			good, bad = append(good, pair[0]), bad+1
		}
	})
	c.kill(t, "commit.flushed:5")
	close(stop)
	producing.Wait()
	if t.Failed() {
		t.FailNow()
	}
	config, d := r.config(t, fusedTicks()), watchDecisions(t)
	config.Log = slog.New(d)
	r.finish(t, config, countedByHand(good))
	d.want(t, 1, "decision", "continue", "barrier", "agree")

	letters := map[string]int{}
	for _, l := range readTopic(t, r.broker.Brokers(), config.Topology.DeadLetterTopic(), 1_000_000) {
		for _, h := range l.Headers {
			if h.Key == "strom.offset" {
				letters[string(h.Value)]++
			}
		}
	}
	onceEach(t, "dead letters", letters, bad)
	puts, windows := map[string]int{}, map[string]int{}
	for _, row := range readTopic(t, r.broker.Brokers(), config.Topology.ResultsTopic(), 1_000_000) {
		kind, err := event.RowKindOf(row.Value)
		if err != nil {
			t.Fatal(err)
		}
		if kind == event.RowMarker {
			continue
		}
		res, err := event.DecodeResult(row.Value)
		if err != nil {
			t.Fatal(err)
		}
		if kind == event.RowPut {
			puts[res.Place.Offset.String()]++
		} else {
			windows[fmt.Sprint(res.ID, res.ValidFrom, res.Version)]++
		}
	}
	onceEach(t, "rows of events", puts, len(good))
	onceEach(t, "windows", windows, 3)
	if all, committed := r.written(t, config.Topology.DeadLetterTopic()), int64(bad); all <= committed {
		t.Errorf("%d offsets in the dead-letter topic for %d letters: the crash left nothing uncommitted", all, committed)
	}
}

func onceEach(t *testing.T, what string, seen map[string]int, want int) {
	t.Helper()
	if len(seen) != want {
		t.Errorf("%d different %s, want %d", len(seen), what, want)
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("%s: %s stands there %d times", what, k, n)
		}
	}
}

// written is the number of records of a topic whose transactions were aborted or
// committed, without markers.
func (r *steady) written(t *testing.T, topic string) (n int64) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Brokers()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	end := r.bounds(t, topic)[1]
	for at := int64(0); at < end-1; { // the last is a marker
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) { n, at = n+1, rec.Offset+1 })
	}
	return n
}

// Nothing comes in: barriers are announced and committed all the same, before
// and after a restart, and what comes later is counted.
func TestEpochsWithoutRecordsAreCommitted(t *testing.T) {
	r := newSteady(t, 1)
	newest := event.Epoch(0)
	for range 2 {
		c, _ := r.counted(t)
		more := newest + 3
		runUntil(t, c, func(a processors.Ack) bool {
			if a.Counters.Events != 0 {
				t.Errorf("an event: %+v", a)
			}
			newest = max(newest, a.Epoch)
			return a.Epoch >= more
		})
	}
	records := some(0, 10)
	r.produce(t, records...)
	c, d := r.counted(t)
	r.finish(t, c, countedByHand(records))
	d.want(t, stages, "decision", "continue", "store", "at the end")
	if files := contents(t, filepath.Join(r.dir, "state")); len(files) == 0 {
		t.Error("no state was written")
	}
}
