package processors

import (
	"slices"
	"sort"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
)

// TaskID names a task of a pipeline.
type TaskID struct {
	Stage     string
	Partition event.Partition
}

// Ack is what a task acknowledges with an epoch.
type Ack struct {
	Task      TaskID
	Epoch     event.Epoch
	Watermark event.Watermark
	Next      Next
	// Offset is the next offset to read of a source task's input.
	Offset event.Offset
	Idle   bool
	// AtEnd: the log held nothing more when this was said.
	AtEnd  bool
	Quiet  bool
	Halted string
	// Waiting is how many windows are parked, Answered the epoch, at most the
	// acknowledged one, up to which all are answered.
	Waiting  int
	Answered event.Epoch
	Counters Counters
	// Reads is the newest record format that the task's member reads.
	Reads state.Format
}

// Announcement is what the coordinator announces: a barrier for every task.
type Announcement struct {
	Epoch      event.Epoch
	Recorded   event.RecordedTime
	Watermarks map[string]event.Watermark
	Idle       []TaskID
	// Granted is the epoch up to which parked events are taken up again.
	Granted event.Epoch
	Mapping string
	// Hold tells source tasks to take no input in the next epoch: too many
	// late events wait for their read-back.
	Hold bool
	End  bool
	// Savepoint names the savepoint that the barrier carries: every task keeps a
	// checkpoint of its state there. Empty: none.
	Savepoint string
	// Repeated is nil but where the announcement repeats one of an earlier
	// generation: then it says where the tasks stood that had committed it.
	Repeated map[TaskID]event.Offset
	// Format is the record format in which the epoch is committed.
	Format state.Format
}

// Barrier is the announcement as tasks see it.
func (a *Announcement) Barrier() Barrier {
	return Barrier{
		Epoch: a.Epoch, Recorded: a.Recorded, Watermarks: a.Watermarks,
		Granted: a.Granted, Hold: a.Hold, End: a.End, Savepoint: a.Savepoint,
	}
}

// BarrierOf is the announcement as one task sees it: with what it did there in an
// earlier generation.
func (a *Announcement) BarrierOf(t TaskID) Barrier {
	b := a.Barrier()
	if a.Repeated != nil {
		at, committed := a.Repeated[t]
		b.Repeated = &Repeated{Committed: committed, Offset: at}
	}
	return b
}

// maxStretch bounds how far the interval between barriers grows while nothing
// comes in.
const maxStretch = 10

// LongestInterval is the longest time that a pipeline under the wall clock
// leaves between two barriers while nothing holds it up.
func LongestInterval(e mapping.EpochSettings) time.Duration { return maxStretch * e.Interval }

// Coordinator decides what is announced and when. It is pure: acknowledgements
// and the time go in, announcements come out.
//
// Invariants:
//
//  1. barrier n is announced only after every task of every stage has
//     acknowledged n-1;
//  2. R(n) > R(n-1);
//  3. an announced watermark never falls;
//  4. what is announced depends on the acknowledgements of n-1 alone, but for
//     R(n) under the wall clock, the name of a savepoint, and a mapping that was
//     proposed;
//  5. up to the last barrier that is repeated (see Repeats) what is announced is
//     what was announced in an earlier generation, but for its format;
//  6. every member whose task has acknowledged n-1 reads the format of n.
type Coordinator struct {
	tasks   []TaskID
	sources map[TaskID]*mapping.Stream
	streams []*mapping.Stream
	epoch   mapping.EpochSettings
	mapping string
	// ends, where not nil, are the offsets at which the input of the source
	// tasks ends for this run. Offsets decide, not what a task said of its
	// end: an acknowledgement may be of an earlier run.
	ends map[TaskID]event.Offset

	// savepoints are the requested ones that no barrier carries yet, carried
	// those that one did.
	savepoints []savepointRequest
	carried    map[string]bool
	// repeats is the last barrier that repeats one of an earlier generation, and
	// repeated the next of them, once it is known.
	repeats  event.Epoch
	repeated *Announcement

	last    Announcement
	acks    map[TaskID]Ack
	stretch time.Duration
}

// NewCoordinator returns a coordinator for the topology; partitions gives the
// number of tasks of each stage by its name. A run until the end gives the
// offsets at which the input of its source tasks ends; others give nil.
func NewCoordinator(t *Topology, partitions map[string]int32, ends map[TaskID]event.Offset) *Coordinator {
	c := &Coordinator{
		sources: map[TaskID]*mapping.Stream{}, streams: t.Plan.Streams, epoch: t.Plan.Epoch,
		mapping: t.Plan.Version, ends: ends, acks: map[TaskID]Ack{}, carried: map[string]bool{},
		last:    Announcement{Recorded: event.RecordedUnknown, Watermarks: map[string]event.Watermark{}},
		stretch: t.Plan.Epoch.Interval,
	}
	for _, s := range t.Stages {
		for p := range partitions[s.Name] {
			id := TaskID{s.Name, event.Partition(p)}
			c.tasks = append(c.tasks, id)
			if s.Source() {
				c.sources[id] = s.Stream
			}
		}
	}
	return c
}

// Tasks lists every task.
func (c *Coordinator) Tasks() []TaskID { return c.tasks }

// Last is the newest announcement that the coordinator knows of.
func (c *Coordinator) Last() Announcement { return c.last }

// TakeMapping makes the next announcement carry another mapping.
func (c *Coordinator) TakeMapping(version string) { c.mapping = version }

// Restore takes up an announcement that the log already holds.
func (c *Coordinator) Restore(a Announcement) {
	c.carry(a.Savepoint)
	if a.Epoch > c.last.Epoch {
		c.last = a
	}
}

// savepointRequest is a savepoint that no barrier carries yet. Nobody waits for
// it after until, by the clock on the wall.
type savepointRequest struct {
	name  string
	until event.RecordedTime
}

// RequestSavepoint lets one of the next barriers carry a savepoint of that name,
// once however often it is asked for, unless none is announced before until.
func (c *Coordinator) RequestSavepoint(name string, until event.RecordedTime) {
	known := slices.ContainsFunc(c.savepoints, func(s savepointRequest) bool { return s.name == name })
	if name == "" || c.carried[name] || known {
		return
	}
	c.savepoints = append(c.savepoints, savepointRequest{name, until})
	c.stretch = c.epoch.Interval
}

// nextSavepoint is the one that a barrier announced now carries; "" for none.
func (c *Coordinator) nextSavepoint(now event.RecordedTime) string {
	c.savepoints = slices.DeleteFunc(c.savepoints, func(s savepointRequest) bool { return s.until < now })
	if len(c.savepoints) == 0 {
		return ""
	}
	return c.savepoints[0].name
}

// carry notes that a barrier carries a savepoint.
func (c *Coordinator) carry(name string) {
	if name == "" {
		return
	}
	c.carried[name] = true
	c.savepoints = slices.DeleteFunc(c.savepoints, func(s savepointRequest) bool { return s.name == name })
}

// Repeats makes the barriers up to an epoch repeat those of an earlier
// generation, which Repeat gives one by one.
func (c *Coordinator) Repeats(upTo event.Epoch) { c.repeats = upTo }

// Repeating reports whether the next barrier repeats one, and which.
func (c *Coordinator) Repeating() (event.Epoch, bool) {
	return c.last.Epoch + 1, c.last.Epoch < c.repeats
}

// Repeat gives the announcement that is next to be repeated.
func (c *Coordinator) Repeat(a Announcement) { c.repeated = &a }

// again announces what was announced before.
func (c *Coordinator) again(n event.Epoch) (Announcement, bool) {
	if c.repeated == nil || c.repeated.Epoch != n {
		return Announcement{}, false
	}
	a := *c.repeated
	// The members may read more now than those of the earlier generation did.
	a.Format = max(a.Format, c.last.Format)
	c.last, c.repeated = a, nil
	return a, true
}

// Acked takes a task's acknowledgement.
func (c *Coordinator) Acked(a Ack) {
	if have, ok := c.acks[a.Task]; ok {
		if a.Epoch < have.Epoch {
			return
		}
		if a.Epoch == have.Epoch {
			a = again(have, a)
		}
	}
	c.acks[a.Task] = a
}

// again is what holds when a task acknowledges an epoch once more because it
// was taken over: what the first acknowledgement said of the epoch stands, so
// that a takeover changes nothing that is announced; only where the log ends
// may be another place now.
func again(first, second Ack) Ack {
	out := first
	out.Answered = max(first.Answered, second.Answered)
	out.AtEnd = second.AtEnd
	out.Reads = second.Reads // of the member that has the task now
	if !first.Next.Known || first.Next.None {
		out.Next = second.Next
	}
	return out
}

// Noticed takes what a source task tells of its next record between barriers.
// A record that is known to come is not unlearned: only a later epoch does that.
func (c *Coordinator) Noticed(t TaskID, n event.Epoch, next Next, atEnd bool) {
	a, ok := c.acks[t]
	if !ok || a.Epoch != n {
		return
	}
	if a.Next.Known && !a.Next.None {
		return
	}
	a.Next, a.AtEnd = next, atEnd
	a.Quiet = a.Quiet && next.None
	c.acks[t] = a
	if !next.None {
		c.stretch = c.epoch.Interval
	}
}

// Missing lists the tasks that have not acknowledged the last barrier.
func (c *Coordinator) Missing() []TaskID {
	var out []TaskID
	for _, t := range c.tasks {
		if a, ok := c.acks[t]; !ok || a.Epoch < c.last.Epoch {
			out = append(out, t)
		}
	}
	return out
}

// Ended reports whether the last barrier ended the input and all have committed it.
func (c *Coordinator) Ended() bool { return c.last.End && len(c.Missing()) == 0 }

// Interval is how long to wait after an announcement before the next one, as
// far as the clock is concerned.
func (c *Coordinator) Interval() time.Duration {
	if _, repeating := c.Repeating(); repeating || c.epoch.Clock == mapping.ClockLog {
		return 0
	}
	return c.stretch
}

// Next returns the next announcement, or false while none may be made. The
// caller has waited Interval since the last one.
func (c *Coordinator) Next(now event.RecordedTime) (Announcement, bool) {
	if n, repeating := c.Repeating(); repeating && len(c.Missing()) == 0 {
		return c.again(n)
	}
	end := len(c.Missing()) == 0 && c.atEnd()
	// A change of the mapping takes effect where nothing is left to read, too.
	if len(c.Missing()) > 0 || (end && c.last.End && c.mapping == c.last.Mapping) {
		return Announcement{}, false
	}
	a := Announcement{
		Epoch: c.last.Epoch + 1, Mapping: c.mapping,
		Watermarks: c.watermarks(), Idle: c.idle(), Granted: c.granted(), Hold: c.hold(), End: end, Format: c.format(),
	}
	var ok bool
	if a.Recorded, ok = c.recorded(now, a.End); !ok {
		return Announcement{}, false
	}
	// A savepoint is of one mapping: a barrier that changes it carries none.
	if c.mapping == c.last.Mapping {
		a.Savepoint = c.nextSavepoint(now)
		c.carry(a.Savepoint)
	}
	c.adapt(&a)
	c.last = a
	return a, true
}

// recorded is R of the next barrier.
func (c *Coordinator) recorded(now event.RecordedTime, end bool) (event.RecordedTime, bool) {
	if c.epoch.Clock == mapping.ClockWall {
		if c.last.Recorded == event.RecordedUnknown {
			return now, true
		}
		return max(now, c.last.Recorded+1), true
	}
	step := c.epoch.Step.Microseconds()
	if end {
		if c.last.Recorded == event.RecordedUnknown {
			return event.RecordedTime(step), true
		}
		return c.stepOn(), true
	}
	next := Next{None: true}
	for t := range c.sources {
		n := c.acks[t].Next
		switch {
		case c.acks[t].Halted != "":
		case !n.Known:
			return 0, false
		case n.None:
		case next.None || n.Timestamp < next.Timestamp:
			next = n
		}
	}
	if next.None {
		return 0, false
	}
	r := event.RecordedTime((event.FloorDiv(int64(next.Timestamp), step) + 1) * step)
	// A record may be older than barriers that have passed: time goes on.
	if c.last.Recorded != event.RecordedUnknown && r <= c.last.Recorded {
		r = c.stepOn()
	}
	return r, true
}

// stepOn is one step after the last barrier.
func (c *Coordinator) stepOn() event.RecordedTime {
	return event.RecordedTime(event.SaturatingAdd(int64(c.last.Recorded), c.epoch.Step.Microseconds()))
}

// readAll reports whether a source task has read what this run is to read. A
// log may end in records that no task is given, behind the last barrier.
func (c *Coordinator) readAll(t TaskID) bool {
	a := c.acks[t]
	return a.Offset >= c.ends[t] || (a.Next.None && a.Next.Read >= c.ends[t])
}

// Blocked names a halted task that keeps a run until the end from ending: all
// else has been read.
func (c *Coordinator) Blocked() (t TaskID, why string, blocked bool) {
	if _, repeating := c.Repeating(); repeating || c.ends == nil || len(c.Missing()) > 0 {
		return t, "", false
	}
	for id := range c.sources {
		a := c.acks[id]
		switch {
		case a.Halted != "":
			t, why, blocked = id, a.Halted, true
		case !c.readAll(id):
			return t, "", false
		}
	}
	return t, why, blocked
}

// watermarks gives one watermark per stream: the least of its partitions that
// are not idle. An idle partition holds nobody back, so where all are idle it is
// the greatest, whichever was idle first and though all became so in one epoch:
// what a partition said together with its wish to be idle counts.
func (c *Coordinator) watermarks() map[string]event.Watermark {
	out := make(map[string]event.Watermark, len(c.streams))
	for _, s := range c.streams {
		least, awake, greatest := event.WatermarkEnd, false, event.WatermarkUnknown
		for t, stream := range c.sources {
			switch a := c.acks[t]; {
			case stream != s:
			case a.Idle:
				greatest = max(greatest, a.Watermark)
			default:
				least, awake = min(least, a.Watermark), true
			}
		}
		if !awake {
			least = greatest
		}
		was, known := c.last.Watermarks[s.Name]
		if !known {
			was = event.WatermarkUnknown
		}
		if now := max(was, least); now != event.WatermarkUnknown {
			out[s.Name] = now
		}
	}
	return out
}

func (c *Coordinator) idle() []TaskID {
	var out []TaskID
	for t := range c.sources {
		if c.acks[t].Idle {
			out = append(out, t)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Stage != out[j].Stage {
			return out[i].Stage < out[j].Stage
		}
		return out[i].Partition < out[j].Partition
	})
	return out
}

// granted is the epoch up to which every task has its answers.
func (c *Coordinator) granted() event.Epoch {
	upTo := c.last.Epoch
	for _, t := range c.tasks {
		upTo = min(upTo, c.acks[t].Answered)
	}
	return max(upTo, c.last.Granted)
}

// format is the newest record format that the members of all tasks read. It never
// goes back: records of it have been written.
func (c *Coordinator) format() state.Format {
	read := state.NewestFormat
	for _, t := range c.tasks {
		read = min(read, max(c.acks[t].Reads, state.FormatOldest))
	}
	return max(read, c.last.Format, state.FormatOldest)
}

// hold says that some task has too many windows parked. Only sources can stop:
// a task behind another stage must read on to reach its barrier.
func (c *Coordinator) hold() bool {
	for _, a := range c.acks {
		if a.Waiting >= MaxParked {
			return true
		}
	}
	return false
}

// atEnd says that the input has ended: all of it has been read, and every late
// event has its answer.
func (c *Coordinator) atEnd() bool {
	if c.ends == nil {
		return false
	}
	for _, t := range c.tasks {
		a := c.acks[t]
		if a.Answered < c.last.Epoch {
			return false
		}
		if _, source := c.sources[t]; source && (!c.readAll(t) || a.Halted != "") {
			return false
		}
	}
	return true
}

// adapt stretches the interval while nothing comes in, and draws it together
// when something does.
func (c *Coordinator) adapt(a *Announcement) {
	quiet := len(a.Idle) == len(c.last.Idle) && !a.End
	for _, t := range c.tasks {
		ack := c.acks[t]
		quiet = quiet && ack.Quiet
	}
	for s, w := range a.Watermarks {
		quiet = quiet && c.last.Watermarks[s] == w
	}
	if !quiet {
		c.stretch = c.epoch.Interval
		return
	}
	c.stretch = min(2*c.stretch, LongestInterval(c.epoch))
}
