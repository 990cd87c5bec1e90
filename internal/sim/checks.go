package sim

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
)

// checks look at the broker's log and at the ontology from outside. They learn
// of a transaction when its outcome is decided, before any reader sees it.
type checks struct {
	sim *simulation

	announced []processors.Announcement
	tasks     map[processors.TaskID]*taskHistory
	order     []processors.TaskID
	// handed is what sessions have handed over and not committed yet.
	handed map[handKey]event.Offset
	// markers count the markers of (partition, stage, epoch, task).
	markers  map[markerKey]bool
	results  []result
	versions map[string]uint32 // the last of each window
	letters  []broker.Record

	stored  map[event.Partition]ontology.Progress
	horizon event.RecordedTime
	answers []answer
}

// taskHistory is what a task has committed.
type taskHistory struct {
	epoch     event.Epoch
	known     bool // something
	offset    event.Offset
	watermark event.Watermark
	acked     event.Epoch
	ack       processors.Ack
	// first is the first acknowledgement of the last epoch.
	first processors.Ack
	// offsets and progress are those at each barrier; offsets[0] is where the
	// input began.
	offsets  []event.Offset
	progress []state.Progress
	// state is what the committed changes add up to.
	state map[string][]byte
}

type handKey struct {
	member string
	task   processors.TaskID
	epoch  event.Epoch
}

type markerKey struct {
	partition *broker.Partition
	stage     string
	epoch     event.Epoch
	task      event.Partition
}

// result is a row of the results topic.
type result struct {
	value []byte
	row   event.Result
}

type answer struct {
	at   event.RecordedTime
	text string
}

func newChecks(s *simulation) *checks {
	return &checks{
		sim: s, tasks: map[processors.TaskID]*taskHistory{}, handed: map[handKey]event.Offset{}, markers: map[markerKey]bool{},
		versions: map[string]uint32{},
		stored:   map[event.Partition]ontology.Progress{}, horizon: event.RecordedUnknown,
	}
}

func (c *checks) task(t processors.TaskID) *taskHistory {
	h := c.tasks[t]
	if h == nil {
		h = &taskHistory{watermark: event.WatermarkUnknown, state: map[string][]byte{}}
		c.tasks[t] = h
		c.order = append(c.order, t)
		slices.SortFunc(c.order, compareTasks)
	}
	return h
}

// handedOver is told what a session's task hands over.
func (c *checks) handedOver(s *session, t *task, r *processors.Reached) {
	c.handed[handKey{s.id, t.id, r.Barrier.Epoch}] = r.Offsets[0]
}

// decided is told of every transaction of the cluster.
func (c *checks) decided(d broker.Decision) {
	if !d.Commit {
		return
	}
	t := &transactionCheck{checks: c, id: d.ID, progress: map[processors.TaskID]*progressRecord{}, handing: map[processors.TaskID]bool{}}
	for i := range d.Written {
		if p, ok := d.Written[i].Record.Payload.(*progressRecord); ok {
			t.take(p)
		}
	}
	if group, generation, ok := parseTransactionalID(d.ID); ok && c.sim.broker.Group(group) != nil && generation < c.sim.broker.Group(group).Generation() {
		c.sim.world.meet("committed by an older generation")
		c.sim.world.tracef("%s has committed, of an older generation", d.ID)
	}
	t.offsets(d.Offsets)
	for i := range d.Written {
		t.written(&d.Written[i])
	}
	t.finish()
}

// transactionCheck checks one transaction.
type transactionCheck struct {
	checks   *checks
	id       string
	progress map[processors.TaskID]*progressRecord
	order    []processors.TaskID
	// handing are the tasks that hand over, not only say again where they are.
	handing map[processors.TaskID]bool
	acked   int
	marked  map[*broker.Partition][]event.Partition
	epoch   event.Epoch
}

func (t *transactionCheck) fail(i Invariant, format string, args ...any) {
	t.checks.sim.world.fail(i, "transaction of %s: %s", t.id, fmt.Sprintf(format, args...))
}

// take takes a progress record.
func (t *transactionCheck) take(p *progressRecord) {
	h := t.checks.task(p.task)
	offset := p.Offsets[t.checks.sim.topology.Stage(p.task.Stage).Input]
	if _, twice := t.progress[p.task]; !twice {
		t.order = append(t.order, p.task)
	}
	t.progress[p.task] = p
	switch {
	case p.again && p.Epoch == h.epoch && (!h.known || offset == h.offset):
		if !h.known {
			h.offsets, h.progress = append(h.offsets, offset), append(h.progress, p.Progress)
		}
	case p.again && p.Epoch == h.epoch:
		t.fail(OffsetsAtBarrier, "%v says again that it is at barrier %s, but at offset %s where it was at %s", p.task, p.Epoch, offset, h.offset)
	case !p.again && p.Epoch == h.epoch+1 && h.known:
		t.handing[p.task] = true
		handed, ok := t.checks.handed[handKey{t.id, p.task, p.Epoch}]
		if !ok || handed != offset {
			t.fail(OffsetsAtBarrier, "%v commits offset %s for barrier %s, and handed over at %s (%v)", p.task, offset, p.Epoch, handed, ok)
		}
		h.offsets, h.progress = append(h.offsets, offset), append(h.progress, p.Progress)
		t.epoch = p.Epoch
	default:
		t.fail(EpochsOnce, "%v commits epoch %s after %s", p.task, p.Epoch, h.epoch)
	}
	if p.Watermark < h.watermark {
		t.fail(WatermarksNeverFall, "%v has watermark %s after %s", p.task, p.Watermark, h.watermark)
	}
	h.known, h.epoch, h.offset, h.watermark = true, p.Epoch, offset, p.Watermark
}

// offsets checks that what is committed is where each task's barrier stands.
func (t *transactionCheck) offsets(commits []broker.GroupCommit) {
	committed := map[processors.TaskID]bool{}
	for _, o := range commits {
		stage := t.checks.sim.stageOf(o.Group)
		if stage == nil {
			continue
		}
		id := processors.TaskID{Stage: stage.Name, Partition: o.Partition}
		h := t.checks.task(id)
		committed[id] = true
		if !h.known || o.Offset != h.offset || h.epoch > o.Epoch {
			t.fail(OffsetsAtBarrier, "%v has offset %s committed with epoch %s; its barrier %s is at %s", id, o.Offset, o.Epoch, h.epoch, h.offset)
		}
		if o.ID != t.id {
			t.fail(OffsetsAtBarrier, "the metadata names %s", o.ID)
		}
	}
	for _, id := range t.order {
		if !committed[id] {
			t.fail(OffsetsAtBarrier, "%v is at barrier %s without its offset", id, t.progress[id].Epoch)
		}
	}
}

// written checks one record.
func (t *transactionCheck) written(w *broker.Written) {
	c := t.checks
	top := c.sim.topology
	if control := controlOf(&w.Record); control != nil {
		switch {
		case control.announcement != nil:
			c.announce(control.announcement)
		case control.acks != nil:
			t.acks(control.acks)
		}
		return
	}
	switch {
	case w.Partition.Topic == top.DeadLetterTopic():
		c.letters = append(c.letters, w.Record)
	case w.Partition.Topic == top.ResultsTopic() || c.sim.stageReading(w.Partition.Topic) != nil && !c.sim.stageReading(w.Partition.Topic).Source():
		t.output(w)
	default:
		if stage := c.sim.stageOfChangelog(w.Partition.Topic); stage != nil {
			h := c.task(processors.TaskID{Stage: stage.Name, Partition: w.Partition.Number})
			if w.Record.Value == nil {
				delete(h.state, string(w.Record.Key))
			} else {
				h.state[string(w.Record.Key)] = w.Record.Value
			}
		}
	}
}

func (t *transactionCheck) acks(a *acks) {
	for _, ack := range a.acks {
		p := t.progress[ack.Task]
		if p == nil || p.Epoch != a.epoch || ack.Epoch != a.epoch {
			t.fail(AcksAreTrue, "%v is acknowledged at epoch %s and does not commit it", ack.Task, ack.Epoch)
			continue
		}
		t.acked++
		h := t.checks.task(ack.Task)
		if ack.Epoch > h.acked || h.ack.Task.Stage == "" {
			h.first = ack
		}
		h.acked, h.ack = max(h.acked, ack.Epoch), ack
	}
}

// output checks a row or a marker.
func (t *transactionCheck) output(w *broker.Written) {
	kind, err := event.RowKindOf(w.Record.Value)
	if err != nil {
		t.fail(NoRefusal, "%v", err)
		return
	}
	if kind == event.RowMarker {
		t.marker(w)
		return
	}
	if len(t.marked[w.Partition]) > 0 {
		t.fail(MarkersAreTrue, "a row behind the markers in %s/%s", w.Partition.Topic, w.Partition.Number)
	}
	if kind == event.RowContribution {
		return
	}
	row, err := event.DecodeResult(w.Record.Value)
	if err != nil {
		t.fail(NoRefusal, "%v", err)
		return
	}
	if row.Epoch != t.epoch {
		t.fail(MarkersAreTrue, "a row of epoch %s in the transaction of %s", row.Epoch, t.epoch)
	}
	t.checks.results = append(t.checks.results, result{value: w.Record.Value, row: row})
	if row.Kind != event.RowWindow {
		return
	}
	name := windowName(&row)
	t.checks.sim.world.meet("result " + row.Cause.String())
	t.checks.sim.world.tracef("epoch %s: version %d of %s, %s", row.Epoch, row.Version, name, row.Cause)
	if row.Version != t.checks.versions[name]+1 {
		t.fail(VersionsGapless, "version %d of %s comes after %d", row.Version, name, t.checks.versions[name])
	}
	t.checks.versions[name] = row.Version
}

func (t *transactionCheck) marker(w *broker.Written) {
	m, err := event.DecodeMarker(w.Record.Value)
	if err != nil {
		t.fail(NoRefusal, "%v", err)
		return
	}
	if t.marked == nil {
		t.marked = map[*broker.Partition][]event.Partition{}
	}
	for _, n := range m.Tasks {
		key := markerKey{w.Partition, m.Stage, m.Epoch, n}
		id := processors.TaskID{Stage: m.Stage, Partition: n}
		if !t.handing[id] || t.progress[id].Epoch != m.Epoch {
			t.fail(MarkersAreTrue, "a marker of epoch %s in %s/%s names %v, which does not hand over", m.Epoch, w.Partition.Topic, w.Partition.Number, id)
		}
		if t.checks.markers[key] {
			t.fail(MarkersAreTrue, "%v is named twice for epoch %s in %s/%s", id, m.Epoch, w.Partition.Topic, w.Partition.Number)
		}
		t.checks.markers[key] = true
		t.marked[w.Partition] = append(t.marked[w.Partition], n)
	}
}

// finish checks what the transaction must hold as a whole.
func (t *transactionCheck) finish() {
	if t.acked != len(t.order) {
		t.fail(AcksAreTrue, "%d tasks commit and %d are acknowledged", len(t.order), t.acked)
	}
	for _, id := range t.order {
		if !t.handing[id] {
			continue
		}
		for _, topic := range t.checks.sim.topology.Stage(id.Stage).Outputs {
			for _, part := range t.checks.sim.broker.Topic(topic) {
				if !slices.Contains(t.marked[part], id.Partition) {
					t.fail(MarkersAreTrue, "no marker for %v in %s/%s", id, topic, part.Number)
				}
			}
		}
	}
}

// announce checks an announcement.
func (c *checks) announce(a *processors.Announcement) {
	w := c.sim.world
	last := processors.Announcement{Recorded: event.RecordedUnknown}
	if n := len(c.announced); n > 0 {
		last = c.announced[n-1]
	}
	if a.Epoch != last.Epoch+1 {
		w.fail(EpochsCount, "barrier %s is announced after %s", a.Epoch, last.Epoch)
		return
	}
	if a.Recorded <= last.Recorded {
		w.fail(RecordedIncreases, "R(%s) = %s, R(%s) = %s", a.Epoch, a.Recorded, last.Epoch, last.Recorded)
	}
	for _, st := range c.sim.topology.Plan.Streams {
		if was, ok := last.Watermarks[st.Name]; ok && a.Watermarks[st.Name] < was {
			w.fail(WatermarksNeverFall, "barrier %s announces %s for %s, after %s", a.Epoch, a.Watermarks[st.Name], st.Name, was)
		}
	}
	c.watermarksFromAcks(a, &last)
	for _, g := range c.sim.topology.Stages {
		for _, n := range c.sim.partitions(g) {
			id := processors.TaskID{Stage: g.Name, Partition: n}
			if h := c.task(id); !h.known || h.acked < a.Epoch-1 {
				w.fail(LockStep, "barrier %s is announced, and %v has acknowledged %s only", a.Epoch, id, h.acked)
			}
		}
	}
	c.announced = append(c.announced, *a)
}

// watermarksFromAcks works out what the watermarks of an announcement must be.
func (c *checks) watermarksFromAcks(a, last *processors.Announcement) {
	for _, g := range c.sim.topology.Stages {
		if !g.Source() {
			continue
		}
		want, known := last.Watermarks[g.Stream.Name]
		if !known {
			want = event.WatermarkUnknown
		}
		// An idle partition holds nobody back: of those that are not the least
		// counts, and of idle ones alone the greatest.
		var awake, idle []event.Watermark
		for _, n := range c.sim.partitions(g) {
			h := c.task(processors.TaskID{Stage: g.Name, Partition: n})
			if h.first.Idle {
				idle = append(idle, h.watermark)
			} else {
				awake = append(awake, h.watermark)
			}
		}
		if len(awake) > 0 {
			want = max(want, slices.Min(awake))
		} else {
			want = max(want, slices.Max(idle))
		}
		got, ok := a.Watermarks[g.Stream.Name]
		if !ok {
			got = event.WatermarkUnknown
		}
		if got != want {
			c.sim.world.fail(WatermarksFromAcks, "barrier %s announces %s for %s, and the acknowledgements say %s", a.Epoch, got, g.Stream.Name, want)
		}
	}
}

// applied checks the ontology after a transaction of the database.
func (c *checks) applied() {
	w, store := c.sim.world, &c.sim.database
	progress, err := store.progress()
	if err != nil {
		w.fail(NoRefusal, "progress: %v", err)
	}
	for _, n := range sortedPartitions(progress) {
		was, now := c.stored[n], progress[n]
		if now.Offset < was.Offset || now.Epoch < was.Epoch {
			w.fail(HorizonNeverFalls, "results/%s was applied to epoch %s, offset %s, and is at %s, %s", n, was.Epoch, was.Offset, now.Epoch, now.Offset)
		}
	}
	c.stored = progress
	h := store.horizon()
	if h < c.horizon {
		w.fail(HorizonNeverFalls, "the horizon was %s and is %s", c.horizon, h)
	}
	if h > c.horizon && w.chance(1, 12) {
		c.ask(h)
	}
	c.horizon = h
}

// ask asks the ontology as of a recorded time, and keeps the answer.
func (c *checks) ask(at event.RecordedTime) {
	text, err := c.asOf(at)
	if err != nil {
		c.sim.world.fail(AsOfStable, "as of %s: %v", at, err)
		return
	}
	c.answers = append(c.answers, answer{at, text})
	if again := c.answers[c.sim.world.rng.IntN(len(c.answers))]; again.at != at {
		c.askAgain(again)
	}
}

func (c *checks) askAgain(a answer) {
	text, err := c.asOf(a.at)
	if err != nil || text != a.text {
		c.sim.world.fail(AsOfStable, "as of %s: %v, %s", a.at, err, firstDifference(text, a.text))
	}
}

func (c *checks) asOf(at event.RecordedTime) (string, error) {
	facts, err := c.sim.database.store.AsOf(ontology.Question{Recorded: at})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(facts)
	return string(text), err
}

// recovered checks a store that has been read up to the changelog's end, if its
// owner is the current one: an older one may be behind.
func (c *checks) recovered(t *task) {
	s := t.session
	if s.generation != s.group.group.Generation() {
		return
	}
	want := c.task(t.id).stored()
	got := map[string]string{}
	err := t.store.Scan(state.Range{}, func(k, v []byte) (bool, error) {
		switch k[0] {
		case 'M': // the store's own
		case state.KeyIDBlock:
			got[string(k)] = ""
		default:
			got[string(k)] = string(v)
		}
		return true, nil
	})
	if err != nil {
		c.sim.world.fail(NoRefusal, "scan the store of %v: %v", t.id, err)
		return
	}
	if diff := differ(got, want); diff != "" {
		c.sim.world.fail(StateIsChangelog, "the recovered store of %v: %s", t.id, diff)
	}
}

// nothingWaits reports whether no window waits for its read-back.
func (c *checks) nothingWaits() bool {
	for _, t := range c.order {
		if c.tasks[t].ack.Waiting > 0 {
			return false
		}
	}
	for _, p := range c.stored {
		if p.Epoch == 0 || p.Epoch+2 < event.Epoch(len(c.announced)) {
			return false
		}
	}
	return len(c.stored) > 0
}
