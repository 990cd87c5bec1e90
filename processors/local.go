package processors

import (
	"errors"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
)

// LocalRecord is one record of an input file.
type LocalRecord struct {
	Partition event.Partition
	// Record's offset is given by its place in its partition. A record
	// without a timestamp has NoTimestamp, which clock: log does not allow.
	Record Record
}

// LocalRow is one row for the ontology.
type LocalRow struct {
	Offset event.Offset
	Result event.Result
}

// LocalSink takes the results of a local run.
type LocalSink interface {
	// Apply takes the rows of one epoch, in order.
	Apply(n event.Epoch, at event.RecordedTime, rows []LocalRow) error
	// ReadBack answers read-backs from all epochs applied so far.
	ReadBack(asked []ReadBack) ([]Answer, error)
}

// HaltedError says that a partition has halted, and that nothing else is left
// to be read.
type HaltedError struct {
	Task TaskID
	Why  string
}

// Error names the partition and the reason.
func (e *HaltedError) Error() string {
	return fmt.Sprintf("stage %s, partition %s has halted: %s", e.Task.Stage, e.Task.Partition, e.Why)
}

// LocalConfig is what a local run is made from.
type LocalConfig struct {
	Topology *Topology
	// Streams holds the records of each stream by its name. Under the wall
	// clock they are fed in this order, the streams of the mapping in turn.
	Streams map[string][]LocalRecord
	// EpochEvery ends an epoch after so many records; 0: one epoch holds all.
	// Under clock: log the log's time decides instead.
	EpochEvery int
	Sink       LocalSink
}

// LocalOutcome tells how a local run went.
type LocalOutcome struct {
	Counters    Counters
	DeadLetters []DeadLetter
	Epochs      event.Epoch
}

// localStart is R(0) of a local run under the wall clock: R(n) counts up from
// it by the second, so that a run is the same every time.
const localStart = event.RecordedTime(946_684_800_000_000) // 2000-01-01T00:00:00Z

// RunLocal runs a pipeline over the given records: the very tasks that run on
// Kafka, in one goroutine, with no broker and no database. It is deterministic.
func RunLocal(c LocalConfig) (LocalOutcome, error) {
	l := &local{config: c, byStage: map[string][]*localTask{}}
	if err := l.setUp(); err != nil {
		return LocalOutcome{}, err
	}
	for !l.coordinator.Ended() {
		if err := l.epoch(); err != nil {
			return LocalOutcome{}, err
		}
	}
	for _, t := range l.tasks {
		l.outcome.Counters.Add(t.counters)
	}
	l.outcome.Epochs = l.coordinator.Last().Epoch
	return l.outcome, nil
}

// local is a local run.
type local struct {
	config      LocalConfig
	coordinator *Coordinator
	tasks       []*localTask // in the order of the flow
	byStage     map[string][]*localTask
	feed        []fed // wall clock: what has not been pushed yet
	rows        []LocalRow
	nextRow     event.Offset
	outcome     LocalOutcome
}

type fed struct {
	task   *localTask
	record Record
}

type localTask struct {
	id       TaskID
	stage    *Stage
	store    *state.Memory
	view     *state.View
	runner   *Runner
	counters Counters
	// written is the offset behind what has been pushed into the input.
	written event.Offset
	pending int // records that wait in feed
}

func (l *local) log() bool { return l.config.Topology.Plan.Epoch.Clock == mapping.ClockLog }

func (l *local) clock() Clock { return Clock{ByRecord: true, Now: l.coordinator.Last().Recorded} }

func (l *local) setUp() error {
	partitions := map[string]int32{}
	for _, s := range l.config.Topology.Stages {
		partitions[s.Name] = 1
		if s.Source() {
			for _, r := range l.config.Streams[s.Stream.Name] {
				partitions[s.Name] = max(partitions[s.Name], int32(r.Partition)+1)
			}
		}
	}
	l.coordinator = NewCoordinator(l.config.Topology, partitions, l.ends(partitions))
	for _, s := range l.config.Topology.Stages {
		for p := range partitions[s.Name] {
			t, err := l.newTask(s, event.Partition(p), partitions)
			if err != nil {
				return err
			}
			l.tasks = append(l.tasks, t)
			l.byStage[s.Name] = append(l.byStage[s.Name], t)
		}
	}
	if err := l.load(); err != nil {
		return err
	}
	for _, t := range l.tasks {
		next := t.runner.NextRecord()
		l.coordinator.Acked(Ack{Task: t.id, Watermark: event.WatermarkUnknown, Next: next, AtEnd: next.Known && next.None})
	}
	return nil
}

// ends counts the records of each source task.
func (l *local) ends(partitions map[string]int32) map[TaskID]event.Offset {
	out := map[TaskID]event.Offset{}
	for _, s := range l.config.Topology.Stages {
		if !s.Source() {
			continue
		}
		for p := range partitions[s.Name] {
			out[TaskID{s.Name, event.Partition(p)}] = 0
		}
		for _, r := range l.config.Streams[s.Stream.Name] {
			out[TaskID{s.Name, r.Partition}]++
		}
	}
	return out
}

func (l *local) newTask(s *Stage, p event.Partition, partitions map[string]int32) (*localTask, error) {
	t := &localTask{id: TaskID{s.Name, p}, stage: s, store: state.NewMemory()}
	t.view = state.NewView(t.store)
	logic, err := NewTask(TaskConfig{
		Stage: s, Partition: p, Partitions: partitions[s.Name], State: t.view, Progress: state.InitialProgress(),
	})
	if err != nil {
		return nil, err
	}
	upstream := int32(0)
	if !s.Source() {
		upstream = partitions[s.Upstream.Name]
	}
	t.runner = NewRunner(RunnerConfig{
		Task: logic, Stage: s, Offsets: []event.Offset{0}, Upstream: upstream, Log: l.log(), Started: localStart, LastStamp: event.MinEventTime,
	})
	return t, nil
}

// load numbers the records. Under the log clock every partition gets all of
// its own at once; under the wall clock they wait for their epoch.
func (l *local) load() error {
	for _, s := range l.config.Topology.Stages {
		if !s.Source() {
			continue
		}
		tasks := l.byStage[s.Name]
		slabs := make([]Slab, len(tasks))
		for i, r := range l.config.Streams[s.Stream.Name] {
			if r.Partition < 0 {
				return fmt.Errorf("stream %s, record %d: partition %s", s.Stream.Name, i+1, r.Partition)
			}
			if l.log() && r.Record.Timestamp == NoTimestamp {
				return fmt.Errorf("stream %s, record %d has no timestamp, and epoch.clock: log takes the recorded time from it", s.Stream.Name, i+1)
			}
			t := tasks[r.Partition]
			r.Record.Offset = t.written
			t.written++
			if l.log() {
				slabs[r.Partition].Records = append(slabs[r.Partition].Records, r.Record)
				continue
			}
			t.pending++
			l.feed = append(l.feed, fed{t, r.Record})
		}
		for i, t := range tasks {
			slabs[i].Next, slabs[i].AtEnd = event.Offset(len(slabs[i].Records)), t.pending == 0
			t.runner.Push(&slabs[i], l.clock())
		}
	}
	return nil
}

// push feeds the next records under the wall clock.
func (l *local) push() {
	n := len(l.feed)
	if l.config.EpochEvery > 0 {
		n = min(n, l.config.EpochEvery)
	}
	for _, f := range l.feed[:n] {
		f.task.pending--
		f.task.runner.Push(&Slab{
			Records: []Record{f.record}, Next: f.record.Offset + 1, AtEnd: f.task.pending == 0,
		}, l.clock())
	}
	l.feed = l.feed[n:]
}

var errStuck = errors.New("no barrier can be announced")

func (l *local) epoch() error {
	if !l.log() {
		l.push()
		for _, t := range l.tasks {
			if _, err := t.runner.Advance(l.clock()); err != nil {
				return err
			}
		}
	}
	if t, why, blocked := l.coordinator.Blocked(); blocked {
		return &HaltedError{Task: t, Why: why}
	}
	n := int64(l.coordinator.Last().Epoch) + 1
	a, ok := l.coordinator.Next(localStart + event.RecordedTime(n*1e6))
	if !ok {
		return errStuck
	}
	for _, t := range l.tasks {
		if err := t.runner.Announce(a.Barrier()); err != nil {
			return err
		}
		reached, err := t.runner.Advance(l.clock())
		if err != nil {
			return fmt.Errorf("stage %s, partition %s: %w", t.id.Stage, t.id.Partition, err)
		}
		if reached == nil {
			return fmt.Errorf("stage %s, partition %s does not reach barrier %s", t.id.Stage, t.id.Partition, a.Epoch)
		}
		if err := l.commit(t, reached); err != nil {
			return err
		}
	}
	rows := l.rows
	l.rows = nil
	return l.config.Sink.Apply(a.Epoch, a.Recorded, rows)
}

// commit does what a transaction does on Kafka.
func (l *local) commit(t *localTask, r *Reached) error {
	t.view.Begin(r.Layer)
	below := map[string][]*Slab{}
	for topic, name := range t.stage.Outputs {
		if topic > 0 {
			below[name] = make([]*Slab, len(l.downstream(name)))
		}
	}
	out := func(o Output) error { return l.output(t, o, below) }
	if err := r.Stream(r.Layer.Over(t.store), out, func([]byte) error { return nil }); err != nil {
		return err
	}
	if err := l.markers(t, r, below); err != nil {
		return err
	}
	l.outcome.DeadLetters = append(l.outcome.DeadLetters, r.DeadLetters...)
	if err := t.store.Apply(&state.Batch{Changes: r.Layer.Changes(), Expired: r.Expired, Position: event.OffsetNone}); err != nil {
		return err
	}
	t.view.Applied()
	t.counters = r.Counters
	if len(r.ReadBacks) > 0 {
		answers, err := l.config.Sink.ReadBack(r.ReadBacks)
		if err != nil {
			return err
		}
		if err := t.runner.Task().Answer(answers); err != nil {
			return err
		}
	}
	l.coordinator.Acked(r.Ack(t.id, t.runner.Task().Answered()))
	return nil
}

func (l *local) downstream(topic string) []*localTask {
	i := slices.IndexFunc(l.config.Topology.Stages, func(s *Stage) bool { return s.Input == topic })
	return l.byStage[l.config.Topology.Stages[i].Name]
}

func (l *local) output(t *localTask, o Output, below map[string][]*Slab) error {
	if o.Topic == 0 {
		r, err := event.DecodeResult(o.Value)
		if err != nil {
			return err
		}
		l.rows = append(l.rows, LocalRow{Offset: l.nextRow, Result: r})
		l.nextRow++
		return nil
	}
	topic := t.stage.Outputs[o.Topic]
	l.write(topic, event.PartitionOf(o.Key, int32(len(below[topic]))), o.Key, o.Value, below)
	return nil
}

func (l *local) write(topic string, p event.Partition, key, value []byte, below map[string][]*Slab) {
	to := l.downstream(topic)[p]
	if below[topic][p] == nil {
		below[topic][p] = &Slab{}
	}
	slab := below[topic][p]
	slab.Records = append(slab.Records, Record{Offset: to.written, Key: key, Value: value})
	to.written++
	slab.Next = to.written
}

func (l *local) markers(t *localTask, r *Reached, below map[string][]*Slab) error {
	m := event.Marker{
		V: event.MarkerVersion, Stage: t.stage.Name, Member: "local", Epoch: r.Barrier.Epoch,
		Recorded: r.Barrier.Recorded, Tasks: []event.Partition{t.id.Partition},
	}
	value, err := event.AppendMarker(nil, &m)
	if err != nil {
		return err
	}
	for topic, slabs := range below {
		for p := range slabs {
			l.write(topic, event.Partition(p), nil, value, below)
			l.downstream(topic)[p].runner.Push(slabs[p], l.clock())
		}
	}
	return nil
}
