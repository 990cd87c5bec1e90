package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// shop counts orders by two ways, and changes in mid-stream: %s are the clock,
// more streams, more properties of Order, and more types.
const shop = `
pipeline: shop
epoch: {clock: %s}
streams:
  orders: {topic: orders, key: id, partitioned_by: key, event_time: {field: at, format: ms, max_ahead: 24h}, watermark: {idle_after: 0s}}
%sobjects:
  Order: {from: orders, id: id, properties: {total: {value: total, kind: integer}%s}}
  Customer:
    aggregates:
      hourly: {from: orders, id: customer, window: {tumbling: 1h}, values: {n: count(), revenue: sum(total)}}
%s`

func shopMapping(clock string) string { return fmt.Sprintf(shop, clock, "", "", "") }

// changedShop adds a property to a stream that is read already, and a stream
// with a property and an aggregate.
func changedShop(clock string) string {
	return fmt.Sprintf(shop, clock,
		"  visits: {topic: visits, key: id, event_time: {field: at, format: ms, max_ahead: 24h}, watermark: {idle_after: 0s}}\n",
		", place: place",
		"  Visit: {from: visits, id: id, properties: {where: place}}\n  Place: {aggregates: {visits: {from: visits, id: place, window: {tumbling: 1h}, values: {n: count()}}}}\n")
}

func newShop(t *testing.T) *steady {
	t.Helper()
	broker := kafkatest.Embedded.New(t, kafkatest.Topics{"orders": 2, "visits": 1})
	return newSteadyOn(t, broker.Brokers())
}

// orders are those of the minutes from one up to another.
func orders(from, to int64) []*kgo.Record {
	var out []*kgo.Record
	for i := from; i < to; i++ {
		at := day + i*60_000
		id := fmt.Sprintf("o%d", i%40)
		out = append(out, &kgo.Record{
			Topic: "orders", Key: []byte(id), Partition: int32(event.PartitionOf([]byte(id), 2)), Timestamp: time.UnixMilli(at),
			Value: fmt.Appendf(nil, `{"id":%q,"customer":"c%d","total":%d,"at":%d,"place":"p%d"}`, id, i%3, i, at, i%5),
		})
	}
	return out
}

func visits(from, to int64) []*kgo.Record {
	var out []*kgo.Record
	for i := from; i < to; i++ {
		at := day + i*60_000
		out = append(out, &kgo.Record{
			Topic: "visits", Timestamp: time.UnixMilli(at), Value: fmt.Appendf(nil, `{"id":"v%d","place":"p%d","at":%d}`, i, i%2, at),
		})
	}
	return out
}

// runThrough runs a pipeline to the end of its input, through changes.
func runThrough(t *testing.T, c kafka.Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.UntilEnd = true
	err := kafka.Run(ctx, c, nil)
	if err == nil && ctx.Err() != nil {
		return errDidNotEnd
	}
	return err
}

// versions lists every assertion ever made of a type.
func versions(t *testing.T, url, typ string) (out []ontology.Assertion) {
	t.Helper()
	reader, err := ontology.OpenReader(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(url)}, ontology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for a, err := range reader.History(t.Context(), typ, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

// text writes assertions with all that they say.
func text(as []ontology.Assertion) string {
	var lines []string
	for _, a := range as {
		lines = append(lines, fmt.Sprintf("%s %s %s %s..%s recorded %s..%s epoch %s %s v%d %s", a.ID, a.Property, a.Value.Text, a.ValidFrom, a.ValidTo,
			a.RecordedFrom, a.RecordedTo, a.Epoch, a.Cause, a.Version, a.Place.String()))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func registered(t *testing.T, c kafka.Config) kafka.Registered {
	t.Helper()
	r, err := kafka.ReadRegistered(t.Context(), c.Kafka, c.Topology, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Under the log's clock what a change does not touch is byte-equal to a run
// without it; what it brings holds from the barrier on, exactly.
func TestAChangeInMidStreamHoldsFromItsBarrierOnAndTouchesNothingElse(t *testing.T) {
	const clock = "log, step: 10m"
	plain := newShop(t)
	plain.produce(t, orders(0, 600)...)
	if err := runThrough(t, plain.config(t, shopMapping(clock))); err != nil {
		t.Fatal(err)
	}
	changed := newShop(t)
	changed.produce(t, orders(0, 300)...)
	c := changed.config(t, shopMapping(clock))
	until(t, c, 250)
	if r := registered(t, c); r.Version != c.Topology.Plan.Version || r.Epoch != 0 || r.Text == "" {
		t.Errorf("before the change: %+v", r)
	}
	changed.produce(t, orders(300, 600)...)
	changed.produce(t, visits(100, 500)...)
	c = changed.config(t, changedShop(clock))
	if err := runThrough(t, c); err != nil {
		t.Fatal(err)
	}
	checkChange(t, c, plain, changed)
}

// A process that ends when the barrier of a change is announced, before any task
// has committed it, leaves that to the next one: under the old mapping first.
func TestAChangeThatIsInterruptedAtItsBarrierHoldsFromThereOnAllTheSame(t *testing.T) {
	const clock = "log, step: 10m"
	plain := newShop(t)
	plain.produce(t, orders(0, 600)...)
	if err := runThrough(t, plain.config(t, shopMapping(clock))); err != nil {
		t.Fatal(err)
	}
	changed := newShop(t)
	changed.produce(t, orders(0, 300)...)
	until(t, changed.config(t, shopMapping(clock)), 250)
	changed.produce(t, orders(300, 600)...)
	changed.produce(t, visits(100, 500)...)
	c := changed.config(t, changedShop(clock))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dying := c
	var at atomic.Int64
	dying.Observe = func(o kafka.Observation) {
		if o.Announced != nil && o.Announced.Mapping == c.Topology.Plan.Version && at.CompareAndSwap(0, int64(o.Announced.Epoch)) {
			cancel()
		}
	}
	if err := kafka.Run(ctx, dying, nil); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r := registered(t, c)
	if at.Load() == 0 || int64(r.Epoch) != at.Load() {
		t.Fatalf("interrupted at barrier %d, the change is at %s", at.Load(), r.Epoch)
	}
	if err := runThrough(t, c); err != nil {
		t.Fatal(err)
	}
	if again := registered(t, c); !reflect.DeepEqual(again, r) {
		t.Errorf("the change moved: %+v, was %+v", again, r)
	}
	checkChange(t, c, plain, changed)
}

// checkChange compares a run with a change to c's mapping with one without.
func checkChange(t *testing.T, c kafka.Config, plain, changed *steady) {
	t.Helper()
	r := registered(t, c)
	if r.Version != c.Topology.Plan.Version || r.Epoch < 2 {
		t.Fatalf("after the change: %+v", r)
	}
	t.Logf("in force behind epoch %s, R %s", r.Epoch, r.Recorded)

	if got, want := text(versions(t, changed.postgres, "Customer")), text(versions(t, plain.postgres, "Customer")); got != want || got == "" {
		t.Errorf("an aggregate that has not changed differs: %s", firstDifference(got, want))
	}
	var totals, places []ontology.Assertion
	for _, a := range versions(t, changed.postgres, "Order") {
		if a.Property == "total" {
			totals = append(totals, a)
		} else {
			places = append(places, a)
		}
	}
	if got, want := text(totals), text(versions(t, plain.postgres, "Order")); got != want {
		t.Errorf("a property that has not changed differs: %s", firstDifference(got, want))
	}
	set := map[event.EventTime]bool{}
	for _, a := range places {
		set[a.ValidFrom] = true
		if a.Epoch <= r.Epoch {
			t.Errorf("set before the change: %s", text([]ontology.Assertion{a}))
		}
	}
	for _, o := range orders(0, 600) {
		at := event.EventTime(o.Timestamp.UnixMicro())
		if want := int64(at) > int64(r.Recorded); set[at] != want {
			t.Errorf("the order of %s: place is set: %v, want %v; the change holds behind %s", at, set[at], want, r.Recorded)
		}
	}
	seen := 0
	for _, a := range versions(t, changed.postgres, "Place") {
		if a.RecordedTo == event.RecordedNever {
			var n int
			if _, err := fmt.Sscan(a.Value.Text, &n); err != nil {
				t.Fatal(err)
			}
			seen += n
		}
	}
	if seen != 400 {
		t.Errorf("%d visits are counted, want 400: the stream is read from its beginning", seen)
	}
}

// Two replicas run; the file of one, then of the other, is changed. Whoever has
// the old file follows.
func TestARollingRestartWithANewFileChangesAllReplicasAtOneBarrier(t *testing.T) {
	r := newShop(t)
	old, changed := shopMapping("wall, interval: 50ms"), changedShop("wall, interval: 50ms")
	type replica struct {
		stop  context.CancelFunc
		ended chan error
		epoch atomic.Int64
		tasks atomic.Int64
	}
	start := func(name, text string) *replica {
		c := r.config(t, text)
		c.DataDir, c.Replica = t.TempDir(), name
		p := &replica{ended: make(chan error, 1)}
		c.Observe = func(o kafka.Observation) {
			if o.Announced != nil {
				p.epoch.Store(int64(o.Announced.Epoch))
			}
			if o.Committed != nil {
				p.tasks.Add(1)
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		p.stop = stop
		go func() { p.ended <- kafka.Run(ctx, c, nil) }()
		return p
	}
	stop := func(p *replica) {
		p.stop()
		if err := <-p.ended; err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(40 * time.Second); !holds(); pause(t, 50*time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not so: %s", what)
			}
		}
	}
	r.produce(t, orders(0, 100)...)
	a, b := start("a", old), start("b", old)
	await("both commit", func() bool { return a.tasks.Load() > 3 && b.tasks.Load() > 3 })
	config := r.config(t, changed)
	stop(a)
	a = start("a", changed)
	await("the new mapping is in force", func() bool { return registered(t, config).Version == config.Topology.Plan.Version })
	in := registered(t, config)
	commits := b.tasks.Load()
	await("the replica with the old file commits under the new mapping", func() bool {
		return b.epoch.Load() > int64(in.Epoch)+2 && b.tasks.Load() > commits+3
	})
	stop(b)
	b = start("b", old) // its file was forgotten
	await("it commits", func() bool { return b.tasks.Load() > 3 })
	r.produce(t, orders(100, 200)...)
	r.produce(t, visits(0, 50)...)
	at := a.epoch.Load()
	await("they go on", func() bool { return a.epoch.Load() > at+5 })
	stop(a)
	stop(b)
	if err := runThrough(t, config); err != nil {
		t.Fatal(err)
	}
	if now := registered(t, config); now.Version != in.Version || now.Epoch != in.Epoch {
		t.Errorf("the old file took the mapping back: %+v, was %+v", now, in)
	}
	want := map[string]int{}
	for i := range 200 {
		want[fmt.Sprintf("c%d %d", i%3, i/60)]++
	}
	got := map[string]int{}
	for _, v := range versions(t, r.postgres, "Customer") {
		if v.Property != "hourly.n" || v.RecordedTo != event.RecordedNever {
			continue
		}
		var n int
		if _, err := fmt.Sscan(v.Value.Text, &n); err != nil {
			t.Fatal(err)
		}
		got[fmt.Sprintf("%s %d", v.ID, (int64(v.ValidFrom)/1000-day)/3_600_000)] = n
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %v\nwant    %v", got, want)
	}
}

// What is not in place is refused before anything is made or written.
func TestAChangeThatIsNotInPlaceIsRefusedAndLeavesThePipelineAsItIs(t *testing.T) {
	r := newShop(t)
	r.produce(t, orders(0, 100)...)
	old := shopMapping("wall, interval: 50ms")
	if err := runThrough(t, r.config(t, old)); err != nil {
		t.Fatal(err)
	}
	before := registered(t, r.config(t, old))
	c := r.config(t, strings.NewReplacer("tumbling: 1h", "tumbling: 2h", "objects:\n", "objects:\n  More: {aggregates: {all: {from: orders, id: total, window: none, values: {n: count()}}}}\n").Replace(old))
	err := runThrough(t, c)
	if _, refused := errors.AsType[*kafka.MappingError](err); !refused {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"objects.More.aggregates.all: new: count() over orders, window none, by replay: the stream's past has been read",
		"objects.Customer.aggregates.hourly.window: {tumbling: 1h} → {tumbling: 2h}, by replay", "another pipeline name",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %q", err, want)
		}
	}
	if after := registered(t, r.config(t, old)); !reflect.DeepEqual(after, before) {
		t.Errorf("%+v, was %+v", after, before)
	}
	topics, err := kadm.NewClient(r.client).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range topics {
		if strings.Contains(name, "More") {
			t.Errorf("topic %s was made for a mapping that is refused", name)
		}
	}
	if err := runThrough(t, r.config(t, old)); err != nil {
		t.Errorf("the old file does not run any more: %v", err)
	}
}

// An old file must not take a change back by accident; one that is meant to
// does.
func TestAMappingThatWasReplacedComesBackOnlyWhereThatIsMeant(t *testing.T) {
	r := newShop(t)
	r.produce(t, orders(0, 100)...)
	r.produce(t, visits(0, 100)...)
	old := shopMapping("wall, interval: 50ms")
	wider := strings.Replace(old, "properties: {", "properties: {place: place, ", 1)
	for _, text := range []string{old, wider, old} {
		if err := runThrough(t, r.config(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	c := r.config(t, old)
	if in := registered(t, c); in.Version != r.config(t, wider).Topology.Plan.Version {
		t.Errorf("in force: %+v", in)
	}
	c.Reinstate = true
	if err := runThrough(t, c); err != nil {
		t.Fatal(err)
	}
	if in := registered(t, c); in.Version != c.Topology.Plan.Version {
		t.Errorf("in force: %+v", in)
	}
}

// What is removed counts no further; it does not come back with the state of the
// time when it was removed.
func TestWhatWasRemovedDoesNotComeBackUnderItsName(t *testing.T) {
	const clock = "wall, interval: 50ms"
	r := newShop(t)
	wide, narrow := changedShop(clock), shopMapping(clock)
	r.produce(t, orders(0, 300)...)
	r.produce(t, visits(0, 300)...)
	if err := runThrough(t, r.config(t, wide)); err != nil {
		t.Fatal(err)
	}
	before := text(versions(t, r.postgres, "Place"))
	if before == "" {
		t.Fatal("nothing was counted")
	}
	r.produce(t, visits(300, 600)...)
	r.produce(t, orders(300, 600)...)
	if err := runThrough(t, r.config(t, narrow)); err != nil {
		t.Fatal(err)
	}
	if after := text(versions(t, r.postgres, "Place")); after != before {
		t.Errorf("what was removed was counted: %s", firstDifference(after, before))
	}
	c := r.config(t, wide)
	c.Reinstate = true
	var refused *kafka.MappingError
	if err := runThrough(t, c); !errors.As(err, &refused) || !strings.Contains(err.Error(), "stage aggregate.Place.visits: taken up again") {
		t.Fatalf("got %v", err)
	}
	in := registered(t, c)
	if changes := in.Compare(r.config(t, narrow).Topology.Plan, c.Topology.Plan); mapping.Worst(changes) != mapping.Refused {
		t.Errorf("the comparison says %v", changes)
	}
	other := strings.NewReplacer("  visits:", "  calls:", "from: visits", "from: calls", "aggregates: {visits:", "aggregates: {calls:").Replace(wide)
	if err := runThrough(t, r.config(t, other)); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, v := range versions(t, r.postgres, "Place") {
		if v.Property == "calls.n" && v.RecordedTo == event.RecordedNever {
			n++
		}
	}
	if n != 2*10 { // two places, ten hours
		t.Errorf("%d windows under the other name", n)
	}
}

// Repeats are found among the events from the barrier on.
func TestAnIdentityThatIsNewHoldsFromItsBarrierOn(t *testing.T) {
	const clock = "wall, interval: 50ms"
	r := newShop(t)
	plain := shopMapping(clock)
	r.produce(t, orders(0, 60)...)
	if err := runThrough(t, r.config(t, plain)); err != nil {
		t.Fatal(err)
	}
	r.produce(t, orders(30, 120)...)
	r.produce(t, orders(60, 120)...)
	if err := runThrough(t, r.config(t, strings.Replace(plain, "partitioned_by: key,", `partitioned_by: key, identity: {event_id: text(total), horizon: 30d},`, 1))); err != nil {
		t.Fatal(err)
	}
	hours := map[string]int{}
	for _, v := range versions(t, r.postgres, "Customer") {
		if v.Property == "hourly.n" && v.RecordedTo == event.RecordedNever {
			var n int
			if _, err := fmt.Sscan(v.Value.Text, &n); err != nil {
				t.Fatal(err)
			}
			hours[v.ValidFrom.String()] += n
		}
	}
	var counted []int
	for _, n := range hours {
		counted = append(counted, n)
	}
	sort.Ints(counted)
	if fmt.Sprint(counted) != "[60 90]" { // those of before the identity count again, once
		t.Errorf("counted %v", hours)
	}
}

// A restored generation goes on with the mapping in force, and knows the files
// that were replaced.
func TestARestoredGenerationKnowsItsMappingAndThoseBefore(t *testing.T) {
	const clock = "wall, interval: 50ms"
	r := newShop(t)
	dir := t.TempDir()
	config := func(text string, g event.Generation) kafka.Config {
		c := r.config(t, text)
		c.CheckpointDir, c.Topology = dir, processors.NewTopology(c.Topology.Plan, g)
		return c
	}
	old := shopMapping(clock)
	wider := strings.Replace(old, "properties: {", "properties: {place: place, ", 1)
	r.produce(t, orders(0, 100)...)
	for _, text := range []string{old, wider} {
		if err := runThrough(t, config(text, 1)); err != nil {
			t.Fatal(err)
		}
	}
	c := config(wider, 1)
	in := registered(t, c)
	live := start(t, c)
	live.await(t, 3, "under the changed mapping")
	request := kafka.SavepointRequest{Kafka: c.Kafka, Topology: c.Topology, CheckpointDir: dir, Name: "one", Log: testLog(t)}
	if _, err := kafka.CreateSavepoint(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	r.produce(t, orders(100, 200)...)
	live.await(t, 5, "behind the savepoint")
	live.end(t)
	restored, err := kafka.RestoreSavepoint(t.Context(), kafka.RestoreRequest{
		Kafka: c.Kafka, Topology: c.Topology, CheckpointDir: dir, Name: "one", Log: testLog(t), OpenOntology: c.OpenOntology,
		Succeed: func(ctx context.Context, s ontology.Succession) error {
			return ontology.Succeed(ctx, mapping.Ontology{Postgres: mapping.NewSecret(r.postgres)}, s)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// An old file that was forgotten takes nothing back, and the mapping stands.
	if err := runThrough(t, config(old, restored.To)); err != nil {
		t.Fatal(err)
	}
	now := registered(t, config(wider, restored.To))
	if now.Version != in.Version || now.Text != in.Text {
		t.Errorf("in force: %+v, was %+v", now, in)
	}
	if err := runThrough(t, config(changedShop(clock), restored.To)); err != nil {
		t.Errorf("a change behind the restore: %v", err)
	}
}

// A pipeline of an earlier build has no record of its mapping: the same file
// runs and records it, another one is refused for want of a comparison.
func TestAPipelineWithoutARecordedMappingRecordsItWithItsOwnFile(t *testing.T) {
	r := newShop(t)
	c := r.config(t, shopMapping("wall, interval: 50ms"))
	kadmin := kadm.NewClient(r.client)
	if _, err := kadmin.CreateTopic(t.Context(), 1, 1, nil, c.Topology.ControlTopic()); err != nil {
		t.Fatal(err)
	}
	barrier := fmt.Sprintf(`{"v":1,"kind":"barrier","epoch":1,"recorded":1,"mapping":%q}`, c.Topology.Plan.Version)
	r.produce(t, &kgo.Record{Topic: c.Topology.ControlTopic(), Value: []byte(barrier)})
	var refused *kafka.MappingError
	if err := runThrough(t, r.config(t, changedShop("wall, interval: 50ms"))); !errors.As(err, &refused) || refused.Changes != nil {
		t.Fatalf("got %v", err)
	}
	if in := registered(t, c); in.Version != c.Topology.Plan.Version || in.Text != "" {
		t.Errorf("in force: %+v", in)
	}
}
