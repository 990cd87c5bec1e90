package sim

import (
	"fmt"

	"github.com/forge-platform/strom/event"
)

// replica is one machine of the pipeline: a disk, a clock, and at most one
// process of the engine.
type replica struct {
	sim  *simulation
	name string
	disk *disk
	// skew is how far the machine's clock is off.
	skew span
	// life counts the machine's processes.
	life     int
	up       bool
	finished bool // its run until the end has ended
	paused   bool // stopped for a while, as by a hypervisor
	cut      bool // from the network
	// held is what would have happened while the machine was paused.
	held      []func()
	processes []*process
	engine    *engine
}

// cutOff reports whether nothing arrives at the machine. The world's own
// processes, which have none, are never cut off.
func (r *replica) cutOff() bool { return r != nil && r.cut }

// severed reports whether a request of one of the machine's processes does not
// arrive: what a process had sent when it died may still be on its way.
func (r *replica) severed(life int) bool {
	if r == nil {
		return false
	}
	return r.cut || (life != r.life && r.sim.world.chance(1, 2))
}

// wall is the machine's clock.
func (r *replica) wall() event.RecordedTime {
	return event.RecordedTime(startOfTime + int64(r.sim.world.now+r.skew))
}

// startOfTime is when simulations begin: 2026-01-01T00:00:00Z.
const startOfTime = 1_767_225_600_000_000

// start starts a process of the engine.
func (r *replica) start() {
	if r.up {
		return
	}
	r.life++
	r.up = true
	r.processes = r.processes[:0]
	e := newEngine(r)
	r.engine = e
	r.sim.world.tracef("%s starts, life %d", r.name, r.life)
	e.spawn("main", e.run)
}

// crash ends the process at once, with the machine: what was not synced may be
// lost.
func (r *replica) crash(why string) {
	if !r.up {
		return
	}
	w := r.sim.world
	w.tracef("%s crashes: %s", r.name, why)
	r.end()
	if err := r.disk.crash(w.rng); err != nil {
		w.fail(Harness, "%s: crash of the disk: %v", r.name, err)
	}
}

// end kills what runs.
func (r *replica) end() {
	for _, p := range r.processes {
		p.kill()
	}
	r.processes, r.held = nil, nil
	r.up, r.paused = false, false
	r.life++ // what is on its way is of the dead
	r.engine = nil
}

// pause stops the machine for a while: it does not know when it wakes.
func (r *replica) pause(d span) {
	if !r.up || r.paused {
		return
	}
	w, life := r.sim.world, r.life
	r.paused = true
	w.tracef("%s is paused for %s", r.name, d)
	w.after(d, "", func() {
		if r.life == life {
			r.resume()
		}
	})
}

func (r *replica) resume() {
	if !r.paused {
		return
	}
	w := r.sim.world
	w.tracef("%s wakes", r.name)
	r.paused = false
	held := r.held
	r.held = nil
	for _, do := range held { // nobody knows in which order
		w.after(w.upTo(50*millisecond), "", do)
	}
}

// String gives the length in seconds.
func (s span) String() string {
	return fmt.Sprintf("%d.%06ds", s/second, s%second)
}

func (r *replica) startIfNotFinished() {
	if !r.finished || !r.sim.untilEnd {
		r.finished = false
		r.start()
	}
}
