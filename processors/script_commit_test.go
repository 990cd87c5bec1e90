package processors

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/datadriven"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

// commit commits what the task has handed over.
func (s *script) commit(t *scripted, _ *datadriven.TestData) (string, error) {
	if t.handed == nil {
		return "", fmt.Errorf("nothing was handed over")
	}
	ack, err := s.commitTask(t)
	return showAck(&ack), err
}

// commitTask does what a transaction does: rows and markers go into the topics
// below, state and progress into the store, the acknowledgement to the
// coordinator.
func (s *script) commitTask(t *scripted) (Ack, error) {
	r := t.handed
	for _, o := range t.outputs {
		if err := s.publish(t, o); err != nil {
			return Ack{}, err
		}
	}
	if err := s.markBelow(t, r); err != nil {
		return Ack{}, err
	}
	counters, err := json.Marshal(r.Counters)
	if err != nil {
		return Ack{}, err
	}
	t.progress = state.Progress{
		Epoch: r.Barrier.Epoch, Recorded: r.Barrier.Recorded, Watermark: r.Watermark,
		Offsets:   map[string]event.Offset{t.stage.Input: r.Offsets[0]},
		Announced: max(t.progress.Announced, r.Barrier.Watermark(t.stage.Stream.Name)),
		LastStamp: r.LastStamp, Hold: r.Barrier.Hold, Parked: r.Parked, Counters: counters,
	}
	value, err := t.progress.Encode()
	if err != nil {
		return Ack{}, err
	}
	err = t.store.Apply(&state.Batch{
		Changes: append(slices.Clone(r.Layer.Changes()), state.Change{Key: []byte{state.KeyProgress}, Value: value}),
		Expired: r.Expired, Position: event.OffsetNone,
	})
	if err != nil {
		return Ack{}, err
	}
	t.view.Applied()
	t.handed, t.outputs = nil, nil
	ack := r.Ack(t.id, t.runner.Task().Answered())
	if s.coordinator != nil {
		s.coordinator.Acked(ack)
	}
	return ack, nil
}

// publish writes one output. What the ontology would refuse is an error:
// versions of a window count up without a gap.
func (s *script) publish(t *scripted, o Output) error {
	if o.Topic > 0 {
		topic := t.stage.Outputs[o.Topic]
		s.append(topic, event.PartitionOf(o.Key, s.below(topic)), Record{Key: o.Key, Value: o.Value})
		return nil
	}
	r, err := event.DecodeResult(o.Value)
	if err != nil || r.Kind != event.RowWindow {
		return err
	}
	k := fmt.Sprint(r.Type, r.ID, r.Aggregate, r.ValidFrom)
	if r.Version != s.believed[k].Version+1 {
		return fmt.Errorf("version %d of %s after %d", r.Version, showWindow(r.ID, r.ValidFrom, r.ValidTo), s.believed[k].Version)
	}
	s.believed[k] = r
	return nil
}

func (s *script) below(topic string) int32 {
	for _, g := range s.topology.Stages {
		if g.Input == topic {
			return s.partitions[g.Name]
		}
	}
	return 1
}

func (s *script) markBelow(t *scripted, r *Reached) error {
	m := event.Marker{
		V: event.MarkerVersion, Stage: t.stage.Name, Member: "a", Epoch: r.Barrier.Epoch,
		Recorded: r.Barrier.Recorded, Tasks: []event.Partition{t.id.Partition},
	}
	value, err := event.AppendMarker(nil, &m)
	if err != nil {
		return err
	}
	for _, topic := range t.stage.Outputs[1:] {
		for p := range s.below(topic) {
			s.append(topic, event.Partition(p), Record{Value: value})
		}
	}
	return nil
}

func (s *script) coordinate(d *datadriven.TestData) (string, error) {
	var ends map[TaskID]event.Offset
	if d.HasArg("until-end") {
		ends = s.ends(1)
	}
	s.coordinator = NewCoordinator(s.topology, s.partitions, ends)
	return "", nil
}

// ends are where the logs of the source tasks end now; unseen is the end of a
// topic that the script has not written to.
func (s *script) ends(unseen event.Offset) map[TaskID]event.Offset {
	out := map[TaskID]event.Offset{}
	for _, g := range s.topology.Stages {
		if !g.Source() {
			continue
		}
		for p := range s.partitions[g.Name] {
			end := event.Offset(len(s.logs[g.Input][event.Partition(p)]))
			if len(s.logs[g.Input]) == 0 {
				end = unseen
			}
			out[TaskID{g.Name, event.Partition(p)}] = end
		}
	}
	return out
}

// ack acknowledges for a task that the script does not run.
func (s *script) ack(d *datadriven.TestData) (string, error) {
	ids := words(d)
	if len(ids) == 0 {
		for _, t := range s.coordinator.Tasks() {
			ids = append(ids, fmt.Sprintf("%s/%s", t.Stage, t.Partition))
		}
	}
	for _, text := range ids {
		id, _, err := s.taskID(text)
		if err != nil {
			return "", err
		}
		a := Ack{
			Task: id, Epoch: event.Epoch(number(d, "epoch")), Watermark: event.WatermarkUnknown, Next: nextArg(d),
			Idle: d.HasArg("idle"), AtEnd: d.HasArg("at-end"), Quiet: d.HasArg("quiet"),
			Waiting: int(number(d, "waiting")), Answered: event.Epoch(number(d, "epoch")),
		}
		if a.AtEnd {
			a.Offset = 1
		}
		a.Halted, _ = arg(d, "halted")
		if w, ok := arg(d, "W"); ok {
			a.Watermark = watermark(w)
		}
		if d.HasArg("answered") {
			a.Answered = event.Epoch(number(d, "answered"))
		}
		s.coordinator.Acked(a)
	}
	return "", nil
}

func nextArg(d *datadriven.TestData) Next {
	switch text, _ := arg(d, "next"); text {
	case "", "none":
		return Next{Known: true, None: true}
	case "unknown":
		return Next{}
	default:
		return Next{Known: true, Timestamp: event.EventTime(seconds(text))}
	}
}

func (s *script) notice(d *datadriven.TestData) (string, error) {
	id, _, err := s.taskID(strings.Join(words(d), " "))
	if err != nil {
		return "", err
	}
	s.coordinator.Noticed(id, event.Epoch(number(d, "epoch")), nextArg(d), d.HasArg("at-end"))
	return "", nil
}

func (s *script) restore(d *datadriven.TestData) (string, error) {
	s.coordinator.Restore(announcement(d))
	return "", nil
}

func (s *script) next(_ *datadriven.TestData) (string, error) {
	a, ok := s.coordinator.Next(s.now)
	if !ok {
		out := "nothing to announce"
		for i, m := range s.coordinator.Missing() {
			if i == 0 {
				out += ", has not committed:"
			}
			out += fmt.Sprintf(" %s/%s", m.Stage, m.Partition)
		}
		if s.coordinator.Ended() {
			out += ": the input has ended"
		}
		return out + "\n", nil
	}
	return showAnnouncement(&a) + fmt.Sprintf("then waits %s\n", s.coordinator.Interval()), nil
}

// local makes a whole local run; the script is its ontology.
func (s *script) local(d *datadriven.TestData) (string, error) {
	streams := map[string][]LocalRecord{}
	for line := range strings.Lines(d.Input) {
		place, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		stream, p, _ := strings.Cut(place, "/")
		r, err := parseRecord(rest)
		if err != nil {
			return "", err
		}
		var n event.Partition
		if _, err := fmt.Sscan(p, &n); err != nil {
			return "", err
		}
		streams[stream] = append(streams[stream], LocalRecord{Partition: n, Record: r})
	}
	sink := &scriptSink{script: s}
	o, err := RunLocal(LocalConfig{Topology: s.topology, Streams: streams, EpochEvery: int(number(d, "every")), Sink: sink})
	if err != nil {
		return "", err
	}
	for _, dead := range o.DeadLetters {
		fmt.Fprintf(&sink.out, "dead letter %s: %s\n", dead.Place, dead.Reject.Reason)
	}
	return sink.out.String() + showCounters(o.Counters) + "\n", nil
}

// scriptSink prints the rows of a local run and believes them.
type scriptSink struct {
	script *script
	out    strings.Builder
}

// Apply implements LocalSink.
func (k *scriptSink) Apply(n event.Epoch, at event.RecordedTime, rows []LocalRow) error {
	if n > 1000 {
		return fmt.Errorf("the run does not end")
	}
	fmt.Fprintf(&k.out, "epoch %s at %s\n", n, showTime(int64(at)))
	for _, r := range rows {
		k.out.WriteString("  " + showResult(&r.Result))
		k.script.believed[fmt.Sprint(r.Result.Type, r.Result.ID, r.Result.Aggregate, r.Result.ValidFrom)] = r.Result
	}
	return nil
}

// ReadBack implements LocalSink.
func (k *scriptSink) ReadBack(asked []ReadBack) ([]Answer, error) {
	return k.script.believe(asked), nil
}
