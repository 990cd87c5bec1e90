package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// commitLoop collects what the tasks hand over and commits each epoch when
// every task of the member has handed it over, or has committed it before (it
// came from another owner). It alone writes the tasks' stores.
func (s *session) commitLoop() {
	waiting := map[event.Partition]*handed{}
	for {
		select {
		case <-s.ctx.Done():
			return
		case h := <-s.handed:
			waiting[h.task.id.Partition] = h
		}
		n := s.ready(waiting)
		s.setUnderWay(len(waiting), n)
		if n == 0 {
			continue
		}
		err := s.commit(n, waiting)
		s.setUnderWay(0, 0)
		if err != nil {
			if s.ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
		clear(waiting)
	}
}

// ready gives the epoch that is complete, or 0.
func (s *session) ready(waiting map[event.Partition]*handed) event.Epoch {
	var n event.Epoch
	for _, h := range waiting {
		n = max(n, h.reached.Barrier.Epoch)
	}
	for p, t := range s.tasks {
		if waiting[p] == nil && t.barrier.epoch < n {
			return 0
		}
	}
	return n
}

func (s *session) setUnderWay(handedOver int, inFlight event.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handedOver, s.inFlight = handedOver, inFlight
	close(s.changed)
	s.changed = make(chan struct{})
}

// commit commits one epoch: one transaction, then the stores.
func (s *session) commit(n event.Epoch, waiting map[event.Partition]*handed) error {
	started := time.Now()
	if err := s.awaitAnswers(waiting); err != nil {
		return &errReset{err}
	}
	c := s.newCommit(s.ctx)
	if err := c.begin(); err != nil {
		return err
	}
	s.engine.config.At("commit.begun")
	order := slices.Sorted(maps.Keys(waiting))
	for _, p := range order {
		h := waiting[p]
		h.task.barrier = h.task.nextBarrier(h.reached, s.transactionalID)
	}
	if err := c.offsets(n); err != nil {
		return c.abort(err)
	}
	s.engine.config.At("commit.offsets")
	for _, p := range order {
		if err := c.epoch(waiting[p]); err != nil {
			return c.abort(err)
		}
	}
	s.engine.config.At("commit.rows")
	if err := c.markers(n, waiting[order[0]].reached.Barrier.Recorded, order); err != nil {
		return c.abort(err)
	}
	acks := make([]ackJSON, 0, len(order))
	for _, p := range order {
		h := waiting[p]
		acks = append(acks, ackOf(h.reached.Ack(h.task.id, h.task.answeredUpTo()), h.task.barrier.offsets))
	}
	if err := c.acknowledge(n, acks); err != nil {
		return c.abort(err)
	}
	if err := c.end(); err != nil {
		return err
	}
	s.engine.config.At("commit.ended")
	for _, p := range order {
		if err := s.apply(waiting[p], c); err != nil {
			return err
		}
		if err := s.engine.saver.take(waiting[p].task); err != nil {
			return err
		}
		s.engine.config.At("commit.stored")
	}
	s.engine.config.At("commit.applied")
	took := time.Since(started)
	s.engine.config.Observe(Observation{Committed: &Committed{
		Stage: s.member.stage.Name, Epoch: n, Records: c.records, Waited: started.Sub(firstHanded(waiting)), Took: took,
	}})
	s.engine.log.Debug("committed", "stage", s.member.stage.Name, "epoch", n, "records", c.records, "took", took.String())
	return nil
}

// firstHanded is when the first of the tasks handed over.
func firstHanded(waiting map[event.Partition]*handed) time.Time {
	var first time.Time
	for _, h := range waiting {
		if first.IsZero() || h.at.Before(first) {
			first = h.at
		}
	}
	return first
}

// awaitAnswers waits, under the log clock, until the windows parked in this
// epoch have been read back: the next announcement grants them.
func (s *session) awaitAnswers(waiting map[event.Partition]*handed) error {
	if s.engine.topology.Plan.Epoch.Clock != mapping.ClockLog {
		return nil
	}
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		done := true
		for _, h := range waiting {
			done = done && h.task.answeredUpTo() >= h.reached.Barrier.Epoch
		}
		if done {
			return nil
		}
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-changed:
		}
	}
}

// nextBarrier is where the task stands once its hand-over is committed.
func (t *task) nextBarrier(r *processors.Reached, member string) barrierState {
	b := barrierState{epoch: r.Barrier.Epoch, offsets: map[string]event.Offset{t.claim.topic: r.Offsets[0]}}
	b.progress = state.Progress{
		Epoch: r.Barrier.Epoch, Recorded: r.Barrier.Recorded, Offsets: b.offsets, Watermark: r.Watermark,
		Announced: max(t.barrier.progress.Announced, r.Barrier.Watermark(t.session.member.stage.Stream.Name)),
		LastStamp: r.LastStamp, Hold: r.Barrier.Hold, Parked: r.Parked, Mapping: t.session.engine.topology.Plan.Version, Member: member,
	}
	raw, err := json.Marshal(r.Counters)
	if err == nil {
		b.progress.Counters = raw
	}
	return b
}

// apply writes a committed epoch into the task's store.
func (s *session) apply(h *handed, c *commit) error {
	t := h.task
	progress, err := t.barrier.progress.EncodeAs(t.session.engine.format())
	if err != nil {
		return err
	}
	batch := &state.Batch{
		Changes: append(slices.Clone(h.reached.Layer.Changes()), state.Change{Key: []byte{state.KeyProgress}, Value: progress}),
		Expired: h.reached.Expired, Position: c.positions[t.id.Partition], Mark: s.changelog.mark(c.began),
	}
	if err := t.store.Apply(batch); err != nil {
		return err
	}
	t.view.Applied()
	t.committed.Store(int64(t.barrier.epoch))
	s.engine.hub.commit(t.id, t.barrier.epoch)
	t.send(&item{task: t, committed: t.barrier.epoch})
	return nil
}

// commit is one transaction of a session. Its steps stand in the order in
// which they must be called: begin, offsets, epochs, markers, acknowledge, end.
type commit struct {
	session *session
	ctx     context.Context //nolint:containedctx // lives as long as the call that made it
	began   event.RecordedTime
	records int
	room    []kgo.Record
	promise func(*kgo.Record, error) // c.produced
	// positions are the changelog offsets of the progress records.
	positions map[event.Partition]event.Offset

	mu  sync.Mutex // guards err and positions
	err error      // the first failure of a record
}

func (s *session) newCommit(ctx context.Context) *commit {
	c := &commit{session: s, ctx: ctx, began: wallClock(), positions: map[event.Partition]event.Offset{}}
	c.promise = c.produced
	return c
}

// begin begins the transaction.
func (c *commit) begin() error {
	if err := c.session.producer.BeginTransaction(); err != nil {
		return &errReset{fmt.Errorf("begin a transaction: %w", err)}
	}
	return nil
}

// offsets commits, for every input of the member, exactly the offset at its
// task's barrier, under the group's generation. Nothing is produced before it
// has succeeded: the group's generation fences a zombie here.
func (c *commit) offsets(n event.Epoch) error {
	s := c.session
	id, epoch, err := s.producer.ProducerID(c.ctx)
	if err != nil {
		return fmt.Errorf("producer id: %w", err)
	}
	group := s.engine.topology.Group(s.member.stage)
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = s.transactionalID, id, epoch, group
	if err := c.retry(func() error {
		resp, err := add.RequestWith(c.ctx, s.producer)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	}); err != nil {
		return fmt.Errorf("add the group to the transaction: %w", err)
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = s.transactionalID, id, epoch
	req.Group, req.Generation, req.MemberID, req.InstanceID = group, s.generation, s.memberID, s.engine.instanceID()
	metadata := commitMetadata{ID: s.transactionalID, Epoch: n}.encode()
	for topic, parts := range c.barrierOffsets() {
		t := kmsg.NewTxnOffsetCommitRequestTopic()
		t.Topic = topic
		for p, o := range parts {
			rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = int32(p), int64(o), -1, &metadata
			t.Partitions = append(t.Partitions, rp)
		}
		req.Topics = append(req.Topics, t)
	}
	if err := c.retry(func() error { return commitOffsets(c.ctx, s.producer, req) }); err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	return nil
}

// barrierOffsets are the offsets at the last barrier of each task: for those
// that hand over, the barrier being committed; for the others, the one that
// they committed already, never their position.
func (c *commit) barrierOffsets() map[string]map[event.Partition]event.Offset {
	out := map[string]map[event.Partition]event.Offset{}
	for p, t := range c.session.tasks {
		for topic, o := range t.barrier.offsets {
			if out[topic] == nil {
				out[topic] = map[event.Partition]event.Offset{}
			}
			out[topic][p] = o
		}
	}
	return out
}

func commitOffsets(ctx context.Context, client *kgo.Client, req *kmsg.TxnOffsetCommitRequest) error {
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return nil
}

// endingBackoff spaces out attempts at what waits for a transaction to end.
// Apache Kafka answers EndTxn before it has written the markers, and refuses the
// next transaction under that id until then: two milliseconds, as a rule.
func endingBackoff() *backoff { return &backoff{next: 4 * time.Millisecond} }

// retry repeats a request while the broker says that it is not ready for it.
func (c *commit) retry(do func() error) error {
	wait := endingBackoff()
	for {
		err := do()
		again := errors.Is(err, kerr.ConcurrentTransactions) || errors.Is(err, kerr.CoordinatorLoadInProgress) ||
			errors.Is(err, kerr.CoordinatorNotAvailable) || errors.Is(err, kerr.NotCoordinator)
		if !again {
			return err
		}
		wait.wait(c.ctx)
		if c.ctx.Err() != nil {
			return err
		}
	}
}

// produce adds a record; its failure shows in end.
func (c *commit) produce(topic string, p event.Partition, key, value []byte) {
	c.records++
	if len(c.room) == 0 {
		c.room = make([]kgo.Record, recordsAtOnce)
	}
	r := &c.room[0]
	c.room = c.room[1:]
	r.Topic, r.Partition, r.Key, r.Value = topic, int32(p), key, value
	c.session.producer.Produce(c.ctx, r, c.promise)
}

// recordsAtOnce is for how many records a commit takes memory at a time.
const recordsAtOnce = 256

func (c *commit) produced(r *kgo.Record, err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = fmt.Errorf("write to %s/%d: %w", r.Topic, r.Partition, err)
	}
}

func (c *commit) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// epoch produces what one task has handed over: changelog, outputs, dead
// letters and, last in its changelog partition, the progress record.
func (c *commit) epoch(h *handed) error {
	t, r := h.task, h.reached
	s := c.session
	changelog := s.engine.topology.Changelog(s.member.stage)
	for _, change := range r.Layer.Changes() {
		if expired(r.Expired, change.Key) {
			continue // gone again in the same epoch
		}
		c.produce(changelog, t.id.Partition, change.Key, change.Value)
	}
	s.engine.config.At("commit.changelog")
	out := func(o processors.Output) error {
		topic := s.member.stage.Outputs[o.Topic]
		c.produce(topic, event.PartitionOf(o.Key, s.engine.partitionsOf(topic)), o.Key, o.Value)
		return c.failed()
	}
	tombstone := func(key []byte) error {
		c.produce(changelog, t.id.Partition, slices.Clone(key), nil)
		return c.failed()
	}
	if err := r.Stream(r.Layer.Over(t.store), out, tombstone); err != nil {
		return err
	}
	for i := range r.DeadLetters {
		if again := r.Barrier.Repeated; again != nil && again.Committed {
			break // they were written when the task committed this barrier before
		}
		c.deadLetter(&r.DeadLetters[i], r.Barrier.Recorded)
	}
	return c.progress(t, t.barrier.progress)
}

func expired(ranges []state.Range, key []byte) bool {
	for _, r := range ranges {
		if r.Contains(key) {
			return true
		}
	}
	return false
}

// progress produces a task's progress record and remembers its offset.
func (c *commit) progress(t *task, p state.Progress) error {
	value, err := p.EncodeAs(t.session.engine.format())
	if err != nil {
		return err
	}
	c.records++
	r := &kgo.Record{
		Topic: c.session.engine.topology.Changelog(c.session.member.stage), Partition: int32(t.id.Partition),
		Key: []byte{state.KeyProgress}, Value: value,
	}
	c.session.producer.Produce(c.ctx, r, func(r *kgo.Record, err error) {
		c.produced(r, err)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.positions[t.id.Partition] = event.Offset(r.Offset)
	})
	return nil
}

// deadLetter produces a rejected record, its bytes unchanged.
func (c *commit) deadLetter(d *processors.DeadLetter, at event.RecordedTime) {
	headers := make([]kgo.RecordHeader, 0, len(d.Record.Headers)+10)
	for _, h := range d.Record.Headers {
		headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	for _, h := range [...][2]string{
		{"strom.v", "1"},
		{"strom.cause", string(d.Reject.Reason)},
		{"strom.message", d.Reject.Message},
		{"strom.topic", d.Place.Topic},
		{"strom.partition", d.Place.Partition.String()},
		{"strom.offset", d.Place.Offset.String()},
		{"strom.timestamp", strconv.FormatInt(int64(d.Place.Timestamp), 10)},
		{"strom.stage", c.session.member.stage.Name},
		{"strom.recorded", at.String()},
	} {
		headers = append(headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
	}
	c.records++
	c.session.producer.Produce(c.ctx, &kgo.Record{
		Topic: c.session.engine.topology.DeadLetterTopic(), Key: d.Record.Key, Value: d.Record.Value,
		Headers: headers, Timestamp: d.Place.Timestamp.Time(),
	}, c.produced)
	c.session.engine.config.At("commit.deadletter")
}

// markers produces, behind all rows, one marker for every partition of every
// output topic, which names the tasks that handed over in this transaction.
func (c *commit) markers(n event.Epoch, at event.RecordedTime, tasks []event.Partition) error {
	s := c.session
	m := event.Marker{V: event.MarkerVersion, Stage: s.member.stage.Name, Member: s.transactionalID, Epoch: n, Recorded: at, Tasks: tasks}
	value, err := event.AppendMarker(nil, &m)
	if err != nil {
		return err
	}
	for _, topic := range s.member.stage.Outputs {
		for p := range s.engine.partitionsOf(topic) {
			c.produce(topic, event.Partition(p), nil, value)
		}
	}
	return nil
}

// acknowledge produces the acknowledgement of an epoch.
func (c *commit) acknowledge(n event.Epoch, acks []ackJSON) error {
	s := c.session
	value, err := encodeControl(controlRecord{
		Kind: kindAck, Epoch: n, Stage: s.member.stage.Name, Member: s.transactionalID, Tasks: acks,
		Format: told(state.NewestFormat),
	})
	if err != nil {
		return err
	}
	c.produce(s.engine.topology.ControlTopic(), 0, nil, value)
	return nil
}

// abort ends the transaction without effect. EndTxn has not been sent for it,
// so nothing of it can have been committed; what is in memory is ahead of
// Kafka all the same, and is thrown away.
func (c *commit) abort(cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), revokePatience)
	defer cancel()
	p := c.session.producer
	err := errors.Join(p.AbortBufferedRecords(ctx), p.EndTransaction(ctx, kgo.TryAbort))
	if err != nil {
		c.session.engine.log.Debug("abort", "stage", c.session.member.stage.Name, "error", err)
	}
	if permanent(cause) {
		return cause
	}
	return &errReset{cause}
}

// end waits for the records and ends the transaction. From the moment EndTxn
// is sent the outcome is known only by success.
func (c *commit) end() error {
	p := c.session.producer
	if err := p.Flush(c.ctx); err != nil {
		return c.abort(fmt.Errorf("flush: %w", err))
	}
	if err := c.failed(); err != nil {
		return c.abort(err)
	}
	c.session.engine.config.At(c.session.phase() + ".flushed")
	// Not under the session's context: an EndTxn cut off leaves an unknown
	// outcome where waiting a little would have told it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), transactionTimeout)
	defer cancel()
	release := context.AfterFunc(c.ctx, func() { time.AfterFunc(revokePatience, cancel) })
	defer release()
	if err := p.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return &errReset{fmt.Errorf("the outcome of the transaction is not known: %w", err)}
	}
	return nil
}

// partitionsOf is the number of partitions of one of the pipeline's own topics.
func (e *Engine) partitionsOf(topic string) int32 {
	if topic == e.topology.ResultsTopic() {
		return e.layout.results
	}
	for _, s := range e.topology.Stages {
		if s.Input == topic {
			return e.layout.tasks[s.Name]
		}
	}
	return 1
}
