package sim

import (
	"errors"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// transactionTimeout is a fallback: a taker ends a dead owner's transaction at once.
const transactionTimeout = minute

// takeOver makes a session for the partitions that the group gave to this
// member, in the order that the recovery rules demand: kafka's takeOver.
func (m *member) takeOver(p *process, g *membership) (*session, error) {
	s := &session{
		member: m, engine: m.engine, group: g, memberID: g.id, generation: g.generation,
		id:       transactionalID(m.engine.sim.topology.Group(m.stage), m.engine.replica.name, g.generation),
		sequence: map[*broker.Partition]int{}, tasks: map[event.Partition]*task{},
	}
	unclear := p.unclear
	if err := s.recover(p); err != nil {
		s.cancel()
		if errors.Is(err, state.ErrDamaged) {
			return nil, errors.Join(&resetError{err}, s.discardStores())
		}
		return nil, err
	}
	s.unclear = p.unclear > unclear
	m.lastID = s.id
	s.startClaims()
	m.engine.hub.join(s)
	p.world.tracef("%s took over %v in generation %d", p.name, g.assigned, g.generation)
	return s, nil
}

// recover brings the tasks to their last committed barrier.
func (s *session) recover(p *process) error {
	g, sim := s.group, s.engine.sim
	var err error
	if s.producer, err = insist(p, "begin as "+s.id, g.goOn, func() (broker.Producer, error) {
		return sim.broker.InitProducer(s.id, int64(transactionTimeout))
	}); err != nil {
		return err
	}
	if err := p.reach("recovery.fenced"); err != nil {
		return err
	}
	r := &recovery{session: s, begun: map[event.Partition]bool{}}
	if r.committed, err = s.member.stableOffsets(p, g); err != nil {
		return err
	}
	if err := p.reach("recovery.offsets"); err != nil {
		return err
	}
	if err := r.find(p); err != nil {
		return err
	}
	for _, n := range g.assigned {
		id := processors.TaskID{Stage: s.member.stage.Name, Partition: n}
		st, err := r.prepare(p, id)
		if err != nil {
			return err
		}
		s.tasks[n] = &task{session: s, id: id, store: st, view: state.NewView(st)}
	}
	if err := p.reach("recovery.tables"); err != nil {
		return err
	}
	for _, t := range s.inOrder() {
		if err := t.recoverTable(p); err != nil {
			return err
		}
	}
	if err := p.reach("recovery.recovered"); err != nil {
		return err
	}
	if err := r.observe(p); err != nil {
		return err
	}
	for _, t := range s.inOrder() {
		if err := r.restore(t); err != nil {
			return err
		}
	}
	if err := p.reach("recovery.adopt"); err != nil {
		return err
	}
	return s.adopt(p, r)
}

func (s *session) changelog(n event.Partition) *broker.Partition {
	sim := s.engine.sim
	return sim.broker.Topic(sim.topology.Changelog(s.member.stage))[n]
}

// recoverTable reads the changelog up to the high watermark at this moment,
// which lies after the stable fetch.
func (t *task) recoverTable(p *process) error {
	s := t.session
	part, goOn := s.changelog(t.id.Partition), s.group.goOn
	b, err := p.bounds(part, goOn)
	if err != nil {
		return err
	}
	if early, ok := s.group.early[part]; ok {
		b.high = early
	}
	gate := state.NewGokaStorage(t.store)
	stored, err := gate.GetOffset(int64(event.OffsetNone))
	if err != nil {
		return err
	}
	next := max(event.Offset(stored)+1, b.start)
	for next < b.high {
		got, err := p.fetch(part, next, 1+p.world.rng.IntN(200), goOn)
		if err != nil {
			return err
		}
		var changes []state.Change
		for i := range got.records {
			r := &got.records[i]
			if r.Offset >= b.high {
				next = b.high
				break
			}
			next = r.Offset + 1
			if !r.Control {
				changes = append(changes, state.Change{Key: r.Key, Value: r.Value})
			}
		}
		last := next - 1
		if err := state.Recover(gate, state.EncodeSlab(changes, last)); err != nil {
			return err
		}
		if err := gate.SetOffset(int64(last)); err != nil {
			return err
		}
		if err := p.reach("recovery.slab"); err != nil {
			return err
		}
	}
	s.engine.sim.checks.recovered(t)
	return nil
}

// makeRunner makes what drives the task from where it stands; input is where
// its input begins and ends now.
func (t *task) makeRunner(progress state.Progress, input bounds) error {
	s, stage := t.session, t.session.member.stage
	sim := s.engine.sim
	logic, err := processors.NewTask(processors.TaskConfig{
		Stage: stage, Partition: t.id.Partition, Partitions: int32(len(sim.partitions(stage))), State: t.view, Progress: progress,
		BudgetBytes: sim.setup.budget, EpochTarget: sim.epochTarget(),
	})
	if err != nil {
		return err
	}
	t.runner = processors.NewRunner(processors.RunnerConfig{
		Task: logic, Stage: stage, Epoch: progress.Epoch, Offsets: []event.Offset{t.start}, Upstream: sim.upstream(stage),
		Log: sim.logClock(), Started: s.engine.replica.wall(), LastStamp: progress.LastStamp,
		Announced: func() *processors.Barrier { return t.announced },
	})
	t.answered = logic.Answered()
	// A partition that is at its end delivers nothing that could say so.
	end, bounded := t.end()
	if !bounded {
		end = input.stable
	}
	if t.start >= end {
		t.runner.Push(&processors.Slab{Next: t.start, AtEnd: true}, s.engine.clock())
	}
	return nil
}

// adopt commits the recovered offsets and progress again, so that the metadata
// names this session, and acknowledges the tasks' last barrier. A task that
// begins writes its origin first.
func (s *session) adopt(p *process, r *recovery) error {
	newest := event.Epoch(0)
	for _, t := range s.tasks {
		newest = max(newest, t.barrier.epoch)
	}
	c := s.newCommit(p, s.group.goOn)
	if err := c.offsets(newest); err != nil {
		return c.abort(err)
	}
	if err := p.reach("adopt.offsets"); err != nil {
		return err
	}
	for _, t := range s.inOrder() {
		t.barrier.progress.Member = s.id
		for _, change := range r.first(t) {
			c.produce(s.changelog(t.id.Partition).Topic, t.id.Partition, record(change.Key, change.Value))
		}
		if err := c.progressOf(t, t.barrier.progress, true); err != nil {
			return c.abort(err)
		}
		ack, err := t.adoptedAck()
		if err != nil {
			return err
		}
		c.acknowledge(&acks{epoch: t.barrier.epoch, member: s.id, acks: []processors.Ack{ack}})
	}
	if err := c.end(); err != nil {
		return err
	}
	if err := p.reach("adopt.ended"); err != nil {
		return err
	}
	s.adopted = true
	for _, t := range s.inOrder() {
		progress, err := t.barrier.progress.Encode()
		if err != nil {
			return err
		}
		if err := t.store.Apply(&state.Batch{
			Changes:  append(r.first(t), state.Change{Key: []byte{state.KeyProgress}, Value: progress}),
			Position: c.position(t), Mark: mark(r.asked),
		}); err != nil {
			return err
		}
		s.engine.hub.committed[t.id] = t.barrier.epoch
		if waiting := t.runner.Task().Waiting(); len(waiting) > 0 {
			s.engine.asks.ask(t, waiting)
		}
	}
	return nil
}

// adoptedAck acknowledges the barrier at which a task was taken over.
func (t *task) adoptedAck() (processors.Ack, error) {
	counters, err := processors.DecodeCounters(t.barrier.progress.Counters)
	if err != nil {
		return processors.Ack{}, err
	}
	next := t.runner.NextRecord()
	t.told, t.toldEpoch = next, t.barrier.epoch
	return processors.Ack{
		Task: t.id, Epoch: t.barrier.epoch, Watermark: t.barrier.progress.Watermark, Next: next, Offset: t.barrier.offset,
		AtEnd: next.Known && next.None, Waiting: len(t.runner.Task().Waiting()),
		Answered: min(t.answered, t.barrier.epoch), Counters: counters,
	}, nil
}

// discardStores throws the local state of all tasks away.
func (s *session) discardStores() error {
	var all error
	for _, t := range s.inOrder() {
		all = errors.Join(all, s.engine.replica.disk.discard(t.id))
	}
	return all
}
