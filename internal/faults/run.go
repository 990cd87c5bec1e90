package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// Harness runs cases. Its zero value is not usable; Run may be called
// concurrently.
type Harness struct {
	// NewBroker gives a broker to a case, and what ends it.
	NewBroker func(ctx context.Context) (Broker, func(), error)
	// NewDatabase gives an empty database to a case, and what drops it.
	NewDatabase func(ctx context.Context) (url string, drop func(), err error)
	// Dir holds the replicas' directories.
	Dir string
	// Session is the session timeout of the replicas' groups; 0: one second.
	Session time.Duration
	// Lines is how many lines of the earthquakes' file are used, Readings how
	// many readings of meters; 0: all, and 2,400.
	Lines, Readings int
	// Patience bounds each wait; 0: 40 s.
	Patience time.Duration
	// Seed makes the records.
	Seed uint64
	// Debug makes replicas log everything.
	Debug bool

	cases atomic.Int64
}

func (h *Harness) lines() int {
	const all = 1_000_000
	if h.Lines == 0 {
		return all
	}
	return h.Lines
}

func (h *Harness) readings() int {
	if h.Readings == 0 {
		return 2400
	}
	return h.Readings
}

func (h *Harness) patience() time.Duration {
	if h.Patience == 0 {
		return 40 * time.Second
	}
	return h.Patience
}

func (h *Harness) session() time.Duration {
	if h.Session == 0 {
		return time.Second
	}
	return h.Session
}

// caseLife bounds a case.
const caseLife = 5 * time.Minute

// Run runs one case. An error says what does not hold.
func (h *Harness) Run(ctx context.Context, c Case) error {
	ctx, cancel := context.WithTimeout(ctx, caseLife)
	r := &run{harness: h, c: c}
	defer r.close()
	defer cancel() // before r.close: it ends what that waits for
	if err := r.prepare(ctx); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	if c.Fault != "" {
		return r.disturbed(ctx)
	}
	return r.crashed(ctx)
}

// run is one case under way.
type run struct {
	harness  *Harness
	c        Case
	broker   Broker
	workload *workload
	dir      string
	mapping  string // path
	postgres string
	facts    *facts
	topology *processors.Topology
	changed  string // path of the changed mapping, see changes.go
	horizon  *horizonWatch
	feed     *feed
	undo     []func()
	dirs     int

	mu       sync.Mutex // guards replicas
	replicas []*replica
}

func (r *run) prepare(ctx context.Context) error {
	h := r.harness
	suffix := fmt.Sprintf("c%d", h.cases.Add(1))
	var err error
	if r.workload, err = r.newWorkload(suffix); err != nil {
		return err
	}
	r.dir = filepath.Join(h.Dir, suffix)
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	r.undo = append(r.undo, func() { _ = os.RemoveAll(r.dir) })
	r.mapping = filepath.Join(r.dir, "mapping.yaml")
	if err := os.WriteFile(r.mapping, []byte(r.workload.mapping), 0o600); err != nil {
		return err
	}
	plan, err := mapping.Parse(r.mapping, []byte(r.workload.mapping), os.LookupEnv)
	if err != nil {
		return err
	}
	r.topology = processors.NewTopology(plan, generation)
	if err := r.writeChanged(); err != nil {
		return err
	}
	broker, stop, err := h.NewBroker(ctx)
	if err != nil {
		return err
	}
	r.broker, r.undo = broker, append(r.undo, stop)
	if b, ok := broker.(*remote); ok {
		r.undo = append(r.undo, func() {
			// Nothing depends on it: names are never used again.
			_ = b.remove(context.WithoutCancel(ctx), plan.Pipeline, r.workload.topics)
		})
	}
	for topic, n := range r.workload.topics {
		if err := broker.CreateTopic(ctx, topic, n); err != nil {
			return err
		}
	}
	url, drop, err := h.NewDatabase(ctx)
	if err != nil {
		return err
	}
	r.postgres, r.undo = url, append(r.undo, drop)
	if r.facts, err = newFacts(plan, broker.Brokers(), url); err != nil {
		return err
	}
	r.undo = append(r.undo, r.facts.close)
	r.horizon = watchHorizon(ctx, url)
	r.undo = append(r.undo, func() { r.horizon.end() })
	return nil
}

func (r *run) newWorkload(suffix string) (*workload, error) {
	if r.c.Workload == workloadQuakes {
		return quakes(suffix, r.harness.lines())
	}
	return meters(suffix, r.harness.Seed, r.harness.readings()), nil
}

// close ends everything that is still there.
func (r *run) close() {
	for _, p := range r.replicas {
		p.end()
	}
	if r.feed != nil {
		_ = r.feed.finish() // its context has ended
	}
	for _, undo := range slices.Backward(r.undo) {
		undo()
	}
}

// emptyDir gives a directory for a replica's state.
func (r *run) emptyDir() string {
	r.dirs++
	return filepath.Join(r.dir, fmt.Sprintf("state%d", r.dirs))
}

// start starts a replica with what all of the case's have in common.
func (r *run) start(ctx context.Context, s childSpec) (*replica, error) {
	if r.c.saves() {
		s.Savepoints = r.savepoints()
	}
	s.Mapping, s.Brokers, s.Postgres = r.mapping, r.broker.Brokers(), r.postgres
	if r.c.changes() && len(r.replicas) > 0 {
		s.Mapping = r.changed // the first one has the old file
	}
	s.Session, s.Debug = r.harness.session(), r.harness.Debug
	p, err := startReplica(ctx, s)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.replicas = append(r.replicas, p)
	}
	return p, err
}

func (r *run) startFeed(ctx context.Context) {
	r.feed = startFeed(ctx, r.broker, r.workload, r.newestEpoch)
}

// newestEpoch is the newest that any replica has heard of.
func (r *run) newestEpoch() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(0)
	for _, p := range r.replicas {
		n = max(n, p.newest())
	}
	return n
}

// crashed runs a case of the first table.
func (r *run) crashed(ctx context.Context) error {
	victim, beside, err := r.reach(ctx)
	if err != nil {
		return err
	}
	if err := r.awaitReached(ctx, victim); err != nil {
		return err
	}
	before, err := r.atCrash(ctx)
	if err != nil {
		return fmt.Errorf("after the crash: %w", err)
	}
	if err := r.feed.finish(); err != nil {
		return err
	}
	if err := r.goOn(ctx, victim, beside); err != nil {
		return fmt.Errorf("going on: %w; %w", err, r.standing(ctx))
	}
	return r.check(ctx, before)
}

// awaitReached waits until the victim has reached its point, and makes sure
// that it died there where it should.
func (r *run) awaitReached(ctx context.Context, victim *replica) error {
	what := fmt.Sprintf("the point %s is reached for the %d. time", r.c.Point, r.c.N)
	if r.c.Way == Woken {
		return victim.await(ctx, what, r.harness.patience(), func() bool { return victim.reached != "" })
	}
	if err := victim.await(ctx, what, r.harness.patience(), func() bool { return victim.ended }); err != nil {
		return err
	}
	if err := victim.died(); err != nil {
		return err
	}
	r.buryLater(ctx, victim)
	return nil
}

// shared is the number of stages whose tasks two replicas can share.
func (r *run) shared() int {
	n := 0
	for _, s := range r.topology.Stages {
		partitions := r.workload.topics[s.Input]
		if partitions == 0 { // as many as the stage before has
			partitions = r.workload.topics[s.Upstream.Input]
		}
		if partitions > 1 {
			n++
		}
	}
	return n
}

// Names of replicas.
const (
	nameVictim = "victim"
	namePeer   = "peer"
	nameNext   = "next"
	nameLast   = "last"
)

// reach starts what it takes for the victim to reach its point, and gives it
// with the replica that lives beside it, if any.
func (r *run) reach(ctx context.Context) (victim, beside *replica, err error) {
	s := childSpec{
		Replica: nameVictim, DataDir: r.emptyDir(), Static: r.c.Static,
		Crash: Trigger{Point: r.c.Point, N: r.c.N}, Freeze: r.c.Way == Woken, Hold: r.c.spec.hold,
	}
	switch r.c.spec.scenario {
	case running:
		if !r.c.beside() {
			s.Armed = true
			r.startFeed(ctx)
			victim, err = r.start(ctx, s)
			return victim, nil, err
		}
		return r.together(ctx, s)
	case sharing:
		return r.together(ctx, s)
	case takingOver:
		return r.takeOver(ctx, s)
	case leading:
		if r.c.beside() {
			return r.lead(ctx, s)
		}
		return r.takeOver(ctx, s)
	default:
		return r.giveUp(ctx, s)
	}
}

// together starts the victim and a peer, and lets events flow when they share
// the tasks.
func (r *run) together(ctx context.Context, s childSpec) (victim, peer *replica, err error) {
	if victim, err = r.start(ctx, s); err != nil {
		return nil, nil, err
	}
	if err := r.awaitAdopted(ctx, victim, len(r.topology.Stages)); err != nil {
		return nil, nil, err
	}
	if peer, err = r.start(ctx, childSpec{Replica: namePeer, DataDir: r.emptyDir()}); err != nil {
		return nil, nil, err
	}
	if err := r.awaitAdopted(ctx, peer, r.shared()); err != nil {
		return nil, nil, err
	}
	if err := victim.arm(); err != nil {
		return nil, nil, err
	}
	r.startFeed(ctx)
	return victim, peer, nil
}

func (r *run) awaitAdopted(ctx context.Context, p *replica, stages int) error {
	return p.await(ctx, fmt.Sprintf("%s has taken over %d stages", p.spec.Replica, stages), r.harness.patience(),
		func() bool { return p.adopted >= stages })
}

// preludeEpochs is how many barriers have passed before somebody takes over.
const preludeEpochs = 30

// takeOver lets a replica run, and the victim take over from it.
func (r *run) takeOver(ctx context.Context, s childSpec) (victim, peer *replica, err error) {
	first := childSpec{Replica: namePeer, DataDir: r.emptyDir()}
	if r.c.Way == SameReplica {
		first.Replica, first.DataDir, first.Static = s.Replica, s.DataDir, s.Static
	}
	shares := r.c.beside()
	if !shares {
		// It dies where its store is behind Kafka.
		first.Crash, first.Armed = Trigger{Point: "commit.ended", N: 2 * preludeEpochs}, true
	}
	r.startFeed(ctx)
	if peer, err = r.start(ctx, first); err != nil {
		return nil, nil, err
	}
	if shares {
		if err := peer.await(ctx, "some epochs have passed", r.harness.patience(), func() bool { return peer.epoch >= preludeEpochs }); err != nil {
			return nil, nil, err
		}
	} else {
		if err := peer.awaitEnd(ctx, r.harness.patience()); err != nil {
			return nil, nil, err
		}
		if err := peer.died(); err != nil {
			return nil, nil, err
		}
		r.buryLater(ctx, peer)
		peer = nil
	}
	s.Armed = true
	if r.c.spec.emptyDir {
		s.DataDir = r.emptyDir()
	}
	victim, err = r.start(ctx, s)
	return victim, peer, err
}

// lead lets the victim become the coordinator, and a peer join when it has
// reached its point.
func (r *run) lead(ctx context.Context, s childSpec) (victim, peer *replica, err error) {
	s.Armed = true
	r.startFeed(ctx)
	if victim, err = r.start(ctx, s); err != nil {
		return nil, nil, err
	}
	what := "the victim reaches " + r.c.Point
	if err := victim.await(ctx, what, r.harness.patience(), func() bool { return victim.reached != "" || victim.ended }); err != nil {
		return nil, nil, err
	}
	peer, err = r.start(ctx, childSpec{Replica: namePeer, DataDir: r.emptyDir()})
	return victim, peer, err
}

// giveUp lets the victim run, and a peer join it.
func (r *run) giveUp(ctx context.Context, s childSpec) (victim, peer *replica, err error) {
	s.Armed = true
	r.startFeed(ctx)
	if victim, err = r.start(ctx, s); err != nil {
		return nil, nil, err
	}
	what, holds := "some epochs have passed", func() bool { return victim.epoch >= preludeEpochs/2 }
	if s.Hold.Point != "" {
		what, holds = "the victim waits at "+s.Hold.Point, func() bool { return victim.holding != "" }
	}
	if err := victim.await(ctx, what, r.harness.patience(), holds); err != nil {
		return nil, nil, err
	}
	peer, err = r.start(ctx, childSpec{Replica: namePeer, DataDir: r.emptyDir()})
	return victim, peer, err
}

// buryLater takes a dead replica's members out of the groups of a broker that
// does not do so by itself, when their sessions should have ended, and looks
// again as long as the case lasts: one may come out of a rebalance only then.
func (r *run) buryLater(ctx context.Context, p *replica) {
	b, ok := r.broker.(*Embedded)
	if !ok || p.spec.Static {
		return
	}
	client := kafka.ClientID(p.spec.Replica)
	dead, _ := b.members(ctx, client) // only of use where the case goes on; then it has them
	nextHasItsName := r.c.Way == SameReplica
	buried := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	r.undo = append(r.undo, func() { stop(); <-buried })
	go func() {
		defer close(buried)
		tick := time.NewTicker(r.harness.session() * 3 / 2)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !nextHasItsName {
				dead, _ = b.members(ctx, client)
			}
			_ = b.bury(ctx, dead)
		}
	}()
}

// goOn lets the case's way on take place, and reads the input to its end.
func (r *run) goOn(ctx context.Context, victim, beside *replica) error {
	// With nobody beside them those who go on end by themselves.
	alone := beside == nil
	var next []*replica
	add := func(s childSpec) error {
		s.UntilEnd = alone
		p, err := r.start(ctx, s)
		next = append(next, p)
		return err
	}
	var err error
	switch r.c.Way {
	case SameReplica:
		err = add(childSpec{Replica: victim.spec.Replica, DataDir: victim.spec.DataDir, Static: victim.spec.Static})
	case OtherReplica:
		err = add(childSpec{Replica: nameNext, DataDir: r.emptyDir()})
	case TwoReplicas:
		err = errors.Join(
			add(childSpec{Replica: nameNext, DataDir: r.emptyDir()}),
			add(childSpec{Replica: nameLast, DataDir: r.emptyDir()}))
	case Woken:
		next, err = []*replica{victim}, r.outlive(ctx, beside, victim)
	case OneOfTwo:
	}
	if err != nil {
		return err
	}
	if alone {
		for _, p := range next {
			if err := p.awaitEnd(ctx, r.harness.patience()); err != nil {
				return err
			}
			if err := p.succeeded(); err != nil {
				return err
			}
		}
		return nil
	}
	return r.drain(ctx, append(next, beside))
}

// outliveEpochs is how many barriers pass while a replica sleeps.
const outliveEpochs = 5

// outlive waits until a replica has gone on without the one that sleeps, and
// wakes that.
func (r *run) outlive(ctx context.Context, p, asleep *replica) error {
	was := r.newestEpoch()
	if err := p.await(ctx, "the pipeline goes on", r.harness.patience(), func() bool { return p.epoch >= was+outliveEpochs }); err != nil {
		return err
	}
	return asleep.wake()
}

// drain waits until replicas that do not end by themselves have read
// everything, stops them, and has another one close every window.
func (r *run) drain(ctx context.Context, live []*replica) error {
	for _, p := range live {
		if err := p.await(ctx, p.spec.Replica+" has heard of an epoch", r.harness.patience(), func() bool { return p.epoch > 0 }); err != nil {
			return err
		}
	}
	err := poll(ctx, "all input is read", r.harness.patience(), func() (bool, error) { return r.facts.drained(ctx) })
	for _, p := range live {
		if err != nil {
			err = fmt.Errorf("%w; %w", err, p.story())
		}
	}
	if err != nil {
		return err
	}
	for _, p := range live {
		if err := p.stop(ctx, r.harness.patience()); err != nil {
			return err
		}
	}
	p, err := r.start(ctx, childSpec{Replica: "finisher", DataDir: r.emptyDir(), UntilEnd: true})
	if err != nil {
		return err
	}
	if err := p.awaitEnd(ctx, r.harness.patience()); err != nil {
		return err
	}
	return p.succeeded()
}
