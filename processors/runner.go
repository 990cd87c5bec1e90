package processors

import (
	"errors"
	"fmt"

	"github.com/forge-platform/strom/event"
)

// Slab is what one fetch delivered of one partition: a goka message is a slab,
// so that goka's cost is paid once a fetch and not once a record.
type Slab struct {
	Input   int
	Records []Record
	// Next is the offset to read after the slab, control records counted.
	Next event.Offset
	// AtEnd says that Next had reached the end of the log: the last stable
	// offset, or the end that the run was told to stop at.
	AtEnd bool
	// Bytes is the memory that the records hold.
	Bytes int
}

// Next tells what a source task knows of the record it will read next.
type Next struct {
	// Known is false until the task has looked.
	Known bool
	// None says that the log has ended, for now or for good.
	None bool
	// Read, where it is not 0, says that between the last barrier and there the
	// log holds nothing but control records and what was aborted.
	Read      event.Offset
	Timestamp event.EventTime
}

// Reached is what a task hands over at a barrier with what the runner adds:
// where its inputs stand.
type Reached struct {
	*HandOver
	// Offsets are the next offsets to read, by input.
	Offsets []event.Offset
	Next    Next
	// AtEnd: every record of every input has been read.
	AtEnd bool
	// Idle is the wish not to hold the watermark back.
	Idle   bool
	Halted string
	// LastStamp is the greatest timestamp of a record read.
	LastStamp event.EventTime
}

// Ack is the acknowledgement of the epoch that was handed over; answered is the
// epoch up to which the task's parked windows are answered by now.
func (r *Reached) Ack(t TaskID, answered event.Epoch) Ack {
	return Ack{
		Task: t, Epoch: r.Barrier.Epoch, Watermark: r.Watermark, Next: r.Next, Offset: r.Offsets[0], Idle: r.Idle, AtEnd: r.AtEnd,
		Quiet: r.Quiet && r.Next.None, Halted: r.Halted, Waiting: r.Waiting, Answered: min(answered, r.Barrier.Epoch),
		Counters: r.Counters,
	}
}

// RunnerConfig is what a Runner is made from.
type RunnerConfig struct {
	Task  Task
	Stage *Stage
	// Epoch is the last barrier that the task has committed.
	Epoch   event.Epoch
	Offsets []event.Offset // by input
	// Upstream is the number of tasks whose markers complete a barrier in an
	// input from another stage.
	Upstream int32
	Log      bool // epoch.clock: log
	// Started is the clock on the wall when the task was taken over.
	Started event.RecordedTime
	// LastStamp is the greatest timestamp of a record read before.
	LastStamp event.EventTime
	// Repeats is the last barrier that repeats one of an earlier generation, see
	// Repeated; 0 for none.
	Repeats event.Epoch
	// Announced, if set, gives the newest announcement, nil before the first.
	// A source under the wall clock asks it while it is being fed, so that a
	// barrier does not wait behind what was fetched before it.
	Announced func() *Barrier
}

// feedRecords is how many records a source is given before it looks for a barrier.
const feedRecords = 1024

// Runner drives a task: it decides when the task is fed and when its input has
// reached a barrier. One goroutine drives it; it holds no clock and does no I/O.
//
//	         Push, Announce, Answer
//	                  │
//	queue ──► feed ──► barrier reached? ──► Task.Barrier ──► Reached
//
// A source task under the wall clock reaches an announced barrier where it
// stands. Under the log clock it is fed nothing before R(n) is announced, and
// reaches the barrier before the first record later than R(n), or at the log's
// end. Where barriers are repeated it is fed up to the offset at which it had
// reached the barrier before, whatever the clock. A task behind another stage reaches it when the markers in its input
// name every upstream task.
type Runner struct {
	config    RunnerConfig
	queue     [][]queued // by input
	position  []event.Offset
	atEnd     []bool
	bytes     int
	announced *Barrier
	markers   []map[event.Partition]bool // by input, for epoch+1
	epoch     event.Epoch
	lastSeen  event.RecordedTime // wall clock at the last record
	confirmed event.RecordedTime // wall clock when atEnd was last known to be so
	lastStamp event.EventTime    // greatest timestamp of a record read
	fed       bool               // the task has taken records since the last barrier
}

type queued struct {
	records []Record
	next    event.Offset
	bytes   int
}

// NewRunner returns a runner for a task that stands at config.Epoch.
func NewRunner(c RunnerConfig) *Runner {
	n := len(c.Offsets)
	return &Runner{
		config: c, queue: make([][]queued, n), position: append([]event.Offset(nil), c.Offsets...),
		atEnd: make([]bool, n), markers: make([]map[event.Partition]bool, n), epoch: c.Epoch,
		lastSeen: c.Started, lastStamp: c.LastStamp,
	}
}

// Epoch is the last barrier that the task has reached.
func (r *Runner) Epoch() event.Epoch { return r.epoch }

// Task returns the task.
func (r *Runner) Task() Task { return r.config.Task }

// Queued returns the bytes of records that wait; the caller stops fetching
// above a bound.
func (r *Runner) Queued() int { return r.bytes }

// Marked gives how many upstream tasks the markers of the next barrier name so
// far, in the input that has the fewest, and of how many; of is 0 for a source.
func (r *Runner) Marked() (have, of int) {
	of = int(r.config.Upstream)
	have = of
	for input := range r.markers {
		have = min(have, len(r.markers[input]))
	}
	return have, of
}

// Push takes a slab.
func (r *Runner) Push(s *Slab, now Clock) {
	if len(s.Records) > 0 || s.Next > r.end(s.Input) {
		r.queue[s.Input] = append(r.queue[s.Input], queued{records: s.Records, next: s.Next, bytes: s.Bytes})
		r.bytes += s.Bytes
	}
	if len(s.Records) > 0 {
		r.lastSeen = now.Now
	}
	r.atEnd[s.Input] = s.AtEnd
	r.confirmed = now.Now
}

// LogEnd says where the log of an input ends now.
func (r *Runner) LogEnd(input int, end event.Offset, now Clock) {
	r.atEnd[input] = r.end(input) >= end
	r.confirmed = now.Now
}

// end is the offset behind everything pushed.
func (r *Runner) end(input int) event.Offset {
	if q := r.queue[input]; len(q) > 0 {
		return q[len(q)-1].next
	}
	return r.position[input]
}

// ErrOvertaken says that the others have gone on without this task: somebody
// else has committed its epochs. That is so where the task has another owner
// now and this one has not heard of it; else the protocol is broken.
var ErrOvertaken = errors.New("overtaken")

// Announce takes the announcement of the next barrier. One that the task has
// reached already is ignored; one further ahead is ErrOvertaken.
func (r *Runner) Announce(b Barrier) error {
	switch {
	case b.Epoch <= r.epoch:
		return nil
	case b.Epoch > r.epoch+1:
		return fmt.Errorf("%w: barrier %s was announced although this task has not committed %s", ErrOvertaken, b.Epoch, r.epoch+1)
	}
	r.announced = &b
	return nil
}

// Advance feeds the task and lets it reach the announced barrier if it can. It
// returns what the task hands over, or nil.
func (r *Runner) Advance(now Clock) (*Reached, error) {
	if err := r.lookForBarrier(); err != nil {
		return nil, err
	}
	reached := true
	for input := range r.queue {
		ok, err := r.feed(input, now)
		if err != nil {
			return nil, err
		}
		reached = reached && ok
	}
	if !reached || r.announced == nil || r.announced.Granted > r.config.Task.Answered() {
		return nil, nil
	}
	return r.barrier(now)
}

func (r *Runner) feed(input int, now Clock) (reached bool, err error) {
	if !r.config.Stage.Source() {
		return r.feedMarked(input, now)
	}
	if r.epoch < r.config.Repeats {
		return r.feedAgain(input, now)
	}
	if !r.config.Log {
		err := r.feedAll(input, now)
		return r.announced != nil, err
	}
	return r.feedLog(input, now)
}

// feedAll gives the task all that waits, until a barrier is announced.
func (r *Runner) feedAll(input int, now Clock) error {
	for r.announced == nil && len(r.queue[input]) > 0 {
		all, err := r.give(input, min(feedRecords, len(r.queue[input][0].records)), now)
		if err != nil || !all {
			return err
		}
		if err := r.lookForBarrier(); err != nil {
			return err
		}
	}
	return nil
}

// feedAgain gives the task the records that it had taken before the announced
// barrier in an earlier generation.
func (r *Runner) feedAgain(input int, now Clock) (bool, error) {
	if r.announced == nil {
		return false, nil
	}
	was := r.announced.Repeated
	if was == nil {
		return false, fmt.Errorf("%w: barrier %s does not repeat the one of an earlier generation", event.ErrCorrupt, r.announced.Epoch)
	}
	if !was.Committed {
		return true, nil
	}
	now.Repeats = true
	for r.position[input] < was.Offset {
		if len(r.queue[input]) == 0 {
			return false, nil
		}
		recs := r.queue[input][0].records
		n := 0
		for n < len(recs) && recs[n].Offset < was.Offset {
			n++
		}
		if n == 0 && len(recs) > 0 {
			// Between here and there are no records that a task is given.
			r.position[input] = was.Offset
			break
		}
		all, err := r.give(input, n, now)
		if err != nil {
			return false, err
		}
		if !all {
			return false, fmt.Errorf("%s offset %s: a bug in Strom: a record that was taken before barrier %s is not taken again",
				r.config.Stage.Input, r.position[input], r.announced.Epoch)
		}
	}
	return true, nil
}

func (r *Runner) lookForBarrier() error {
	if r.config.Announced == nil {
		return nil
	}
	if b := r.config.Announced(); b != nil {
		return r.Announce(*b)
	}
	return nil
}

// feedLog gives the task the records up to R of the announced barrier.
func (r *Runner) feedLog(input int, now Clock) (bool, error) {
	if r.announced == nil {
		return false, nil
	}
	limit := event.EventTime(r.announced.Recorded)
	for len(r.queue[input]) > 0 {
		recs := r.queue[input][0].records
		n := 0
		for n < len(recs) && recs[n].Timestamp <= limit {
			n++
		}
		if n == 0 && len(recs) > 0 {
			return true, nil
		}
		all, err := r.give(input, n, now)
		if err != nil {
			return false, err
		}
		if !all {
			// The task takes no more in this epoch: its budget is spent or it
			// has halted. The barrier comes here.
			return true, nil
		}
		if n < len(recs) {
			return true, nil
		}
	}
	return r.atEnd[input], nil
}

// feedMarked gives the task the rows up to the marker that completes the barrier.
func (r *Runner) feedMarked(input int, now Clock) (bool, error) {
	for len(r.queue[input]) > 0 {
		if r.complete(input) {
			return true, nil
		}
		recs := r.queue[input][0].records
		n := 0
		var marker *event.Marker
		for ; n < len(recs) && marker == nil; n++ {
			m, err := markerOf(recs[n].Value)
			if err != nil {
				return false, fmt.Errorf("%s offset %s: %w", r.config.Stage.Input, recs[n].Offset, err)
			}
			marker = m
		}
		rows := n
		if marker != nil {
			rows--
		}
		if all, err := r.give(input, rows, now); err != nil || !all {
			return false, err
		}
		if marker != nil {
			r.skip(input)
			if err := r.mark(input, marker); err != nil {
				return false, err
			}
		}
	}
	return r.complete(input), nil
}

func markerOf(value []byte) (*event.Marker, error) {
	kind, err := event.RowKindOf(value)
	if err != nil || kind != event.RowMarker {
		return nil, err
	}
	m, err := event.DecodeMarker(value)
	return &m, err
}

func (r *Runner) mark(input int, m *event.Marker) error {
	switch {
	case m.Epoch <= r.epoch:
		return nil // of a barrier that this task has committed
	case m.Epoch > r.epoch+1:
		return fmt.Errorf("%w: a marker of epoch %s where the markers of %s are not complete", ErrOvertaken, m.Epoch, r.epoch+1)
	}
	if r.markers[input] == nil {
		r.markers[input] = map[event.Partition]bool{}
	}
	if m.Stage != r.config.Stage.Upstream.Name {
		return fmt.Errorf("%w: a marker of stage %q in the output of %q", event.ErrCorrupt, m.Stage, r.config.Stage.Upstream.Name)
	}
	for _, p := range m.Tasks {
		if p < 0 || int32(p) >= r.config.Upstream {
			return fmt.Errorf("%w: a marker names task %s of %d", event.ErrCorrupt, p, r.config.Upstream)
		}
		r.markers[input][p] = true
	}
	return nil
}

func (r *Runner) complete(input int) bool {
	return len(r.markers[input]) >= int(r.config.Upstream)
}

// give feeds the first n records of the input's first slab and reports whether
// the task took them all. When the slab is used up the position moves behind
// it, control records counted.
func (r *Runner) give(input, n int, now Clock) (bool, error) {
	q := &r.queue[input][0]
	took := 0
	if n > 0 {
		var err error
		if took, err = r.config.Task.Feed(input, q.records[:n], now); err != nil {
			return false, fmt.Errorf("%s offset %s: %w", r.config.Stage.Input, q.records[took].Offset, err)
		}
		if took > 0 {
			r.fed = true
			r.position[input] = q.records[took-1].Offset + 1
			for i := range q.records[:took] {
				r.lastStamp = max(r.lastStamp, q.records[i].Timestamp)
			}
		}
		q.records = q.records[took:]
	}
	r.popIfEmpty(input)
	return took == n, nil
}

// skip drops the first record of the input's first slab: a marker.
func (r *Runner) skip(input int) {
	q := &r.queue[input][0]
	r.position[input] = q.records[0].Offset + 1
	q.records = q.records[1:]
	r.popIfEmpty(input)
}

func (r *Runner) popIfEmpty(input int) {
	if q := r.queue[input]; len(q) > 0 && len(q[0].records) == 0 {
		r.position[input] = q[0].next
		r.bytes -= q[0].bytes
		r.queue[input] = q[1:]
	}
}

func (r *Runner) barrier(now Clock) (*Reached, error) {
	b := *r.announced
	h, err := r.config.Task.Barrier(b)
	if err != nil {
		return nil, err
	}
	r.epoch, r.announced, r.fed = b.Epoch, nil, false
	clear(r.markers)
	out := &Reached{HandOver: h, Offsets: append([]event.Offset(nil), r.position...), Next: r.NextRecord(), AtEnd: r.drained(), LastStamp: r.lastStamp}
	if reject := r.config.Task.Halted(); reject != nil {
		out.Halted = reject.Error()
	}
	out.Idle = out.Halted == "" && out.AtEnd && r.quiet(b.Recorded, now)
	return out, nil
}

func (r *Runner) drained() bool {
	for i := range r.queue {
		if len(r.queue[i]) > 0 || !r.atEnd[i] {
			return false
		}
	}
	return true
}

// quiet reports whether nothing has come for as long as makes a source idle.
func (r *Runner) quiet(recorded event.RecordedTime, now Clock) bool {
	after := r.config.Stage.Stream.IdleAfter
	if !r.config.Stage.Source() || after == 0 {
		return false
	}
	if r.config.Log {
		return event.SaturatingAdd(int64(recorded), -int64(r.lastStamp)) >= after
	}
	return event.SaturatingAdd(int64(now.Now), -int64(r.lastSeen)) >= after &&
		event.SaturatingAdd(int64(now.Now), -int64(r.confirmed)) < after
}

// NextRecord tells the least timestamp that waits in the inputs of a source task.
func (r *Runner) NextRecord() Next {
	next := Next{Known: true, None: true}
	for i, q := range r.queue {
		if len(q) == 0 {
			if !r.atEnd[i] {
				return Next{}
			}
			continue
		}
		// A slab of control records only is passed over when it is fed.
		for _, s := range q {
			if len(s.records) == 0 {
				continue
			}
			if t := s.records[0].Timestamp; next.None || t < next.Timestamp {
				next.Timestamp = t
			}
			next.None = false
			break
		}
		if next.None && !r.atEnd[i] {
			return Next{}
		}
	}
	if next.None && !r.fed {
		next.Read = r.end(0)
	}
	return next
}
