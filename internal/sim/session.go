package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// session is a member between two rebalances: kafka's session.
type session struct {
	member     *member
	engine     *engine
	group      *membership
	memberID   string
	generation int32
	// id is the transactional id: (stage, replica, generation of the group).
	id       string
	producer broker.Producer
	sequence map[*broker.Partition]int
	adopted  bool // the first transaction stands
	unclear  bool // a request of the first transaction was sent more than once
	settled  int  // so many of the committer's that were, are of no more harm

	tasks     map[event.Partition]*task
	handed    []*handed
	work      []*process
	cancelled bool
	cancelAt  span
	err       error
	// inFlight is the epoch that every task has handed over and that is not
	// committed yet, 0 if none.
	inFlight event.Epoch
}

// task is one partition of the stage in this session.
type task struct {
	session *session
	id      processors.TaskID
	start   event.Offset
	store   *store
	view    *state.View
	runner  *processors.Runner

	inbox     []*item
	waits     int // bytes of records in the inbox
	fetched   event.Offset
	answered  event.Epoch
	committed event.Epoch
	announced *processors.Barrier
	barrier   barrierState

	told      processors.Next
	toldEpoch event.Epoch
}

// barrierState is where a task stood at its last committed barrier.
type barrierState struct {
	epoch    event.Epoch
	offset   event.Offset
	progress state.Progress
}

type handed struct {
	task    *task
	reached *processors.Reached
}

// item is one thing that a task is to look at.
type item struct {
	slab    *processors.Slab
	answers []processors.Answer
	forget  bool
	ends    bool
	end     event.Offset
}

func transactionalID(group, replica string, generation int32) string {
	return fmt.Sprintf("%s.%s.%d", group, replica, generation)
}

func parseTransactionalID(id string) (group string, generation int32, ok bool) {
	rest, g, ok := cutLast(id)
	if !ok {
		return "", 0, false
	}
	n, err := strconv.ParseInt(g, 10, 32)
	if err != nil {
		return "", 0, false
	}
	group, _, ok = cutLast(rest)
	return group, int32(n), ok
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func (s *session) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	s.cancel()
}

func (s *session) cancel() {
	if !s.cancelled {
		s.cancelled, s.cancelAt = true, s.engine.sim.world.now
	}
}

var errCancelled = errors.New("the session is over")

// goOn is the session's context.
func (s *session) goOn() error {
	if s.cancelled {
		return errCancelled
	}
	return nil
}

func (s *session) inOrder() []*task {
	out := make([]*task, 0, len(s.tasks))
	for _, n := range s.partitions() {
		out = append(out, s.tasks[n])
	}
	return out
}

func (s *session) partitions() []event.Partition { return s.group.assigned }

// source is the partition that the task reads.
func (t *task) source() *broker.Partition {
	return t.session.engine.sim.broker.Topic(t.session.member.stage.Input)[t.id.Partition]
}

// end is where the input of the task ends for a run until the end.
func (t *task) end() (event.Offset, bool) {
	o, ok := t.session.engine.ends[t.id]
	return o, ok
}

// wanted reports whether more of the task's input is to be fetched.
func (t *task) wanted() bool {
	if end, bounded := t.end(); bounded && t.fetched >= end {
		return false
	}
	return t.waits+t.runner.Queued() <= t.session.engine.sim.setup.queueBytes
}

// deliver gives a task what a fetch brought.
func (s *session) deliver(t *task, got fetched) {
	slab := &processors.Slab{Next: t.fetched}
	end, bounded := t.end()
	for i := range got.records {
		r := &got.records[i]
		if bounded && r.Offset >= end {
			slab.Next = end
			break
		}
		slab.Next = r.Offset + 1
		if r.Control {
			continue
		}
		slab.Bytes += len(r.Key) + len(r.Value) + 64
		slab.Records = append(slab.Records, r.Record)
	}
	stable := got.stable
	if bounded {
		stable = end
	}
	slab.AtEnd = slab.Next >= stable
	t.fetched = slab.Next
	t.send(&item{slab: slab})
}

func (t *task) send(it *item) {
	if t.session.cancelled {
		return
	}
	if it.slab != nil {
		t.waits += it.slab.Bytes
	}
	t.inbox = append(t.inbox, it)
}

// announce lets the tasks know of a barrier at once, and wakes those that have
// nothing to do.
func (s *session) announce(a processors.Announcement) {
	b := a.Barrier()
	for _, t := range s.inOrder() {
		t.announced = &b
		t.send(&item{})
	}
}

// startClaims runs the tasks and the committer.
func (s *session) startClaims() {
	for _, t := range s.inOrder() {
		s.work = append(s.work, s.engine.spawn(t.id.Stage+"/"+t.id.Partition.String(), t.run))
	}
	s.work = append(s.work, s.engine.spawn(s.member.stage.Name+" committer", s.commitLoop))
	if s.member.stage.Source() {
		s.work = append(s.work, s.engine.spawn(s.member.stage.Name+" ends", s.watchEnds))
	}
}

// run is the thread of a task.
func (t *task) run(p *process) error {
	s := t.session
	for {
		if _, err := p.await(func() bool { return s.cancelled || len(t.inbox) > 0 }, forever); err != nil {
			return err
		}
		if s.cancelled {
			return nil
		}
		it := t.inbox[0]
		t.inbox = t.inbox[1:]
		err := t.step(p, it)
		switch {
		case err == nil:
		case errors.Is(err, errKilled):
			return err
		case errors.Is(err, processors.ErrOvertaken):
			err = fmt.Errorf("%v: %w", t.id, err)
			s.fail(s.overtaken(p, err))
		default:
			s.fail(fmt.Errorf("%v: %w", t.id, err))
		}
	}
}

// overtaken finds out whether the session's tasks have other owners.
func (s *session) overtaken(p *process, err error) error {
	if s.askGroup(p) == state.MemberCurrent {
		return err
	}
	p.world.meet("overtaken")
	return &resetError{fmt.Errorf("this member is no longer of the group's current generation: %w", err)}
}

func (t *task) step(p *process, it *item) error {
	now := t.session.engine.clock()
	switch {
	case it.slab != nil:
		t.waits -= it.slab.Bytes
		t.runner.Push(it.slab, now)
	case it.forget:
		t.told = processors.Next{}
	case it.ends:
		t.runner.LogEnd(0, it.end, now)
	case it.answers != nil:
		if err := t.runner.Task().Answer(it.answers); err != nil {
			return err
		}
		t.answered = t.runner.Task().Answered()
	}
	reached, err := t.runner.Advance(now)
	if err != nil {
		return err
	}
	if reached != nil {
		if err := t.handOver(p, reached); err != nil {
			return err
		}
		return t.step(p, &item{})
	}
	t.notice(p)
	return nil
}

// handOver gives an epoch to the committer.
func (t *task) handOver(p *process, r *processors.Reached) error {
	s := t.session
	if err := p.reach("handover"); err != nil {
		return err
	}
	p.world.tracef("%s hands over epoch %s at %v", p.name, r.Barrier.Epoch, r.Offsets)
	s.engine.sim.checks.handedOver(s, t, r)
	t.view.Begin(r.Layer)
	t.answered = t.runner.Task().Answered()
	t.told, t.toldEpoch = r.Next, r.Barrier.Epoch
	s.handed = append(s.handed, &handed{t, r})
	if len(r.ReadBacks) > 0 {
		s.engine.asks.ask(t, r.ReadBacks)
	}
	return nil
}

// notice tells the coordinator what a source task reads next, where it does not
// know and an announcement may depend on it.
func (t *task) notice(p *process) {
	r := t.runner
	if !t.session.member.stage.Source() || t.committed != r.Epoch() {
		return
	}
	next := r.NextRecord()
	if !next.Known || (t.toldEpoch == r.Epoch() && t.told.Known && (t.told == next || !t.told.None)) {
		return
	}
	t.told, t.toldEpoch = next, r.Epoch()
	n := &notice{task: t.id, epoch: r.Epoch(), next: next}
	answered := false
	p.post("notice", func() error {
		t.session.engine.sim.control().Append(broker.Record{Payload: &controlRecord{next: n}})
		return nil
	}, func(err error) {
		answered = true
		if err != nil {
			t.send(&item{forget: true})
		}
	})
	p.world.after(requestTimeout, "", func() {
		if !answered { // one that is lost is written again
			t.send(&item{forget: true})
		}
	})
}

// watchEnds tells the tasks of a source where their log ends, again and again.
func (s *session) watchEnds(p *process) error {
	after := span(s.member.stage.Stream.IdleAfter)
	every := 5 * second
	if after > 0 {
		every = min(every, max(after/4, 50*millisecond))
	}
	for {
		if _, err := p.await(func() bool { return s.cancelled }, every); err != nil {
			return err
		}
		if s.cancelled {
			return nil
		}
		for _, t := range s.inOrder() {
			b, err := ask(p, "end of "+t.id.Stage, s.goOn, func() (event.Offset, error) { return t.source().Stable(), nil })
			if errors.Is(err, errKilled) {
				return err
			}
			if err == nil && s.engine.ends == nil {
				t.send(&item{ends: true, end: b})
			}
		}
	}
}

// revokePatience bounds how long a planned end waits for the epoch in flight.
const revokePatience = 3 * second

// finish ends the session. A planned end waits for the epoch in flight, if all
// tasks had handed it over; one partly handed over is thrown away.
func (s *session) finish(p *process, planned bool) error {
	s.engine.hub.leave(s)
	if planned {
		if _, err := p.await(func() bool { return s.inFlight == 0 || s.cancelled }, revokePatience); err != nil {
			return err
		}
	}
	s.cancel()
	_, err := p.await(func() bool {
		for _, w := range s.work {
			if !w.done {
				return false
			}
		}
		return true
	}, forever)
	return err
}
