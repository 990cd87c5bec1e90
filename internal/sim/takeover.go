package sim

import (
	"errors"
	"fmt"

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
	committed, err := s.member.stableOffsets(p, g)
	if err != nil {
		return err
	}
	if err := p.reach("recovery.offsets"); err != nil {
		return err
	}
	for _, n := range g.assigned {
		id := processors.TaskID{Stage: s.member.stage.Name, Partition: n}
		st, err := s.prepare(p, id)
		if err != nil {
			return err
		}
		s.tasks[n] = &task{session: s, id: id, store: st, view: state.NewView(st)}
	}
	for _, t := range s.inOrder() {
		if err := t.recoverTable(p); err != nil {
			return err
		}
		if err := p.reach("recovery.tables"); err != nil {
			return err
		}
	}
	for _, t := range s.inOrder() {
		if err := t.restore(p, committed); err != nil {
			return err
		}
	}
	if err := p.reach("recovery.adopt"); err != nil {
		return err
	}
	return s.adopt(p)
}

func (s *session) changelog(n event.Partition) *broker.Partition {
	sim := s.engine.sim
	return sim.broker.Topic(sim.topology.Changelog(s.member.stage))[n]
}

// prepare opens a task's store and makes it fit to be caught up from its changelog.
func (s *session) prepare(p *process, id processors.TaskID) (*store, error) {
	sim := s.engine.sim
	st, damaged, err := s.engine.replica.disk.open(id, sim.topology.Plan.Pipeline)
	if err != nil {
		return nil, err
	}
	if damaged {
		p.world.tracef("%s: the store of %v is damaged", p.name, id)
		p.world.meet("store damaged")
	}
	b, err := p.bounds(s.changelog(id.Partition), s.group.goOn)
	if err != nil {
		return nil, err
	}
	local, err := st.Position()
	if err != nil {
		return nil, err
	}
	v, err := state.Decide(storeFacts(local, b))
	if err != nil {
		return nil, err
	}
	p.world.tracef("%s: %v at %s: %s: %s", p.name, id, local, v.Decision, v.Why)
	p.world.meet("recovery: " + v.Decision.String())
	switch v.Decision {
	case state.Continue, state.CatchUp:
		return st, nil
	case state.Rebuild:
		return st, st.Wipe()
	case state.Undecided, state.Begin, state.BackToGroup, state.Refuse:
	}
	return nil, &refusal{fmt.Sprintf("%v: %s: %s", id, v.Decision, v.Why)}
}

// storeFacts is what a takeover finds before the changelog is read. The model of
// the broker compacts, but drops no tombstone that a store may have missed.
func storeFacts(local event.Offset, b bounds) state.Facts {
	f := state.Facts{Log: state.LogOf(b.start, b.high), Age: state.AgeFresh}
	if local != event.OffsetNone {
		f.Local = state.PlaceOf(local, b.start, b.high)
	}
	if b.high > 0 {
		f.History = state.HistoryBegun
	}
	return f
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
	}
	s.engine.sim.checks.recovered(t)
	return nil
}

// refusal says that a task refuses to run: its state cannot be trusted, or its
// input is gone.
type refusal struct{ text string }

func (e *refusal) Error() string { return "refuses to run: " + e.text }

// refuse tells apart a session that is no longer current, which goes back to the
// group, from a task that must not run.
func (s *session) refuse(p *process, text string) error {
	if err := s.checkGeneration(p); err != nil {
		p.world.meet("stale taker goes back")
		return &resetError{fmt.Errorf("this member is no longer of the group's current generation: %w: %s", err, text)}
	}
	return &refusal{text}
}

// restore makes the task from its recovered state.
func (t *task) restore(p *process, committed map[event.Partition]broker.OffsetCommit) error {
	s, input := t.session, t.session.member.stage.Input
	progress, known, err := state.ReadProgress(t.store)
	if err != nil {
		return err
	}
	at, has := committed[t.id.Partition]
	offset := at.Offset
	switch {
	case known && has && progress.Offsets[input] == offset:
	case !known && !has:
		b, err := p.bounds(t.source(), s.group.goOn)
		if err != nil {
			return err
		}
		offset = b.start
	default:
		return s.refuse(p, fmt.Sprintf("%v: progress %v of epoch %s at %v, committed %v at %s",
			t.id, known, progress.Epoch, progress.Offsets, has, offset))
	}
	progress.Offsets = map[string]event.Offset{input: offset}
	t.start, t.fetched = offset, offset
	t.barrier = barrierState{epoch: progress.Epoch, offset: offset, progress: progress}
	t.committed = progress.Epoch
	return t.makeRunner(p, progress)
}

func (t *task) makeRunner(p *process, progress state.Progress) error {
	s, stage := t.session, t.session.member.stage
	sim := s.engine.sim
	logic, err := processors.NewTask(processors.TaskConfig{
		Stage: stage, Partition: t.id.Partition, Partitions: int32(len(sim.partitions(stage))), State: t.view, Progress: progress,
		BudgetBytes: sim.setup.budget,
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
	b, err := p.bounds(t.source(), s.group.goOn)
	if err != nil {
		return err
	}
	if t.start < b.start {
		return s.refuse(p, fmt.Sprintf("%v: the next record is at %s, the log starts at %s", t.id, t.start, b.start))
	}
	end, bounded := t.end()
	if !bounded {
		end = b.stable
	}
	if t.start >= end {
		t.runner.Push(&processors.Slab{Next: t.start, AtEnd: true}, s.engine.clock())
	}
	return nil
}

// adopt commits the recovered offsets and progress again, so that the metadata
// names this session, and acknowledges the tasks' last barrier.
func (s *session) adopt(p *process) error {
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
	for _, t := range s.inOrder() {
		progress, err := t.barrier.progress.Encode()
		if err != nil {
			return err
		}
		if err := t.store.Apply(&state.Batch{
			Changes: []state.Change{{Key: []byte{state.KeyProgress}, Value: progress}}, Position: c.position(t),
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
