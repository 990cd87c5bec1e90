package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// serial runs the pipeline over what was announced and committed: each epoch
// with exactly the records that stand before its barrier, one task after the
// other, without a broker, a crash or a store on disk.
type serial struct {
	sim      *simulation
	tasks    map[processors.TaskID]*serialTask
	order    []*serialTask
	believed map[string]event.Result
	rows     [][]byte
	letters  []string
}

type serialTask struct {
	id       processors.TaskID
	stage    *processors.Stage
	store    *state.Memory
	view     *state.View
	task     processors.Task
	history  []broker.Record
	incoming []processors.Record
	counters processors.Counters
}

// serialRun compares each epoch with that of a serial run.
func (c *checks) serialRun() {
	s := &serial{sim: c.sim, tasks: map[processors.TaskID]*serialTask{}, believed: map[string]event.Result{}}
	byEpoch := map[event.Epoch][][]byte{}
	for i := range c.results {
		n := c.results[i].row.Epoch
		byEpoch[n] = append(byEpoch[n], c.results[i].value)
	}
	if err := s.begin(); err != nil {
		c.sim.world.fail(SerialRun, "%v", err)
		return
	}
	for i := range c.announced {
		n := c.announced[i].Epoch
		if err := s.epoch(&c.announced[i]); err != nil {
			c.sim.world.fail(SerialRun, "epoch %s: %v", n, err)
			return
		}
		if diff := differentRows(byEpoch[n], s.rows); diff != "" {
			c.sim.world.fail(SerialRun, "epoch %s: %s", n, diff)
			return
		}
	}
	for _, t := range s.order {
		h := c.tasks[t.id]
		got, err := processors.DecodeCounters(h.progress[len(h.progress)-1].Counters)
		if err != nil || got != t.counters {
			c.sim.world.fail(SerialRun, "%v has counted %+v, serially %+v (%v)", t.id, got, t.counters, err)
		}
	}
	var letters []string
	for i := range c.letters {
		letters = append(letters, showLetter(c.letters[i].Payload))
	}
	slices.Sort(letters)
	slices.Sort(s.letters)
	if !slices.Equal(letters, s.letters) {
		c.sim.world.fail(SerialRun, "dead letters %q, serially %q", letters, s.letters)
	}
}

func showLetter(payload any) string {
	d, ok := payload.(*deadLetter)
	if !ok {
		return fmt.Sprint(payload)
	}
	return fmt.Sprintf("%s %s %s %s %s", d.stage, d.place, d.reason, d.message, d.recorded)
}

// differentRows compares the rows of an epoch; tasks have no order among each other.
func differentRows(got, want [][]byte) string {
	got, want = slices.Clone(got), slices.Clone(want)
	slices.SortFunc(got, bytes.Compare)
	slices.SortFunc(want, bytes.Compare)
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want):
			return "published, and not serially: " + showRow(got[i])
		case i >= len(got):
			return "not published: " + showRow(want[i])
		case !bytes.Equal(got[i], want[i]):
			return fmt.Sprintf("published %s, serially %s", showRow(got[i]), showRow(want[i]))
		}
	}
	return ""
}

func showRow(value []byte) string {
	r, err := event.DecodeResult(value)
	if err != nil {
		return err.Error()
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return windowName(&r) + ": " + string(text)
}

func (s *serial) begin() error {
	for _, g := range s.sim.topology.Stages {
		for _, n := range s.sim.partitions(g) {
			t := &serialTask{id: processors.TaskID{Stage: g.Name, Partition: n}, stage: g, store: state.NewMemory()}
			t.view = state.NewView(t.store)
			var err error
			t.task, err = processors.NewTask(processors.TaskConfig{
				Stage: g, Partition: n, Partitions: int32(len(s.sim.partitions(g))), State: t.view, Progress: state.InitialProgress(),
			})
			if err != nil {
				return err
			}
			if g.Source() {
				t.history = s.sim.broker.Topic(g.Input)[n].History()
			}
			s.order = append(s.order, t)
			s.tasks[t.id] = t
		}
	}
	return nil
}

func (s *serial) epoch(a *processors.Announcement) error {
	s.rows = nil
	for _, t := range s.order {
		if err := s.feed(t, a); err != nil {
			return fmt.Errorf("%v: %w", t.id, err)
		}
		h, err := t.task.Barrier(a.Barrier())
		if err != nil {
			return fmt.Errorf("%v: %w", t.id, err)
		}
		if p := s.sim.checks.tasks[t.id].progress[a.Epoch]; p.Watermark != h.Watermark && !a.End {
			return fmt.Errorf("%v has watermark %s, serially %s", t.id, p.Watermark, h.Watermark)
		}
		if err := s.commit(t, h); err != nil {
			return fmt.Errorf("%v: %w", t.id, err)
		}
	}
	return nil
}

// feed gives a task the records of an epoch.
func (s *serial) feed(t *serialTask, a *processors.Announcement) error {
	records := t.incoming
	t.incoming = nil
	if t.stage.Source() {
		offsets := s.sim.checks.tasks[t.id].offsets
		if int(a.Epoch) >= len(offsets) {
			return fmt.Errorf("barrier %s was not committed", a.Epoch)
		}
		for i := range t.history {
			if r := &t.history[i]; r.Offset >= offsets[a.Epoch-1] && r.Offset < offsets[a.Epoch] {
				records = append(records, r.Record)
			}
		}
	}
	took, err := t.task.Feed(0, records, processors.Clock{ByRecord: s.sim.logClock(), Now: a.Recorded})
	if err == nil && took != len(records) {
		err = fmt.Errorf("it takes %d of %d records", took, len(records))
	}
	return err
}

func (s *serial) commit(t *serialTask, h *processors.HandOver) error {
	t.view.Begin(h.Layer)
	out := func(o processors.Output) error { return s.output(t, o) }
	if err := h.Stream(h.Layer.Over(t.store), out, func([]byte) error { return nil }); err != nil {
		return err
	}
	for i := range h.DeadLetters {
		d := &h.DeadLetters[i]
		s.letters = append(s.letters, showLetter(&deadLetter{t.stage.Name, d.Place, d.Reject.Reason, d.Reject.Message, h.Barrier.Recorded}))
	}
	if err := t.store.Apply(&state.Batch{Changes: h.Layer.Changes(), Expired: h.Expired, Position: event.OffsetNone}); err != nil {
		return err
	}
	t.view.Applied()
	t.counters = h.Counters
	var answers []processors.Answer
	for _, rb := range t.task.Waiting() {
		r, ok := s.believed[fmt.Sprint(rb.Type, "/", rb.ID, "/", rb.Aggregate, "/", rb.Start)]
		answers = append(answers, processors.Answer{Number: rb.Number, Found: ok, Version: r.Version, Properties: r.Properties})
	}
	return t.task.Answer(answers)
}

func (s *serial) output(t *serialTask, o processors.Output) error {
	if o.Topic > 0 {
		below := s.sim.stageReading(t.stage.Outputs[o.Topic])
		n := event.PartitionOf(o.Key, int32(len(s.sim.partitions(below))))
		to := s.tasks[processors.TaskID{Stage: below.Name, Partition: n}]
		to.incoming = append(to.incoming, processors.Record{Key: o.Key, Value: o.Value})
		return nil
	}
	r, err := event.DecodeResult(o.Value)
	if err != nil {
		return err
	}
	s.rows = append(s.rows, o.Value)
	if r.Kind == event.RowWindow {
		s.believed[fmt.Sprint(r.Type, "/", r.ID, "/", r.Aggregate, "/", r.ValidFrom)] = r
	}
	return nil
}
