package kafka_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/state"
)

// refused runs the pipeline, which must end by itself with an E that advises
// what its reason says.
func refused[E error](t *testing.T, r *steady, reason state.Reason) (E, *decisions) {
	t.Helper()
	c, d := r.counted(t)
	err := within(t, c, 15*time.Second)
	var want E
	if !errors.As(err, &want) {
		t.Fatalf("got %v, want a %T", err, want)
	}
	if !strings.Contains(err.Error(), reason.Advice()) {
		t.Errorf("%v does not say what to do", err)
	}
	if len(d.made("decision", "refuse")) == 0 {
		t.Error("nothing was refused")
	}
	return want, d
}

// resume makes sure that the pipeline goes on when the cause is mended, and has
// lost nothing by refusing.
func (r *steady) resume(t *testing.T, want string) {
	t.Helper()
	c, _ := r.counted(t)
	r.finish(t, c, want)
}

// setOffset commits an offset of the source's group, as an operator would.
func (r *steady) setOffset(t *testing.T, offset int64) {
	t.Helper()
	c, _ := r.counted(t)
	offsets := kadm.Offsets{}
	offsets.AddOffset("ticks", 0, offset, -1)
	if err := kadm.NewClient(r.client).CommitAllOffsets(t.Context(), c.Topology.Group(c.Topology.Stages[0]), offsets); err != nil {
		t.Fatal(err)
	}
}

func TestAnOffsetThatSomebodyHasResetIsRefusedUntilItIsSetBack(t *testing.T) {
	r := newSteady(t, 1)
	records := some(0, 100)
	r.produce(t, records...)
	c, _ := r.counted(t)
	until(t, c, 100)
	r.setOffset(t, 50)
	e, _ := refused[*kafka.DisagreementError](t, r, state.ReasonDisagree)
	if e.Offsets != "50" || !strings.HasSuffix(e.Progress, "at offset 100") {
		t.Errorf("%v does not name both offsets", e)
	}
	r.setOffset(t, 100)
	r.resume(t, countedByHand(records))
}

func TestOffsetsThatHaveExpiredAreRefusedUntilTheyAreSetBack(t *testing.T) {
	r := newSteady(t, 1)
	records := some(0, 100)
	r.produce(t, records...)
	c, _ := r.counted(t)
	until(t, c, 100)
	r.deleteGroups(t, c, 1)
	if e, _ := refused[*kafka.DisagreementError](t, r, state.ReasonDisagree); e.Offsets != "none" {
		t.Errorf("%v", e)
	}
	r.setOffset(t, 100)
	r.resume(t, countedByHand(records))
}

// deleteGroups deletes the groups of the first n stages.
func (r *steady) deleteGroups(t *testing.T, c kafka.Config, n int) {
	t.Helper()
	for _, s := range c.Topology.Stages[:n] {
		if _, err := kadm.NewClient(r.client).DeleteGroup(t.Context(), c.Topology.Group(s)); err != nil {
			t.Fatal(err)
		}
	}
}

// Somebody chooses by the group's offset where a new pipeline is to begin.
func TestAnOffsetCommittedBeforeTheFirstRunIsRefused(t *testing.T) {
	r := newSteady(t, 1)
	records := some(0, 100)
	r.produce(t, records...)
	r.setOffset(t, 50)
	refused[*kafka.DisagreementError](t, r, state.ReasonPreset)
	c, _ := r.counted(t)
	r.deleteGroups(t, c, 1)
	r.resume(t, countedByHand(records))
}

// The changelogs are deleted. The local stores have the state still, but nothing
// says that they are right: they are left to whoever is to decide.
func TestADeletedChangelogIsAClearStop(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, some(0, 100)...)
	c, _ := r.counted(t)
	until(t, c, 100)
	for _, s := range c.Topology.Stages {
		if _, err := kadm.NewClient(r.client).DeleteTopic(t.Context(), c.Topology.Changelog(s)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second shows that the first has left them
		_, d := refused[*kafka.ChangelogError](t, r, state.ReasonLost)
		if len(d.made("decision", "refuse", "store", "of another log", "changelog", "never written")) == 0 {
			t.Errorf("the store is not there any more: %v", d.made())
		}
	}
	r.dir = t.TempDir()
	refused[*kafka.ChangelogError](t, r, state.ReasonLost)
	// Not even when the groups are gone too does a task that has run begin again.
	r.deleteGroups(t, c, stages)
	_, d := refused[*kafka.ChangelogError](t, r, state.ReasonLost)
	if len(d.made("decision", "refuse", "barrier", "neither")) == 0 {
		t.Errorf("decided: %v", d.made())
	}
}

func TestAnEmptiedChangelogAndAWipedDiskAreAClearStop(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, some(0, 100)...)
	c, _ := r.counted(t)
	until(t, c, 100)
	for _, s := range c.Topology.Stages {
		topic := c.Topology.Changelog(s)
		r.behead(t, topic, r.bounds(t, topic)[1])
	}
	r.dir = t.TempDir()
	refused[*kafka.ChangelogError](t, r, state.ReasonLost)
}

// With tombstones kept for no time at all no changelog can be read in time.
func TestAChangelogThatKeepsNoTombstonesIsAClearStop(t *testing.T) {
	r := newSteady(t, 1)
	records := some(0, 100)
	r.produce(t, records...)
	c, _ := r.counted(t)
	until(t, c, 100)
	keep := func(ms string) {
		t.Helper()
		for _, s := range c.Topology.Stages {
			alter := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "delete.retention.ms", Value: &ms}}
			if _, err := kadm.NewClient(r.client).AlterTopicConfigs(t.Context(), alter, c.Topology.Changelog(s)); err != nil {
				t.Fatal(err)
			}
		}
	}
	keep("0")
	refused[*kafka.ChangelogError](t, r, state.ReasonSlow)
	keep("86400000")
	r.resume(t, countedByHand(records))
}

// The topic keeps less than the pipeline was away for: committed, then the
// oldest that is left, then the newest.
func TestRetentionThatPassedTheCommittedOffsetStopsAndNamesBoth(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, some(0, 50)...)
	c, _ := r.counted(t)
	until(t, c, 50)
	for _, record := range some(1, 25) { // a batch each: retention drops whole batches
		r.produce(t, record)
	}
	alter := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.bytes", Value: new("1000")}}
	if _, err := kadm.NewClient(r.client).AlterTopicConfigs(t.Context(), alter, "ticks"); err != nil {
		t.Fatal(err)
	}
	r.broker.Cluster().ApplyRetention()
	b := r.bounds(t, "ticks")
	if b[0] <= 50 || b[1] != 75 {
		t.Fatalf("the topic holds offsets %d to %d", b[0], b[1])
	}
	e, _ := refused[*kafka.RetentionError](t, r, state.ReasonExpired)
	if e.Topic != "ticks" || e.Partition != 0 || e.Committed != 50 || int64(e.Start) != b[0] {
		t.Errorf("%+v, want 50 and %d", e, b[0])
	}
}

// The broker that held the newest records is lost, and another one leads.
func TestAnInputThatHasLostWhatWasReadIsAClearStop(t *testing.T) {
	live := t.TempDir()
	partition, saved := filepath.Join(live, "data", "partitions", "ticks-0"), filepath.Join(t.TempDir(), "ticks-0")
	r := &steady{postgres: pgtest.New(t), dir: t.TempDir()}
	run := func(events int64, records []*kgo.Record) {
		t.Helper()
		r.connect(t, live)
		r.produce(t, records...)
		c, _ := r.counted(t)
		until(t, c, events)
		r.disconnect(t)
	}
	run(30, some(0, 30))
	if err := os.CopyFS(saved, os.DirFS(partition)); err != nil {
		t.Fatal(err)
	}
	run(50, some(1, 20))
	if err := errors.Join(os.RemoveAll(partition), os.Rename(saved, partition)); err != nil {
		t.Fatal(err)
	}
	r.connect(t, live)
	if e, _ := refused[*kafka.TruncatedError](t, r, state.ReasonCutShort); e.Topic != "ticks" || e.Committed != 50 || e.End != 30 {
		t.Errorf("%+v, want 50 and 30", e)
	}
	r.disconnect(t)
}

// Kafka drops the offsets of a topic that is deleted; the progress is still there.
func TestAnInputTopicThatWasMadeAgainIsAClearStop(t *testing.T) {
	r := newSteady(t, 1)
	r.produce(t, some(0, 30)...)
	c, _ := r.counted(t)
	until(t, c, 30)
	adm := kadm.NewClient(r.client)
	if _, err := adm.DeleteTopic(t.Context(), "ticks"); err != nil {
		t.Fatal(err)
	}
	if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, "ticks"); err != nil {
		t.Fatal(err)
	}
	r.dial(t)
	r.produce(t, some(1, 50)...)
	refused[*kafka.DisagreementError](t, r, state.ReasonDisagree)
}
