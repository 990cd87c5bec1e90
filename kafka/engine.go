package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/membudget"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
)

// Config is what an Engine is made from.
type Config struct {
	Topology *processors.Topology
	Kafka    mapping.Kafka
	// DataDir holds the local state of this replica's tasks.
	DataDir string
	// Replica names this process among those of the pipeline; it stands in
	// transactional ids. Two living replicas never share one; empty: a name
	// that nobody else has.
	Replica string
	// CheckpointDir is where savepoints are kept, the same directory for all
	// replicas; empty: this replica takes no part in savepoints.
	CheckpointDir string
	// StaticMembership makes the replica a static member of its groups by its
	// name: one that comes back within the session timeout, after a crash too,
	// finds its tasks again without a rebalance. Replica must be given, and the
	// same at every start.
	StaticMembership bool
	// UntilEnd ends the run when everything that the input topics held at the
	// start has been read, and every window has closed.
	UntilEnd bool
	// Reinstate lets the mapping take effect though it has been in force before
	// and was replaced. Without it such a file is taken for one that was forgotten.
	Reinstate bool
	// OpenOntology opens the ontology once the number of results partitions is known.
	OpenOntology func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error)
	// SessionTimeout of the consumer groups; 0: 10 s.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long a group waits for members that do not join
	// again, at most; 0: 15 s. A member gives up its tasks well within that.
	RebalanceTimeout time.Duration
	// Memory is what the engine divides among the block cache of its stores and
	// the queues and epochs of its tasks; 0: 2 GiB. The caller tells the runtime.
	Memory membudget.Bytes
	// CacheBytes bounds the block cache shared by the stores; 0: its share of Memory.
	CacheBytes int64
	// QueueBytes bounds the records that wait in front of a task; 0: its share
	// of Memory.
	QueueBytes int
	// PollRecords is the number of records that one poll gives at most, of an
	// input or of a changelog; 0: 20,000.
	PollRecords int
	// SinkRows is the number of rows that one results partition applies to the
	// ontology at once; a larger epoch is applied in chunks. 0: 5,000.
	SinkRows int
	Log      *slog.Logger
	// Observe, where set, is told of every announcement, acknowledgement and
	// applied epoch that this process sees, and of the work that it does. It
	// may be called from several goroutines, and must not block.
	Observe func(Observation)
	// At, where set, is called at the points of the protocol that Points names,
	// from many goroutines: tests crash there, or block to stall the goroutine.
	At func(point string)
	// Dial, where set, makes the connections to the brokers, instead of the TLS
	// settings; tests put faults of the network there.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Observation is one thing that the engine saw.
type Observation struct {
	Announced *processors.Announcement
	Acked     *processors.Ack
	// Applied is the progress of a results partition in the ontology.
	Applied   *ontology.Progress
	Partition event.Partition
	// What this process has done, and how long it took.
	Committed *Committed
	TookOver  *TookOver
	Batch     *Batch
}

// Committed is one transaction: an epoch of this process's tasks of a stage.
type Committed struct {
	Stage   string
	Epoch   event.Epoch
	Records int // written, markers and acknowledgement counted
	// Waited is how long the first task's hand-over waited for those of the
	// others and for the transaction before; Took is the transaction with the
	// write into the local stores.
	Waited, Took time.Duration
}

// TookOver is a take-over of tasks of a stage by this process.
type TookOver struct {
	Stage string
	Tasks int
	Took  time.Duration
	Err   error // nil: they run
}

// Batch is one transaction of the sink.
type Batch struct {
	Partitions, Rows int
	Took             time.Duration // retries counted
}

// Engine runs one pipeline in this process.
type Engine struct {
	config   Config
	topology *processors.Topology
	log      *slog.Logger

	client *kgo.Client // plain: metadata, offsets, notices
	// begun is the newest barrier that the log held when the engine started.
	begun event.Epoch
	// begunFormat is the record format of that barrier.
	begunFormat state.Format
	layout      layout
	store       ontology.Store
	stores      *stores
	saver       *saver
	hub         *hub
	asks        *readBacks
	// stopping: the replica stops as planned, and gives its tasks up for good.
	stopping atomic.Bool
	// origin says what a generation begins with that was restored from a
	// savepoint; its zero value is of the first one.
	origin origin
	// course is the mapping that the engine runs under, as the log has it;
	// switching is the barrier that ends it.
	course    course
	switching switching

	monitor *monitor
}

// New returns an engine; Run runs it.
func New(c Config) *Engine {
	if c.SessionTimeout == 0 {
		c.SessionTimeout = 10 * time.Second
	}
	if c.RebalanceTimeout == 0 {
		c.RebalanceTimeout = 15 * time.Second
	}
	if c.Memory == 0 {
		c.Memory = 2 << 30
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = c.Memory.Cache()
	}
	if c.PollRecords == 0 {
		c.PollRecords = pollRecords
	}
	if c.SinkRows == 0 {
		c.SinkRows = sinkRows
	}
	if c.Replica == "" {
		c.Replica = randomReplica()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Observe == nil {
		c.Observe = func(Observation) {}
	}
	if c.At == nil {
		c.At = func(string) {}
	}
	e := &Engine{config: c, topology: c.Topology, log: c.Log, hub: newHub(), course: course{topology: c.Topology}}
	e.monitor = newMonitor(e)
	return e
}

// shutdownPatience bounds how long a stopping engine waits for the epoch under way.
const shutdownPatience = 5 * time.Second

// Run runs the pipeline until ctx ends, until its input has ended (UntilEnd),
// or until an error. When ctx ends, the epoch under way is still committed.
// Run is called once. It ends with an error where another mapping takes effect:
// the function Run goes on there with another engine.
func (e *Engine) Run(ctx context.Context) error {
	defer e.monitor.enter("it has ended")
	e.monitor.enter("it is starting: it connects to Kafka")
	if err := e.connect(ctx); err != nil {
		return err
	}
	defer e.client.Close()
	e.monitor.enter("it is starting: it prepares its topics")
	if err := e.prepareTopics(ctx); err != nil {
		return err
	}
	log, err := e.checkMapping(ctx)
	if err != nil {
		return err
	}
	defer log.close()
	if err := e.findOrigin(ctx, log); err != nil {
		return err
	}
	e.monitor.enter("it is starting: it opens the ontology")
	store, err := e.config.OpenOntology(ctx, e.ontologyPipeline())
	if err != nil {
		return err
	}
	defer store.Close()
	e.store = store
	cache := pebble.NewCache(e.config.CacheBytes)
	defer cache.Unref()
	e.stores = newStores(e, cache)
	defer e.stores.close()
	if e.saver, err = newSaver(e); err != nil {
		return err
	}
	e.hub.remember(log.pending)

	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	e.asks = newReadBacks(e)
	var wg sync.WaitGroup
	errs := e.start(running, stop, log, &wg)
	select {
	case <-ctx.Done():
		e.stopping.Store(true)
		e.monitor.enter("it is stopping: the epoch under way is being committed")
		e.finishEpoch(running)
	case <-running.Done():
	}
	stop(errStopped)
	wg.Wait()
	close(errs)
	err = firstError(errs, context.Cause(running))
	if errors.Is(err, kerr.FencedInstanceID) {
		return &ReplacedError{Replica: e.config.Replica, Err: err}
	}
	return err
}

var (
	errStopped = errors.New("stopped")
	errEnded   = errors.New("the input has ended")
)

// start starts the parts; the first that fails stops the others.
func (e *Engine) start(ctx context.Context, stop context.CancelCauseFunc, log *controlLog, wg *sync.WaitGroup) chan error {
	members := make([]*member, 0, len(e.topology.Stages))
	for _, s := range e.topology.Stages {
		members = append(members, newMember(e, s))
	}
	e.monitor.watch(members)
	parts := map[string]func(context.Context) error{
		"monitor":     e.monitor.run,
		"control log": func(ctx context.Context) error { return e.followControl(ctx, log) },
		"coordinator": e.runCoordinator,
		"sink":        e.runSink,
		"read-back":   e.asks.run,
		"savepoints":  e.saver.run,
		"mapping":     e.changeMapping,
	}
	for _, m := range members {
		parts["stage "+m.stage.Name] = m.run
	}
	if e.config.UntilEnd {
		parts["end"] = e.awaitEnd
	}
	errs := make(chan error, len(parts))
	for name, run := range parts {
		wg.Go(func() {
			err := run(ctx)
			switch {
			case errors.Is(err, errEnded):
				e.stopping.Store(true)
				stop(errEnded)
			case errors.Is(err, errSwitch):
				stop(errSwitch)
			case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed)):
			case err == nil:
				errs <- fmt.Errorf("%s ended by itself", name)
				stop(errStopped)
			default:
				errs <- fmt.Errorf("%s: %w", name, err)
				stop(errStopped)
			}
		})
	}
	return errs
}

func firstError(errs chan error, cause error) error {
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if len(all) > 0 {
		return errors.Join(all...)
	}
	if errors.Is(cause, errStopped) || errors.Is(cause, errEnded) || errors.Is(cause, context.Canceled) {
		return nil
	}
	return cause
}

func (e *Engine) ontologyPipeline() ontology.Pipeline {
	p := ontology.Pipeline{
		Name: e.topology.Plan.Pipeline, Generation: e.topology.Generation, Continues: e.origin.from > 0, MappingVersion: e.topology.Plan.Version,
		Types: e.topology.Plan.Types, ResultsPartitions: e.layout.results, Upstream: map[string][]event.Partition{},
	}
	for _, s := range e.topology.Stages {
		for t := range e.layout.tasks[s.Name] {
			p.Upstream[s.Name] = append(p.Upstream[s.Name], event.Partition(t))
		}
	}
	return p
}

// finishEpoch waits until the tasks of this process have committed a barrier
// that was announced after the call, so that a planned stop repeats no work.
func (e *Engine) finishEpoch(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, shutdownPatience)
	defer cancel()
	if e.topology.Plan.Epoch.Clock == mapping.ClockLog {
		return // the next barrier may be a long way off; what is open is read again
	}
	if e.switching.begun() {
		return // this engine commits no barrier behind that
	}
	want := e.hub.newest().Epoch + 1
	e.hub.hurry()
	if err := e.hub.awaitCommitted(limited, want); err != nil {
		e.log.Info("stopped before the epoch under way was committed; its records are read again at the next start")
	}
}

// awaitEnd returns errEnded when the barrier that ends the input has been
// applied to the ontology by every results partition, and nothing that the
// input held at the start has been left unread. (A run that follows one which
// ended finds such a barrier in the log.)
func (e *Engine) awaitEnd(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		a := e.hub.newest()
		done := a.End && e.course.propose == nil && !e.switching.begun()
		if done {
			read, err := e.inputRead(ctx)
			if err != nil {
				return err
			}
			done = read
		}
		if done {
			progress, err := e.store.Progress(ctx)
			if err != nil {
				return err
			}
			for _, p := range progress {
				done = done && p.Epoch >= a.Epoch
			}
		}
		if done {
			return errEnded
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// inputRead reports whether the committed offsets have reached the ends that
// the input had at the start of the run.
func (e *Engine) inputRead(ctx context.Context) (bool, error) {
	adm := kadm.NewClient(e.client)
	for _, s := range e.topology.Stages {
		if !s.Source() {
			continue
		}
		offsets, err := adm.FetchOffsets(ctx, e.topology.Group(s))
		switch {
		case errors.Is(err, kerr.GroupIDNotFound):
			return false, nil // a stage that came with a change: nobody has joined yet
		case err != nil:
			return false, fmt.Errorf("fetch offsets: %w", err)
		}
		for p, end := range e.layout.ends[s.Input] {
			if o, ok := offsets.Lookup(s.Input, p); !ok || o.At < end {
				return false, nil
			}
		}
	}
	return true, nil
}

// checkMapping opens the control log and makes sure that the engine runs under
// the mapping that is in force.
func (e *Engine) checkMapping(ctx context.Context) (*controlLog, error) {
	log, err := e.openControlLog(ctx, false)
	if err != nil {
		return nil, err
	}
	if newest := newestBarrier(log.pending); newest != nil {
		e.begun, e.begunFormat = newest.Epoch, newest.Format
	}
	now, err := e.chooseCourse(ctx, log.pending)
	if err == nil && !e.course.leadsTo(&now) {
		err = errSwitch // found before, and out of date already
	}
	now.topology, e.course = e.topology, now
	if err != nil {
		log.close()
		return nil, err
	}
	return log, nil
}

// followControl passes announcements to the sessions of this process.
func (e *Engine) followControl(ctx context.Context, log *controlLog) error {
	loop := e.monitor.loop("control log")
	for {
		loop.rest()
		recs, err := log.read(ctx)
		if err != nil {
			return err
		}
		loop.turn()
		for i := range recs {
			r := &recs[i]
			switch r.Kind {
			case kindEnded:
				return e.ended(r)
			case kindBarrier:
				if err := e.heard(r); err != nil {
					return err
				}
				a := r.announcement()
				e.monitor.announced(&a, r)
				e.config.Observe(Observation{Announced: &a})
				e.hub.announce(a)
			case kindAck:
				for j := range r.Tasks {
					ack := r.Tasks[j].ack(r)
					e.monitor.acked(&r.Tasks[j], r)
					e.config.Observe(Observation{Acked: &ack})
				}
			}
		}
	}
}

// hub knows the newest announcement and who in this process wants to hear of
// it, and how far the tasks of this process have committed.
type hub struct {
	mu        sync.Mutex // guards all below
	last      processors.Announcement
	carrying  processors.Announcement // the newest one that carries a savepoint
	listeners map[*session]bool
	committed map[processors.TaskID]event.Epoch
	changed   chan struct{} // closed and replaced when something above changes
	hurried   chan struct{} // closed when the engine wants the next barrier at once
	once      sync.Once
}

func newHub() *hub {
	return &hub{
		last:      processors.Announcement{Recorded: event.RecordedUnknown},
		listeners: map[*session]bool{}, committed: map[processors.TaskID]event.Epoch{},
		changed: make(chan struct{}), hurried: make(chan struct{}),
	}
}

func (h *hub) newest() processors.Announcement {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

func (h *hub) hurry() { h.once.Do(func() { close(h.hurried) }) }

func (h *hub) announce(a processors.Announcement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.Epoch <= h.last.Epoch {
		return
	}
	h.last = a
	if a.Savepoint != "" {
		h.carrying = a
	}
	for s := range h.listeners {
		s.announce(a)
	}
	h.wake()
}

// join makes a session hear of the newest announcement and of those to come.
func (h *hub) join(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[s] = true
	if h.last.Epoch > 0 {
		s.announce(h.last)
	}
}

func (h *hub) leave(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, s)
	for _, t := range s.tasks {
		delete(h.committed, t.id)
	}
}

func (h *hub) commit(t processors.TaskID, n event.Epoch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.committed[t] = n
	h.wake()
}

func (h *hub) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) awaitCommitted(ctx context.Context, n event.Epoch) error {
	for {
		h.mu.Lock()
		done := true
		for _, have := range h.committed {
			done = done && have >= n
		}
		changed := h.changed
		h.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// awaitHeard waits until barrier n, or a later one, has been heard of.
func (h *hub) awaitHeard(ctx context.Context, n event.Epoch) error {
	for {
		h.mu.Lock()
		last, changed := h.last.Epoch, h.changed
		h.mu.Unlock()
		if last >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// format is the record format in which this process writes now.
func (e *Engine) format() state.Format { return max(e.begunFormat, e.hub.newest().Format) }

func wallClock() event.RecordedTime { return event.RecordedTime(time.Now().UnixMicro()) }
