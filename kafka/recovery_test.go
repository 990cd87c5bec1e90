package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
)

// The tests below take a pipeline over after something has happened to its
// disk, its changelog, its offsets or its input: docs/recovery.md has the cases.

// decisions keeps what the engine's log says of recovery. It is a slog.Handler,
// whose methods may be called from any goroutine.
type decisions struct {
	slog.Handler
	seen func(d map[string]string) // where set, is told of each

	mu   *sync.Mutex // guards list
	list *[]map[string]string
}

func watchDecisions(t *testing.T) *decisions {
	t.Helper()
	return &decisions{Handler: testLog(t).Handler(), mu: new(sync.Mutex), list: new([]map[string]string)}
}

// Enabled lets recovery through, whatever its level.
func (d *decisions) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (d *decisions) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "recovery" {
		made := map[string]string{}
		r.Attrs(func(a slog.Attr) bool {
			made[a.Key] = a.Value.String()
			return true
		})
		d.mu.Lock()
		*d.list = append(*d.list, made)
		d.mu.Unlock()
		if d.seen != nil {
			d.seen(made)
		}
		return d.Handler.Handle(ctx, r)
	}
	if r.Level < slog.LevelInfo {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

// made lists the decisions of which each pair of key and value holds.
func (d *decisions) made(pairs ...string) (found []map[string]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range *d.list {
		holds := true
		for i := 0; i+1 < len(pairs); i += 2 {
			holds = holds && m[pairs[i]] == pairs[i+1]
		}
		if holds {
			found = append(found, m)
		}
	}
	return found
}

// want makes sure that so many tasks were decided upon like this.
func (d *decisions) want(t *testing.T, n int, pairs ...string) {
	t.Helper()
	if got := d.made(pairs...); len(got) != n {
		t.Errorf("%d decisions with %q, want %d; all of them:", len(got), pairs, n)
		for _, m := range d.made() {
			t.Log(m)
		}
	}
}

// counted is the pipeline of ticks with its log watched.
func (r *steady) counted(t *testing.T) (kafka.Config, *decisions) {
	t.Helper()
	c := r.config(t, fmt.Sprintf(ticks, "wall, interval: 50ms", ""))
	d := watchDecisions(t)
	c.Log = slog.New(d)
	return c, d
}

// stages are the tasks of the ticks' pipeline on one partition: one ingests,
// one counts.
const stages = 2

// day is the beginning of the day in which the ticks of these tests lie,
// 2025-03-01 UTC.
const day = 1_740_787_200_000

// some makes n ticks of one day, and moment apart from those of other moments.
func some(moment, n int) []*kgo.Record {
	var out []*kgo.Record
	for i := range n {
		out = append(out, tick(0, day+int64(moment*100_000+i), ""))
	}
	return out
}

// countedByHand is what believedCounts must say after all those ticks.
func countedByHand(records ...[]*kgo.Record) string {
	sums := map[string]int{}
	for _, r := range slices.Concat(records...) {
		at := r.Timestamp.UnixMilli()
		sums[fmt.Sprintf("Thing k%d %s", at%3, event.FromTime(time.UnixMilli(at).Truncate(24*time.Hour)))]++
	}
	var lines []string
	for k, n := range sums {
		lines = append(lines, fmt.Sprintf("%s n=%d", k, n))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// finish runs the pipeline to the end of its input and compares.
func (r *steady) finish(t *testing.T, c kafka.Config, want string) {
	t.Helper()
	c.UntilEnd = true
	if err := within(t, c, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := believedCounts(t, r.postgres); got != want {
		t.Errorf("%s", firstDifference(got, want))
	}
}

func TestAWipedDiskIsRebuiltFromTheChangelog(t *testing.T) {
	r := newSteady(t, 1)
	first, second := some(0, 100), some(1, 50)
	r.produce(t, first...)
	c, d := r.counted(t)
	until(t, c, 100)
	d.want(t, stages, "decision", "begin")

	r.dir = t.TempDir()
	r.produce(t, second...)
	c, d = r.counted(t)
	r.finish(t, c, countedByHand(first, second))
	d.want(t, stages, "decision", "rebuild", "store", "absent", "changelog", "whole")
	d.want(t, stages, "decision", "continue", "barrier", "agree", "origin", "held")
}

// A stop and a start change nothing in Kafka that the store lacks.
func TestAStoreAtTheEndOfItsChangelogIsUsedAsItIs(t *testing.T) {
	r := newSteady(t, 1)
	first, second := some(0, 100), some(1, 50)
	r.produce(t, first...)
	c, _ := r.counted(t)
	until(t, c, 100)
	r.produce(t, second...)
	c, d := r.counted(t)
	r.finish(t, c, countedByHand(first, second))
	d.want(t, stages, "decision", "continue", "store", "at the end", "age", "fresh")
}

func TestAForeignDirectoryIsRefusedAndLeftAlone(t *testing.T) {
	r := newSteady(t, 2)
	r.produce(t, some(0, 10)...)
	c, _ := r.counted(t)
	until(t, c, 10)
	stage := filepath.Join(r.dir, "state", "ticks.g1", "ingest.ticks")
	zero, one, aside := filepath.Join(stage, "0"), filepath.Join(stage, "1"), filepath.Join(stage, "aside")
	if err := errors.Join(os.Rename(zero, aside), os.Rename(one, zero), os.Rename(aside, one)); err != nil {
		t.Fatal(err)
	}
	before := contents(t, stage)
	c, d := r.counted(t)
	err := within(t, c, 15*time.Second)
	var foreign *state.ForeignError
	if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("got %v, want a ForeignError", err)
	}
	if len(d.made("decision", "refuse", "store", "foreign")) == 0 {
		t.Error("nothing was decided")
	}
	if !slices.Equal(contents(t, stage), before) {
		t.Error("something in the directory has changed")
	}
}

// contents lists the files below a directory with their sizes.
func contents(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		list = append(list, fmt.Sprintf("%s %d", path, info.Size()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Files are torn, changed and removed between one run and the next.
func TestDamagedFilesAreRebuiltFromTheChangelog(t *testing.T) {
	r := newSteady(t, 1)
	var all [][]*kgo.Record
	events := int64(0)
	run := func() *decisions {
		t.Helper()
		all = append(all, some(len(all), 20))
		r.produce(t, all[len(all)-1]...)
		events += 20
		c, d := r.counted(t)
		until(t, c, events)
		return d
	}
	run()
	run() // what the first run left in the write-ahead log is in tables now
	for _, c := range []struct {
		what, pattern string
		damage        func(content []byte) []byte
	}{
		{"tables with a changed part", "db/*.sst", func(b []byte) []byte {
			for i := range len(b) / 3 {
				b[i] ^= 0x55
			}
			return b
		}},
		{"torn tables", "db/*.sst", func(b []byte) []byte { return b[:len(b)/2] }},
		{"a torn manifest", "db/MANIFEST-*", func(b []byte) []byte { return b[:len(b)/2] }},
		{"an empty identity", "STROM-TASK.json", func([]byte) []byte { return nil }},
		{"no identity", "STROM-TASK.json", nil},
	} {
		damageFiles(t, filepath.Join(r.dir, "state", "ticks.g1", "*", "0", c.pattern), c.damage)
		d := run()
		// What is found while a task runs condemns the stores of all tasks of its stage.
		if got := d.made("decision", "rebuild", "store", "damaged", "changelog", "whole"); len(got) < stages {
			t.Errorf("%s: %d stores were rebuilt, want %d", c.what, len(got), stages)
		}
		run() // and it is whole again
	}
	c, d := r.counted(t)
	r.finish(t, c, countedByHand(all...))
	d.want(t, 0, "decision", "rebuild")
}

// damageFiles changes the files that match, or removes them.
func damageFiles(t *testing.T, pattern string, change func([]byte) []byte) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) < stages {
		t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil && change == nil {
			err = os.Remove(path)
		} else if err == nil {
			err = os.WriteFile(path, change(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// makeChangelogs makes the changelogs of the pipeline before it does so itself,
// and gives their names.
func (r *steady) makeChangelogs(t *testing.T, c kafka.Config) []string {
	t.Helper()
	var topics []string
	for _, s := range c.Topology.Stages {
		topics = append(topics, c.Topology.Changelog(s))
	}
	if _, err := kadm.NewClient(r.client).CreateTopics(t.Context(), 1, 1, map[string]*string{"cleanup.policy": new("compact")}, topics...); err != nil {
		t.Fatal(err)
	}
	return topics
}

// A task was taken over once, and that is all that its changelog holds: one
// transaction, or, of a tool that knows no transactions, one record.
func TestAShortChangelogAndAWipedDisk(t *testing.T) {
	t.Run("one transaction", func(t *testing.T) {
		r := newSteady(t, 1)
		for range 2 { // under the log clock there is no barrier before the first record
			c, _ := r.counted(t)
			c.Topology = r.config(t, fmt.Sprintf(ticks, "log, step: 1h", "")).Topology
			if err := within(t, c, time.Second); !errors.Is(err, errDidNotEnd) {
				t.Fatal(err)
			}
			r.dir = t.TempDir()
		}
		records := some(0, 10)
		r.produce(t, records...)
		c, d := r.counted(t)
		c.Topology = r.config(t, fmt.Sprintf(ticks, "log, step: 1h", "")).Topology
		r.finish(t, c, countedByHand(records))
		d.want(t, stages, "decision", "rebuild", "store", "absent")
		d.want(t, stages, "decision", "continue", "barrier", "agree")
	})
	t.Run("one record", func(t *testing.T) {
		r := newSteady(t, 1)
		c, d := r.counted(t)
		adm := kadm.NewClient(r.client)
		for i, topic := range r.makeChangelogs(t, c) {
			stage := c.Topology.Stages[i]
			if !stage.Source() {
				if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, stage.Input); err != nil {
					t.Fatal(err)
				}
			}
			progress := state.InitialProgress()
			progress.Offsets = map[string]event.Offset{stage.Input: 0}
			value, err := progress.Encode()
			if err != nil {
				t.Fatal(err)
			}
			r.produce(t, &kgo.Record{Topic: topic, Key: []byte{state.KeyProgress}, Value: value})
			offsets := kadm.Offsets{}
			offsets.AddOffset(stage.Input, 0, 0, -1)
			if err := adm.CommitAllOffsets(t.Context(), c.Topology.Group(stage), offsets); err != nil {
				t.Fatal(err)
			}
		}
		records := some(0, 10)
		r.produce(t, records...)
		r.finish(t, c, countedByHand(records))
		d.want(t, stages, "decision", "rebuild", "store", "absent", "changelog", "whole")
		d.want(t, stages, "decision", "continue", "barrier", "agree")
	})
}

// abortOne leaves an aborted transaction in a topic: the last thing there is
// then a marker that nobody is given, and before it a record that nobody is
// given either.
func (r *steady) abortOne(t *testing.T, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Brokers()...), kgo.TransactionalID("stranger"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	junk := &kgo.Record{Topic: topic, Key: []byte{state.KeyProgress}, Value: []byte("junk")}
	if err := client.ProduceSync(t.Context(), junk).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := client.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}

func TestAChangelogThatEndsInMarkersIsReadToItsEnd(t *testing.T) {
	r := newSteady(t, 1)
	first, second := some(0, 100), some(1, 50)
	r.produce(t, first...)
	c, _ := r.counted(t)
	until(t, c, 100)
	for _, s := range c.Topology.Stages {
		r.abortOne(t, c.Topology.Changelog(s))
	}
	// Once with the store that is there, once without.
	for _, wipe := range []bool{false, true} {
		if wipe {
			r.dir = t.TempDir()
		}
		r.produce(t, second...)
		first = append(first, second...)
		c, d := r.counted(t)
		if !wipe {
			until(t, c, int64(len(first)))
			d.want(t, stages, "decision", "catch up", "store", "behind")
			continue
		}
		r.finish(t, c, countedByHand(first))
		d.want(t, stages, "decision", "rebuild", "store", "absent")
	}
}

// The first transaction of the changelog was aborted, so that compaction removes
// its head; the entries in the middle are superseded.
func TestAChangelogWhoseHeadIsCompactedAwayGivesTheWholeState(t *testing.T) {
	r := newSteady(t, 1)
	c, _ := r.counted(t)
	topics := r.makeChangelogs(t, c)
	for _, topic := range topics {
		r.abortOne(t, topic)
	}
	var all [][]*kgo.Record
	for i := range 3 {
		all = append(all, some(i, 30))
		r.produce(t, all[i]...)
		until(t, c, int64(30*(i+1)))
	}
	before := r.length(t, topics[1])
	r.broker.Cluster().Compact()
	for _, topic := range topics {
		if b := r.bounds(t, topic); b[0] == 0 {
			t.Fatalf("%s begins at offset 0: it is not compacted", topic)
		}
	}
	if after := r.length(t, topics[1]); after >= before {
		t.Fatalf("%d records, and %d before the compaction", after, before)
	}
	r.dir = t.TempDir()
	c, d := r.counted(t)
	r.finish(t, c, countedByHand(all...))
	d.want(t, stages, "decision", "rebuild", "store", "absent", "changelog", "beheaded")
	d.want(t, stages, "decision", "continue", "barrier", "agree", "changelog", "beheaded", "origin", "held")
}

// bounds are the first offset and the high watermark of partition 0.
func (r *steady) bounds(t *testing.T, topic string) [2]int64 {
	t.Helper()
	adm := kadm.NewClient(r.client)
	starts, err := adm.ListStartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := starts.Lookup(topic, 0)
	last, _ := ends.Lookup(topic, 0)
	return [2]int64{first.Offset, last.Offset}
}

func (r *steady) length(t *testing.T, topic string) int {
	t.Helper()
	return len(readTopic(t, r.broker.Brokers(), topic, 1_000_000))
}

// behead deletes the records of a topic before an offset.
func (r *steady) behead(t *testing.T, topic string, before int64) {
	t.Helper()
	to := kadm.Offsets{}
	to.AddOffset(topic, 0, before, -1)
	if _, err := kadm.NewClient(r.client).DeleteRecords(t.Context(), to); err != nil {
		t.Fatal(err)
	}
}

// Somebody deletes records of the changelogs: a store that has them goes on; a
// disk that has not is no reason to begin with half of the state.
func TestDeletedChangelogRecordsAreMissedOnlyByWhoNeedsThem(t *testing.T) {
	r := newSteady(t, 1)
	first, second := some(0, 100), some(1, 50)
	r.produce(t, first...)
	c, _ := r.counted(t)
	until(t, c, 100)
	for _, s := range c.Topology.Stages {
		topic := c.Topology.Changelog(s)
		r.behead(t, topic, r.bounds(t, topic)[1]-2) // all but the last progress record and its marker
	}
	full := r.dir

	r.dir = t.TempDir()
	c, d := r.counted(t)
	err := within(t, c, 15*time.Second)
	var lost *kafka.ChangelogError
	if !errors.As(err, &lost) || lost.Verdict.Reason != state.ReasonChangelog || lost.Start == 0 {
		t.Errorf("got %v, want a ChangelogError", err)
	}
	if len(d.made("decision", "refuse", "barrier", "agree", "origin", "missing", "changelog", "beheaded")) == 0 {
		t.Error("nothing was decided")
	}

	r.dir = full
	r.produce(t, second...)
	c, d = r.counted(t)
	r.finish(t, c, countedByHand(first, second))
	d.want(t, 0, "decision", "rebuild")
	d.want(t, stages, "decision", "continue", "barrier", "agree", "origin", "held", "changelog", "beheaded")
}

// Kafka is restored from a backup: changelogs, offsets and results are as they
// were then, and the local stores hold what has happened since.
func TestAStoreAheadOfItsChangelogIsRebuilt(t *testing.T) {
	kafkaDir := t.TempDir()
	live := filepath.Join(kafkaDir, "live")
	r := &steady{postgres: pgtest.New(t), dir: t.TempDir()}
	records := [][]*kgo.Record{some(0, 60), some(1, 60), some(2, 30)}
	run := func(events int64, records []*kgo.Record) {
		t.Helper()
		r.connect(t, live)
		r.produce(t, records...)
		c, _ := r.counted(t)
		until(t, c, events)
		r.disconnect(t)
	}
	run(60, records[0])
	if err := os.CopyFS(filepath.Join(kafkaDir, "backup"), os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	run(120, records[1])
	if err := os.RemoveAll(live); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(kafkaDir, "backup"), live); err != nil {
		t.Fatal(err)
	}
	r.postgres = pgtest.New(t) // the ontology reads all results again
	r.connect(t, live)
	r.produce(t, records[2]...)
	c, d := r.counted(t)
	r.finish(t, c, countedByHand(records[0], records[2]))
	d.want(t, stages, "decision", "rebuild", "store", "ahead")
	r.disconnect(t)
}

// connect starts the broker on a directory; disconnect stops it.
func (r *steady) connect(t *testing.T, dir string) {
	t.Helper()
	r.broker = kafkatest.New(t, kafkatest.Topic("ticks", 1), kafkatest.DataDir(dir))
	r.brokers = r.broker.Brokers()
	r.dial(t)
}

func (r *steady) dial(t *testing.T) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r.client = client
}

func (r *steady) disconnect(t *testing.T) {
	t.Helper()
	r.client.Close()
	if err := r.broker.Stop(); err != nil {
		t.Fatal(err)
	}
}

// The operator begins anew by deleting the pipeline's topics and groups; the
// disk of one replica is forgotten, and comes back when the new changelog is
// longer than the old one was.
func TestAStoreOfAChangelogThatWasMadeAgainIsRebuilt(t *testing.T) {
	r := newSteady(t, 1)
	first, second := some(0, 50), some(1, 200)
	r.produce(t, first...)
	c, _ := r.counted(t)
	until(t, c, 50)
	old, topic := r.dir, c.Topology.Changelog(c.Topology.Stages[1])
	end := r.bounds(t, topic)[1]

	adm := kadm.NewClient(r.client)
	all, err := adm.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = adm.DeleteTopics(t.Context(), all.Names()...)
	groups, listed := adm.ListGroups(t.Context())
	_, deleted := adm.DeleteGroups(t.Context(), groups.Groups()...)
	_, created := adm.CreateTopics(t.Context(), 1, 1, nil, "ticks")
	if err := errors.Join(err, listed, deleted, created); err != nil {
		t.Fatal(err)
	}
	r.dial(t) // a client does not follow a topic that is made again
	r.postgres, r.dir = pgtest.New(t), t.TempDir()
	r.produce(t, second...)
	c, _ = r.counted(t)
	until(t, c, 200)
	longer := func() bool { return r.bounds(t, topic)[1] > end+2 }
	for !longer() {
		if err := within(t, c, time.Second); !errors.Is(err, errDidNotEnd) {
			t.Fatal(err)
		}
	}

	r.dir = old
	c, d := r.counted(t)
	r.finish(t, c, countedByHand(second))
	d.want(t, stages, "decision", "rebuild", "store", "of another log")
}

const shortWindows = `
pipeline: ticks
epoch: {clock: wall, interval: 50ms}
streams:
  ticks:
    topic: ticks
    key: k
    event_time: {field: at, format: ms, max_ahead: 24h}
    watermark: {out_of_orderness: 0s, idle_after: 10s}
    allowed_lateness: 0s
objects:
  Thing:
    aggregates:
      tens:
        from: ticks
        id: k
        window: {tumbling: 10s}
        values: {n: count()}
`

// noReadBack is an ontology that answers no read-back.
type noReadBack struct{ ontology.Store }

// ReadBack waits for the end.
func (noReadBack) ReadBack(ctx context.Context, _ []ontology.WindowRef) ([]ontology.WindowState, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A late event is parked in the first store. Another replica takes it up again
// and deletes the parked entry; compaction then removes the tombstone, because
// the first store was away for longer than tombstones are kept. If it were
// caught up, it would find the event parked still, and count it twice.
func TestAStoreThatMissedTombstonesIsRebuilt(t *testing.T) {
	const keep = 6 * time.Second
	r := newSteady(t, 1)
	config := func(dir string) (kafka.Config, *decisions) {
		r.dir = dir
		c, d := r.config(t, shortWindows), watchDecisions(t)
		c.Log = slog.New(d)
		return c, d
	}
	first, second := t.TempDir(), t.TempDir()
	const base = day
	at := func(seconds int64) *kgo.Record {
		return &kgo.Record{Topic: "ticks", Timestamp: time.UnixMilli(base), Value: fmt.Appendf(nil, `{"k":"a","at":%d}`, base+seconds*1000)}
	}
	c, _ := config(first)
	changelog := c.Topology.Changelog(c.Topology.Stages[1])
	c.OpenOntology = func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error) {
		s, err := openPostgres(r.postgres)(ctx, p)
		return noReadBack{s}, err
	}
	r.produce(t, at(1), at(60))
	runUntil(t, c, func(processors.Ack) bool { return r.believes(t, "1") })
	r.produce(t, at(2)) // its window is closed and gone
	runUntil(t, c, func(a processors.Ack) bool { return a.Waiting > 0 })
	parked := time.Now()
	_, err := kadm.NewClient(r.client).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "delete.retention.ms", Value: new(fmt.Sprint(keep.Milliseconds()))},
	}, changelog)
	if err != nil {
		t.Fatal(err)
	}

	c, _ = config(second)
	runUntil(t, c, func(processors.Ack) bool { return r.believes(t, "2") })
	tombstones := func() (n int) {
		for _, rec := range readTopic(t, r.broker.Brokers(), changelog, 1_000_000) {
			if rec.Value == nil && rec.Key[0] == state.KeyParked {
				n++
			}
		}
		return n
	}
	if tombstones() == 0 {
		t.Fatal("the parked entry was not deleted")
	}
	pause(t, keep) // the tombstone's time
	r.broker.Cluster().Compact()
	if n := tombstones(); n != 0 {
		t.Fatalf("%d tombstones are left", n)
	}

	c, d := config(first)
	c.UntilEnd = true
	if err := within(t, c, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if len(d.made("decision", "rebuild", "store", "behind", "age", "stale")) == 0 {
		t.Errorf("after %s the store was not found stale: %v", time.Since(parked), d.made())
	}
	if !r.believes(t, "2") {
		t.Errorf("the late event was not counted once:\n%s", believedCounts(t, r.postgres))
	}
}

// runUntil runs an engine until an acknowledgement comes for which done holds.
func runUntil(t *testing.T, c kafka.Config, done func(processors.Ack) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	acks := make(chan processors.Ack, 1)
	c.Observe = func(o kafka.Observation) {
		if o.Acked != nil {
			select {
			case acks <- *o.Acked:
			default:
			}
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- kafka.New(c).Run(ctx) }()
	for met := false; !met; {
		select {
		case a := <-acks:
			met = done(a)
		case err := <-ended:
			t.Fatalf("the engine ended before it happened: %v", err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// believes says whether the ontology holds this count of the window in which the
// tests' day begins; nothing applied yet is a no.
func (r *steady) believes(t *testing.T, count string) bool {
	t.Helper()
	reader, err := ontology.OpenReader(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(r.postgres)}, ontology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	bounds, err := reader.Bounds(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if bounds.Horizon == event.RecordedUnknown {
		return false
	}
	for f, err := range reader.AsOf(t.Context(), ontology.Question{Recorded: bounds.Horizon}) {
		if err != nil {
			t.Fatal(err)
		}
		if f.ValidFrom == event.FromTime(time.UnixMilli(day)) {
			return f.Value.Text == count
		}
	}
	return false
}

// The group says that this member's generation has passed: whatever it has
// found, it goes back to the group.
func TestAMemberOfAnOldGenerationGoesBackToTheGroup(t *testing.T) {
	r := newSteady(t, 1)
	records := some(0, 20)
	r.produce(t, records...)
	c, d := r.counted(t)
	var fault *kfake.FaultHandle
	var once sync.Once
	c.At = func(point string) {
		if point == "recovery.tables" {
			once.Do(func() {
				fault = r.broker.Cluster().Fault(kfake.Fault{
					Keys: []kmsg.Key{kmsg.Heartbeat}, Group: c.Topology.Group(c.Topology.Stages[0]), Err: kerr.IllegalGeneration, Count: -1,
				})
			})
		}
	}
	d.seen = func(made map[string]string) {
		if made["decision"] == "back to the group" {
			fault.Remove()
		}
	}
	r.finish(t, c, countedByHand(records))
	if len(d.made("decision", "back to the group")) == 0 {
		t.Error("nobody went back to the group")
	}
}
