package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
)

var (
	errStopping = errors.New("the process stops")
	errEnded    = errors.New("the input has ended")
)

// resetError ends a session that can go on only after everything in memory has
// been thrown away.
type resetError struct{ err error }

func (e *resetError) Error() string { return "start again from Kafka: " + e.err.Error() }
func (e *resetError) Unwrap() error { return e.err }

// passing reports whether an error ends a session and not the process.
func passing(err error) bool {
	_, reset := errors.AsType[*resetError](err)
	return reset || errors.Is(err, errNoReply) || errors.Is(err, errRejoin) || errors.Is(err, errLost) || errors.Is(err, errStopping) ||
		errors.Is(err, errKilled) || errors.Is(err, broker.ErrFenced) || errors.Is(err, broker.ErrInvalidEpoch) ||
		errors.Is(err, broker.ErrUnknownMember) || errors.Is(err, broker.ErrIllegalGeneration) || errors.Is(err, broker.ErrRebalancing) ||
		errors.Is(err, broker.ErrConcurrent) || errors.Is(err, broker.ErrOutOfRange) || errors.Is(err, broker.ErrInvalidState) ||
		errors.Is(err, broker.ErrOutOfOrder)
}

// engine is one process of a replica: what kafka.Engine does, step by step, with
// requests to the models of the broker and of the database.
type engine struct {
	sim     *simulation
	replica *replica
	// ends are the offsets at which the input ends for a run until the end,
	// nil for others.
	ends map[processors.TaskID]event.Offset
	// begun is the newest barrier that the log held when the process started.
	begun event.Epoch
	hub   hub
	asks  readBacks
	parts []*process

	stopRequested bool
	stopping      bool
	hurried       bool
	failure       error
	ended         bool
}

func newEngine(r *replica) *engine {
	e := &engine{sim: r.sim, replica: r}
	e.hub = hub{
		last:      processors.Announcement{Recorded: event.RecordedUnknown},
		listeners: map[*session]bool{}, committed: map[processors.TaskID]event.Epoch{},
	}
	e.asks.engine = e
	return e
}

func (e *engine) spawn(name string, run func(p *process) error) *process {
	return e.sim.world.spawn(e.replica, fmt.Sprintf("%s/%d %s", e.replica.name, e.replica.life, name), run)
}

func (e *engine) goOn() error {
	if e.stopping {
		return errStopping
	}
	return nil
}

// epochTarget is how long an epoch should be at most under full load.
func (s *simulation) epochTarget() int64 {
	if s.logClock() {
		return 0
	}
	return max(5*s.topology.Plan.Epoch.Interval, time.Second).Microseconds()
}

// clock is what tasks may know of time.
func (e *engine) clock() processors.Clock {
	return processors.Clock{ByRecord: e.sim.logClock(), Now: e.replica.wall()}
}

// finishPatience bounds how long a stopping engine waits for the epoch under way.
const finishPatience = 5 * second

// run runs the process until it is stopped, its input has ended, or it fails.
func (e *engine) run(p *process) error {
	if e.sim.untilEnd {
		if err := e.findEnds(p); err != nil {
			return err
		}
	}
	log, err := e.openControlLog(p, e.goOn, false)
	if err != nil {
		return err
	}
	for _, r := range log.pending {
		if r.announcement != nil {
			e.begun = r.announcement.Epoch
		}
	}
	e.part("control", func(p *process) error { return e.follow(p, log) })
	e.part("coordinator", e.coordinate)
	e.part("sink", e.runSink)
	e.part("read-back", e.asks.run)
	for _, s := range e.sim.topology.Stages {
		m := &member{engine: e, stage: s}
		e.part(s.Name, m.run)
	}
	if e.ends != nil {
		e.part("end", e.awaitEnd)
	}
	if _, err := p.await(func() bool { return e.stopRequested || e.failure != nil || e.ended }, forever); err != nil {
		return err
	}
	if e.stopRequested && !e.ended {
		if err := e.finishEpoch(p); err != nil {
			return err
		}
	}
	e.stopping = true
	if _, err := p.await(e.partsDone, forever); err != nil {
		return err
	}
	if err := e.replica.disk.close(); err != nil {
		p.world.fail(NoRefusal, "%s: close the stores: %v", p.name, err)
	}
	p.world.tracef("%s ends, ended %v, failure %v", p.name, e.ended, e.failure)
	if e.failure != nil {
		p.world.fail(NoRefusal, "%s: %v", p.name, e.failure)
	}
	e.replica.up = false
	e.replica.finished = e.ended
	return nil
}

func (e *engine) part(name string, run func(p *process) error) {
	e.parts = append(e.parts, e.spawn(name, func(p *process) error {
		err := run(p)
		switch {
		case errors.Is(err, errEnded):
			e.ended = true
		case errors.Is(err, errKilled), errors.Is(err, errStopping), e.stopping:
		case e.failure == nil:
			e.failure = fmt.Errorf("%s: %w", p.name, errorOr(err, "ended by itself"))
		}
		return err
	}))
}

func errorOr(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}

func (e *engine) partsDone() bool {
	for _, p := range e.parts {
		if !p.done {
			return false
		}
	}
	return true
}

// findEnds learns where the input ends for this run.
func (e *engine) findEnds(p *process) error {
	ends := map[processors.TaskID]event.Offset{}
	for _, s := range e.sim.topology.Stages {
		if !s.Source() {
			continue
		}
		for n, part := range e.sim.broker.Topic(s.Input) {
			b, err := p.bounds(part, e.goOn)
			if err != nil {
				return err
			}
			ends[processors.TaskID{Stage: s.Name, Partition: event.Partition(n)}] = b.stable
		}
	}
	e.ends = ends
	return nil
}

// finishEpoch waits until the tasks of this process have committed a barrier
// that was announced after the call, so that a planned stop repeats no work.
func (e *engine) finishEpoch(p *process) error {
	if e.sim.logClock() {
		return nil
	}
	want := e.hub.last.Epoch + 1
	e.hurried = true
	_, err := p.await(func() bool {
		for _, have := range e.hub.committed {
			if have < want {
				return e.failure != nil
			}
		}
		return true
	}, finishPatience)
	return err
}

// awaitEnd gives errEnded when the barrier that ends the input has been applied
// by every results partition, and nothing of the input has been left unread.
func (e *engine) awaitEnd(p *process) error {
	for {
		if _, err := p.await(func() bool { return e.stopping || e.hub.last.End }, forever); err != nil {
			return err
		}
		if err := e.goOn(); err != nil {
			return err
		}
		read, err := e.inputRead(p)
		if err != nil {
			return err
		}
		if read {
			progress, err := e.progress(p, e.goOn)
			if err != nil {
				return err
			}
			done := true
			for _, at := range progress {
				done = done && at.Epoch >= e.hub.last.Epoch
			}
			if done {
				return errEnded
			}
		}
		if err := p.sleep(20 * millisecond); err != nil {
			return err
		}
	}
}

func (e *engine) inputRead(p *process) (bool, error) {
	for _, s := range e.sim.topology.Stages {
		if !s.Source() {
			continue
		}
		g := e.sim.broker.Group(e.sim.topology.Group(s))
		all := e.sim.partitions(s)
		offsets, err := insist(p, "offsets of "+s.Name, e.goOn, func() (map[event.Partition]broker.OffsetCommit, error) {
			return g.FetchOffsets(all, false)
		})
		if err != nil {
			return false, err
		}
		for _, n := range all {
			if o, ok := offsets[n]; !ok || o.Offset < e.ends[processors.TaskID{Stage: s.Name, Partition: n}] {
				return false, nil
			}
		}
	}
	return true, nil
}

// follow passes announcements to the sessions of this process.
func (e *engine) follow(p *process, log *controlLog) error {
	for {
		recs, err := log.read(p, e.goOn)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if r.announcement != nil {
				e.hub.announce(*r.announcement)
			}
		}
	}
}

// hub knows the newest announcement and who in this process wants to hear of
// it, and how far the tasks of this process have committed.
type hub struct {
	last      processors.Announcement
	listeners map[*session]bool
	order     []*session
	committed map[processors.TaskID]event.Epoch
}

func (h *hub) announce(a processors.Announcement) {
	if a.Epoch <= h.last.Epoch {
		return
	}
	h.last = a
	for _, s := range h.order {
		s.announce(a)
	}
}

// join makes a session hear of the newest announcement and of those to come.
func (h *hub) join(s *session) {
	h.order = append(h.order, s)
	if h.last.Epoch > 0 {
		s.announce(h.last)
	}
}

func (h *hub) leave(s *session) {
	h.order = slices.DeleteFunc(h.order, func(x *session) bool { return x == s })
	for _, t := range s.tasks {
		delete(h.committed, t.id)
	}
}

// sortedTasks are the keys of a map in their order.
func sortedTasks[V any](m map[processors.TaskID]V) []processors.TaskID {
	return slices.SortedFunc(maps.Keys(m), compareTasks)
}

func compareTasks(a, b processors.TaskID) int {
	if a.Stage != b.Stage {
		if a.Stage < b.Stage {
			return -1
		}
		return 1
	}
	return int(a.Partition) - int(b.Partition)
}
