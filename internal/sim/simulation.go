package sim

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// Options say how to run a seed.
type Options struct {
	Seed uint64
	// Bug is planted; NoBug for none.
	Bug Bug
	// Provoke draws what a bug needs, without planting it.
	Provoke Bug
	// Trace, where set, takes every line of what happens.
	Trace io.Writer
}

// Result is how a run went.
type Result struct {
	Seed uint64
	// Hash is that of the whole trace: two runs of one seed have the same.
	Hash    uint64
	Steps   int
	Epochs  event.Epoch
	Records int64
	// Setup is what the seed has drawn, in a line.
	Setup string
	// Met counts what the run has met, by its name: faults, named points of the
	// protocol, and what came of them.
	Met map[string]int
	// Failure is nil for a run that held every invariant.
	Failure *Failure
}

// Failure is the first invariant that did not hold.
type Failure struct {
	Invariant Invariant
	Detail    string
	At        span
	// Tail is the last of the trace, a line each.
	Tail []string
}

// Run runs a seed. It is safe to call concurrently.
func Run(o Options) Result {
	setup := draw(o.Seed)
	max(o.Bug, o.Provoke).provoke(&setup)
	s := newSimulation(setup, o)
	defer s.close()
	s.run()
	if s.world.failure == nil && setup.logClock && setup.complete {
		s.compareWithCalm(o)
	}
	out := Result{
		Seed: o.Seed, Hash: s.world.trace.sum.Sum64(), Steps: s.world.steps, Setup: setup.String(), Met: s.world.met,
		Failure: s.world.failure, Epochs: event.Epoch(len(s.checks.announced)), Records: s.produced,
	}
	if out.Failure != nil {
		out.Failure.Tail = s.world.trace.tail()
	}
	return out
}

// simulation is one pipeline with everything around it.
type simulation struct {
	setup    setup
	bug      Bug
	world    *world
	broker   *broker.Cluster
	database database
	topology *processors.Topology
	replicas []*replica
	cache    *pebble.Cache
	checks   *checks
	faults   *faults
	// untilEnd: processes that start now run until the end of their input.
	untilEnd bool
	produced int64
	input    *input
}

func newSimulation(setup setup, o Options) *simulation {
	s := &simulation{setup: setup, bug: o.Bug, world: newWorld(o.Seed, o.Trace), cache: pebble.NewCache(1 << 20)}
	w := s.world
	w.net = setup.net
	s.checks = newChecks(s)
	s.faults = newFaults(s)
	s.topology = processors.NewTopology(setup.plan, 1)
	s.broker = broker.New(broker.Hooks{
		Now:     func() int64 { return int64(w.now) },
		Later:   func(what string, do func()) { w.after(w.delay(), what, do) },
		Decided: s.checks.decided, RaiseEpochs: setup.raiseEpochs,
		Shuffle: func(n int, swap func(i, j int)) bool {
			if !w.chance(1, 3) {
				return false
			}
			w.rng.Shuffle(n, swap)
			return true
		},
	})
	s.createTopics()
	s.database.store = ontology.NewMemory(s.pipeline())
	for i := range setup.replicas {
		s.replicas = append(s.replicas, &replica{sim: s, name: fmt.Sprintf("r%d", i), disk: newDisk(s.cache)})
	}
	s.input = newInput(s)
	return s
}

// close ends everything that still runs.
func (s *simulation) close() {
	for _, r := range s.replicas {
		r.end()
		_ = r.disk.close() // of a run that is over
	}
	s.input.close()
	s.cache.Unref()
}

func (s *simulation) logClock() bool { return s.setup.plan.Epoch.Clock == mapping.ClockLog }

func (s *simulation) createTopics() {
	t := s.topology
	widest := int32(1)
	for _, g := range t.Stages {
		n := s.setup.partitions[g.Stream.Name]
		widest = max(widest, n)
		s.broker.CreateTopic(g.Input, n)
		s.broker.CreateTopic(t.Changelog(g), n)
		s.broker.CreateGroup(t.Group(g), g.Input)
	}
	s.broker.CreateTopic(t.ControlTopic(), 1)
	s.broker.CreateTopic(t.DeadLetterTopic(), 1)
	s.broker.CreateTopic(t.ResultsTopic(), widest)
	s.broker.CreateGroup(t.CoordinatorGroup(), t.ControlTopic())
	s.broker.CreateGroup(t.SinkGroup(), t.ResultsTopic())
}

func (s *simulation) control() *broker.Partition {
	return s.broker.Topic(s.topology.ControlTopic())[0]
}

func (s *simulation) pipeline() ontology.Pipeline {
	p := ontology.Pipeline{
		Name: s.topology.Plan.Pipeline, Generation: s.topology.Generation, MappingVersion: s.topology.Plan.Version,
		Types: s.topology.Plan.Types, ResultsPartitions: int32(len(s.broker.Topic(s.topology.ResultsTopic()))),
		Upstream: map[string][]event.Partition{},
	}
	for _, g := range s.topology.Stages {
		p.Upstream[g.Name] = s.partitions(g)
	}
	return p
}

func (s *simulation) partitions(g *processors.Stage) []event.Partition {
	out := make([]event.Partition, len(s.broker.Topic(g.Input)))
	for i := range out {
		out[i] = event.Partition(i)
	}
	return out
}

func (s *simulation) upstream(g *processors.Stage) int32 {
	if g.Source() {
		return 0
	}
	return int32(len(s.partitions(g.Upstream)))
}

func (s *simulation) taskCounts() map[string]int32 {
	out := map[string]int32{}
	for _, g := range s.topology.Stages {
		out[g.Name] = int32(len(s.partitions(g)))
	}
	return out
}

// apply is a transaction of the database.
func (s *simulation) apply(chunks []ontology.Chunk) error {
	err := s.database.apply(chunks, s.bug == NoCompareAndSet)
	if err == nil {
		s.checks.applied()
	}
	return err
}

// The bounds of liveness: how much may happen, and how long it may take, after
// the last fault until a run has caught up, or has ended.
const (
	patience      = 12 * minute
	patienceSteps = 400_000
)

// run is the life of the pipeline: input comes and things go wrong; then
// nothing goes wrong any more, and all must be caught up with. In the end a run
// until the end closes every window.
func (s *simulation) run() {
	w := s.world
	s.untilEnd = s.setup.complete
	s.tick()
	if s.setup.complete {
		s.input.start()
		s.drive("the input is written", s.input.done)
	} else {
		w.after(0, "", s.input.start)
	}
	w.rough = !s.setup.calm
	s.startReplicas()
	s.faults.begin()
	s.driveFor(s.setup.faulty)
	s.faults.stop()
	if !s.setup.complete {
		s.drive("the input is written", s.input.done)
		s.drive("everything is caught up with", s.caughtUp)
		s.stopReplicas()
		s.untilEnd = true
		s.startReplicas()
		if s.setup.rougherEnd && w.failure == nil {
			s.faults.begin()
			s.driveFor(s.setup.faulty / 2)
			s.faults.stop()
		}
	}
	s.drive("the run ends", s.finished)
	if w.failure == nil {
		s.checks.final()
	}
}

func (s *simulation) startReplicas() {
	for _, r := range s.replicas {
		s.world.after(s.world.upTo(2*second), "", r.startIfNotFinished)
	}
}

func (s *simulation) stopReplicas() {
	s.drive("all processes run", func() bool {
		return !slices.ContainsFunc(s.replicas, func(r *replica) bool { return !r.up || r.engine.stopRequested })
	})
	for _, r := range s.replicas {
		if r.up {
			r.engine.stopRequested = true
		}
	}
	s.drive("the processes stop", func() bool {
		return !slices.ContainsFunc(s.replicas, func(r *replica) bool { return r.up })
	})
}

// driveFor lets things happen for so long.
func (s *simulation) driveFor(d span) {
	w := s.world
	until := w.now + d
	for going := true; going && w.events[0].at <= until; {
		going = w.step()
	}
}

// drive lets things happen until something holds.
func (s *simulation) drive(what string, until func() bool) {
	w := s.world
	deadline, steps := w.now+patience, w.steps+patienceSteps
	for !until() {
		if w.failure != nil {
			return
		}
		w.step()
		if w.now > deadline || w.steps > steps {
			w.fail(Liveness, "%s is not so after %s and %d steps without a fault: %s", what, patience, patienceSteps, s.standing())
		}
	}
}

// tick is what the cluster does by itself now and then.
func (s *simulation) tick() {
	s.broker.Expire()
	s.world.after(200*millisecond, "", s.tick)
}

// caughtUp reports whether all input has been committed and applied, and
// nothing waits.
func (s *simulation) caughtUp() bool {
	for _, g := range s.topology.Stages {
		for n, part := range s.broker.Topic(g.Input) {
			o, ok := s.broker.Group(s.topology.Group(g)).Committed(event.Partition(n))
			if part.Stable() != part.High() || (!ok && part.High() > 0) || (ok && g.Source() && o.Offset < lastData(part)) {
				return false
			}
		}
	}
	if s.logClock() {
		// The last step stays open until a later record comes.
		return true
	}
	return s.checks.nothingWaits()
}

// lastData is the offset behind the last record of a partition that is data.
func lastData(part *broker.Partition) event.Offset {
	all := part.All()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Committed() {
			return all[i].Offset + 1
		}
	}
	return 0
}

func (s *simulation) finished() bool {
	for _, r := range s.replicas {
		if !r.finished {
			return false
		}
	}
	return true
}

// standing says where everything stands, for a run that does not come to its end.
func (s *simulation) standing() string {
	var out strings.Builder
	fmt.Fprintf(&out, "announced %d, applied %s", len(s.checks.announced), s.checks.horizon)
	for _, t := range s.checks.order {
		h := s.checks.tasks[t]
		fmt.Fprintf(&out, "; %v committed %s, waiting %d", t, h.epoch, h.ack.Waiting)
	}
	return out.String()
}
