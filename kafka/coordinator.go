package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// runCoordinator takes part in the election: the group that gives the control
// topic's one partition to one replica. Whoever holds it leads, until it loses
// the partition.
func (e *Engine) runCoordinator(ctx context.Context) error {
	topic := e.topology.ControlTopic()
	lead := &leadership{engine: e, failed: make(chan error, 1)}
	client, err := e.newClient(append(e.groupOptions(e.topology.CoordinatorGroup(), newStickyBalancer(topic, nil)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, p map[string][]int32) {
			if len(p[topic]) > 0 {
				lead.begin(ctx)
			}
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, p map[string][]int32) { lead.lost(p[topic]) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, p map[string][]int32) { lead.lost(p[topic]) }),
	)...)
	if err != nil {
		return err
	}
	defer e.leave(client)
	defer lead.end()
	defer e.monitor.joins(CoordinatorName, client)()
	loop := e.monitor.loop(CoordinatorName)
	defer loop.rest()
	// Only the assignment matters; the leader reads the topic by itself.
	client.PauseFetchTopics(topic)
	for {
		loop.turn()
		polled := make(chan error, 1)
		limited, cancel := context.WithTimeout(ctx, time.Second)
		go func() { polled <- fetchError(ctx, client.PollRecords(limited, 1)) }()
		select {
		case err = <-polled:
		case err = <-lead.failed:
			cancel()
			err = errors.Join(err, <-polled)
		}
		cancel()
		// A session that was lost comes again by itself.
		if err != nil && !retriable(err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// leadership is the time in which this replica announces barriers.
type leadership struct {
	engine *Engine
	failed chan error

	mu     sync.Mutex // guards cancel
	cancel context.CancelFunc
	work   sync.WaitGroup
}

func (l *leadership) begin(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		return
	}
	ctx, l.cancel = context.WithCancel(ctx)
	l.work.Go(func() { l.run(ctx) })
}

// lost ends the leadership if the partition is among those that are gone.
func (l *leadership) lost(partitions []int32) {
	if len(partitions) > 0 {
		l.end()
	}
}

func (l *leadership) end() {
	l.mu.Lock()
	cancel := l.cancel
	l.cancel = nil
	l.mu.Unlock()
	if cancel != nil {
		cancel()
		l.work.Wait()
	}
}

// run leads until ctx ends. A leader that is fenced, or does not know whether
// an announcement stands, starts again from InitProducerId: only losing the
// partition ends it.
func (l *leadership) run(ctx context.Context) {
	wait := newBackoff()
	for ctx.Err() == nil {
		err := l.engine.lead(ctx)
		if ctx.Err() != nil {
			return
		}
		if permanent(err) || (!errors.Is(err, errAgain) && !retriable(err)) {
			l.failed <- fmt.Errorf("announce barriers: %w", err)
			return
		}
		l.engine.log.Info("the coordinator starts again", "why", err.Error())
		wait.wait(ctx)
	}
}

var errAgain = errors.New("start again")

// lead announces barriers: InitProducerId first, then the control topic to its
// end, then on from what the log says, never from what is remembered.
func (e *Engine) lead(ctx context.Context) error {
	producer, err := e.newClient(
		kgo.TransactionalID(e.topology.CoordinatorTransactionalID()), kgo.TransactionTimeout(transactionTimeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(int32(e.layout.largest)),
		kgo.WithHooks(sentHook(func(step string) { e.config.At("announce." + step) })),
	)
	if err != nil {
		return err
	}
	// A producer whose broker does not answer is freed by nothing but this.
	release := context.AfterFunc(ctx, producer.Close)
	defer func() {
		if release() {
			producer.Close()
		}
	}()
	e.config.At("lead")
	if _, _, err := producer.ProducerID(ctx); err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	e.config.At("lead.fenced")
	log, err := e.openControlLog(ctx, true)
	if err != nil {
		return err
	}
	defer log.close()
	repeats, err := e.openRepeats()
	if err != nil {
		return err
	}
	defer repeats.close()
	a := &announcer{
		repeats: repeats, engine: e, producer: producer,
		coordinator: processors.NewCoordinator(e.topology, e.layout.tasks, e.taskEnds()),
		records:     make(chan []controlRecord), failed: make(chan error, 1),
	}
	a.coordinator.Repeats(e.origin.repeats)
	e.monitor.announcing.Store(true)
	defer e.monitor.announcing.Store(false)
	reading, stop := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() { a.follow(reading, log) })
	defer reader.Wait()
	defer stop()
	return a.run(ctx)
}

// taskEnds are the offsets at which a run until the end ends, nil for others.
func (e *Engine) taskEnds() map[processors.TaskID]event.Offset {
	if e.layout.ends == nil {
		return nil
	}
	out := map[processors.TaskID]event.Offset{}
	for _, s := range e.topology.Stages {
		for p, end := range e.layout.ends[s.Input] {
			out[processors.TaskID{Stage: s.Name, Partition: event.Partition(p)}] = event.Offset(end)
		}
	}
	return out
}

// inputOf is the input topic of a stage by its name.
func (e *Engine) inputOf(stage string) string {
	if s := e.topology.Stage(stage); s != nil {
		return s.Input
	}
	return ""
}

// announcer is the loop of a leading coordinator.
type announcer struct {
	engine      *Engine
	producer    *kgo.Client
	coordinator *processors.Coordinator
	records     chan []controlRecord
	failed      chan error
	announcedAt time.Time
	repeats     *repeats
	// mappingAt is the offset of the record of the mapping in force, next what is
	// to replace it; nil for none.
	mappingAt *event.Offset
	next      *mapping.Plan
}

func (a *announcer) follow(ctx context.Context, log *controlLog) {
	for {
		recs, err := log.read(ctx)
		if err != nil {
			a.failed <- err
			return
		}
		select {
		case a.records <- recs:
		case <-ctx.Done():
			return
		}
	}
}

func (a *announcer) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	hurried := a.engine.hub.hurried
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-a.failed:
			return err
		case recs := <-a.records:
			if err := a.observe(recs); err != nil {
				return err
			}
		case <-hurried:
			hurried = nil
			a.announcedAt = time.Time{}
		case <-timer.C:
		}
		if left := a.coordinator.Interval() - time.Since(a.announcedAt); left > 0 {
			timer.Reset(left)
			continue
		}
		// What follows a change is announced under the new mapping.
		if last := a.coordinator.Last(); last.Epoch > 0 && last.Mapping != a.engine.topology.Plan.Version {
			continue
		}
		if t, why, blocked := a.coordinator.Blocked(); blocked {
			return &processors.HaltedError{Task: t, Why: why}
		}
		if err := a.repeats.feed(ctx, a.coordinator); err != nil {
			return err
		}
		next, ok := a.coordinator.Next(wallClock())
		if !ok {
			continue
		}
		if err := a.announce(ctx, next); err != nil {
			return err
		}
	}
}

func (a *announcer) observe(recs []controlRecord) error {
	for i := range recs {
		r := &recs[i]
		switch r.Kind {
		case kindBarrier:
			if last := a.coordinator.Last(); r.Epoch > last.Epoch && !a.announcedAt.IsZero() {
				return fmt.Errorf("%w: somebody else announced barrier %s", errAgain, r.Epoch)
			}
			a.coordinator.Restore(r.announcement())
			a.mappingIn(r)
		case kindChange:
			a.proposal(r)
		case kindAck:
			input := a.engine.inputOf(r.Stage)
			for j := range r.Tasks {
				ack := r.Tasks[j].ack(r)
				ack.Offset = r.Tasks[j].Offsets[input]
				a.coordinator.Acked(ack)
			}
		case kindNext:
			for j := range r.Tasks {
				t := processors.TaskID{Stage: r.Stage, Partition: r.Tasks[j].Partition}
				a.coordinator.Noticed(t, r.Epoch, r.Tasks[j].next(), r.Tasks[j].AtEnd)
			}
		case kindEnded:
			return a.engine.ended(r)
		case kindSavepoint:
			a.coordinator.RequestSavepoint(r.Savepoint, r.Until)
		}
	}
	return nil
}

func (a *announcer) announce(ctx context.Context, next processors.Announcement) error {
	text, changes, err := a.mappingRecord(&next)
	if err != nil {
		return err
	}
	if err := a.producer.BeginTransaction(); err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	a.engine.config.At("announce")
	at := a.mappingAt
	if text != nil {
		offset, err := a.write(ctx, text)
		if err != nil {
			return err
		}
		at = &offset
	}
	value, err := encodeAnnouncement(next, a.engine.config.Replica, at, changes)
	if err != nil {
		return err
	}
	if _, err := a.write(ctx, value); err != nil {
		return err
	}
	if err := a.producer.EndTransaction(context.WithoutCancel(ctx), kgo.TryCommit); err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	a.announcedAt, a.mappingAt = time.Now(), at
	a.engine.config.At("announced")
	if changes {
		a.engine.config.At("mapping.announced")
	}
	return nil
}

// write adds a record to the open transaction and gives its offset.
func (a *announcer) write(ctx context.Context, value []byte) (event.Offset, error) {
	r := &kgo.Record{Topic: a.engine.topology.ControlTopic(), Value: value}
	if err := a.producer.ProduceSync(ctx, r).FirstErr(); err != nil {
		return 0, fmt.Errorf("%w: %w", errAgain, err)
	}
	return event.Offset(r.Offset), nil
}
