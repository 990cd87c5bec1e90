package sim

import (
	"container/heap"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
)

// span is a length of the simulation's time in microseconds, and an instant
// counted from its start.
type span int64

const (
	microsecond span = 1
	millisecond      = 1000 * microsecond
	second           = 1000 * millisecond
	minute           = 60 * second
)

// world is time, chance and what happens next: one queue of events, which one
// goroutine works off. Whatever happens twice in one order happens so for a
// reason that the seed gives.
type world struct {
	rng    *rand.Rand
	now    span
	events eventQueue
	seq    uint64
	steps  int
	// waiting are the processes that wait for a condition.
	waiting []*process
	trace   trace
	failure *Failure
	// rough is false where nothing goes wrong any more: messages arrive, and soon.
	rough bool
	net   netProfile
	// met counts what has happened that a run is meant to meet: faults, named
	// points of the protocol, and what came of them.
	met map[string]int
	// at is told of every named point, and may make something of it.
	at func(p *process, point string)
}

// netProfile says how messages and processes fare while the world is rough.
type netProfile struct {
	slow  int // per mille of steps that take up to 100 ms
	stall int // per 10,000 steps that take up to 25 s
	lost  int // per mille of messages whose request or reply is lost
	// late is per mille of requests that arrive only long after their connection
	// has broken and they were sent again.
	late int
}

type happening struct {
	at   span
	seq  uint64
	what string
	do   func()
}

type eventQueue []*happening

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *eventQueue) Push(x any) {
	if h, ok := x.(*happening); ok {
		*q = append(*q, h)
	}
}

// Pop implements heap.Interface.
func (q *eventQueue) Pop() any {
	old := *q
	h := old[len(old)-1]
	*q = old[:len(old)-1]
	return h
}

func newWorld(seed uint64, out io.Writer) *world {
	return &world{
		rng: rand.New(rand.NewPCG(seed, 0x5eed)), trace: trace{sum: fnv.New64a(), out: out},
		met: map[string]int{}, at: func(*process, string) {},
	}
}

// after lets something happen in a while.
func (w *world) after(d span, what string, do func()) {
	w.seq++
	heap.Push(&w.events, &happening{at: w.now + max(d, 0), seq: w.seq, what: what, do: do})
}

// step lets the next thing happen; false where nothing will, or a failure has
// been found.
func (w *world) step() bool {
	if w.failure != nil || len(w.events) == 0 {
		return false
	}
	h, ok := heap.Pop(&w.events).(*happening)
	if !ok {
		return false
	}
	w.now = h.at
	w.steps++
	h.do()
	w.wake()
	return w.failure == nil
}

// wake schedules the processes whose condition has come true.
func (w *world) wake() {
	kept := w.waiting[:0]
	for _, p := range w.waiting {
		switch {
		case p.done || p.wait == nil:
		case p.wait():
			p.wait = nil
			p.scheduleAfter(w.delay())
		default:
			kept = append(kept, p)
		}
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
}

func (w *world) meet(what string) { w.met[what]++ }

// chance is true n times in of.
func (w *world) chance(n, of int) bool { return w.rng.IntN(of) < n }

// upTo is a length of time up to d.
func (w *world) upTo(d span) span { return span(w.rng.Int64N(int64(d) + 1)) }

// shortOr is a length of time that is mostly short, and else up to d.
func (w *world) shortOr(d span) span {
	if w.chance(2, 3) {
		d = min(d, 2*second)
	}
	return w.upTo(d)
}

// delay is how long a step takes until it is done, or a message until it is there.
func (w *world) delay() span {
	d := 20*microsecond + w.upTo(300*microsecond)
	if !w.rough {
		return d
	}
	switch x := w.rng.IntN(10_000); {
	case x < w.net.stall:
		return w.upTo(25 * second)
	case x < w.net.stall+10*w.net.slow:
		return w.upTo(100 * millisecond)
	}
	return d
}

// fail notes the first invariant that does not hold; the run ends with it.
func (w *world) fail(i Invariant, format string, args ...any) {
	if w.failure != nil {
		return
	}
	w.failure = &Failure{Invariant: i, Detail: fmt.Sprintf(format, args...), At: w.now}
	w.tracef("FAILED %s: %s", i, w.failure.Detail)
}

// trace is what happened, line by line: its hash, and the last lines.
type trace struct {
	sum  hash.Hash64
	out  io.Writer
	last []string
	next int
	line []byte
}

const traceTail = 200

func (w *world) tracef(format string, args ...any) {
	t := &w.trace
	t.line = fmt.Appendf(t.line[:0], "%4d.%06d ", w.now/second, w.now%second)
	t.line = fmt.Appendf(t.line, format, args...)
	t.line = append(t.line, '\n')
	t.sum.Write(t.line)
	if t.out != nil {
		_, _ = t.out.Write(t.line) // a trace that cannot be written says so by being short
	}
	line := string(t.line)
	if len(t.last) < traceTail {
		t.last = append(t.last, line)
		return
	}
	t.last[t.next] = line
	t.next = (t.next + 1) % traceTail
}

// tail gives the last lines, the oldest first.
func (t *trace) tail() []string {
	return slices.Concat(t.last[t.next:], t.last[:t.next])
}
