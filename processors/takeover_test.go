package processors_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// patientSink gives up when a local run goes on and on.
type patientSink struct {
	*dumbSink
	epochs int
}

var errRunsAway = errors.New("the run does not end")

// Apply implements processors.LocalSink.
func (s *patientSink) Apply(n event.Epoch, at event.RecordedTime, rows []processors.LocalRow) error {
	s.epochs++
	if s.epochs > 1000 {
		return fmt.Errorf("%w: epoch %s at %s", errRunsAway, n, at)
	}
	return s.dumbSink.Apply(n, at, rows)
}

// A halted partition ends a local run with the reason why, under both clocks;
// under the log clock it does not move R on, beyond everything in the log.
func TestALocalRunEndsWhenAPartitionHalts(t *testing.T) {
	for _, clock := range []string{"wall", "log, step: 20s"} {
		t.Run(clock, func(t *testing.T) {
			// Of two partitions, one is wrong for the key: it halts.
			plan := parsePlan(t, fmt.Sprintf(sensors, clock, "partitioned_by: key", 0, 0))
			_, err := processors.RunLocal(processors.LocalConfig{
				Topology: processors.NewTopology(plan, 1), Sink: &patientSink{dumbSink: newDumbSink()},
				Streams: map[string][]processors.LocalRecord{"readings": {
					reading{sensor: "a", at: 1_700_000_000, stamp: 1_700_000_000, part: 0}.record(),
					reading{sensor: "a", at: 1_700_000_000, stamp: 1_700_000_000, part: 1}.record(),
				}},
			})
			if err == nil || errors.Is(err, errRunsAway) {
				t.Fatalf("got %v, want an error that names the record", err)
			}
		})
	}
}

func logCoordinator(t *testing.T, untilEnd bool) (*processors.Coordinator, processors.TaskID, processors.TaskID) {
	t.Helper()
	plan := parsePlan(t, fmt.Sprintf(sensors, "log, step: 20s", "partitioned_by: key", 0, 0))
	p0, p1 := processors.TaskID{Stage: "ingest.readings"}, processors.TaskID{Stage: "ingest.readings", Partition: 1}
	var ends map[processors.TaskID]event.Offset
	if untilEnd {
		ends = map[processors.TaskID]event.Offset{p0: 7, p1: 7}
	}
	return processors.NewCoordinator(processors.NewTopology(plan, 1), map[string]int32{"ingest.readings": 2}, ends), p0, p1
}

// A task that is taken over acknowledges its last barrier again. It has asked
// for its read-backs anew, so it says less than the first acknowledgement did:
// what that one said stands.
func TestATakenOverTaskDoesNotUnlearnItsAnswers(t *testing.T) {
	c, p0, p1 := logCoordinator(t, true)
	c.Restore(processors.Announcement{Epoch: 5, Recorded: 1_700_000_000_000_000, Watermarks: map[string]event.Watermark{}})
	end := processors.Next{Known: true, None: true}
	for _, task := range []processors.TaskID{p0, p1} {
		c.Acked(processors.Ack{Task: task, Epoch: 5, Next: end, Offset: 7, AtEnd: true, Answered: 5})
	}
	// The new owner: session.adopt, with a window parked in epoch 5.
	c.Acked(processors.Ack{Task: p0, Epoch: 5, Next: end, Offset: 7, AtEnd: true, Answered: 4, Waiting: 1})
	// The read-back is answered; the runner's next record has not changed.
	c.Noticed(p0, 5, end, true)
	a, ok := c.Next(0)
	if !ok {
		t.Fatal("no barrier is announced any more")
	}
	if a.Granted != 5 || !a.End {
		t.Errorf("granted %s, end %v; without the takeover 5 and true", a.Granted, a.End)
	}
}

// What a task said of its end in an earlier run is no end for this one, which
// was started when the log held more.
func TestARunUntilTheEndReadsWhatCameSinceTheLastRun(t *testing.T) {
	c, p0, p1 := logCoordinator(t, true)
	c.Restore(processors.Announcement{Epoch: 5, Recorded: 1_700_000_000_000_000, Watermarks: map[string]event.Watermark{}})
	end := processors.Next{Known: true, None: true}
	for _, task := range []processors.TaskID{p0, p1} {
		c.Acked(processors.Ack{Task: task, Epoch: 5, Next: end, Offset: 4, AtEnd: true, Answered: 5})
	}
	if a, ok := c.Next(0); ok {
		t.Errorf("announced %+v before the input was read", a)
	}
}

// A log may end behind the last barrier with records that no task is given: what
// was aborted, and control records. Under the log clock no barrier comes for
// them, so that the run ends where the task has seen that there is nothing else.
func TestARunUntilTheEndEndsBehindWhatWasAborted(t *testing.T) {
	c, p0, p1 := logCoordinator(t, true)
	c.Restore(processors.Announcement{Epoch: 5, Recorded: 1_700_000_000_000_000, Watermarks: map[string]event.Watermark{}})
	for _, task := range []processors.TaskID{p0, p1} {
		c.Acked(processors.Ack{Task: task, Epoch: 5, Offset: 4, Answered: 5})
	}
	r := aborted(t)
	c.Noticed(p0, 5, r.NextRecord(), true)
	if a, ok := c.Next(0); ok {
		t.Fatalf("announced %+v before all of the input was seen", a)
	}
	c.Noticed(p1, 5, r.NextRecord(), true)
	if a, ok := c.Next(0); !ok || !a.End {
		t.Errorf("announced %+v (%v), want the end of the input", a, ok)
	}
}

// Under the clock on the wall a task takes records before the next barrier is
// announced: that it knows of none to come does not say that there were none.
func TestWhatWasTakenSinceTheBarrierIsNoEndOfTheInput(t *testing.T) {
	stage := processors.NewTopology(parsePlan(t, idleSensors), 1).Stages[0]
	r := idleRunner(t, stage, processors.RunnerConfig{Stage: stage, Epoch: 5, Offsets: []event.Offset{4}})
	record := reading{sensor: "a", at: 1_700_000_000, stamp: 1_700_000_000}.record().Record
	record.Offset = 4
	r.Push(&processors.Slab{Records: []processors.Record{record}, Next: 5, AtEnd: true}, processors.Clock{ByRecord: true})
	if _, err := r.Advance(processors.Clock{ByRecord: true}); err != nil {
		t.Fatal(err)
	}
	if next := r.NextRecord(); !next.None || next.Read != 0 {
		t.Errorf("next %+v, want none, and nothing said of what lies between", next)
	}
}

// aborted is a runner at offset 4 of a log that ends at 7 and holds nothing in
// between that is given to a task.
func aborted(t *testing.T) *processors.Runner {
	t.Helper()
	stage := processors.NewTopology(parsePlan(t, fmt.Sprintf(sensors, "log, step: 20s", "partitioned_by: key", 0, 0)), 1).Stages[0]
	r := idleRunner(t, stage, processors.RunnerConfig{Stage: stage, Epoch: 5, Offsets: []event.Offset{4}, Log: true})
	if next := r.NextRecord(); next.Known {
		t.Fatalf("next %+v before anything was read", next)
	}
	r.Push(&processors.Slab{Next: 7, AtEnd: true}, processors.Clock{ByRecord: true})
	return r
}

// What is granted as idle does not depend on a takeover: the acknowledgement of
// the new owner says nothing of it, and the watermark is that of a calm run.
func TestATakenOverTaskStaysIdle(t *testing.T) {
	announced := func(takeOver bool) event.Watermark {
		c, p0, p1 := logCoordinator(t, false)
		c.Restore(processors.Announcement{Epoch: 5, Recorded: 1_700_000_000_000_000, Watermarks: map[string]event.Watermark{"readings": 100}})
		end := processors.Next{Known: true, None: true}
		quiet := processors.Ack{Task: p0, Epoch: 5, Next: end, AtEnd: true, Answered: 5, Watermark: 100, Idle: true}
		c.Acked(quiet)
		c.Acked(processors.Ack{Task: p1, Epoch: 5, Next: processors.Next{Known: true, Timestamp: 1_700_000_050_000_000}, Answered: 5, Watermark: 200})
		if takeOver {
			quiet.Idle = false // as session.adopt writes it
			c.Acked(quiet)
		}
		a, ok := c.Next(0)
		if !ok {
			t.Fatal("no barrier is announced")
		}
		return a.Watermarks["readings"]
	}
	if with, without := announced(true), announced(false); with != without {
		t.Errorf("watermark %d after a takeover, %d without", with, without)
	}
}

const idleSensors = `
pipeline: sensors
epoch: {clock: log, step: 20s}
streams:
  readings:
    topic: readings
    key: sensor
    event_time: {field: at, format: s, max_ahead: 24h}
    watermark: {out_of_orderness: 0s, idle_after: 1h}
objects:
  Sensor:
    aggregates:
      tens:
        from: readings
        id: sensor
        window: {tumbling: 10s}
        values: {n: count()}
`

// Under the log clock a partition is idle when the log's time has gone on for
// idle_after since its last record, which a restart remembers.
func TestARestartDoesNotMakeAPartitionIdle(t *testing.T) {
	plan := parsePlan(t, idleSensors)
	stage := processors.NewTopology(plan, 1).Stages[0]
	idle := func(restart bool) bool {
		r := reading{sensor: "a", at: 1_700_000_000, stamp: 1_700_000_000}.record().Record
		config := processors.RunnerConfig{Stage: stage, Offsets: []event.Offset{0}, Log: true}
		run := func(runner *processors.Runner, b processors.Barrier) *processors.Reached {
			if err := runner.Announce(b); err != nil {
				t.Fatal(err)
			}
			reached, err := runner.Advance(processors.Clock{ByRecord: true})
			if err != nil || reached == nil {
				t.Fatal(reached, err)
			}
			return reached
		}
		runner := idleRunner(t, stage, config)
		runner.Push(&processors.Slab{Records: []processors.Record{r}, Next: 1, AtEnd: true}, processors.Clock{})
		first := run(runner, processors.Barrier{Epoch: 1, Recorded: 1_700_000_020_000_000})
		if restart {
			config.Epoch, config.Offsets, config.LastStamp = 1, first.Offsets, first.LastStamp
			runner = idleRunner(t, stage, config)
			runner.Push(&processors.Slab{Next: 1, AtEnd: true}, processors.Clock{})
		}
		return run(runner, processors.Barrier{Epoch: 2, Recorded: 1_700_000_040_000_000}).Idle
	}
	if idle(false) || idle(true) {
		t.Errorf("40 s after its last record the partition is idle: %v, and after a restart: %v; idle_after is 1 h", idle(false), idle(true))
	}
}

// Timestamps go up and down within a partition. How long it has been quiet
// depends on the records alone, not on the slabs in which they were fetched.
func TestIdlenessDoesNotDependOnSlabs(t *testing.T) {
	stage := processors.NewTopology(parsePlan(t, idleSensors), 1).Stages[0]
	stamps := []int64{1_700_003_600, 1_700_000_000} // an hour apart, the later one first
	var records []processors.Record
	for i, at := range stamps {
		r := reading{sensor: "a", at: 1_700_000_000, stamp: at}.record().Record
		r.Offset = event.Offset(i)
		records = append(records, r)
	}
	idle := func(slabs ...[]processors.Record) bool {
		runner := idleRunner(t, stage, processors.RunnerConfig{Stage: stage, Offsets: []event.Offset{0}, Log: true})
		for _, records := range slabs {
			last := records[len(records)-1].Offset + 1
			runner.Push(&processors.Slab{Records: records, Next: last, AtEnd: last == 2}, processors.Clock{})
		}
		if err := runner.Announce(processors.Barrier{Epoch: 1, Recorded: 1_700_003_640_000_000}); err != nil {
			t.Fatal(err)
		}
		reached, err := runner.Advance(processors.Clock{ByRecord: true})
		if err != nil || reached == nil {
			t.Fatal(reached, err)
		}
		if want := event.EventTime(1_700_003_600_000_000); reached.LastStamp != want {
			t.Errorf("the greatest timestamp is %s, want %s", reached.LastStamp, want)
		}
		return reached.Idle
	}
	if one, two := idle(records), idle(records[:1], records[1:]); one || two {
		t.Errorf("40 s after its newest record the partition is idle: %v in one slab, %v in two; idle_after is 1 h", one, two)
	}
}

func idleRunner(t *testing.T, stage *processors.Stage, c processors.RunnerConfig) *processors.Runner {
	t.Helper()
	task, err := processors.NewTask(processors.TaskConfig{Stage: stage, Partitions: 1, State: state.NewMemory(), Progress: stateAt(c.Epoch)})
	if err != nil {
		t.Fatal(err)
	}
	c.Task = task
	return processors.NewRunner(c)
}

func stateAt(n event.Epoch) state.Progress {
	p := state.InitialProgress()
	p.Epoch = n
	return p
}

// Between EndTxn and the store's batch the coordinator may announce the next
// barrier: two epochs are then handed over and not in the store. The ids of
// both are known all the same.
func TestAnIdIsKnownWhileItsEpochIsAppliedSlowly(t *testing.T) {
	plan := parsePlan(t, orders)
	view := state.NewView(state.NewMemory())
	task, err := processors.NewTask(processors.TaskConfig{
		Stage: processors.NewTopology(plan, 1).Stages[0], Partitions: 1, State: view, Progress: state.InitialProgress(),
	})
	if err != nil {
		t.Fatal(err)
	}
	offset := event.Offset(0)
	feed := func(id string) {
		r := value(fmt.Sprintf(`{"id":%q,"at":"2026-01-01T10:00:00Z","total":1}`, id), "2026-01-01T10:00:00Z").Record
		r.Offset = offset
		offset++
		if n, err := task.Feed(0, []processors.Record{r}, processors.Clock{ByRecord: true}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	for n, id := range []string{"a", "b"} {
		feed(id)
		h, err := task.Barrier(processors.Barrier{Epoch: event.Epoch(n + 1), Recorded: event.RecordedTime(n+1) * 1_000_000})
		if err != nil {
			t.Fatal(err)
		}
		view.Begin(h.Layer) // and view.Applied is still to come
	}
	feed("a")
	h, err := task.Barrier(processors.Barrier{Epoch: 3, Recorded: 3_000_000})
	if err != nil {
		t.Fatal(err)
	}
	if h.Counters.Events != 2 || h.Counters.Repeats != 1 {
		t.Errorf("%d events and %d repeats, want 2 and 1", h.Counters.Events, h.Counters.Repeats)
	}
}

// Recorded time may leap over a whole horizon from one barrier to the next. An
// id is forgotten then, whether its task has been restarted meanwhile or not.
func TestAnIdIsForgottenAlikeWithAndWithoutARestart(t *testing.T) {
	plan := parsePlan(t, orders)
	stage := processors.NewTopology(plan, 1).Stages[0]
	horizon := event.RecordedTime(stage.Stream.Identity.Horizon)
	counted := func(restart bool) processors.Counters {
		store, progress := state.NewMemory(), state.InitialProgress()
		var view *state.View
		restarted := func() processors.Task {
			view = state.NewView(store)
			task, err := processors.NewTask(processors.TaskConfig{Stage: stage, Partitions: 1, State: view, Progress: progress})
			if err != nil {
				t.Fatal(err)
			}
			return task
		}
		task := restarted()
		var h *processors.HandOver
		for n := range 2 {
			r := value(`{"id":"a","at":"2026-01-01T10:00:00Z","total":1}`, "2026-01-01T10:00:00Z").Record
			r.Offset = event.Offset(n)
			if took, err := task.Feed(0, []processors.Record{r}, processors.Clock{ByRecord: true}); took != 1 || err != nil {
				t.Fatal(took, err)
			}
			b := processors.Barrier{Epoch: event.Epoch(n + 1), Recorded: 1_000_000}
			h = commitTask(t, task, view, b)
			// Nothing comes for two horizons.
			b = processors.Barrier{Epoch: event.Epoch(n + 2), Recorded: 1_000_000 + 2*horizon}
			if n == 0 {
				h = commitTask(t, task, view, b)
			}
			if restart && n == 0 {
				raw, err := json.Marshal(h.Counters)
				if err != nil {
					t.Fatal(err)
				}
				progress.Epoch, progress.Recorded, progress.Counters = 2, b.Recorded, raw
				task = restarted()
			}
		}
		return h.Counters
	}
	with, without := counted(true), counted(false)
	if with != without || without.Events != 2 {
		t.Errorf("with a restart %+v, without %+v; two horizons lie between the two, so both count", with, without)
	}
}

// commitTask lets a task reach a barrier, and writes what it hands over.
func commitTask(t *testing.T, task processors.Task, view *state.View, b processors.Barrier) *processors.HandOver {
	t.Helper()
	h, err := task.Barrier(b)
	if err != nil {
		t.Fatal(err)
	}
	view.Begin(h.Layer)
	if err := view.Store().Apply(&state.Batch{Changes: h.Layer.Changes(), Expired: h.Expired, Position: event.OffsetNone}); err != nil {
		t.Fatal(err)
	}
	view.Applied()
	return h
}
