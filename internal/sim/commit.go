package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// commitLoop collects what the tasks hand over and commits each epoch when
// every task of the member has handed it over, or has committed it before (it
// came from another owner).
func (s *session) commitLoop(p *process) error {
	for {
		if _, err := p.await(func() bool { return s.cancelled || s.ready() > 0 }, forever); err != nil {
			return err
		}
		if s.cancelled {
			return nil
		}
		n := s.ready()
		waiting := s.handed
		slices.SortFunc(waiting, func(a, b *handed) int { return compareTasks(a.task.id, b.task.id) })
		s.handed = nil
		s.inFlight = n
		err := s.commit(p, n, waiting)
		for s.takesForAbort(err) {
			if err = s.beginAgain(p); err == nil {
				err = s.commit(p, n, waiting)
			}
		}
		s.inFlight = 0
		switch {
		case errors.Is(err, errKilled):
			return err
		case err != nil:
			if !s.cancelled {
				s.fail(err)
			}
			return nil
		}
	}
}

// ready gives the epoch that is complete, or 0.
func (s *session) ready() event.Epoch {
	var n event.Epoch
	for _, h := range s.handed {
		n = max(n, h.reached.Barrier.Epoch)
	}
	for _, t := range s.tasks {
		has := slices.ContainsFunc(s.handed, func(h *handed) bool { return h.task == t })
		if !has && t.barrier.epoch < n {
			return 0
		}
	}
	return n
}

// commit commits one epoch: one transaction, then the stores.
func (s *session) commit(p *process, n event.Epoch, waiting []*handed) error {
	if err := s.awaitAnswers(p, waiting); err != nil {
		return &resetError{err}
	}
	if err := s.settle(p); err != nil {
		return err
	}
	c := s.newCommit(p, s.goOn)
	var tasks []event.Partition
	for _, h := range waiting {
		h.task.barrier = h.task.nextBarrier(h.reached, s.id)
		tasks = append(tasks, h.task.id.Partition)
	}
	if err := c.offsets(n); err != nil {
		return c.abort(err)
	}
	if s.engine.sim.bug == OffsetsEarly {
		if err := c.endEarly(); err != nil {
			return err
		}
	}
	if err := p.reach("commit.offsets"); err != nil {
		return err
	}
	for _, h := range waiting {
		if err := c.epoch(h); err != nil {
			return c.abort(err)
		}
	}
	if err := c.markers(n, waiting[0].reached.Barrier.Recorded, tasks); err != nil {
		return c.abort(err)
	}
	a := &acks{epoch: n, member: s.id}
	for _, h := range waiting {
		ack := h.reached.Ack(h.task.id, h.task.answered)
		ack.Offset = h.task.barrier.offset
		a.acks = append(a.acks, ack)
	}
	c.acknowledge(a)
	c.waiting = waiting
	if err := c.end(); err != nil {
		return err
	}
	if err := p.reach("commit.ended"); err != nil {
		return err
	}
	for _, h := range waiting {
		if s.engine.sim.bug == ApplyEarly {
			break
		}
		if err := s.apply(h, c); err != nil {
			return err
		}
		if err := p.reach("commit.applied"); err != nil {
			return err
		}
	}
	return nil
}

// next takes the producer of the next transaction.
func (s *session) next(p broker.Producer) {
	if p != s.producer {
		s.producer = p
		clear(s.sequence)
	}
}

// settle begins with a new epoch of the producer where the broker does not by
// itself and a request of the transaction before was sent more than once: the
// one that was given up may be on its way still, and would be taken for one of
// the next transaction.
func (s *session) settle(p *process) error {
	if s.engine.sim.setup.raiseEpochs || s.engine.sim.bug == NoNewEpoch || (p.unclear == s.settled && !s.unclear) {
		return nil
	}
	s.settled, s.unclear = p.unclear, false
	if err := s.beginAgain(p); err != nil {
		return &resetError{err}
	}
	return nil
}

// beginAgain calls InitProducerId on the session's own id.
func (s *session) beginAgain(p *process) error {
	producer, err := insist(p, "begin again as "+s.id, s.goOn, func() (broker.Producer, error) {
		return s.engine.sim.broker.InitProducer(s.id, int64(transactionTimeout))
	})
	if err != nil {
		return err
	}
	s.next(producer)
	return nil
}

// awaitAnswers waits, under the log clock, until the windows parked in this
// epoch have been read back: the next announcement grants them.
func (s *session) awaitAnswers(p *process, waiting []*handed) error {
	if !s.engine.sim.logClock() {
		return nil
	}
	if _, err := p.await(func() bool {
		for _, h := range waiting {
			if h.task.answered < h.reached.Barrier.Epoch {
				return s.cancelled
			}
		}
		return true
	}, forever); err != nil {
		return err
	}
	return s.goOn()
}

// nextBarrier is where the task stands once its hand-over is committed.
func (t *task) nextBarrier(r *processors.Reached, member string) barrierState {
	stage, top := t.session.member.stage, t.session.engine.sim.topology
	b := barrierState{epoch: r.Barrier.Epoch, offset: r.Offsets[0]}
	if t.session.engine.sim.bug == OffsetsPolled {
		b.offset = t.fetched
	}
	b.progress = state.Progress{
		Epoch: r.Barrier.Epoch, Recorded: r.Barrier.Recorded, Offsets: map[string]event.Offset{stage.Input: b.offset},
		Watermark: r.Watermark, Announced: max(t.barrier.progress.Announced, r.Barrier.Watermark(stage.Stream.Name)),
		LastStamp: r.LastStamp, Hold: r.Barrier.Hold, Parked: r.Parked, Mapping: top.Plan.Version, Member: member,
	}
	if raw, err := json.Marshal(r.Counters); err == nil {
		b.progress.Counters = raw
	}
	return b
}

// apply writes a committed epoch into the task's store.
func (s *session) apply(h *handed, c *commit) error {
	t := h.task
	progress, err := t.barrier.progress.Encode()
	if err != nil {
		return err
	}
	if err := t.store.Apply(&state.Batch{
		Changes: append(slices.Clone(h.reached.Layer.Changes()), state.Change{Key: []byte{state.KeyProgress}, Value: progress}),
		Expired: h.reached.Expired, Position: c.position(t), Mark: mark(c.began),
	}); err != nil {
		return err
	}
	t.view.Applied()
	t.committed = t.barrier.epoch
	s.engine.hub.committed[t.id] = t.barrier.epoch
	t.send(&item{})
	return nil
}

// commit is one transaction of a session. Its steps are called in this order:
// offsets, epochs, markers, acknowledge, end.
type commit struct {
	session *session
	p       *process
	goOn    func() error
	began   event.RecordedTime
	// batches hold the records by partition, in the order of the first.
	batches []*batch
	// progress tells where a task's progress record stands.
	progress map[*task]progressPlace
	waiting  []*handed // for the bugs
}

type batch struct {
	partition *broker.Partition
	records   []broker.Record
	base      event.Offset
}

type progressPlace struct {
	batch *batch
	index int
}

func (s *session) newCommit(p *process, goOn func() error) *commit {
	return &commit{session: s, p: p, goOn: goOn, began: s.engine.replica.wall(), progress: map[*task]progressPlace{}}
}

// offsets commits, for every input of the member, exactly the offset at its
// task's barrier, under the group's generation. Nothing is produced before it
// has succeeded.
func (c *commit) offsets(n event.Epoch) error {
	s := c.session
	b, g, producer := s.engine.sim.broker, s.group.group, s.producer
	if _, err := insist(c.p, "add offsets", c.goOn, plain(func() error {
		return b.AddOffsets(s.id, producer, g)
	})); err != nil {
		return fmt.Errorf("add the group to the transaction: %w", err)
	}
	var commits []broker.OffsetCommit
	for _, t := range s.inOrder() {
		offset := t.barrier.offset
		if s.engine.sim.bug == OffsetsPosition && t.committed == n {
			offset = t.fetched
		}
		commits = append(commits, broker.OffsetCommit{Partition: t.id.Partition, Offset: offset, ID: s.id, Epoch: n})
	}
	generation := s.generation
	if s.engine.sim.bug == NoGenerationCheck {
		generation = -1
	}
	if _, err := insist(c.p, fmt.Sprintf("commit offsets of epoch %s", n), c.goOn, plain(func() error {
		return b.CommitOffsets(s.id, producer, g, generation, s.memberID, commits)
	})); err != nil {
		if errors.Is(err, broker.ErrIllegalGeneration) || errors.Is(err, broker.ErrUnknownMember) {
			c.p.world.meet("refused by the group's generation")
		}
		return fmt.Errorf("commit offsets: %w", err)
	}
	return nil
}

// produce adds a record.
func (c *commit) produce(topic string, n event.Partition, r broker.Record) *batch {
	to := c.session.engine.sim.broker.Topic(topic)[n]
	i := slices.IndexFunc(c.batches, func(b *batch) bool { return b.partition == to })
	if i < 0 {
		i = len(c.batches)
		c.batches = append(c.batches, &batch{partition: to})
	}
	c.batches[i].records = append(c.batches[i].records, r)
	return c.batches[i]
}

func record(key, value []byte) broker.Record {
	return broker.Record{Record: processors.Record{Key: key, Value: value}}
}

// epoch produces what one task has handed over: changelog, outputs, dead
// letters and, last in its changelog partition, the progress record.
func (c *commit) epoch(h *handed) error {
	t, r := h.task, h.reached
	sim := c.session.engine.sim
	stage := c.session.member.stage
	changelog := sim.topology.Changelog(stage)
	for _, change := range r.Layer.Changes() {
		if slices.ContainsFunc(r.Expired, func(x state.Range) bool { return x.Contains(change.Key) }) {
			continue // gone again in the same epoch
		}
		c.produce(changelog, t.id.Partition, record(change.Key, change.Value))
	}
	out := func(o processors.Output) error {
		topic := stage.Outputs[o.Topic]
		c.produce(topic, event.PartitionOf(o.Key, int32(len(sim.broker.Topic(topic)))), record(o.Key, o.Value))
		return nil
	}
	tombstone := func(key []byte) error {
		c.produce(changelog, t.id.Partition, record(slices.Clone(key), nil))
		return nil
	}
	if err := r.Stream(r.Layer.Over(t.store), out, tombstone); err != nil {
		return err
	}
	for i := range r.DeadLetters {
		d := &r.DeadLetters[i]
		letter := &deadLetter{stage: stage.Name, place: d.Place, reason: d.Reject.Reason, message: d.Reject.Message, recorded: r.Barrier.Recorded}
		c.produce(sim.topology.DeadLetterTopic(), 0, broker.Record{Record: d.Record, Payload: letter})
	}
	return c.progressOf(t, t.barrier.progress, false)
}

// deadLetter is what the headers of a dead letter say.
type deadLetter struct {
	stage    string
	place    event.Place
	reason   event.Reason
	message  string
	recorded event.RecordedTime
}

// progressOf produces a task's progress record and remembers its place.
func (c *commit) progressOf(t *task, p state.Progress, again bool) error {
	value, err := p.Encode()
	if err != nil {
		return err
	}
	b := c.produce(c.session.engine.sim.topology.Changelog(c.session.member.stage), t.id.Partition,
		broker.Record{Record: processors.Record{Key: []byte{state.KeyProgress}, Value: value}, Payload: &progressRecord{t.id, again, p}})
	c.progress[t] = progressPlace{b, len(b.records) - 1}
	return nil
}

// progressRecord is a progress record as its task wrote it, for the checks.
type progressRecord struct {
	task processors.TaskID
	// again: by a new owner, of the barrier that the task stands at.
	again bool
	state.Progress
}

// position is the changelog offset of a task's progress record.
func (c *commit) position(t *task) event.Offset {
	at := c.progress[t]
	return at.batch.base + event.Offset(at.index)
}

// markers produces, behind all rows, one marker for every partition of every
// output topic, which names the tasks that handed over in this transaction.
func (c *commit) markers(n event.Epoch, at event.RecordedTime, tasks []event.Partition) error {
	s := c.session
	if s.engine.sim.bug == MarkerTooMany {
		tasks = oneMore(tasks, s.engine.sim.partitions(s.member.stage))
	}
	m := event.Marker{V: event.MarkerVersion, Stage: s.member.stage.Name, Member: s.id, Epoch: n, Recorded: at, Tasks: tasks}
	value, err := event.AppendMarker(nil, &m)
	if err != nil {
		return err
	}
	for _, topic := range s.member.stage.Outputs {
		for i := range s.engine.sim.broker.Topic(topic) {
			c.produce(topic, event.Partition(i), record(nil, value))
		}
	}
	return nil
}

// acknowledge produces the acknowledgement of an epoch.
func (c *commit) acknowledge(a *acks) {
	if c.session.engine.sim.bug == AckOutside {
		c.session.engine.sim.control().Append(broker.Record{Payload: &controlRecord{acks: a}})
		return
	}
	c.produce(c.session.engine.sim.topology.ControlTopic(), 0, broker.Record{Payload: &controlRecord{acks: a}})
}

// abort ends the transaction without effect. EndTxn has not been sent for it,
// so nothing of it can have been committed; what is in memory is ahead of Kafka
// all the same, and is thrown away.
func (c *commit) abort(cause error) error {
	if errors.Is(cause, errKilled) {
		return cause
	}
	s := c.session
	producer := s.producer
	_, err := ask(c.p, "abort", always, func() (broker.Producer, error) {
		return s.engine.sim.broker.EndTransaction(s.id, producer, false)
	})
	if errors.Is(err, errKilled) {
		return err
	}
	if !passing(cause) && !errors.Is(cause, errCancelled) {
		return cause
	}
	return &resetError{cause}
}

// flush writes the records, of all partitions at once.
func (c *commit) flush() error {
	s := c.session
	b, producer := s.engine.sim.broker, s.producer
	var parts []*broker.Partition
	for _, x := range c.batches {
		parts = append(parts, x.partition)
	}
	if _, err := insist(c.p, "add partitions", c.goOn, plain(func() error {
		return b.AddPartitions(s.id, producer, parts)
	})); err != nil {
		return err
	}
	sent := make([]*request, len(c.batches))
	for i := range c.batches {
		sent[i] = c.write(c.batches[i], s.sequence[c.batches[i].partition])
	}
	for i, x := range c.batches {
		err := c.p.receive(sent[i], c.goOn)
		for errors.Is(err, errNoReply) {
			err = c.p.receive(c.write(x, s.sequence[x.partition]), c.goOn)
		}
		if err != nil {
			return fmt.Errorf("write to %s/%s: %w", x.partition.Topic, x.partition.Number, err)
		}
		s.sequence[x.partition]++
	}
	return nil
}

func (c *commit) write(x *batch, sequence int) *request {
	s := c.session
	records, producer := slices.Clone(x.records), s.producer
	return c.p.send("produce "+x.partition.Topic, func() error {
		base, err := s.engine.sim.broker.Produce(s.id, producer, x.partition, sequence, records)
		if err == nil {
			x.base = base
		}
		return err
	})
}

// end waits for the records and ends the transaction. From the moment EndTxn is
// sent the outcome is known only by success.
func (c *commit) end() error {
	s := c.session
	if err := c.flush(); err != nil {
		return c.abort(err)
	}
	phase := "adopt"
	if s.adopted {
		phase = "commit"
	}
	if err := c.p.reach(phase + ".flushed"); err != nil {
		return err
	}
	if s.engine.sim.bug == ApplyEarly {
		if err := c.applyEarly(); err != nil {
			return err
		}
	}
	// Not under the session's context: an EndTxn cut off leaves an unknown
	// outcome where waiting a little would have told it.
	patience := func() error {
		if s.cancelled && s.engine.sim.world.now > s.cancelAt+revokePatience {
			return errCancelled
		}
		return nil
	}
	producer := s.producer
	for range 1 + c.p.world.rng.IntN(3) { // as often as the client tries again by itself
		next, err := ask(c.p, "end transaction", patience, func() (broker.Producer, error) {
			return s.engine.sim.broker.EndTransaction(s.id, producer, true)
		})
		switch {
		case err == nil:
			s.next(next)
			return nil
		case errors.Is(err, errKilled):
			return err
		case errors.Is(err, errNoReply) || errors.Is(err, broker.ErrConcurrent):
			c.p.unclear++
		default:
			c.p.world.meet("fenced at EndTxn")
			return &resetError{&unknownOutcome{err}}
		}
	}
	c.p.world.meet("unknown outcome")
	return &resetError{&unknownOutcome{errNoReply}}
}

// unknownOutcome says that EndTxn was sent and not answered with success.
type unknownOutcome struct{ err error }

func (e *unknownOutcome) Error() string {
	return "the outcome of the transaction is not known: " + e.err.Error()
}
func (e *unknownOutcome) Unwrap() error { return e.err }
