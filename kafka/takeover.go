package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// commitMetadata stands in the metadata of a committed offset: who committed
// it, and with which epoch.
type commitMetadata struct {
	V     int         `json:"v"`
	ID    string      `json:"id"` // transactional id
	Epoch event.Epoch `json:"epoch"`
}

func (m commitMetadata) encode() string {
	m.V = 1
	b, err := json.Marshal(m)
	if err != nil {
		return ""
	}
	return string(b)
}

// decodeMetadata reads what encode wrote; ok is false for anything else.
func decodeMetadata(text string) (m commitMetadata, ok bool) {
	if text == "" {
		return m, false
	}
	err := json.Unmarshal([]byte(text), &m)
	return m, err == nil && m.ID != ""
}

// transactionTimeout is a fallback: a taker ends a dead owner's transaction at once.
const transactionTimeout = time.Minute

// takeOver makes a session for the partitions that the group gave to this
// member, in the order that the recovery rules demand. What the old owners left
// open has been ended (endOldTransactions). It reads the offsets that are
// stable now, lets goka recover the tables up to the high watermark after that,
// compares progress and offsets, and commits both again under its own id before
// any data.
func (m *member) takeOver(ctx context.Context, handler sarama.ConsumerGroupHandler, given map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	partitions := slices.Sorted(maps.Keys(given[m.stage.Input]))
	if len(partitions) == 0 {
		return given, nil
	}
	started := time.Now()
	// A pause outlives the session that made it.
	m.client().ResumeFetchPartitions(map[string][]int32{m.stage.Input: partitions})
	s, err := m.newSession(handler, partitions)
	if err != nil {
		return nil, err
	}
	// goka's part of the recovery runs under the session's own context.
	release := context.AfterFunc(ctx, s.cancel)
	offsets, err := s.recover(ctx)
	if err == nil && !release() {
		err = ctx.Err()
	}
	if ctx.Err() == nil {
		m.engine.config.Observe(Observation{TookOver: &TookOver{
			Stage: m.stage.Name, Tasks: len(partitions), Took: time.Since(started), Err: err,
		}})
	}
	if err != nil {
		s.abandon()
		if errors.Is(err, state.ErrDamaged) {
			s.condemnStores(err)
			err = &errReset{err}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if _, reset := errors.AsType[*errReset](err); permanent(err) || (!reset && !retriable(err)) {
			m.fail(fmt.Errorf("stage %s: take over partitions %v: %w", m.stage.Name, partitions, err))
		}
		return nil, err
	}
	// Whoever ends the session waits for what startClaims starts, so it must not
	// find the session before.
	m.ending.Lock()
	s.startClaims()
	m.setSession(s)
	m.ending.Unlock()
	s.engine.hub.join(s)
	s.engine.log.Info("took over", "stage", m.stage.Name, "partitions", partitions,
		"generation", s.generation, "took", time.Since(started).Round(time.Millisecond).String())
	out := map[string]map[int32]kgo.Offset{m.stage.Input: {}}
	for p, o := range offsets {
		out[m.stage.Input][int32(p)] = kgo.NewOffset().At(int64(o)).WithEpoch(-1)
	}
	return out, nil
}

func (m *member) newSession(handler sarama.ConsumerGroupHandler, partitions []int32) (*session, error) {
	e := m.engine
	memberID, generation := m.client().GroupMetadata()
	s := &session{
		member: m, engine: e, handler: handler, memberID: memberID, generation: generation,
		claims:          map[string][]int32{m.stage.Input: partitions},
		transactionalID: m.transactionalID(generation),
		tasks:           map[event.Partition]*task{}, handed: make(chan *handed, len(partitions)), changed: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	// Version 5 of TxnOffsetCommit adds the group to the transaction by itself,
	// but only on brokers with transaction.version 2; version 4 works on all.
	versions := kversion.Tip()
	versions.SetMaxKeyVersion(int16(kmsg.TxnOffsetCommit), 4)
	var err error
	s.producer, err = e.newClient(
		kgo.TransactionalID(s.transactionalID), kgo.TransactionTimeout(transactionTimeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxVersions(versions),
		kgo.ProducerBatchCompression(kgo.SnappyCompression(), kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(int32(e.layout.largest)), kgo.MaxBufferedRecords(200_000), kgo.MaxBufferedBytes(64<<20), kgo.ProducerLinger(0),
		kgo.WithHooks(sentHook(func(step string) { e.config.At(s.phase() + "." + step) })),
	)
	return s, err
}

// transactionalID is (stage, replica, generation of the group).
func (m *member) transactionalID(generation int32) string {
	return fmt.Sprintf("%s.%s.%d", m.engine.topology.Group(m.stage), m.engine.config.Replica, generation)
}

// abandon ends a session that never ran.
func (s *session) abandon() {
	s.cancel()
	if err := s.handler.Cleanup(groupSession{s}); err != nil {
		s.engine.log.Debug("goka cleans up", "stage", s.member.stage.Name, "error", err)
	}
	s.member.items.purge()
	s.engine.leave(s.producer)
}

// recover brings the tasks to their last committed barrier and returns where
// their input goes on.
func (s *session) recover(ctx context.Context) (map[event.Partition]event.Offset, error) {
	e := s.engine
	adm := kadm.NewClient(e.client)
	if _, _, err := s.producer.ProducerID(ctx); err != nil {
		return nil, fmt.Errorf("begin as %s: %w", s.transactionalID, err)
	}
	e.config.At("recovery.fenced")
	committed, err := s.stableOffsets(ctx, adm)
	if err != nil {
		return nil, err
	}
	e.config.At("recovery.offsets")
	r := &recovery{session: s, adm: adm, committed: committed, begun: map[event.Partition]bool{}}
	if r.log, err = e.changelogOf(ctx, adm, s.member.stage); err != nil {
		return nil, err
	}
	s.changelog = r.log
	for _, p := range s.claims[s.member.stage.Input] {
		id := processors.TaskID{Stage: s.member.stage.Name, Partition: event.Partition(p)}
		st, err := e.stores.prepare(id, r.log)
		if err != nil {
			return nil, err
		}
		t := &task{session: s, id: id, store: st, view: state.NewView(st)}
		t.loop.name, t.loop.born = "task "+id.Stage+"/"+id.Partition.String(), e.monitor.born
		t.claim = &groupClaim{topic: s.member.stage.Input, task: t, messages: make(chan *sarama.ConsumerMessage, messageRoom)}
		s.tasks[id.Partition] = t
	}
	e.config.At("recovery.tables")
	if err := s.recoverTables(ctx); err != nil {
		return nil, err
	}
	e.config.At("recovery.recovered")
	if err := r.observe(ctx); err != nil {
		return nil, err
	}
	offsets := map[event.Partition]event.Offset{}
	for p, t := range s.tasks {
		if err := r.restore(t); err != nil {
			return nil, err
		}
		offsets[p] = t.start
	}
	e.config.At("recovery.adopt")
	return offsets, s.adopt(ctx, r)
}

// recoverTables lets goka recover the tables. goka keeps only the text of what
// went wrong, so the error itself is taken from where it was met.
func (s *session) recoverTables(ctx context.Context) error {
	err := s.handler.Setup(groupSession{s})
	met := s.member.takeRecoveryError()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && s.ctx.Err() != nil:
		return &errReset{s.ctx.Err()} // goka takes a cancellation for success
	case err == nil:
		return nil
	case met != nil && permanent(met):
		return fmt.Errorf("recover the state: %w", met)
	case met != nil:
		return &errReset{fmt.Errorf("recover the state: %w", met)}
	}
	return fmt.Errorf("recover the state: %w", err)
}

// endOldTransactions ends what the old owners, and this member's own last
// session, may have left open, and fences them. An unstable fetch shows whose
// ids stand in the metadata even while a transaction is open.
func (m *member) endOldTransactions(ctx context.Context, partitions []int32) error {
	m.give(len(partitions))
	unstable, err := kadm.NewClient(m.engine.client).FetchOffsets(ctx, m.engine.topology.Group(m.stage))
	if err != nil {
		return fmt.Errorf("fetch offsets: %w", err)
	}
	ids := m.openTransactions(ctx)
	m.mu.Lock()
	if m.lastID != "" {
		ids[m.lastID] = true
	}
	m.mu.Unlock()
	for _, p := range partitions {
		o, ok := unstable.Lookup(m.stage.Input, p)
		if !ok {
			continue
		}
		if meta, ok := decodeMetadata(o.Metadata); ok {
			ids[meta.ID] = true
		}
	}
	for id := range ids {
		if err := fence(ctx, m.engine.client, id); err != nil {
			return fmt.Errorf("end the transaction of %s: %w", id, err)
		}
	}
	m.engine.config.At("recovery.old_ended")
	return nil
}

// openTransactions lists the transactional ids of this stage's earlier
// generations that have a transaction open: an owner that died in its first
// transaction stands in no metadata yet. A broker that does not list them costs
// time only: its timeout ends what is open.
func (m *member) openTransactions(ctx context.Context) map[string]bool {
	ids := map[string]bool{}
	_, generation := m.client().GroupMetadata()
	listed, err := kadm.NewClient(m.engine.client).ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		m.engine.log.Debug("list open transactions", "stage", m.stage.Name, "error", err)
	}
	prefix := m.engine.topology.Group(m.stage) + "."
	for id := range listed {
		rest, ours := strings.CutPrefix(id, prefix)
		if !ours {
			continue
		}
		g, err := strconv.ParseInt(rest[strings.LastIndexByte(rest, '.')+1:], 10, 32)
		if err == nil && g < int64(generation) {
			ids[id] = true
		}
	}
	return ids
}

// fence calls InitProducerId on another's transactional id: it ends his open
// transaction and refuses him from then on.
func fence(ctx context.Context, client *kgo.Client, id string) error {
	wait := endingBackoff()
	for {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID = new(id)
		req.TransactionTimeoutMillis = int32(transactionTimeout.Milliseconds())
		resp, err := req.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		// CONCURRENT_TRANSACTIONS: the one that we end is still being ended.
		if errors.Is(err, kerr.ConcurrentTransactions) {
			wait.wait(ctx)
			if ctx.Err() == nil {
				continue
			}
		}
		return err
	}
}

// stableOffsets reads the committed offsets of the input when no transaction
// may still change them.
func (s *session) stableOffsets(ctx context.Context, adm *kadm.Client) (map[event.Partition]event.Offset, error) {
	wait := endingBackoff()
	for {
		resp, err := adm.FetchOffsets(kadm.RequireStable(ctx), s.engine.topology.Group(s.member.stage))
		if err == nil {
			err = resp.Error()
		}
		if errors.Is(err, kerr.UnstableOffsetCommit) && ctx.Err() == nil {
			wait.wait(ctx)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("fetch stable offsets: %w", err)
		}
		out := map[event.Partition]event.Offset{}
		for _, p := range s.claims[s.member.stage.Input] {
			if o, ok := resp.Lookup(s.member.stage.Input, p); ok && o.At >= 0 {
				out[event.Partition(p)] = event.Offset(o.At)
			}
		}
		return out, nil
	}
}

// epochTarget is how long an epoch should be at most under full load.
func (e *Engine) epochTarget() int64 {
	epoch := e.topology.Plan.Epoch
	if epoch.Clock == mapping.ClockLog {
		return 0
	}
	return max(5*epoch.Interval, time.Second).Microseconds()
}

// makeRunner makes what drives the task from where it stands; input is where
// its input begins and ends now.
func (t *task) makeRunner(progress state.Progress, input bounds) error {
	s, stage := t.session, t.session.member.stage
	partitions := s.engine.layout.tasks[stage.Name]
	logic, err := processors.NewTask(processors.TaskConfig{
		Stage: stage, Partition: t.id.Partition, Partitions: partitions, State: t.view, Progress: progress,
		EpochTarget: s.engine.epochTarget(), BudgetBytes: s.engine.config.Memory.Epoch(s.engine.layout.all()),
	})
	if err != nil {
		return err
	}
	upstream := int32(0)
	if !stage.Source() {
		upstream = s.engine.layout.tasks[stage.Upstream.Name]
	}
	t.runner = processors.NewRunner(processors.RunnerConfig{
		Task: logic, Stage: stage, Epoch: progress.Epoch, Offsets: []event.Offset{t.start}, Upstream: upstream,
		Log: s.engine.topology.Plan.Epoch.Clock == mapping.ClockLog, Started: wallClock(), LastStamp: progress.LastStamp,
		Announced: t.announced.Load, Repeats: s.engine.origin.repeats,
	})
	t.answered.Store(int64(logic.Answered()))
	t.firstSlab(input)
	return nil
}

// firstSlab tells the runner where the log ends now: a partition that is at
// its end delivers nothing that could say so.
func (t *task) firstSlab(input bounds) {
	end, bounded := t.session.engine.layout.ends[t.claim.topic][int32(t.id.Partition)]
	if !bounded {
		end = int64(input.stable)
	}
	if int64(t.start) >= end {
		t.runner.Push(&processors.Slab{Next: t.start, AtEnd: true}, t.session.clock())
	}
}

// adopt commits the recovered offsets and progress again, so that the metadata
// names this session, and acknowledges the tasks' last barrier. A task that
// begins writes its origin first.
func (s *session) adopt(ctx context.Context, r *recovery) error {
	epochs := map[event.Epoch][]*task{}
	newest := event.Epoch(0)
	for _, t := range s.tasks {
		epochs[t.barrier.epoch] = append(epochs[t.barrier.epoch], t)
		newest = max(newest, t.barrier.epoch)
	}
	c := s.newCommit(ctx)
	if err := c.begin(); err != nil {
		return err
	}
	if err := c.offsets(newest); err != nil {
		return c.abort(err)
	}
	s.engine.config.At("adopt.offsets")
	for n, tasks := range epochs {
		acks := make([]ackJSON, 0, len(tasks))
		for _, t := range tasks {
			t.barrier.progress.Member = s.transactionalID
			for _, change := range r.first(t) {
				c.produce(r.log.topic, t.id.Partition, change.Key, change.Value)
			}
			if err := c.progress(t, t.barrier.progress); err != nil {
				return c.abort(err)
			}
			acks = append(acks, ackOf(t.adoptedAck(), t.barrier.offsets))
		}
		if err := c.acknowledge(n, acks); err != nil {
			return c.abort(err)
		}
	}
	if err := c.end(); err != nil {
		return err
	}
	s.engine.config.At("adopt.ended")
	s.adopted.Store(true)
	for _, t := range s.tasks {
		progress, err := t.barrier.progress.EncodeAs(s.engine.format())
		if err != nil {
			return err
		}
		if err := t.store.Apply(&state.Batch{
			Changes:  append(r.first(t), state.Change{Key: []byte{state.KeyProgress}, Value: progress}),
			Position: c.positions[t.id.Partition], Mark: r.log.mark(r.log.asked),
		}); err != nil {
			return err
		}
		// The owner before may have died between this barrier and its checkpoint.
		if err := s.engine.saver.take(t); err != nil {
			return err
		}
		s.engine.hub.commit(t.id, t.barrier.epoch)
		if waiting := t.runner.Task().Waiting(); len(waiting) > 0 {
			s.engine.asks.ask(t, waiting, t.barrier.epoch, t.barrier.progress.Recorded)
		}
	}
	s.engine.config.At("adopt.applied")
	return nil
}

// adoptedAck acknowledges the barrier at which a task was taken over.
func (t *task) adoptedAck() processors.Ack {
	counters, err := processors.DecodeCounters(t.barrier.progress.Counters)
	if err != nil {
		t.session.engine.log.Warn("counters of the progress record", "error", err)
	}
	next := t.runner.NextRecord()
	t.told, t.toldEpoch = next, t.barrier.epoch
	return processors.Ack{
		Task: t.id, Epoch: t.barrier.epoch, Watermark: t.barrier.progress.Watermark, Next: next,
		AtEnd: next.Known && next.None, Waiting: len(t.runner.Task().Waiting()),
		Answered: min(t.answeredUpTo(), t.barrier.epoch), Counters: counters,
	}
}
