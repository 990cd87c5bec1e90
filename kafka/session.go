package kafka

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// session is a member between two rebalances.
type session struct {
	member     *member
	engine     *Engine
	handler    sarama.ConsumerGroupHandler
	claims     map[string][]int32
	memberID   string
	generation int32
	// transactionalID is (stage, replica, generation of the group).
	transactionalID string
	producer        *kgo.Client
	changelog       *changelog // what the tasks' stores copy

	ctx    context.Context //nolint:containedctx // the session's life, which goka asks for
	cancel context.CancelFunc
	tasks  map[event.Partition]*task
	handed chan *handed
	work   sync.WaitGroup // claims and committer

	adopted atomic.Bool // the first transaction stands

	mu  sync.Mutex // guards all below
	err error
	// handedOver is how many tasks have handed over the epoch that is next to
	// be committed.
	handedOver int
	// inFlight is the epoch that every task has handed over and that is not
	// committed yet, 0 if none.
	inFlight event.Epoch
	changed  chan struct{} // closed and replaced by wake
}

// task is one partition of the stage in this session.
type task struct {
	session *session
	id      processors.TaskID
	claim   *groupClaim
	start   event.Offset
	store   state.Store
	view    *state.View
	runner  *processors.Runner // driven by goka's goroutine only

	inChannel atomic.Int64 // bytes of records on their way through goka
	inRunner  atomic.Int64 // bytes of records that the runner holds
	paused    atomic.Bool  // not fetched; the poll loop alone changes it
	loop      loop
	answered  atomic.Int64 // epoch up to which what is parked is answered
	committed atomic.Int64
	announced atomic.Pointer[processors.Barrier] // the newest
	// barrier is the committer's own: what the last committed barrier of this
	// task says, for epochs that it takes no part in.
	barrier barrierState

	// told is what the coordinator knows of the next record; goka's goroutine only.
	told      processors.Next
	toldEpoch event.Epoch
	// asked is the oldest epoch with a read-back that is not granted yet, as far
	// as Points needs it, 0 if none; goka's goroutine only.
	asked event.Epoch
}

// barrierState is where a task stood at its last committed barrier.
type barrierState struct {
	epoch    event.Epoch
	offsets  map[string]event.Offset
	progress state.Progress
}

type handed struct {
	task    *task
	reached *processors.Reached
	at      time.Time
}

// fail ends the session with err; the first error holds.
func (s *session) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	if _, reset := errors.AsType[*errReset](err); !reset && !errors.Is(err, state.ErrDamaged) {
		s.member.fail(err)
	}
	s.cancel()
}

// phase names what the session's transactions do now, for Points.
func (s *session) phase() string {
	if s.adopted.Load() {
		return "commit"
	}
	return "adopt"
}

func (s *session) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (t *task) answeredUpTo() event.Epoch { return event.Epoch(t.answered.Load()) }

// clock is what tasks may know of time.
func (s *session) clock() processors.Clock {
	return processors.Clock{ByRecord: s.engine.topology.Plan.Epoch.Clock == mapping.ClockLog, Now: wallClock()}
}

// deliver gives what a poll brought to the tasks. It does not block: the poll
// loop has made sure that there is room.
func (s *session) deliver(fetches kgo.Fetches) {
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		t := s.tasks[event.Partition(p.Partition)]
		if t == nil || len(p.Records) == 0 {
			return
		}
		t.send(&item{task: t, slab: t.slab(p)})
	})
}

func (t *task) slab(p kgo.FetchTopicPartition) *processors.Slab {
	slab := &processors.Slab{Records: make([]processors.Record, 0, len(p.Records))}
	target, bounded := t.session.engine.layout.ends[p.Topic][p.Partition]
	for _, r := range p.Records {
		if bounded && r.Offset >= target {
			slab.Next = event.Offset(target)
			break
		}
		slab.Next = event.Offset(r.Offset) + 1
		if r.Attrs.IsControl() {
			continue
		}
		slab.Bytes += len(r.Key) + len(r.Value) + 64
		slab.Records = append(slab.Records, record(r))
	}
	end := p.LastStableOffset
	if end < 0 {
		end = p.HighWatermark
	}
	if bounded {
		end = target
	}
	slab.AtEnd = int64(slab.Next) >= end
	return slab
}

func record(r *kgo.Record) processors.Record {
	out := processors.Record{
		Offset: event.Offset(r.Offset), Timestamp: event.FromTime(r.Timestamp), Key: r.Key, Value: r.Value,
	}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, processors.Header{Key: h.Key, Value: h.Value})
	}
	return out
}

// send puts an item into the task's channel; from any goroutine.
func (t *task) send(it *item) {
	if it.slab != nil {
		t.inChannel.Add(int64(it.slab.Bytes))
	}
	msg := &sarama.ConsumerMessage{
		Topic: t.claim.topic, Partition: int32(t.id.Partition), Value: t.session.member.items.put(it),
	}
	select {
	case t.claim.messages <- msg:
	case <-t.session.ctx.Done():
	}
}

// messageRoom is how many items a task's channel holds; slabs stop long before.
const messageRoom = 1024

// announce lets the tasks know of a barrier at once, and wakes those that have
// nothing to do.
func (s *session) announce(a processors.Announcement) {
	s.engine.config.At("barrier.heard")
	for _, t := range s.tasks {
		b := a.BarrierOf(t.id)
		t.announced.Store(&b)
		t.send(&item{task: t})
	}
}

// balance stops fetching the partitions whose tasks have more queued than
// their bound, and goes on with those that have used up half of it. The others
// are fetched all the while: under the log clock a barrier waits for the next
// record of every partition. The poll loop alone calls it.
func (s *session) balance(client *kgo.Client) {
	pause, resume := map[string][]int32{}, map[string][]int32{}
	bound := int64(s.engine.queueBytes())
	for p, t := range s.tasks {
		waits := t.inChannel.Load() + t.inRunner.Load()
		messages := len(t.claim.messages)
		switch {
		case !t.paused.Load() && (waits > bound || messages > messageRoom/4):
			t.paused.Store(true)
			pause[t.claim.topic] = append(pause[t.claim.topic], int32(p))
		case t.paused.Load() && waits <= bound/2 && messages <= messageRoom/8:
			t.paused.Store(false)
			resume[t.claim.topic] = append(resume[t.claim.topic], int32(p))
		}
	}
	if len(pause) > 0 {
		client.PauseFetchPartitions(pause)
	}
	if len(resume) > 0 {
		client.ResumeFetchPartitions(resume)
	}
}

// queueBytes bounds what waits in front of one task.
func (e *Engine) queueBytes() int {
	if e.config.QueueBytes != 0 {
		return e.config.QueueBytes
	}
	return e.config.Memory.Queue(e.layout.all())
}

// wake wakes whoever waits for an answer or for the epoch in flight.
func (s *session) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// handle is called by goka for every item, on the goroutine of the task.
func (t *task) handle(it *item) {
	s := t.session
	if s.ctx.Err() != nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			s.engine.log.Error("a task panicked", "stage", t.id.Stage, "partition", t.id.Partition, "panic", r, "stack", string(debug.Stack()))
			s.fail(fmt.Errorf("stage %s, partition %s: a bug in Strom: %v", t.id.Stage, t.id.Partition, r))
		}
	}()
	if err := t.step(it); err != nil {
		err = fmt.Errorf("stage %s, partition %s: %w", t.id.Stage, t.id.Partition, err)
		if errors.Is(err, processors.ErrOvertaken) {
			err = s.overtaken(err)
		}
		s.fail(err)
	}
}

// overtaken finds out whether the session's tasks have other owners, which a
// process that was stopped for a while does not know when it wakes.
func (s *session) overtaken(err error) error {
	if s.askGroup(s.ctx) == state.MemberCurrent {
		return err
	}
	return &errReset{fmt.Errorf("this member is no longer of the group's current generation: %w", err)}
}

func (t *task) step(it *item) error {
	now := t.session.clock()
	switch {
	case it.slab != nil:
		t.inChannel.Add(-int64(it.slab.Bytes))
		t.runner.Push(it.slab, now)
	case it.forget:
		t.told = processors.Next{}
	case it.ends:
		t.runner.LogEnd(0, it.end, now)
	case it.answers != nil:
		if err := t.runner.Task().Answer(it.answers); err != nil {
			return err
		}
		t.answered.Store(int64(t.runner.Task().Answered()))
		t.session.wake()
	}
	t.loop.turn()
	reached, err := t.runner.Advance(now)
	t.loop.rest() // a hand-over may wait for others
	if err != nil {
		return err
	}
	t.inRunner.Store(int64(t.runner.Queued()))
	if have, of := t.runner.Marked(); have > 0 && have < of {
		t.session.engine.config.At("barrier.markers")
	}
	if reached != nil {
		t.handOver(reached)
		return t.step(&item{task: t}) // what waited behind the barrier
	}
	t.notice()
	return nil
}

// handOver gives an epoch to the committer.
func (t *task) handOver(r *processors.Reached) {
	s := t.session
	if s.member.stage.Source() {
		s.engine.config.At("barrier.injected")
	}
	s.engine.config.At("handover")
	t.view.Begin(r.Layer)
	t.answered.Store(int64(t.runner.Task().Answered()))
	t.told, t.toldEpoch = r.Next, r.Barrier.Epoch
	select {
	case s.handed <- &handed{task: t, reached: r, at: time.Now()}:
	case <-s.ctx.Done():
	}
	s.engine.config.At("handed")
	if t.asked != 0 && r.Barrier.Granted >= t.asked {
		t.asked = 0
		s.engine.config.At("readback.granted")
	}
	if len(r.ReadBacks) > 0 {
		if t.asked == 0 {
			t.asked = r.Barrier.Epoch
		}
		s.engine.asks.ask(t, r.ReadBacks, r.Barrier.Epoch, r.Barrier.Recorded)
	}
}

// notice tells the coordinator what a source task reads next, where it does
// not know and an announcement may depend on it.
func (t *task) notice() {
	r := t.runner
	if !t.session.member.stage.Source() || event.Epoch(t.committed.Load()) != r.Epoch() {
		return
	}
	next := r.NextRecord()
	if !next.Known || (t.toldEpoch == r.Epoch() && t.told.Known && (t.told == next || !t.told.None)) {
		return
	}
	t.told, t.toldEpoch = next, r.Epoch()
	t.tellNext(r.Epoch(), next)
}

// tellNext writes a notice; one that is lost is written again.
func (t *task) tellNext(n event.Epoch, next processors.Next) {
	e := t.session.engine
	ack := ackOf(processors.Ack{Task: t.id, Next: next, AtEnd: next.None, Watermark: event.WatermarkUnknown}, nil)
	value, err := encodeControl(controlRecord{Kind: kindNext, Epoch: n, Stage: t.id.Stage, Tasks: []ackJSON{ack}})
	if err != nil {
		e.log.Error("encode a notice", "error", err)
		return
	}
	e.config.At("notice")
	e.client.Produce(context.Background(), &kgo.Record{Topic: e.topology.ControlTopic(), Value: value}, func(_ *kgo.Record, err error) {
		if err == nil {
			e.config.At("noticed")
		}
		if err != nil && !errors.Is(err, kgo.ErrClientClosed) {
			e.log.Warn("tell the coordinator of the next record", "error", err)
			t.send(&item{task: t, forget: true})
		}
	})
}

// watchEnds tells the tasks of a source where their log ends, again and again:
// one that has read everything and hears nothing could not tell an end from a
// broker that does not answer. It also finds out that the topic is gone.
func (s *session) watchEnds() {
	after := time.Duration(s.member.stage.Stream.IdleAfter) * time.Microsecond
	if !s.member.stage.Source() {
		return
	}
	every := 5 * time.Second
	if after > 0 {
		every = min(every, max(after/4, 50*time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	adm := kadm.NewClient(s.engine.client)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		ends, err := adm.ListCommittedOffsets(s.ctx, s.member.stage.Input)
		if err == nil {
			err = ends.Error()
		}
		if err != nil {
			// franz-go goes on asking for a topic that is gone.
			if err := s.member.explain(s.ctx, err); permanent(err) {
				s.fail(fmt.Errorf("stage %s: %w", s.member.stage.Name, err))
				return
			}
			continue
		}
		if s.engine.layout.ends != nil {
			continue // this run ends where the log ended at its start
		}
		for p, t := range s.tasks {
			if o, ok := ends.Lookup(s.member.stage.Input, int32(p)); ok {
				t.send(&item{task: t, ends: true, end: event.Offset(o.Offset)})
			}
		}
	}
}

// startClaims runs goka's consumption and the committer.
func (s *session) startClaims() {
	for _, t := range s.tasks {
		s.work.Go(func() {
			err := s.handler.ConsumeClaim(groupSession{s}, t.claim)
			if s.ctx.Err() == nil {
				s.fail(fmt.Errorf("stage %s, partition %s: goka stopped consuming: %w", t.id.Stage, t.id.Partition, errorOr(err)))
			}
		})
	}
	s.work.Go(s.commitLoop)
	s.work.Go(s.watchEnds)
}

var errGokaStopped = errors.New("a callback ended early")

func errorOr(err error) error {
	if err == nil {
		return errGokaStopped
	}
	return err
}

// revokePatience bounds how long a planned end waits for the epoch in flight.
const revokePatience = 3 * time.Second

// end ends the session. A planned end waits for the epoch in flight, if all
// tasks had handed it over; one partly handed over is thrown away.
func (s *session) end(planned bool) {
	s.engine.hub.leave(s)
	if planned && s.broken() == nil {
		s.engine.config.At("revoke." + s.underWay())
		s.awaitInFlight()
	}
	s.cancel()
	s.engine.config.At("session.end")
	s.work.Wait()
	s.engine.config.At("revoke.ended")
	if err := s.handler.Cleanup(groupSession{s}); err != nil {
		s.engine.log.Debug("goka cleans up", "stage", s.member.stage.Name, "error", err)
	}
	s.member.items.purge()
	s.engine.leave(s.producer)
	if err := s.broken(); errors.Is(err, state.ErrDamaged) {
		s.condemnStores(err)
	}
}

// condemnStores gives up the local state of all tasks; which of them is damaged
// is in the error's text only.
func (s *session) condemnStores(damage error) {
	for _, t := range s.tasks {
		s.engine.stores.condemn(t.id, damage)
	}
}

// underWay says what a session that ends has under way, for Points.
func (s *session) underWay() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.inFlight != 0:
		return "in_flight"
	case s.handedOver > 0:
		return "partly"
	}
	return "idle"
}

func (s *session) awaitInFlight() {
	deadline := time.NewTimer(revokePatience)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		done, changed := s.inFlight == 0, s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-deadline.C:
			return
		case <-s.ctx.Done():
			return
		case <-changed:
		}
	}
}
