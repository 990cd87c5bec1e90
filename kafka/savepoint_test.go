package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state/savepoint"
)

// savers is the pipeline of meters with a checkpoint directory.
type savers struct {
	brokers []string
	url     string
	dir     string // of savepoints
}

func newSavers(t *testing.T, kind kafkatest.Kind) *savers {
	t.Helper()
	return &savers{brokers: kind.New(t, metersTopics()).Brokers(), url: pgtest.New(t), dir: t.TempDir()}
}

func (s *savers) config(t *testing.T, g event.Generation) kafka.Config {
	t.Helper()
	return kafka.Config{
		Topology: processors.NewTopology(metersPlan(t), g), Kafka: mapping.Kafka{Brokers: s.brokers}, DataDir: t.TempDir(),
		CheckpointDir: s.dir, OpenOntology: openPostgres(s.url), Log: testLog(t),
		SessionTimeout: 2 * time.Second, RebalanceTimeout: 4 * time.Second,
	}
}

// runner is an engine that runs.
type runner struct {
	seen  *progress
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, c kafka.Config) *runner {
	t.Helper()
	r := &runner{seen: newProgress(), ended: make(chan error, 1)}
	c.Observe = r.seen.observe
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	r.stop = cancel
	t.Cleanup(cancel)
	go func() { r.ended <- kafka.Run(ctx, c, nil) }()
	return r
}

// await waits until at least n more barriers have been announced.
func (r *runner) await(t *testing.T, n int, when string) {
	t.Helper()
	for range n + 1 { // the first may have waited in the channel
		select {
		case <-r.seen.announced:
		case err := <-r.ended:
			t.Fatalf("the engine ended %s: %v", when, err)
		case <-time.After(30 * time.Second):
			t.Fatalf("no barrier is announced %s", when)
		}
	}
}

func (r *runner) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
}

func (s *savers) create(t *testing.T, name string, patience time.Duration) (*savepoint.Manifest, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return kafka.CreateSavepoint(ctx, kafka.SavepointRequest{
		Kafka: mapping.Kafka{Brokers: s.brokers}, Topology: processors.NewTopology(metersPlan(t), 1),
		CheckpointDir: s.dir, Name: name, Log: testLog(t),
	})
}

func (s *savers) produce(t *testing.T, records []*kgo.Record) {
	t.Helper()
	produceMeters(t, s.brokers, records)
}

func TestASavepointHoldsEveryTaskAtOneBarrier(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := newSavers(t, kind)
			data, _ := meterData(3, 3000)
			one, two := start(t, s.config(t, 1)), start(t, s.config(t, 1))
			one.await(t, 3, "at the start")
			s.produce(t, data)
			for _, name := range []string{"first", "second"} {
				m, err := s.create(t, name, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if len(m.Tasks) != 3+3+2+2 || m.Barrier.Epoch == 0 || m.Pipeline.Generation != 1 {
					t.Errorf("manifest: %+v", m)
				}
				if _, err := savepoint.In(s.dir, "meters").Verify(t.Context(), name, nil); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.create(t, "first", time.Minute); err == nil || !strings.Contains(err.Error(), "already") {
				t.Errorf("a name that is taken: %v", err)
			}
			one.end(t)
			two.end(t)
		})
	}
}

func TestASavepointThatDoesNotBecomeWholeSaysWhatIsMissing(t *testing.T) {
	s := newSavers(t, kafkatest.Embedded)
	var never *kafka.NeverRanError
	if _, err := s.create(t, "early", time.Minute); !errors.As(err, &never) {
		t.Errorf("a pipeline that has never run: %v", err)
	}
	c := s.config(t, 1)
	r := start(t, c)
	r.await(t, 3, "at the start")
	r.end(t)
	refused := func(name string, patience time.Duration, text string) *kafka.SavepointError {
		t.Helper()
		_, err := s.create(t, name, patience)
		var why *kafka.SavepointError
		if !errors.As(err, &why) || !strings.Contains(err.Error(), text) {
			t.Fatalf("%s: %v", name, err)
		}
		var unknown *savepoint.UnknownError
		if _, err := savepoint.In(s.dir, "meters").Manifest(name); !errors.As(err, &unknown) {
			t.Errorf("%s is whole: %v", name, err)
		}
		return why
	}
	refused("nobody", time.Second, "is the pipeline running?")
	here := s.dir
	s.dir = t.TempDir()
	r = start(t, c)
	r.await(t, 3, "after a restart")
	if e := refused("elsewhere", 3*time.Second, "need one checkpoint directory"); len(e.Missing) != 10 {
		t.Errorf("missing: %v", e.Missing)
	}
	r.end(t)
	s.dir = here
	var unknown *savepoint.UnknownError
	if _, err := savepoint.In(s.dir, "meters").Manifest("nobody"); !errors.As(err, &unknown) || unknown.Half {
		t.Errorf("a savepoint that nobody waited for any more: %v", err)
	}
	c.CheckpointDir = ""
	r = start(t, c)
	r.await(t, 3, "without a checkpoint directory")
	refused("without", time.Minute, "--checkpoint-dir")
	r.end(t)
}

func (s *savers) restore(t *testing.T, name string, g event.Generation, at func(string)) (*kafka.Restored, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return kafka.RestoreSavepoint(ctx, kafka.RestoreRequest{
		Kafka: mapping.Kafka{Brokers: s.brokers}, Topology: processors.NewTopology(metersPlan(t), g),
		CheckpointDir: s.dir, Name: name, Log: testLog(t), OpenOntology: openPostgres(s.url), At: at,
		Succeed: func(ctx context.Context, su ontology.Succession) error {
			return ontology.Succeed(ctx, mapping.Ontology{Postgres: mapping.NewSecret(s.url)}, su)
		},
	})
}

// versions is everything that was ever asserted, with all that as-of answers
// depend on.
func (s *savers) versions(t *testing.T) map[string]bool {
	t.Helper()
	reader, err := ontology.OpenReader(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(s.url)}, ontology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	out := map[string]bool{}
	for _, typ := range []string{"Meter", "Street", "House"} {
		for a, err := range reader.History(t.Context(), typ, "", "") {
			if err != nil {
				t.Fatal(err)
			}
			line := fmt.Sprintf("%s %s %s [%s,%s) recorded %s..%s: v%d %s %q epoch %s", typ, a.ID, a.Property, a.ValidFrom, a.ValidTo,
				a.RecordedFrom, a.RecordedTo, a.Version, a.Cause, a.Value.Text, a.Epoch)
			if out[line] {
				t.Errorf("twice: %s", line)
			}
			out[line] = true
		}
	}
	return out
}

// closed leaves out what is believed still: a later version may end it.
func closed(versions map[string]bool) []string {
	var out []string
	for line := range versions {
		if !strings.Contains(line, "..never:") {
			out = append(out, line)
		}
	}
	sort.Strings(out)
	return out
}

func TestARestoredSavepointGoesOnAsIfNothingHadHappened(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := newSavers(t, kind)
			data, want := meterData(5, 9000)
			one, two := start(t, s.config(t, 1)), start(t, s.config(t, 1))
			one.await(t, 3, "at the start")
			third := len(data) / 3
			s.produce(t, data[:third])
			one.await(t, 5, "with a third of the input")
			if _, err := s.create(t, "middle", time.Minute); err != nil {
				t.Fatal(err)
			}
			// The pipeline goes on, and corrects what it has published.
			s.produce(t, data[third:2*third])
			one.await(t, 20, "behind the savepoint")
			one.end(t)
			two.end(t)
			before := s.versions(t)
			r, err := s.restore(t, "middle", 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.To != 2 || r.Repeated <= r.Manifest.Barrier.Epoch+5 || r.Applied < r.Repeated-1 {
				t.Errorf("restored: %+v from epoch %s", r, r.Manifest.Barrier.Epoch)
			}
			// Whoever runs the generation before is told.
			var ended *kafka.EndedError
			if err := within(t, s.config(t, 1), 20*time.Second); !errors.As(err, &ended) || ended.Next != 2 {
				t.Errorf("a replica of the generation before: %v", err)
			}
			// Three replicas instead of two, and the rest of the input.
			var others []*runner
			for range 3 {
				others = append(others, start(t, s.config(t, 2)))
			}
			others[0].await(t, int(r.Repeated-r.Manifest.Barrier.Epoch)/2, "while it repeats")
			s.produce(t, data[2*third:])
			others[0].await(t, 3, "with the rest of the input")
			for _, o := range others {
				o.end(t)
			}
			last := s.config(t, 2)
			last.UntilEnd = true
			if err := within(t, last, 40*time.Second); err != nil {
				t.Fatal(err)
			}
			if got := believedCounts(t, s.url); got != want {
				t.Errorf("%s", firstDifference(got, want))
			}
			after := s.versions(t)
			for _, line := range closed(before) {
				if !after[line] {
					t.Errorf("what was published has changed: %s", line)
				}
			}
			// Nothing was recorded between: what the restored generation repeated
			// it did not publish again.
			for line := range after {
				if !before[line] && strings.Contains(line, fmt.Sprintf("epoch %s", r.Applied)) {
					t.Errorf("published again: %s", line)
				}
			}
		})
	}
}

// A restore may die anywhere; then another one is made.
func TestARestoreThatDiesCanBeMadeAgain(t *testing.T) {
	s := newSavers(t, kafkatest.Embedded)
	data, want := meterData(9, 2000)
	r := start(t, s.config(t, 1))
	r.await(t, 3, "at the start")
	s.produce(t, data[:1000])
	if _, err := s.create(t, "one", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := s.restore(t, "one", 1, nil); err == nil || !strings.Contains(err.Error(), "the pipeline is running") {
		t.Fatalf("a restore beside a running replica: %v", err)
	}
	s.produce(t, data[1000:])
	r.await(t, 5, "behind the savepoint")
	r.end(t)
	before := s.versions(t)
	g := event.Generation(1)
	for _, point := range kafka.RestorePoints() {
		died := make(chan bool, 1)
		go func() {
			defer func() { died <- recover() != nil }()
			_, _ = s.restore(t, "one", g, func(at string) {
				if at == point {
					panic("the process ends here")
				}
			})
		}()
		if !<-died {
			t.Fatalf("the restore does not come to %s", point)
		}
		now, err := ontology.CurrentGeneration(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(s.url)}, "meters")
		if err != nil || (now != g) != (point == "restore.done") {
			t.Fatalf("after a death at %s: generation %s, %v", point, now, err)
		}
		g = now
	}
	// The savepoint is of generation 1, and the pipeline at a later one that
	// began with it: it can be restored once more.
	again, err := s.restore(t, "one", g, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := s.config(t, again.To)
	last.UntilEnd = true
	if err := within(t, last, time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := believedCounts(t, s.url); got != want {
		t.Errorf("%s", firstDifference(got, want))
	}
	after := s.versions(t)
	for _, line := range closed(before) {
		if !after[line] {
			t.Errorf("what was published has changed: %s", line)
		}
	}
	found, err := kafka.CurrentGeneration(t.Context(), mapping.Kafka{Brokers: s.brokers}, "meters", testLog(t))
	if err != nil || found != again.To {
		t.Errorf("Kafka has generation %s, the ontology %s: %v", found, again.To, err)
	}
}

// Under the log clock the result is the same byte for byte, recorded times and
// versions included, whatever was restored on the way.
func TestTheEarthquakesEndAsReadByHandAcrossARestore(t *testing.T) {
	broker := kafkatest.Embedded.New(t, kafkatest.Topics{"earthquakes": 1})
	loadQuakes(t, broker.Brokers())
	url, dir := pgtest.New(t), t.TempDir()
	config := func(g event.Generation) kafka.Config {
		return kafka.Config{
			Topology: processors.NewTopology(quakesPlan(t), g), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
			DataDir: t.TempDir(), CheckpointDir: dir, Log: testLog(t), OpenOntology: openPostgres(url),
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	created := make(chan error, 1)
	create := func() {
		_, err := kafka.CreateSavepoint(ctx, kafka.SavepointRequest{
			Kafka: mapping.Kafka{Brokers: broker.Brokers()}, Topology: processors.NewTopology(quakesPlan(t), 1),
			CheckpointDir: dir, Name: "week", Log: testLog(t),
		})
		created <- err
	}
	first := config(1)
	running, stop := context.WithCancel(ctx)
	defer stop()
	announced := 0
	first.At = func(point string) { // the coordinator's own goroutine
		if point != "announced" {
			return
		}
		announced++
		switch announced {
		case 60:
			go create()
			awaitRequest(t, broker.Brokers(), first.Topology.ControlTopic())
		case 120:
			stop()
		}
	}
	if err := kafka.New(first).Run(running); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	r, err := kafka.RestoreSavepoint(ctx, kafka.RestoreRequest{
		Kafka: mapping.Kafka{Brokers: broker.Brokers()}, Topology: first.Topology, CheckpointDir: dir, Name: "week",
		Log: testLog(t), OpenOntology: openPostgres(url),
		Succeed: func(ctx context.Context, s ontology.Succession) error {
			return ontology.Succeed(ctx, mapping.Ontology{Postgres: mapping.NewSecret(url)}, s)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Manifest.Barrier.Epoch < 50 || r.Repeated < r.Manifest.Barrier.Epoch+20 {
		t.Fatalf("restored: %+v from epoch %s", r, r.Manifest.Barrier.Epoch)
	}
	second := config(r.To)
	second.UntilEnd = true
	if err := kafka.New(second).Run(ctx); err != nil {
		t.Fatal(err)
	}
	compareQuakes(t, url)
}

// awaitRequest waits until somebody has asked for a savepoint.
func awaitRequest(t *testing.T, brokers []string, topic string) {
	t.Helper()
	for range 100 {
		for _, r := range readTopic(t, brokers, topic, 10_000) {
			if strings.Contains(string(r.Value), `"kind":"savepoint"`) {
				return
			}
		}
	}
	t.Error("nobody asks for a savepoint")
}

// The last epoch before a crash may be committed by some stages only. What they
// have committed, dead letters included, is not done twice.
func TestAnEpochThatSomeTasksHadCommittedIsRepeatedAndCompleted(t *testing.T) {
	const bad = 7
	s := newSavers(t, kafkatest.Embedded)
	data, want := meterData(13, 4000)
	rejected := func(n int) (out []*kgo.Record) {
		for i := range n {
			out = append(out, &kgo.Record{Topic: "readings", Key: []byte("m1"), Value: fmt.Appendf(nil, "no JSON %d", i)})
		}
		return out
	}
	c := s.config(t, 1)
	var armed atomic.Bool
	var begun, ended atomic.Int64
	stuck := make(chan struct{})
	c.At = func(point string) {
		if !armed.Load() {
			return
		}
		switch point {
		case "commit.begun":
			if begun.Add(1) > 1 {
				<-stuck // only the first stage that comes commits
			}
		case "commit.applied":
			ended.Add(1)
		}
	}
	r := start(t, c)
	r.await(t, 3, "at the start")
	s.produce(t, data[:2000])
	if _, err := s.create(t, "one", time.Minute); err != nil {
		t.Fatal(err)
	}
	s.produce(t, append(rejected(bad), data[2000:3000]...))
	r.await(t, 10, "behind the savepoint")
	armed.Store(true)
	for deadline := time.Now().Add(20 * time.Second); begun.Load() < 2 || ended.Load() < 1; {
		if time.Now().After(deadline) {
			t.Fatalf("%d commits begun, %d done", begun.Load(), ended.Load())
		}
		pause(t, 10*time.Millisecond)
	}
	r.stop()
	// The engine waits for the epoch under way, for five seconds; no longer.
	time.AfterFunc(6*time.Second, func() { close(stuck) })
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
	done, err := s.restore(t, "one", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if done.Repeated != done.Applied+1 {
		t.Fatalf("no epoch was committed in part: %+v", done)
	}
	s.produce(t, data[3000:])
	last := s.config(t, 2)
	last.UntilEnd = true
	if err := within(t, last, time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := believedCounts(t, s.url); got != want {
		t.Errorf("%s", firstDifference(got, want))
	}
	letters := map[string]int{}
	for _, l := range readTopic(t, s.brokers, last.Topology.DeadLetterTopic(), 1000) {
		letters[string(l.Value)]++
	}
	if len(letters) != bad {
		t.Errorf("dead letters: %v, want %d", letters, bad)
	}
	for value, n := range letters {
		if n != 1 {
			t.Errorf("%d dead letters of %q", n, value)
		}
	}
}

// What a savepoint is for: the changelogs are gone, with them the state, and no
// replica has a copy.
func TestASavepointBringsBackAStateWhoseChangelogsAreGone(t *testing.T) {
	s := newSavers(t, kafkatest.Embedded)
	data, want := meterData(17, 3000)
	c := s.config(t, 1)
	r := start(t, c)
	r.await(t, 3, "at the start")
	s.produce(t, data[:1000])
	if _, err := s.create(t, "kept", time.Minute); err != nil {
		t.Fatal(err)
	}
	s.produce(t, data[1000:2000])
	r.await(t, 5, "behind the savepoint")
	r.end(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, stage := range c.Topology.Stages {
		gone, err := kadm.NewClient(client).DeleteTopics(t.Context(), c.Topology.Changelog(stage))
		if err = errors.Join(err, gone.Error()); err != nil {
			t.Fatal(err)
		}
	}
	var lost *kafka.ChangelogError
	if err := within(t, s.config(t, 1), 20*time.Second); !errors.As(err, &lost) {
		if _, disagrees := errors.AsType[*kafka.DisagreementError](err); !disagrees {
			t.Fatalf("without its changelogs: %v", err)
		}
	}
	done, err := s.restore(t, "kept", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.produce(t, data[2000:])
	last := s.config(t, done.To)
	last.UntilEnd = true
	if err := within(t, last, time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := believedCounts(t, s.url); got != want {
		t.Errorf("%s", firstDifference(got, want))
	}
}
