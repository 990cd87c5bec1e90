package sim

import (
	"errors"
	"iter"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
)

// errKilled ends a process whose machine has died. It comes back from
// everything that a process waits for, and is never answered with anything.
var errKilled = errors.New("killed")

// errNoReply says that a request, or the reply to it, was lost: it may have
// been carried out, and it may be carried out yet.
var errNoReply = errors.New("no reply")

// process is a thread of a replica as a coroutine: it runs from one wait to the
// next, and nothing else runs meanwhile.
type process struct {
	endpoint

	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool

	wait     func() bool // what it waits for; nil: it is scheduled
	timer    uint64      // counts its waits, so that a timer knows its own
	timedOut bool
	killed   bool
	done     bool
	unclear  int // requests that were sent again without a reply
	result   error
}

// spawn starts a process.
func (w *world) spawn(host *replica, name string, run func(p *process) error) *process {
	p := &process{endpoint: endpoint{world: w, name: name, host: host}}
	if host != nil {
		p.life = host.life
		host.processes = append(host.processes, p)
	}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.yield = yield
		p.result = run(p)
		p.done = true
	})
	p.scheduleAfter(w.delay())
	return p
}

// scheduleAfter lets the process go on in a while; a host that is paused lets it
// go on later.
func (p *process) scheduleAfter(d span) {
	p.world.after(d, "", p.resume)
}

func (p *process) resume() {
	switch {
	case p.done || p.killed:
	case p.host != nil && p.host.paused:
		p.host.held = append(p.host.held, p.resume)
	default:
		p.next()
	}
}

// kill ends the process where it stands.
func (p *process) kill() {
	if p.done || p.killed {
		return
	}
	p.killed = true
	p.stop()
	p.done = true
}

func (p *process) suspend() error {
	if p.killed || !p.yield(struct{}{}) {
		p.killed = true
		return errKilled
	}
	return nil
}

// pause lets others go on.
func (p *process) pause() error {
	if p.killed {
		return errKilled
	}
	p.scheduleAfter(p.world.delay())
	return p.suspend()
}

// sleep waits for so long.
func (p *process) sleep(d span) error {
	if p.killed {
		return errKilled
	}
	p.scheduleAfter(d)
	return p.suspend()
}

// await waits until the condition holds, or for so long; forever: no bound.
func (p *process) await(until func() bool, atMost span) (timedOut bool, err error) {
	if p.killed {
		return false, errKilled
	}
	if until() {
		return false, p.pause()
	}
	p.timer++
	timer := p.timer
	p.timedOut = false
	p.wait = until
	p.world.waiting = append(p.world.waiting, p)
	if atMost < forever {
		p.world.after(atMost, "", func() { p.timeUp(timer) })
	}
	err = p.suspend()
	p.wait = nil
	p.timer++
	return p.timedOut, err
}

func (p *process) timeUp(timer uint64) {
	if p.timer != timer || p.wait == nil || p.done {
		return
	}
	if p.host != nil && p.host.paused {
		p.host.held = append(p.host.held, func() { p.timeUp(timer) })
		return
	}
	p.wait, p.timedOut = nil, true
	p.resume()
}

const forever = span(1 << 62)

// reach passes a named point of the protocol: somebody may want to crash here.
func (p *process) reach(point string) error {
	if p.killed {
		return errKilled
	}
	p.world.meet("at " + point)
	p.world.at(p, point)
	return p.pause()
}

// requestTimeout is when a client gives up a request that nobody answers.
const requestTimeout = 6 * second

// endpoint is where requests come from.
type endpoint struct {
	world *world
	name  string
	host  *replica // nil: of the world itself
	life  int      // of the host
}

// post sends a request; serve is carried out where it arrives, which may be
// after its sender has given it up, or has died. reply, if it comes, tells what
// serve said; broken says that the connection broke, as far as the sender knows.
func (e *endpoint) post(what string, serve func() error, reply func(err error)) {
	w := e.world
	lost := w.rough && w.chance(w.net.lost, 1000)
	there := !lost || w.chance(1, 2)
	if lost && w.chance(1, 2) { // the connection breaks, and the sender sees it
		w.after(w.delay(), what, func() { reply(errNoReply) })
	}
	delay := w.delay()
	if w.rough && w.chance(w.net.late, 1000) {
		w.after(delay, what, func() { reply(errNoReply) })
		delay, lost = w.upTo(10*second), true
	}
	w.after(delay, what, func() {
		if !there || e.host.severed(e.life) {
			w.tracef("%s: %s is lost", e.name, what)
			return
		}
		err := serve()
		w.tracef("%s: %s: %s", e.name, what, errText(err))
		if lost {
			return
		}
		w.after(w.delay(), what, func() {
			if !e.host.cutOff() {
				reply(err)
			}
		})
	})
}

// request is a message on its way.
type request struct {
	answered bool
	err      error
}

// send sends a request, to be received.
func (p *process) send(what string, serve func() error) *request {
	r := &request{}
	p.post(what, serve, func(err error) {
		if !r.answered {
			r.answered, r.err = true, err
		}
	})
	return r
}

func errText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// call sends a request and waits for the reply, as long as go on holds.
func (p *process) call(what string, goOn, serve func() error) error {
	if p.killed {
		return errKilled
	}
	if err := goOn(); err != nil {
		return err
	}
	return p.receive(p.send(what, serve), goOn)
}

// receive waits for the reply to a request.
func (p *process) receive(r *request, goOn func() error) error {
	timedOut, err := p.await(func() bool { return r.answered || goOn() != nil }, requestTimeout)
	switch {
	case err != nil:
		return err
	case r.answered:
		return r.err
	case timedOut:
		return errNoReply
	}
	return goOn()
}

// always is for what goes on whatever happens.
func always() error { return nil }

// ask is call for a request that is answered with something. What an attempt
// that was given up is answered with later, nobody sees.
func ask[T any](p *process, what string, goOn func() error, serve func() (T, error)) (T, error) {
	answer := new(T)
	err := p.call(what, goOn, func() error {
		var err error
		*answer, err = serve()
		return err
	})
	return *answer, err
}

// insist asks until there is a reply, while the broker is not ready for it too.
func insist[T any](p *process, what string, goOn func() error, serve func() (T, error)) (T, error) {
	for wait := 20 * millisecond; ; wait = min(2*wait, 2*second) {
		v, err := ask(p, what, goOn, serve)
		if !errors.Is(err, errNoReply) && !errors.Is(err, broker.ErrConcurrent) && !errors.Is(err, broker.ErrUnstable) {
			return v, err
		}
		if errors.Is(err, errNoReply) {
			p.unclear++
		}
		if err := p.sleep(p.world.upTo(wait)); err != nil {
			return v, err
		}
	}
}

// nothing is the answer to a request that has none.
type nothing struct{}

func plain(serve func() error) func() (nothing, error) {
	return func() (nothing, error) { return nothing{}, serve() }
}

// bounds are the ends of a partition's log.
type bounds struct{ start, stable, high event.Offset }

func (p *process) bounds(part *broker.Partition, goOn func() error) (bounds, error) {
	return insist(p, "bounds of "+part.Topic, goOn, func() (bounds, error) {
		return bounds{part.Start(), part.Stable(), part.High()}, nil
	})
}

// fetched is what a fetch brought.
type fetched struct {
	records []broker.Record
	stable  event.Offset
}

// fetch waits until a partition has something behind an offset, and reads it.
func (p *process) fetch(part *broker.Partition, from event.Offset, limit int, goOn func() error) (fetched, error) {
	if _, err := p.await(func() bool { return goOn() != nil || part.Has(from) || from < part.Start() }, forever); err != nil {
		return fetched{}, err
	}
	return insist(p, "fetch "+part.Topic, goOn, func() (fetched, error) {
		recs, stable, err := part.Fetch(from, limit)
		return fetched{recs, stable}, err
	})
}
