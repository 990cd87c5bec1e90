package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// The control topic holds JSON, one object a record, so that whoever is paged
// can read it with any Kafka tool. It is the epoch log as well.

// The versions of control records. A record carries the least that its reader
// must know: a build that knows the first only must not pass a barrier that
// brings another mapping.
const (
	controlVersion       = 1
	controlVersionChange = 2
)

// The kinds of control records.
const (
	kindBarrier = "barrier"
	kindAck     = "ack"
	// kindNext tells, outside transactions, which record a source task reads
	// next. Nothing but the time of the next announcement depends on it.
	kindNext = "next"
	// kindSavepoint asks for a savepoint, outside transactions; kindSaved tells
	// that tasks have written their part of one, or why they could not. Both are
	// for whoever waits: a savepoint is what lies in its directory.
	kindSavepoint = "savepoint"
	kindSaved     = "saved"
	// kindOrigin is the first record of a generation that was restored from a
	// savepoint; the barriers that it repeats follow as kindRepeat. kindEnded is
	// the last record of a generation that another has taken the place of.
	kindOrigin = "origin"
	kindRepeat = "repeat"
	kindEnded  = "ended"
	// kindMapping is a mapping itself. It stands before the barrier that brings
	// it, in the same transaction. kindChange proposes one, outside transactions.
	kindMapping = "mapping"
	kindChange  = "change"
)

// controlRecord is one record of the control topic.
type controlRecord struct {
	V     int         `json:"v"`
	Kind  string      `json:"kind"`
	Epoch event.Epoch `json:"epoch"`

	// barrier
	Recorded    event.RecordedTime         `json:"recorded,omitempty"`
	Watermarks  map[string]event.Watermark `json:"watermarks,omitempty"`
	Idle        []taskJSON                 `json:"idle,omitempty"`
	Granted     event.Epoch                `json:"granted,omitempty"`
	Mapping     string                     `json:"mapping,omitempty"`
	Hold        bool                       `json:"hold,omitempty"`
	End         bool                       `json:"end,omitempty"`
	Coordinator string                     `json:"coordinator,omitempty"`
	// Savepoint is the name of one, in a barrier, a request and what is saved.
	Savepoint string `json:"savepoint,omitempty"`
	// Until is when nobody waits for a requested savepoint any more.
	Until event.RecordedTime `json:"until,omitempty"`
	// Repeated is where the tasks stood at a barrier of an earlier generation.
	Repeated []offsetJSON `json:"repeated,omitempty"`
	// Generation is the one before, in an origin, and the one that follows, in
	// an end. Applied and Repeats are of an origin.
	Generation event.Generation `json:"generation,omitempty"`
	Applied    event.Epoch      `json:"applied,omitempty"`
	Repeats    event.Epoch      `json:"repeats,omitempty"`
	// Why says what went wrong.
	Why string `json:"why,omitempty"`

	// MappingAt is the offset of the kindMapping of the mapping in force; in a
	// kindMapping that of the one before, in a kindChange that of the one to be
	// replaced.
	MappingAt *event.Offset `json:"mapping_at,omitempty"`
	// Text is the mapping, Replaced the versions that were in force before it;
	// Begins says of stages that came with a change where they begin, and Gone
	// names those that were removed by one.
	Text     string               `json:"text,omitempty"`
	Replaced []string             `json:"replaced,omitempty"`
	Begins   map[string]beginning `json:"begins,omitempty"`
	Gone     []string             `json:"gone,omitempty"`

	// Format is the record format that a barrier announces, or the newest that an
	// acknowledging member reads; absent for the oldest.
	Format state.Format `json:"format,omitempty"`

	// ack and next
	Stage  string    `json:"stage,omitempty"`
	Member string    `json:"member,omitempty"`
	Tasks  []ackJSON `json:"tasks,omitempty"`

	at time.Time // the record's timestamp: the writer's clock
}

type taskJSON struct {
	Stage     string          `json:"stage"`
	Partition event.Partition `json:"partition"`
}

type offsetJSON struct {
	taskJSON
	Offset event.Offset `json:"offset"`
}

type ackJSON struct {
	Partition event.Partition         `json:"partition"`
	Offsets   map[string]event.Offset `json:"offsets,omitempty"`
	Watermark *event.Watermark        `json:"watermark,omitempty"`
	// Next is the timestamp of the next record; absent when not known or none.
	Next   *event.EventTime `json:"next,omitempty"`
	NoNext bool             `json:"no_next,omitempty"`
	Idle   bool             `json:"idle,omitempty"`
	AtEnd  bool             `json:"at_end,omitempty"`
	Quiet  bool             `json:"quiet,omitempty"`
	Halted string           `json:"halted,omitempty"`
	// Waiting windows are parked; Answered is the epoch up to which all are answered.
	Waiting  int                  `json:"waiting,omitempty"`
	Answered event.Epoch          `json:"answered,omitempty"`
	Counters *processors.Counters `json:"counters,omitempty"`
}

func encodeControl(r controlRecord) ([]byte, error) {
	r.V = max(r.V, controlVersion)
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode control record: %w", err)
	}
	return b, nil
}

func decodeControl(b []byte) (controlRecord, error) {
	var r controlRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%w: control record: %w", event.ErrCorrupt, err)
	}
	if r.V < controlVersion || r.V > controlVersionChange {
		return r, fmt.Errorf("%w: control record version %d, this build knows %d to %d", event.ErrVersion, r.V, controlVersion, controlVersionChange)
	}
	return r, nil
}

// changes reports whether a barrier brings another mapping.
func (r *controlRecord) changes() bool { return r.V >= controlVersionChange }

func encodeAnnouncement(a processors.Announcement, who string, at *event.Offset, changes bool) ([]byte, error) {
	r := announcementRecord(a)
	r.Coordinator, r.MappingAt = who, at
	if changes {
		r.V = controlVersionChange
	}
	return encodeControl(r)
}

func announcementRecord(a processors.Announcement) controlRecord {
	r := controlRecord{
		Kind: kindBarrier, Epoch: a.Epoch, Recorded: a.Recorded, Watermarks: a.Watermarks,
		Granted: a.Granted, Mapping: a.Mapping, Hold: a.Hold, End: a.End, Savepoint: a.Savepoint,
		Format: told(a.Format),
	}
	for _, t := range a.Idle {
		r.Idle = append(r.Idle, taskJSON(t))
	}
	for t, offset := range a.Repeated {
		r.Repeated = append(r.Repeated, offsetJSON{taskJSON(t), offset})
	}
	slices.SortFunc(r.Repeated, func(a, b offsetJSON) int {
		return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Partition, b.Partition))
	})
	return r
}

// told is how a format is written: the oldest is what absence means, so that
// records are no other than those of builds that do not announce any.
func told(f state.Format) state.Format {
	if f <= state.FormatOldest {
		return 0
	}
	return f
}

func (r *controlRecord) announcement() processors.Announcement {
	a := processors.Announcement{
		Epoch: r.Epoch, Recorded: r.Recorded, Watermarks: r.Watermarks, Mapping: r.Mapping,
		Hold: r.Hold, End: r.End, Granted: r.Granted, Savepoint: r.Savepoint, Format: max(r.Format, state.FormatOldest),
	}
	if a.Watermarks == nil {
		a.Watermarks = map[string]event.Watermark{}
	}
	for _, t := range r.Idle {
		a.Idle = append(a.Idle, processors.TaskID(t))
	}
	if len(r.Repeated) > 0 {
		a.Repeated = make(map[processors.TaskID]event.Offset, len(r.Repeated))
	}
	for _, o := range r.Repeated {
		a.Repeated[processors.TaskID(o.taskJSON)] = o.Offset
	}
	return a
}

func ackOf(a processors.Ack, offsets map[string]event.Offset) ackJSON {
	j := ackJSON{
		Partition: a.Task.Partition, Offsets: offsets, NoNext: a.Next.Known && a.Next.None,
		Idle: a.Idle, AtEnd: a.AtEnd, Quiet: a.Quiet, Halted: a.Halted, Waiting: a.Waiting, Answered: a.Answered,
	}
	if a.Watermark != event.WatermarkUnknown {
		j.Watermark = &a.Watermark
	}
	if a.Next.Known && !a.Next.None {
		j.Next = &a.Next.Timestamp
	}
	if a.Counters != (processors.Counters{}) {
		j.Counters = &a.Counters
	}
	return j
}

func (j *ackJSON) ack(r *controlRecord) processors.Ack {
	a := processors.Ack{
		Task: processors.TaskID{Stage: r.Stage, Partition: j.Partition}, Epoch: r.Epoch,
		Watermark: event.WatermarkUnknown, Next: j.next(), Idle: j.Idle, AtEnd: j.AtEnd, Quiet: j.Quiet,
		Halted: j.Halted, Waiting: j.Waiting, Answered: j.Answered, Reads: max(r.Format, state.FormatOldest),
	}
	if j.Watermark != nil {
		a.Watermark = *j.Watermark
	}
	if j.Counters != nil {
		a.Counters = *j.Counters
	}
	return a
}

func (j *ackJSON) next() processors.Next {
	switch {
	case j.Next != nil:
		return processors.Next{Known: true, Timestamp: *j.Next}
	case j.NoNext:
		return processors.Next{Known: true, None: true}
	}
	return processors.Next{}
}

// controlLog reads the control topic in order, committed records only.
type controlLog struct {
	client *kgo.Client
	topic  string
	// next is the offset behind everything read, control records counted.
	next event.Offset
	// pending was read while the newest announcement was looked for.
	pending []controlRecord
}

// openControlLog opens the log at or before its newest announcement: what
// stands before that is of no interest to anyone who starts now. It has then
// read what is committed; or, for a coordinator, up to the high watermark at
// the call, waiting until the last stable offset reaches it. Nobody else waits:
// what holds that offset back may be the open transaction of a dead owner, which
// the take-over of its tasks ends.
func (e *Engine) openControlLog(ctx context.Context, whole bool) (*controlLog, error) {
	adm := kadm.NewClient(e.client)
	for back := event.Offset(256); ; back *= 4 {
		b, err := partitionBounds(ctx, adm, e.topology.ControlTopic(), 0)
		if err != nil {
			return nil, err
		}
		l, err := e.controlFrom(max(b.start, b.high-back))
		if err != nil {
			return nil, err
		}
		to := b.stable
		if whole {
			to = b.high
		}
		found, err := l.readTo(ctx, to)
		if err != nil {
			l.close()
			return nil, err
		}
		if found || back >= b.high-b.start {
			return l, nil
		}
		l.close()
	}
}

func (e *Engine) controlFrom(offset event.Offset) (*controlLog, error) {
	topic := e.topology.ControlTopic()
	client, err := e.newClient(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(int64(offset))}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(500*time.Millisecond),
		// A leader that does not know the epoch of what was read last, as it has
		// just become one, must not send the reader back to the beginning.
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if err != nil {
		return nil, err
	}
	return &controlLog{client: client, topic: topic, next: offset}, nil
}

func (l *controlLog) readTo(ctx context.Context, high event.Offset) (found bool, err error) {
	for l.next < high {
		recs, err := l.poll(ctx)
		if err != nil {
			return false, err
		}
		for _, r := range recs {
			found = found || r.Kind == kindBarrier
		}
		l.pending = append(l.pending, recs...)
	}
	return found, nil
}

// read returns the next records; it waits until there are some.
func (l *controlLog) read(ctx context.Context) ([]controlRecord, error) {
	if len(l.pending) > 0 {
		out := l.pending
		l.pending = nil
		return out, nil
	}
	for {
		recs, err := l.poll(ctx)
		if err != nil || len(recs) > 0 {
			return recs, err
		}
	}
}

func (l *controlLog) poll(ctx context.Context) ([]controlRecord, error) {
	fetches := l.client.PollRecords(ctx, 0)
	if err := fetchError(ctx, fetches); err != nil {
		return nil, err
	}
	var out []controlRecord
	var bad error
	fetches.EachRecord(func(r *kgo.Record) {
		l.next = event.Offset(r.Offset) + 1
		if r.Attrs.IsControl() || bad != nil {
			return
		}
		c, err := decodeControl(r.Value)
		if err != nil {
			bad = fmt.Errorf("%s offset %d: %w", l.topic, r.Offset, err)
			return
		}
		c.at = r.Timestamp
		out = append(out, c)
	})
	return out, bad
}

func (l *controlLog) close() { l.client.Close() }

// fetchError gives the first error of a poll that is not to be retried by
// polling again.
func fetchError(ctx context.Context, fetches kgo.Fetches) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if fetches.IsClientClosed() {
		return kgo.ErrClientClosed
	}
	var out error
	fetches.EachError(func(topic string, p int32, err error) {
		if out == nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			out = fmt.Errorf("read %s/%d: %w", topic, p, err)
		}
	})
	return out
}
