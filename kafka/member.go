package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/storage"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// member is this replica's part in one stage: one goka processor over a
// franz-go group consumer. It lives through sessions:
//
//	         join            Setup ok              rebalance, reset, stop
//	(none) ──────► takeover ─────────► running ──────────────────────────► (none)
//	                  │ fatal             │ fatal
//	                  └──────► failed ◄───┘
//
// reset throws away what is in memory and joins again; failed ends the engine.
type member struct {
	engine   *Engine
	stage    *processors.Stage
	items    *registry
	balancer *stickyBalancer

	// ending is held while a session ends, and is taken before mu. Whoever ends
	// one that somebody else is ending already waits for that: a revoke that came
	// back earlier would let the next take-over begin, and goka's clean-up of the
	// old session would stop the tasks of the new one.
	ending sync.Mutex

	mu      sync.Mutex // guards all below
	group   *kgo.Client
	current *session
	fatal   error
	// lastID is the transactional id of this member's last session: the next
	// one ends what it may have left open.
	lastID string
	// met is the first error of an adapter while goka recovers tables.
	met error
	// assigned is how many partitions the group has given to this member; below
	// 0: it has not said.
	assigned int

	loop *loop // of polls
}

func newMember(e *Engine, s *processors.Stage) *member {
	var local []int32
	if !e.config.StaticMembership { // whose tasks the broker remembers
		local = e.stores.local(s.Name)
	}
	return &member{
		engine: e, stage: s, items: newRegistry(), balancer: newStickyBalancer(s.Input, local), assigned: -1,
		loop: &loop{name: "stage " + s.Name, born: e.monitor.born},
	}
}

// run runs goka's processor for the stage.
func (m *member) run(ctx context.Context) error {
	e := m.engine
	adm := kadm.NewClient(e.client)
	graph := e.topology.Graph(m.stage, m.items, func(_ goka.Context, msg any) {
		if it, ok := msg.(*item); ok && it.task != nil {
			it.task.handle(it)
		}
	})
	proc, err := goka.NewProcessor(e.config.Kafka.Brokers, graph,
		goka.WithLogger(gokaLogger{e.log}),
		goka.WithTopicManagerBuilder(func([]string) (goka.TopicManager, error) {
			return &topicManager{ctx: ctx, member: m, adm: adm}, nil
		}),
		goka.WithConsumerGroupBuilder(func([]string, string, string) (sarama.ConsumerGroup, error) {
			return &consumerGroup{member: m}, nil
		}),
		goka.WithConsumerSaramaBuilder(func([]string, string) (sarama.Consumer, error) {
			return &tableConsumer{member: m}, nil
		}),
		goka.WithProducerBuilder(func([]string, string, func() hash.Hash32) (goka.Producer, error) {
			return refusingProducer{}, nil
		}),
		goka.WithStorageBuilder(func(_ string, partition int32) (storage.Storage, error) {
			st, err := e.stores.get(processors.TaskID{Stage: m.stage.Name, Partition: event.Partition(partition)})
			if err != nil {
				return nil, err
			}
			return state.NewGokaStorage(st), nil
		}),
		goka.WithUpdateCallback(func(_ goka.UpdateContext, s storage.Storage, _ string, slab []byte) error {
			err := state.Recover(s, slab)
			m.metInRecovery(err)
			return err
		}),
	)
	if err != nil {
		return fmt.Errorf("set up goka: %w", err)
	}
	err = proc.Run(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.fatal != nil:
		return m.fatal
	case ctx.Err() != nil:
		return ctx.Err() // whatever goka makes of being stopped
	}
	return err
}

func (m *member) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fatal == nil {
		m.fatal = err
	}
}

func (m *member) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fatal
}

func (m *member) metInRecovery(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.met == nil {
		m.met = err
	}
}

func (m *member) takeRecoveryError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.met
	m.met = nil
	return err
}

func (m *member) session() *session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}

func (m *member) setSession(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = s
	if s != nil {
		m.lastID = s.transactionalID
	}
}

// consume joins the group again and again until ctx ends or the member fails:
// goka must not see a generation end, it would wait five seconds.
func (m *member) consume(ctx context.Context, handler sarama.ConsumerGroupHandler) error {
	backoff := newBackoff()
	for ctx.Err() == nil {
		start := time.Now()
		err := m.incarnation(ctx, handler)
		if fatal := m.failure(); fatal != nil {
			return fatal
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a planned stop, whatever the session said last
		}
		if err = m.explain(ctx, err); permanent(err) {
			err = fmt.Errorf("stage %s: %w", m.stage.Name, err)
			m.fail(err)
			return err
		}
		if time.Since(start) > 30*time.Second {
			backoff = newBackoff()
		}
		m.engine.log.Warn("the stage joins its group again", "stage", m.stage.Name, "why", errorText(err))
		backoff.wait(ctx)
	}
	return nil
}

// explain finds out what is behind an error of consuming: a topic that is gone
// and an offset that is gone look like passing faults.
func (m *member) explain(ctx context.Context, err error) error {
	gone := errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
	if err == nil || !(gone || errors.Is(err, kerr.OffsetOutOfRange)) {
		return err
	}
	if _, asked := lookUpTopic(ctx, m.engine.client, m.stage.Input); !errors.Is(asked, kerr.UnknownTopicOrPartition) {
		return err
	}
	return &MissingTopicError{Stream: m.stage.Stream.Name, Topic: m.stage.Input}
}

func errorText(err error) string {
	if err == nil {
		return "the session ended"
	}
	return err.Error()
}

// incarnation is one life of a group consumer.
func (m *member) incarnation(ctx context.Context, handler sarama.ConsumerGroupHandler) error {
	e := m.engine
	poll, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client, err := e.newClient(append(e.groupOptions(e.topology.Group(m.stage), m.balancer),
		kgo.BlockRebalanceOnPoll(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(200*time.Millisecond),
		// franz-go waits for stable offsets before it calls AdjustFetchOffsetsFn,
		// so what the old owners left open is ended before that.
		kgo.OnPartitionsAssigned(func(ctx context.Context, _ *kgo.Client, p map[string][]int32) {
			if err := m.endOldTransactions(ctx, p[m.stage.Input]); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		}),
		kgo.AdjustFetchOffsetsFn(func(ctx context.Context, o map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			out, err := m.takeOver(ctx, handler, o)
			if err != nil && ctx.Err() == nil {
				cancel(err)
			}
			return out, err
		}),
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) { m.endSession(true) }),
		kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) { m.endSession(false) }),
	)...)
	if err != nil {
		m.fail(err)
		return err
	}
	m.setClient(client)
	left := e.monitor.joins(m.stage.Name, client)
	defer left()
	err = m.poll(poll, client)
	m.endSession(ctx.Err() != nil)
	replaced := e.replaced(ctx, client)
	e.leave(client)
	m.endSession(false) // one that was made while the client ended
	if replaced != nil {
		return replaced
	}
	if cause := context.Cause(poll); cause != nil && ctx.Err() == nil {
		return cause
	}
	return err
}

// give says how many partitions the group has given to this member.
func (m *member) give(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assigned = n
}

func (m *member) given() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.assigned
}

func (m *member) setClient(c *kgo.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.group = c
}

func (m *member) client() *kgo.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.group
}

const (
	pollRecords = 20_000 // Config.PollRecords where it is 0
	pollWait    = 100 * time.Millisecond
)

// poll fetches and delivers until ctx ends or the session breaks.
func (m *member) poll(ctx context.Context, client *kgo.Client) error {
	defer m.loop.rest()
	for {
		m.loop.turn()
		s := m.session()
		if s != nil {
			if err := s.broken(); err != nil {
				return err
			}
			s.balance(client)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		limited, cancel := context.WithTimeout(ctx, pollWait)
		fetches := client.PollRecords(limited, m.engine.config.PollRecords)
		cancel()
		err := fetchError(ctx, fetches)
		if err == nil {
			// The session cannot change between poll and AllowRebalance.
			if s = m.session(); s != nil {
				s.deliver(fetches)
			}
		}
		client.AllowRebalance()
		if err != nil {
			return err
		}
	}
}

// endSession ends the current session, if any. A planned end waits for an
// epoch that every task has handed over.
func (m *member) endSession(planned bool) {
	m.ending.Lock()
	defer m.ending.Unlock()
	m.give(-1)
	s := m.session()
	if s == nil {
		return
	}
	m.setSession(nil)
	s.end(planned)
}

// backoff spaces out attempts: exponential, with jitter.
type backoff struct{ next time.Duration }

func newBackoff() *backoff { return &backoff{next: 50 * time.Millisecond} }

func (b *backoff) wait(ctx context.Context) {
	d := b.next/2 + rand.N(b.next/2+1)
	b.next = min(2*b.next, 5*time.Second)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

var errNoRows = errors.New("nobody writes through goka's producer: an epoch is one transaction of its session")

// refusingProducer stands where goka wants a producer. Tasks hand over to the
// session's committer and never emit through goka: who does has a bug, and
// goka turns the panic into the processor's error.
type refusingProducer struct{}

// Emit implements goka.Producer.
func (refusingProducer) Emit(string, string, []byte) *goka.Promise {
	panic(errNoRows) //nolint:forbidigo // goka's promise cannot be failed from outside
}

// EmitWithHeaders implements goka.Producer.
func (refusingProducer) EmitWithHeaders(string, string, []byte, goka.Headers) *goka.Promise {
	panic(errNoRows) //nolint:forbidigo // goka's promise cannot be failed from outside
}

// Close implements goka.Producer.
func (refusingProducer) Close() error { return nil }
