package processors

import (
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Record is one record of an input partition, without its topic and partition.
type Record struct {
	Offset event.Offset
	// Timestamp is the record's timestamp in the log, microseconds UTC.
	Timestamp  event.EventTime
	Key, Value []byte
	Headers    []Header
}

// Barrier is what an announcement says to a task.
type Barrier struct {
	Epoch    event.Epoch
	Recorded event.RecordedTime
	// Watermarks is the announced watermark of each stream by its name; a
	// stream that is missing is unknown.
	Watermarks map[string]event.Watermark
	// Granted is the epoch up to which late events that were parked are taken
	// up again at this barrier, in all tasks of the pipeline alike.
	Granted event.Epoch
	// Hold says that a source task takes no input before the next barrier.
	Hold bool
	// End says that the input has ended.
	End bool
	// Savepoint is the name of the savepoint that the barrier carries, if any.
	Savepoint string
	// Repeated is nil but where the barrier repeats one of an earlier generation.
	Repeated *Repeated
}

// Repeated is what a task did at a barrier in the generation before a savepoint
// was restored: it does the same again, so that what was published holds.
type Repeated struct {
	// Committed: the task had committed the barrier, with Offset as the next one
	// to read of its input; what it had rejected stands in the dead-letter topic.
	// Else it had not come to it.
	Committed bool
	Offset    event.Offset
}

// Watermark returns the announced watermark of a stream.
func (b *Barrier) Watermark(stream string) event.Watermark {
	if b.End {
		return event.WatermarkEnd
	}
	if w, ok := b.Watermarks[stream]; ok {
		return w
	}
	return event.WatermarkUnknown
}

// Output is one record that an epoch writes to a topic of Strom's own.
type Output struct {
	// Topic is the output's place in Stage.Outputs.
	Topic int
	Key   []byte
	Value []byte
}

// DeadLetter is a rejected record with its bytes unchanged.
type DeadLetter struct {
	Place  event.Place
	Record Record
	Reject event.Reject
}

// Counters count what a task has done since its generation began. They travel
// in the progress record, so a restart does not reset them.
type Counters struct {
	Records     int64 `json:"records"`      // records read
	Events      int64 `json:"events"`       // events accepted
	Repeats     int64 `json:"repeats"`      // events discarded as known repeats
	DeadLetters int64 `json:"dead_letters"` // records rejected
	Filtered    int64 `json:"filtered"`     // events that no aggregate and no object wanted
	OnTime      int64 `json:"on_time"`      // contributions to open windows
	Corrections int64 `json:"corrections"`  // contributions within the allowed lateness
	Late        int64 `json:"late"`         // contributions later still: read back
}

// Add adds o to c.
func (c *Counters) Add(o Counters) {
	c.Records += o.Records
	c.Events += o.Events
	c.Repeats += o.Repeats
	c.DeadLetters += o.DeadLetters
	c.Filtered += o.Filtered
	c.OnTime += o.OnTime
	c.Corrections += o.Corrections
	c.Late += o.Late
}

// ReadBack asks for the accumulator of one parked window.
type ReadBack struct {
	// Number counts the task's parked windows from 1.
	Number uint64
	// After is the epoch that the sink must have applied before the answer is
	// final: the last one that can have published this window.
	After event.Epoch

	Type, ID, Aggregate string
	Start, End          event.EventTime
	Values              []string
}

// Answer answers a ReadBack.
type Answer struct {
	Number uint64
	// Found: the window is believed.
	Found bool
	// Version is the number of the window's last published result, 0 for a
	// window that never was.
	Version uint32
	// Properties are the believed values by name; a value that is not
	// believed (null) is missing.
	Properties []event.Property
}

// HandOver is what a task gives away at a barrier.
type HandOver struct {
	Barrier Barrier
	// Layer holds the dirty entries, the progress record not among them.
	Layer *state.Layer
	// Expired ranges are dropped from the store after Layer is applied.
	Expired []state.Range
	// Stream passes on the epoch's outputs and the tombstones of what
	// expired. It is called once, by the committer, with a reader that shows
	// the state at the barrier; it may be large, so nothing of it is gathered.
	Stream func(at state.Reader, out func(Output) error, tombstone func(key []byte) error) error
	// DeadLetters are the epoch's rejected records.
	DeadLetters []DeadLetter
	// ReadBacks are the windows parked in this epoch.
	ReadBacks []ReadBack
	// Watermark is the highest one that the task's own input justifies; only
	// source tasks have one.
	Watermark event.Watermark
	// Parked is the number of the last window ever parked, Waiting how many
	// are parked now.
	Parked   uint64
	Waiting  int
	Counters Counters
	// Quiet says that the epoch changed nothing and that nothing waits.
	Quiet bool
}

// Task is one partition of one stage.
type Task interface {
	// Feed takes records of one input in offset order and returns how many it
	// took: fewer than all when the next one must wait for a barrier.
	Feed(input int, records []Record, now Clock) (int, error)
	// Barrier ends the epoch. Answered has reached b.Granted before.
	Barrier(b Barrier) (*HandOver, error)
	// Answer takes answers to read-backs, in any order.
	Answer(answers []Answer) error
	// Answered is the epoch up to which everything parked is answered; the
	// greatest number where nothing waits.
	Answered() event.Epoch
	// Halted tells why the task takes no input, or nil.
	Halted() *event.Reject
	// Waiting lists the parked windows that are not answered: what to ask
	// again after a restart.
	Waiting() []ReadBack
}

// Clock is what a source task may know of time besides the barriers.
type Clock struct {
	// ByRecord: a record's own timestamp bounds how far ahead its event may
	// lie (epoch.clock: log, and `strom try`). Else R of the barrier before does.
	ByRecord bool
	// Now is the clock on the wall, for two decisions that change which epoch
	// a record falls in, and nothing else: whether a record that lies too far
	// ahead of the last barrier waits for the next one, and whether a
	// partition has been quiet for long enough to be idle.
	Now event.RecordedTime
	// Repeats: what is fed was taken in this very epoch before (see Repeated), so
	// neither the wall clock nor a budget has a say.
	Repeats bool
}

// NoTimestamp is the timestamp of a record that has none: no bound applies.
const NoTimestamp = event.OpenEnd
