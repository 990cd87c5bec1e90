package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/sinks/ontology"
)

// replica is one engine of a script, with a wire and a data directory of its own.
type replica struct {
	// name is in transactional ids, title in the script.
	name, title string
	wire        *wire

	mu      sync.Mutex // guards all below
	traps   []*trap
	dead    chan struct{} // closed when the replica is killed
	isDead  bool
	killed  time.Time
	applied []appliedTo
	store   ontology.Store
	lines   []string // of its log
	heard   int      // lines that the script has waited for
	// took is the generation of the last take-over that the script has waited for.
	took int32
	loss *loss

	stopped bool // was told to end
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the engine has ended
	err     error         // how it ended; read after ended is closed
}

// trap is a point of the protocol at which the first replica stops that comes to
// it, once.
type trap struct {
	point string
	die   bool
	awake chan struct{} // closed when the replica goes on

	mu     sync.Mutex // guards caught
	caught *replica
}

func newTrap(point string, die bool) *trap {
	return &trap{point: point, die: die, awake: make(chan struct{})}
}

// springs catches the replica, if the trap is free.
func (t *trap) springs(r *replica) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.caught != nil {
		return false
	}
	t.caught = r
	return true
}

func (t *trap) holds() *replica {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.caught
}

// appliedTo is one step of the ontology, seen by the replica that made it.
type appliedTo struct {
	partition event.Partition
	progress  ontology.Progress
}

func newReplica(name string, w *wire) *replica {
	return &replica{name: name, title: name, wire: w, dead: make(chan struct{}), ended: make(chan struct{})}
}

// start runs the engine.
func (r *replica) start(t *testing.T, c kafka.Config) {
	t.Helper()
	c.Replica, c.DataDir, c.At, c.Dial, c.Observe = r.name, t.TempDir(), r.at, r.wire.dial, r.observe
	c.Log = slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelInfo}))
	open := c.OpenOntology
	c.OpenOntology = func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error) {
		s, err := open(ctx, p)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.store = mortalStore{s, r}
		return r.store, nil
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(r.ended)
		r.err = kafka.New(c).Run(ctx)
	}()
}

// arm arms a trap.
func (r *replica) arm(t *trap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traps = append(r.traps, t)
}

// at is the engine's hook.
func (r *replica) at(point string) {
	r.mu.Lock()
	var caught *trap
	for _, t := range r.traps {
		if caught == nil && t.point == point && t.springs(r) {
			caught = t
		}
	}
	r.mu.Unlock()
	switch {
	case caught == nil:
	case caught.die:
		r.kill()
	default:
		select {
		case <-caught.awake:
		case <-r.dead:
		}
	}
}

// stalledAt reports whether the replica stands at the point.
func (r *replica) stalledAt(point string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.traps {
		if t.point == point && !t.die && t.holds() == r {
			return true
		}
	}
	return false
}

// wake lets the replica go on wherever it stands; with all, it stops nowhere any more.
func (r *replica) wake(all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var armed []*trap
	for _, t := range r.traps {
		switch held := t.holds(); {
		case held == r:
			close(t.awake)
		case held == nil && !all:
			armed = append(armed, t)
		}
	}
	r.traps = armed
}

// kill is the end of the process as its world sees it: whatever the engine still
// does reaches neither broker nor ontology.
func (r *replica) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isDead {
		return
	}
	r.isDead, r.killed = true, time.Now()
	r.wire.cutOff()
	close(r.dead)
	r.cancel()
}

// isKilled says since when the replica is dead.
func (r *replica) isKilled() (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.killed, r.isDead
}

// stop tells the engine to end, as an operator does.
func (r *replica) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
	case r.cancel == nil:
		close(r.ended) // has never been started
	default:
		r.cancel()
	}
	r.stopped = true
}

// failure is how the engine ended, if it ended though nobody told it to.
func (r *replica) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.isDead {
		return nil
	}
	select {
	case <-r.ended:
		return errors.Join(errors.New(r.title+" has ended"), r.err)
	default:
		return nil
	}
}

func (r *replica) observe(o kafka.Observation) {
	if o.Applied == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = append(r.applied, appliedTo{o.Partition, *o.Applied})
}

// Write takes the engine's log.
func (r *replica) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(bytes.TrimSpace(p)))
	return len(p), nil
}

// says reports whether the log has a new line with the text.
func (r *replica) says(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := r.heard; i < len(r.lines); i++ {
		if strings.Contains(r.lines[i], text) {
			r.heard = i + 1
			return true
		}
	}
	return false
}

// mortalStore is a store that a dead replica does not reach.
type mortalStore struct {
	ontology.Store
	replica *replica
}

var errDead = errors.New("the replica is dead")

// Apply implements ontology.Store.
func (s mortalStore) Apply(ctx context.Context, chunks []ontology.Chunk) error {
	if _, dead := s.replica.isKilled(); dead {
		return errDead
	}
	return s.Store.Apply(ctx, chunks)
}
