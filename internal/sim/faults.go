package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
)

// faults makes things go wrong, at random moments and at named points.
type faults struct {
	sim *simulation
	on  bool
	// left bounds how often processes die in one run.
	left int
}

func newFaults(s *simulation) *faults {
	f := &faults{sim: s}
	s.world.at = f.at
	return f
}

// begin lets things go wrong from now on.
func (f *faults) begin() {
	if f.sim.setup.calm {
		return
	}
	f.on, f.left = true, f.sim.setup.kills
	f.sim.world.rough = true
	f.soon()
	f.housekeeping()
}

func (f *faults) soon() {
	w := f.sim.world
	w.after(w.upTo(2*f.sim.setup.every), "", func() {
		if f.on {
			f.one()
			f.soon()
		}
	})
}

// stop mends everything: nothing goes wrong any more.
func (f *faults) stop() {
	s := f.sim
	f.on = false
	s.world.rough = false
	s.database.away = false
	for _, r := range s.replicas {
		r.cut = false
		r.resume()
		if !r.up {
			r.startIfNotFinished()
		}
	}
	s.world.tracef("nothing goes wrong any more")
}

// at makes something of a named point, now and then.
func (f *faults) at(p *process, point string) {
	s := f.sim
	if !f.on || p.host == nil {
		return
	}
	r := p.host
	alone := !slices.ContainsFunc(s.replicas, func(x *replica) bool { return x.paused || x.cut })
	if point == s.setup.focus && alone && s.world.chance(1, max(1, s.setup.focusOneIn)) {
		d := 8*second + s.world.upTo(25*second)
		if s.world.chance(1, 2) {
			f.cut(r, d)
			return
		}
		f.sim.world.meet("pause at " + point)
		s.world.after(0, "", func() { r.pause(d) })
		return
	}
	if s.setup.fenceEnds && point == "commit.flushed" && s.world.chance(1, 3) {
		f.fenceSoon(p)
	}
	if !s.world.chance(s.setup.atPoints, 1000) {
		return
	}
	if s.world.chance(1, 2) && f.left > 0 {
		s.world.after(0, "", func() { f.crash(r, "at "+point) })
		return
	}
	f.sim.world.meet("pause at a point")
	d := s.world.upTo(30 * second)
	s.world.after(0, "", func() { r.pause(d) })
}

// crash crashes a machine, which is started again after a while.
func (f *faults) crash(r *replica, why string) {
	w := f.sim.world
	if !r.up || f.left == 0 {
		return
	}
	f.left--
	f.sim.world.meet("crash")
	r.crash(why)
	if w.chance(1, 5) {
		f.sim.world.meet("disk lost")
		w.tracef("%s has lost its disk", r.name)
		r.disk.wipe()
	}
	f.later(r)
}

// later starts a machine again, soon or after its session has run out.
func (f *faults) later(r *replica) {
	w := f.sim.world
	d := w.shortOr(25 * second)
	life := r.life
	w.after(d, "", func() {
		if r.life == life && !r.up {
			r.startIfNotFinished()
		}
	})
}

// one makes one thing go wrong.
func (f *faults) one() {
	s := f.sim
	w := s.world
	r := s.replicas[w.rng.IntN(len(s.replicas))]
	kinds := s.setup.kinds
	switch kinds[w.rng.IntN(len(kinds))] {
	case faultCrash:
		f.crash(r, "at a random moment")
	case faultPause:
		f.sim.world.meet("pause")
		r.pause(w.shortOr(30 * second))
	case faultCut:
		f.cut(r, w.shortOr(20*second))
	case faultStop:
		if r.up && r.engine != nil {
			f.sim.world.meet("planned stop")
			w.tracef("%s is told to stop", r.name)
			r.engine.stopRequested = true
			f.startAgain(r)
		}
	case faultDatabase:
		f.sim.world.meet("database away")
		s.database.away = true
		w.tracef("the database is away")
		w.after(w.shortOr(15*second), "", func() { s.database.away = false })
	case faultFence, faultKinds:
		f.fence()
	case faultClock:
		f.sim.world.meet("clock step")
		r.skew = w.upTo(2*s.setup.skew) - s.setup.skew
		w.tracef("the clock of %s is off by %s", r.name, r.skew)
	}
}

// cut cuts a machine off the network for a while.
func (f *faults) cut(r *replica, d span) {
	f.sim.world.meet("network cut")
	r.cut = true
	f.sim.world.tracef("%s is cut off for %s", r.name, d)
	f.sim.world.after(d, "", func() { r.cut = false })
}

// fence is a taker that has been stalled for long: it calls InitProducerId on
// the id of an owner that is not the old one any more.
func (f *faults) fence() {
	s := f.sim
	r := s.replicas[s.world.rng.IntN(len(s.replicas))]
	g := s.topology.Stages[s.world.rng.IntN(len(s.topology.Stages))]
	group := s.broker.Group(s.topology.Group(g))
	id := transactionalID(group.Name, r.name, group.Generation())
	if s.setup.noFencing || !s.broker.Known(id) {
		return
	}
	f.sim.world.meet("fenced by a stale taker")
	_, err := s.broker.InitProducer(id, int64(transactionTimeout))
	s.world.tracef("a stale taker fences %s: %s", id, errText(err))
}

// fenceSoon lets a stale taker fence the owner while it ends a transaction.
func (f *faults) fenceSoon(p *process) {
	s := f.sim
	stage := s.topology.Stage(strings.Fields(p.name)[1])
	if stage == nil {
		return
	}
	group := s.broker.Group(s.topology.Group(stage))
	id := transactionalID(group.Name, p.host.name, group.Generation())
	s.world.after(s.world.upTo(3*second), "", func() {
		f.sim.world.meet("fenced by a stale taker")
		_, err := s.broker.InitProducer(id, int64(transactionTimeout))
		s.world.tracef("a stale taker fences %s: %s", id, errText(err))
	})
}

// startAgain starts a machine once it has stopped.
func (f *faults) startAgain(r *replica) {
	w, life := f.sim.world, r.life
	w.after(second, "", func() {
		switch {
		case r.life != life:
		case r.up:
			f.startAgain(r)
		case f.on:
			f.later(r)
		default:
			r.startIfNotFinished()
		}
	})
}

// housekeeping is what brokers and disks do now and then.
func (f *faults) housekeeping() {
	s := f.sim
	w := s.world
	w.after(w.upTo(4*second), "", func() {
		if !f.on {
			return
		}
		f.compact()
		f.trim()
		r := s.replicas[w.rng.IntN(len(s.replicas))]
		for _, t := range sortedTasks(r.disk.stores) {
			if w.chance(1, 2) {
				if err := r.disk.sync(t); err != nil {
					w.fail(Harness, "sync: %v", err)
				}
			}
		}
		f.housekeeping()
	})
}

// compact cleans the changelogs, all but what the active segment holds.
func (f *faults) compact() {
	s := f.sim
	for _, g := range s.topology.Stages {
		for _, part := range s.broker.Topic(s.topology.Changelog(g)) {
			if tail := event.Offset(1 + s.world.rng.IntN(30)); s.world.chance(1, 2) && part.High() > tail {
				n := part.Compact(part.High()-tail, int64(s.world.now), int64(s.setup.tombstones))
				s.world.tracef("compact %s/%s: %d gone", part.Topic, part.Number, n)
			}
		}
	}
}

// trim deletes what nobody needs any more: results that have been applied,
// rows and input that have been committed.
func (f *faults) trim() {
	s := f.sim
	if !s.setup.trims || !s.world.chance(1, 3) {
		return
	}
	f.sim.world.meet("trim")
	for n, part := range s.broker.Topic(s.topology.ResultsTopic()) {
		part.DeleteTo(s.checks.stored[event.Partition(n)].Offset)
	}
	for _, g := range s.topology.Stages {
		for n, part := range s.broker.Topic(g.Input) {
			if o, ok := s.broker.Group(s.topology.Group(g)).Committed(event.Partition(n)); ok {
				deleteSome(s.world, part, o.Offset)
			}
		}
	}
}

func deleteSome(w *world, part *broker.Partition, to event.Offset) {
	if to > part.Start() {
		part.DeleteTo(part.Start() + event.Offset(w.rng.Int64N(int64(to-part.Start())+1)))
	}
}

// fault is one kind of thing that can go wrong.
type fault uint8

const (
	faultCrash fault = iota
	faultPause
	faultCut
	faultStop
	faultDatabase
	faultClock
	faultFence
	faultKinds
)

var faultNames = [...]string{"crash", "pause", "cut", "stop", "database", "clock", "fence"}

// String names the fault.
func (f fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("fault(%d)", uint8(f))
}
