package processors

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/windows"
)

// TaskConfig is what a task is made from.
type TaskConfig struct {
	Stage      *Stage
	Partition  event.Partition
	Partitions int32 // of the stage's input topic
	State      state.Reader
	// Progress is where the task's state stands.
	Progress state.Progress
	// BudgetBytes bounds, about, the memory that one epoch of the task may
	// gather: rows, dead letters, ids, dirty windows. Past it the task takes
	// no more input before the next barrier. 0: 64 MiB.
	BudgetBytes int
	// EpochTarget, where not 0, lets the task stay under its budget so that
	// epochs are at most about so long, in microseconds of recorded time. Not
	// for the log clock: the cut would depend on more than the log.
	EpochTarget int64
}

// NewTask makes the task of one partition of a stage, restored from its state.
func NewTask(c TaskConfig) (Task, error) {
	if c.BudgetBytes == 0 {
		c.BudgetBytes = 64 << 20
	}
	if c.Stage.Kind == StageAggregate {
		return newAggregateTask(c)
	}
	return newIngestTask(c)
}

// ingestTask decodes a stream: it sets properties of objects, feeds
// repartition topics, and aggregates what needs no repartition.
type ingestTask struct {
	core
	stream    *mapping.Stream
	decoder   formats.Decoder
	watermark windows.PartitionWatermark
	repeats   *repeats
	sequences *sequences

	recorded  event.RecordedTime
	dead      []DeadLetter
	deadBytes int
	staged    staged
	arena     arena
	rows      []row
	halted    *event.Reject
	hold      bool
	pace      pace

	reading reading
	emit    func(index int32, f formats.Fields) error // t.event
}

// reading is the record that is being decoded.
type reading struct {
	record  *Record
	place   event.Place
	now     Clock
	content uint64 // hash of the value; only where repeats are looked for
}

// row is an output of the epoch under way; a result's head is known only at
// the barrier.
type row struct {
	topic  int
	key    []byte
	body   []byte
	result bool
}

// staged is what one record would do, until it is known to be no rejection.
type staged struct {
	rows     []row
	fused    []fusedContribution
	values   []event.Scalar // inputs of fused contributions
	ids      []state.SeenID
	numbers  []sequenceNumber
	highest  event.EventTime
	events   int64
	repeats  int64
	filtered int64
}

// sequenceNumber is one of a key, whose text may alias the record.
type sequenceNumber struct {
	key string
	n   int64
}

type fusedContribution struct {
	agg *aggregator
	c   event.Contribution
}

func newIngestTask(c TaskConfig) (*ingestTask, error) {
	t := &ingestTask{
		stream: c.Stage.Stream, decoder: c.Stage.Stream.Decode.Clone(), recorded: c.Progress.Recorded,
		watermark: windows.NewPartitionWatermark(c.Stage.Stream.OutOfOrderness),
	}
	t.emit = t.event
	t.pace = newPace(c.BudgetBytes, c.EpochTarget)
	t.watermark.Restore(c.Progress.Watermark)
	t.hold = c.Progress.Hold
	switch id := t.stream.Identity; {
	case id == nil:
	case id.Sequence != nil:
		t.sequences = newSequences(c.State)
	default:
		t.repeats = newRepeats(c.State, id.Horizon)
		t.repeats.now = c.Progress.Recorded
	}
	return t, t.core.init(c, c.Stage.Fused)
}

// Feed implements Task.
func (t *ingestTask) Feed(_ int, records []Record, now Clock) (int, error) {
	if t.recorded == event.RecordedUnknown && !now.ByRecord {
		return 0, nil // nothing can be judged before the first barrier
	}
	for i := range records {
		if t.takesNoMore(now) {
			return i, nil
		}
		took, err := t.record(&records[i], now)
		if err != nil {
			return i, err
		}
		if !took {
			return i, nil
		}
	}
	return len(records), nil
}

// takesNoMore says that nothing is taken before the next barrier.
func (t *ingestTask) takesNoMore(now Clock) bool {
	return t.halted != nil || t.hold || (!now.Repeats && t.gathered() > t.pace.limit)
}

// gathered is the memory that the epoch under way takes, about.
func (t *ingestTask) gathered() int {
	gathered := t.arena.size + len(t.rows)*rowBytes + t.deadBytes
	if t.repeats != nil {
		gathered += t.repeats.bytes
	}
	if t.sequences != nil {
		gathered += t.sequences.bytes
	}
	for _, a := range t.aggs {
		gathered += (len(a.dirty) + len(a.late)) * paneBytes
	}
	return gathered
}

// What an entry takes in memory besides its texts, about.
const (
	paneBytes   = 400
	idBytes     = 100
	recordBytes = 300
	rowBytes    = 100
)

// errWait says that the record waits for the next barrier.
var errWait = errors.New("wait for the next barrier")

func (t *ingestTask) record(r *Record, now Clock) (bool, error) {
	t.staged.reset()
	mark := t.arena.mark()
	place := event.Place{Topic: t.stream.Topic, Partition: t.config.Partition, Offset: r.Offset, Timestamp: r.Timestamp}
	err := t.decode(r, place, now)
	var reject *event.Reject
	switch {
	case err == nil:
		t.counters.Records++
		return true, t.accept()
	case errors.Is(err, errWait):
		t.arena.release(mark)
		return false, nil
	case errors.As(err, &reject):
		t.arena.release(mark)
		if t.stream.Halt || reject.Reason == event.ReasonWrongPartition {
			t.halted = reject
			return false, nil
		}
		t.counters.Records++
		t.counters.DeadLetters++
		t.dead = append(t.dead, DeadLetter{Place: place, Record: *r, Reject: *reject})
		t.deadBytes += len(r.Key) + len(r.Value) + recordBytes
		return true, nil
	}
	return false, fmt.Errorf("record %s: %w", place, err)
}

func (t *ingestTask) decode(r *Record, place event.Place, now Clock) error {
	if r.Value == nil {
		return event.Rejectf(event.ReasonNullValue, "the record has no value (a tombstone), and stream %q has no meaning for it", t.stream.Name)
	}
	t.reading = reading{record: r, place: place, now: now}
	if t.repeats != nil {
		t.reading.content = xxhash.Sum64(r.Value)
	}
	return t.decoder.Decode(r.Value, t.emit)
}

// event stages one event of the record that is being read, or returns why the
// record is none.
func (t *ingestTask) event(index int32, f formats.Fields) error {
	r, place, now := t.reading.record, t.reading.place, t.reading.now
	at, err := t.eventTime(f)
	if err != nil {
		return err
	}
	if err := t.checkAhead(at, r, now); err != nil {
		return err
	}
	key, err := t.checkKey(f)
	if err != nil {
		return err
	}
	known, err := t.checkRepeat(f, index, t.reading.content)
	if err != nil {
		return err
	}
	tie := event.Tie{Rank: t.stream.Rank, Partition: place.Partition, Offset: place.Offset, Index: index}
	if t.sequences != nil {
		if tie.Sequence, known, err = t.checkSequence(f, key); err != nil {
			return err
		}
	}
	if known {
		t.staged.repeats++
		return nil
	}
	used, err := t.stagePuts(f, at, tie, place)
	if err != nil {
		return err
	}
	counted, err := t.stageContributions(f, at, tie, place)
	if err != nil {
		return err
	}
	if !used && !counted {
		t.staged.filtered++
	}
	if t.staged.events == 0 || at > t.staged.highest {
		t.staged.highest = at
	}
	t.staged.events++
	return nil
}

func (t *ingestTask) eventTime(f formats.Fields) (event.EventTime, error) {
	s, err := t.stream.EventTime.Eval(f)
	if err != nil {
		return 0, err
	}
	at, reject := mapping.ParseEventTime(t.stream.EventTimeFormat, s)
	if reject != nil {
		return 0, reject
	}
	return at, nil
}

// checkAhead bounds how far an event may lie in the future of the log. Under
// the log clock the record's own timestamp is the measure; under the wall
// clock it is R of the barrier before. An event beyond that one which the wall
// clock still allows waits for the next barrier, so that a pipeline which was
// away for a while does not take its backlog for the future.
func (t *ingestTask) checkAhead(at event.EventTime, r *Record, now Clock) error {
	from := int64(t.recorded)
	if now.ByRecord {
		from = int64(r.Timestamp)
	}
	if int64(at) <= event.SaturatingAdd(from, t.stream.MaxAhead) {
		return nil
	}
	if !now.ByRecord && !now.Repeats && int64(at) <= event.SaturatingAdd(int64(now.Now), t.stream.MaxAhead) {
		return errWait
	}
	return event.Rejectf(event.ReasonAhead, "the event time %s lies further ahead than max_ahead allows (%s)", at, event.EventTime(from))
}

// checkKey gives the event's key, whose text may alias the record.
func (t *ingestTask) checkKey(f formats.Fields) (string, error) {
	if t.stream.Key == nil {
		return "", nil
	}
	s, err := t.stream.Key.Eval(f)
	if err != nil {
		return "", err
	}
	key, reject := mapping.KeyText(s)
	if reject != nil {
		return "", reject
	}
	if !t.stream.PartitionedByKey {
		return key, nil
	}
	if p := event.PartitionOf([]byte(key), t.config.Partitions); p != t.config.Partition {
		return "", event.Rejectf(event.ReasonWrongPartition,
			"the stream is declared partitioned_by: key, but key %q belongs to partition %s; remove partitioned_by, or let the producer partition by murmur2 of the key", key, p)
	}
	return key, nil
}

func (t *ingestTask) checkRepeat(f formats.Fields, index int32, content uint64) (bool, error) {
	if t.repeats == nil {
		return false, nil
	}
	s, err := t.stream.Identity.EventID.Eval(f)
	if err != nil {
		return false, err
	}
	id, reject := mapping.KeyText(s)
	if reject != nil {
		return false, event.Rejectf(event.ReasonNoIdentity, "event id %s: %s", t.stream.Identity.EventID.Text(), reject.Message)
	}
	if t.stream.Each {
		id = fmt.Sprintf("%s\x00%d", id, index)
	}
	was, ok, err := t.repeats.seen(id)
	if err != nil {
		return false, err
	}
	switch {
	case !ok:
		t.staged.ids = append(t.staged.ids, state.SeenID{ID: id, Content: content})
		return false, nil
	case was == content:
		return true, nil
	}
	return false, event.Rejectf(event.ReasonConflict, "an event with id %q but other content came before", id)
}

// checkSequence gives the event's sequence number, and says whether its key has
// had it before.
func (t *ingestTask) checkSequence(f formats.Fields, key string) (n int64, known bool, err error) {
	x := t.stream.Identity.Sequence
	s, err := x.Eval(f)
	if err != nil {
		return 0, false, err
	}
	if s.Missing() {
		return 0, false, event.Rejectf(event.ReasonNoIdentity, "the sequence number %s is %s", x.Text(), s.Type)
	}
	n, exact := s.Num.Int64()
	if s.Type != event.ScalarNumber || !exact {
		return 0, false, event.Rejectf(event.ReasonBadSequence, "the sequence number %s is no integer of 64 bits", x.Text())
	}
	for _, staged := range t.staged.numbers {
		if staged.n == n && staged.key == key {
			return n, true, nil
		}
	}
	r, err := t.sequences.of(key)
	switch {
	case err != nil:
		return 0, false, err
	case r.has(n):
		return n, true, nil
	case r.full(n):
		return 0, false, event.Rejectf(event.ReasonGaps,
			"the sequence numbers of key %q have %d gaps, and %d would make one more; what is remembered of a key is bounded", key, MaxSequenceRanges-1, n)
	}
	t.staged.numbers = append(t.staged.numbers, sequenceNumber{key, n})
	return n, false, nil
}

func (t *ingestTask) stagePuts(f formats.Fields, at event.EventTime, tie event.Tie, place event.Place) (bool, error) {
	used := false
	for _, put := range t.config.Stage.Puts {
		id, wanted, err := target(put.Where, put.ID, f)
		if err != nil {
			return used, err
		}
		if !wanted {
			continue
		}
		used = true
		props, err := putProperties(put, f)
		if err != nil {
			return used, err
		}
		if len(props) == 0 {
			continue
		}
		r := event.Result{
			Kind: event.RowPut, Type: put.Type, ID: id, ValidFrom: at, ValidTo: event.OpenEnd,
			Properties: props, Cause: event.CauseOnTime, Tie: tie, Place: place,
		}
		body := t.arena.keep(event.AppendResultBody(t.arena.room(), &r))
		if len(body) > MaxRowBytes {
			return used, tooLarge("the properties of "+put.Type, len(body))
		}
		t.staged.rows = append(t.staged.rows, row{key: event.ObjectKey(put.Type, id), body: body, result: true})
	}
	return used, nil
}

// MaxRowBytes bounds a row of Strom's own topics: what one event says about one
// object. It fits into one record of them with room to spare.
const MaxRowBytes = 4 << 20

func tooLarge(what string, size int) error {
	return event.Rejectf(event.ReasonTooLarge, "%s take %d bytes, more than the %d that a row may have", what, size, MaxRowBytes)
}

// target evaluates the condition and the id of an object or aggregate.
func target(where, id *mapping.Expr, f formats.Fields) (string, bool, error) {
	if where != nil {
		if ok, err := where.Test(f); err != nil || !ok {
			return "", false, err
		}
	}
	s, err := id.Eval(f)
	if err != nil {
		return "", false, err
	}
	text, reject := mapping.KeyText(s)
	if reject != nil {
		return "", false, event.Rejectf(reject.Reason, "id %s: %s", id.Text(), reject.Message)
	}
	return text, true, nil
}

func putProperties(put *mapping.Put, f formats.Fields) ([]event.Property, error) {
	props := make([]event.Property, 0, len(put.Values))
	for i := range put.Values {
		v := &put.Values[i]
		s, err := v.Value.Eval(f)
		if err != nil {
			return nil, err
		}
		if s.Type == event.ScalarAbsent {
			if !put.Snapshot {
				continue
			}
			s.Type = event.ScalarNull
		}
		value, reject := mapping.ConvertValue(v.Kind, s)
		if reject != nil {
			return nil, event.Rejectf(reject.Reason, "property %s.%s: %s", put.Type, v.Property, reject.Message)
		}
		props = append(props, event.Property{Name: v.Property, Value: value})
	}
	return props, nil
}

func (t *ingestTask) stageContributions(f formats.Fields, at event.EventTime, tie event.Tie, place event.Place) (bool, error) {
	used := false
	for i, a := range t.config.Stage.Feeds {
		c := event.Contribution{Time: at, Tie: tie, Place: place}
		wanted, err := t.contribution(&c, a, f)
		if err != nil {
			return used, err
		}
		if wanted {
			used = true
			body := t.arena.keep(event.AppendContribution(t.arena.room(), &c))
			if len(body) > MaxRowBytes {
				return used, tooLarge("the inputs of aggregate "+a.StageName(), len(body))
			}
			t.staged.rows = append(t.staged.rows, row{topic: t.config.Stage.FeedOutput[i], key: []byte(c.ID), body: body})
		}
	}
	for _, a := range t.aggs {
		n := len(t.staged.fused)
		t.staged.fused = append(t.staged.fused, fusedContribution{agg: a, c: event.Contribution{Time: at, Tie: tie, Place: place}})
		wanted, err := t.contribution(&t.staged.fused[n].c, a.agg, f)
		if err != nil {
			return used, err
		}
		if !wanted {
			t.staged.fused = t.staged.fused[:n]
		}
		used = used || wanted
	}
	return used, nil
}

// contribution fills in what an event adds to an aggregate: id and values.
func (t *ingestTask) contribution(c *event.Contribution, a *mapping.Aggregate, f formats.Fields) (wanted bool, err error) {
	if c.ID, wanted, err = target(a.Where, a.ID, f); err != nil || !wanted {
		return false, err
	}
	from := len(t.staged.values)
	for _, v := range a.Values {
		if v.Input == nil {
			continue
		}
		value, err := v.Input.Eval(f)
		if err != nil {
			return false, err
		}
		t.staged.values = append(t.staged.values, value)
	}
	c.Values = t.staged.values[from:]
	if reject := a.Layout.Check(c.Values); reject != nil {
		return false, event.Rejectf(reject.Reason, "aggregate %s: %s", a.StageName(), reject.Message)
	}
	return true, nil
}

// accept makes what was staged part of the epoch.
func (t *ingestTask) accept() error {
	s := &t.staged
	t.counters.Events += s.events
	t.counters.Repeats += s.repeats
	t.counters.Filtered += s.filtered
	if s.events > 0 {
		t.watermark.Observe(s.highest)
	}
	for _, id := range s.ids {
		t.repeats.add(id.ID, id.Content)
	}
	for _, number := range s.numbers {
		t.sequences.add(number.key, number.n)
	}
	t.rows = append(t.rows, s.rows...)
	for i := range s.fused {
		if err := s.fused[i].agg.add(&s.fused[i].c); err != nil {
			return err
		}
	}
	return nil
}

func (s *staged) reset() {
	*s = staged{rows: s.rows[:0], fused: s.fused[:0], values: s.values[:0], ids: s.ids[:0], numbers: s.numbers[:0]}
}

// Barrier implements Task.
func (t *ingestTask) Barrier(b Barrier) (*HandOver, error) {
	if b.End {
		t.watermark.End()
	}
	gathered := t.gathered()
	h, closings, err := t.core.barrier(&b)
	if err != nil {
		return nil, err
	}
	changes := h.changes
	if t.repeats != nil {
		c, expired := t.repeats.barrier(&b)
		changes = append(changes, c...)
		h.Expired = append(h.Expired, expired...)
	}
	if t.sequences != nil {
		changes = append(changes, t.sequences.barrier()...)
	}
	t.pace.barrier(t.recorded, b.Recorded, gathered)
	rows := t.rows
	h.DeadLetters, h.Watermark = t.dead, t.watermark.Value()
	t.rows, t.dead, t.deadBytes, t.arena, t.recorded, t.hold = nil, nil, 0, arena{}, b.Recorded, b.Hold
	h.Quiet = h.Quiet && len(rows) == 0 && len(h.DeadLetters) == 0 && len(changes) == 0
	h.Layer = state.NewLayer(changes)
	h.Stream = func(at state.Reader, out func(Output) error, tombstone func([]byte) error) error {
		for i := range rows {
			if err := out(rows[i].output(&b)); err != nil {
				return err
			}
		}
		return t.core.stream(closings, &b, h.Expired, at, out, tombstone)
	}
	h.Counters = t.counters
	return &h.HandOver, nil
}

// Halted implements Task.
func (t *ingestTask) Halted() *event.Reject { return t.halted }

func (r *row) output(b *Barrier) Output {
	if !r.result {
		return Output{Topic: r.topic, Key: r.key, Value: r.body}
	}
	v := event.AppendResultHead(make([]byte, 0, 20+len(r.body)), event.RowPut, b.Epoch, b.Recorded)
	return Output{Topic: r.topic, Key: r.key, Value: append(v, r.body...)}
}

// arena keeps many short texts in a few large pieces of memory.
type arena struct {
	chunk []byte
	size  int
}

const (
	arenaChunk = 64 << 10
	// arenaRoom is what a text may take without being copied.
	arenaRoom = 512
)

type arenaMark struct{ length, size int }

func (a *arena) mark() arenaMark { return arenaMark{len(a.chunk), a.size} }

// release forgets what was kept since the mark, unless a new piece was begun.
func (a *arena) release(m arenaMark) {
	if m.length <= len(a.chunk) && a.size-m.size == len(a.chunk)-m.length {
		a.chunk = a.chunk[:m.length]
	}
	a.size = m.size
}

// room gives an empty slice to append a text to, and then to keep.
func (a *arena) room() []byte {
	if cap(a.chunk)-len(a.chunk) < arenaRoom {
		a.chunk = make([]byte, 0, arenaChunk)
	}
	return a.chunk[len(a.chunk):]
}

// keep takes what was appended to the last room. A text that grew out of it
// has memory of its own.
func (a *arena) keep(text []byte) []byte {
	a.size += len(text)
	if cap(text) == cap(a.chunk)-len(a.chunk) {
		a.chunk = a.chunk[:len(a.chunk)+len(text)]
	}
	return slices.Clip(text)
}

// DecodeCounters reads the counters of a progress record.
func DecodeCounters(raw json.RawMessage) (Counters, error) {
	var c Counters
	if len(raw) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("%w: counters in the progress record: %w", event.ErrCorrupt, err)
	}
	return c, nil
}
