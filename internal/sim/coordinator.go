package sim

import (
	"errors"
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
)

// coordinate takes part in the election: the group that gives the control
// topic's one partition to one replica. Whoever holds it leads, until it loses
// the partition.
func (e *engine) coordinate(p *process) error {
	g := e.newMembership(p, e.sim.topology.CoordinatorGroup())
	for {
		err := g.join(p)
		if err == nil && len(g.assigned) > 0 {
			err = e.leadUntil(p, g)
		} else if err == nil {
			_, err = p.await(func() bool { return g.goOn() != nil }, forever)
		}
		switch {
		case errors.Is(err, errKilled):
			return err
		case e.stopping:
			if err := g.leave(p); err != nil {
				return err
			}
			return errStopping
		case err != nil && !passing(err):
			return err
		case g.lost:
			g.id = ""
		}
	}
}

// leadUntil leads for as long as this replica holds the partition.
func (e *engine) leadUntil(p *process, g *membership) error {
	lead := e.spawn("leader", func(p *process) error { return e.leader(p, g.goOn) })
	// What the leader has begun to write is finished before the partition goes.
	if _, err := p.await(func() bool { return lead.done }, forever); err != nil {
		return err
	}
	return lead.result
}

// leader announces barriers. One that is fenced, or does not know whether an
// announcement stands, starts again from InitProducerId.
func (e *engine) leader(p *process, goOn func() error) error {
	for wait := 50 * millisecond; ; wait = min(2*wait, 5*second) {
		err := e.lead(p, goOn)
		switch {
		case errors.Is(err, errKilled):
			return err
		case goOn() != nil:
			return goOn()
		case !passing(err):
			return fmt.Errorf("announce barriers: %w", err)
		}
		p.world.tracef("%s starts again: %v", p.name, err)
		p.world.meet("coordinator starts again")
		if err := p.sleep(wait/2 + p.world.upTo(wait/2)); err != nil {
			return err
		}
	}
}

// coordinatorID is the one id under which barriers are announced, so that a new
// coordinator's InitProducerId fences the one before.
func (e *engine) coordinatorID() string {
	id := e.sim.topology.CoordinatorTransactionalID()
	if e.sim.bug == NoInitProducer {
		id += "." + e.replica.name
	}
	return id
}

// announcer is a coordinator that leads: kafka's announcer.
type announcer struct {
	engine      *engine
	goOn        func() error
	producer    broker.Producer
	sequence    int
	coordinator *processors.Coordinator
	records     []*controlRecord
	announcedAt span
	announced   bool // something, by this announcer
	over        bool
	failed      error
}

// lead announces barriers: InitProducerId first, then the control topic to its
// end, then on from what the log says, never from what is remembered.
func (e *engine) lead(p *process, goOn func() error) error {
	a := &announcer{
		engine: e, goOn: goOn,
		coordinator: processors.NewCoordinator(e.sim.topology, e.sim.taskCounts(), e.ends),
	}
	var err error
	if a.producer, err = insist(p, "begin as coordinator", goOn, func() (broker.Producer, error) {
		return e.sim.broker.InitProducer(e.coordinatorID(), int64(transactionTimeout))
	}); err != nil {
		return err
	}
	log, err := e.openControlLog(p, goOn, true)
	if err != nil {
		return err
	}
	reader := e.spawn("leader's reader", func(p *process) error { return a.follow(p, log) })
	err = a.run(p)
	a.over = true
	if errors.Is(err, errKilled) {
		return err
	}
	if _, waited := p.await(func() bool { return reader.done }, forever); waited != nil {
		return waited
	}
	return err
}

func (a *announcer) follow(p *process, log *controlLog) error {
	for {
		goOn := func() error {
			if a.over {
				return errStopping
			}
			return a.goOn()
		}
		recs, err := log.read(p, goOn)
		if err != nil {
			a.failed = err
			return err
		}
		a.records = append(a.records, recs...)
	}
}

func (a *announcer) run(p *process) error {
	for {
		left := a.left(p)
		if _, err := p.await(func() bool {
			return a.goOn() != nil || a.failed != nil || len(a.records) > 0 || a.left(p) <= 0 && a.may()
		}, max(left, millisecond)); err != nil {
			return err
		}
		if err := errors.Join(a.goOn(), a.failed); err != nil {
			return err
		}
		recs := a.records
		a.records = nil
		if err := a.observe(recs); err != nil {
			return err
		}
		if a.left(p) > 0 {
			continue
		}
		if t, why, blocked := a.coordinator.Blocked(); blocked {
			return &processors.HaltedError{Task: t, Why: why}
		}
		last := a.coordinator.Last()
		a.misled()
		next, ok := a.coordinator.Next(a.engine.replica.wall())
		if ok && a.engine.sim.bug == ReuseRecorded && !a.announced && last.Epoch > 0 {
			next.Recorded = last.Recorded
		}
		if !ok {
			// Nothing may be announced before more is known.
			if _, err := p.await(func() bool { return a.goOn() != nil || a.failed != nil || len(a.records) > 0 }, forever); err != nil {
				return err
			}
			continue
		}
		if err := a.announce(p, &next); err != nil {
			return err
		}
	}
}

// may says whether a look is worth it; the coordinator itself decides.
func (a *announcer) may() bool {
	return len(a.coordinator.Missing()) == 0 || a.engine.sim.bug == AnnounceEarly
}

// left is how long to wait until the next announcement.
func (a *announcer) left(p *process) span {
	if !a.announced || a.engine.hurried {
		return 0
	}
	return a.announcedAt + span(a.coordinator.Interval().Microseconds()) - p.world.now
}

var errAgain = &resetError{errors.New("start again")}

func (a *announcer) observe(recs []*controlRecord) error {
	for _, r := range recs {
		switch {
		case r.announcement != nil:
			if last := a.coordinator.Last(); r.announcement.Epoch > last.Epoch && a.announced {
				return fmt.Errorf("%w: somebody else announced barrier %s", errAgain, r.announcement.Epoch)
			}
			a.coordinator.Restore(*r.announcement)
		case r.acks != nil:
			for _, ack := range r.acks.acks {
				a.coordinator.Acked(ack)
			}
		case r.next != nil:
			a.coordinator.Noticed(r.next.task, r.next.epoch, r.next.next, r.next.next.None)
		}
	}
	return nil
}

// announce writes an announcement, in a transaction of its own.
func (a *announcer) announce(p *process, next *processors.Announcement) error {
	e := a.engine
	id, control, producer := e.coordinatorID(), e.sim.control(), a.producer
	if err := p.reach("announce"); err != nil {
		return err
	}
	if _, err := insist(p, "add the control topic", a.goOn, plain(func() error {
		return e.sim.broker.AddPartitions(id, producer, []*broker.Partition{control})
	})); err != nil {
		return err
	}
	sequence := a.sequence
	if _, err := insist(p, fmt.Sprintf("announce barrier %s at %s, granted %s, end %v", next.Epoch, next.Recorded, next.Granted, next.End), a.goOn, func() (event.Offset, error) {
		return e.sim.broker.Produce(id, producer, control, sequence, []broker.Record{{Payload: &controlRecord{announcement: next}}})
	}); err != nil {
		return err
	}
	a.sequence++
	for tries := 0; ; tries++ {
		next, err := ask(p, "end the announcement", always, func() (broker.Producer, error) {
			return e.sim.broker.EndTransaction(id, producer, true)
		})
		if err == nil {
			if next != producer {
				a.producer, a.sequence = next, 0
			}
			break
		}
		if errors.Is(err, errNoReply) && tries < 3 {
			continue
		}
		return err
	}
	a.announcedAt, a.announced = p.world.now, true
	e.hurried = false
	return p.reach("announced")
}
