package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// childEnv holds a childSpec in JSON: it makes the program a replica.
const childEnv = "STROM_FAULTS_CHILD"

// Lines that a child prints on its standard output.
const (
	sayReached = "reached " // the point at which it dies
	sayHolding = "holding " // the point at which it waits
	sayAdopted = "adopted"  // a stage has taken its tasks over
	sayEpoch   = "epoch "   // the newest announced one
	sayUnknown = "unknown " // a point that kafka.Points does not name
)

// lineArm is what a child is told on its standard input: count from now on.
const lineArm = "arm"

// childLife bounds a child that nobody stops; childHold how long it waits at a point.
const (
	childLife = 3 * time.Minute
	childHold = 30 * time.Second
)

// childSpec says what a child does.
type childSpec struct {
	Mapping  string // path of the mapping file
	Brokers  []string
	Postgres string
	DataDir  string
	Replica  string
	Static   bool
	UntilEnd bool
	Session  time.Duration
	Crash    Trigger // dies there
	Freeze   bool    // is stopped there instead, and goes on when it is woken
	Hold     Trigger // waits there
	Armed    bool    // from the start, not from lineArm on
	// Savepoints is a checkpoint directory, in which the replica asks for one
	// savepoint after the other; empty: none.
	Savepoints string
	Debug      bool
}

// Trigger is a point and the how-manieth time that it is reached, from 1; no
// point is never.
type Trigger struct {
	Point string
	N     int64
}

// Child runs a replica where the environment says that this process is one, and
// gives its exit code; ok is false for every other process. It must be called
// before anything else.
func Child(stdin io.Reader, stdout, stderr io.Writer) (code int, ok bool) {
	text, ok := os.LookupEnv(childEnv)
	if !ok {
		return 0, false
	}
	c := &child{out: stdout}
	err := json.Unmarshal([]byte(text), &c.spec)
	if err == nil {
		err = c.run(stdin, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, "replica:", err)
		return 1, true
	}
	return 0, true
}

type child struct {
	spec     childSpec
	points   []string
	armed    atomic.Bool
	atCrash  atomic.Int64
	atHold   atomic.Int64
	released <-chan struct{}

	mu  sync.Mutex // guards out
	out io.Writer
}

func (c *child) run(stdin io.Reader, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), childLife)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	c.armed.Store(c.spec.Armed)
	c.points, c.released = kafka.Points(), ctx.Done()
	go c.listen(stdin, cancel)
	config, err := c.config(stderr)
	if err != nil {
		return err
	}
	if c.spec.Savepoints != "" {
		go c.save(ctx)
	}
	if err := kafka.Run(ctx, config, nil); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Errorf("nobody stopped it for %s", childLife)
	}
	return nil
}

// listen hears what the harness says. When the harness is gone, so is the child.
func (c *child) listen(stdin io.Reader, cancel context.CancelFunc) {
	defer cancel()
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		if lines.Text() == lineArm {
			c.armed.Store(true)
		}
	}
}

// Small sizes, so that a small input meets what lies between two of them.
const (
	childPollRecords = 100
	childSinkRows    = 12
	childCacheBytes  = 16 << 20
)

func (c *child) config(stderr io.Writer) (kafka.Config, error) {
	plan, err := mapping.Load(c.spec.Mapping, os.LookupEnv)
	if err != nil {
		return kafka.Config{}, err
	}
	level := slog.LevelInfo
	if c.spec.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	return kafka.Config{
		Topology: processors.NewTopology(plan, generation), Kafka: mapping.Kafka{Brokers: c.spec.Brokers},
		DataDir: c.spec.DataDir, CheckpointDir: c.spec.Savepoints, Replica: c.spec.Replica, StaticMembership: c.spec.Static, UntilEnd: c.spec.UntilEnd,
		SessionTimeout: c.spec.Session, RebalanceTimeout: 2 * c.spec.Session,
		CacheBytes: childCacheBytes, PollRecords: childPollRecords, SinkRows: childSinkRows,
		Log: log, At: c.at, Observe: c.observe,
		OpenOntology: func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error) {
			conn := mapping.Ontology{Postgres: mapping.NewSecret(c.spec.Postgres)}
			return ontology.Open(ctx, conn, p, ontology.Options{Logger: log, At: c.at})
		},
	}, nil
}

// childSavepoint bounds the wait for one savepoint: one whose replica has died
// never becomes whole.
const childSavepoint = 2 * time.Second

// save asks for one savepoint after the other. What becomes of them is looked at
// when the case is over.
func (c *child) save(ctx context.Context) {
	plan, err := mapping.Load(c.spec.Mapping, os.LookupEnv)
	if err != nil {
		return // the engine says so
	}
	for n := 1; ctx.Err() == nil; n++ {
		limited, cancel := context.WithTimeout(ctx, childSavepoint)
		_, err := kafka.CreateSavepoint(limited, kafka.SavepointRequest{
			Kafka: mapping.Kafka{Brokers: c.spec.Brokers}, Topology: processors.NewTopology(plan, generation),
			CheckpointDir: c.spec.Savepoints, Name: fmt.Sprintf("%s-%d-%d", c.spec.Replica, os.Getpid(), n),
		})
		if err != nil {
			// The pipeline may not have begun.
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		cancel()
	}
}

func (c *child) observe(o kafka.Observation) {
	if o.Announced != nil {
		c.say(sayEpoch, o.Announced.Epoch)
	}
}

func (c *child) say(what string, more any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintln(c.out, what+fmt.Sprint(more))
}

// at is called at every point of the protocol.
func (c *child) at(point string) {
	if !slices.Contains(c.points, point) {
		c.say(sayUnknown, point)
	}
	if point == "adopt.applied" {
		c.say(sayAdopted, "")
	}
	if !c.armed.Load() {
		return
	}
	if point == c.spec.Crash.Point && c.atCrash.Add(1) == c.spec.Crash.N {
		c.say(sayReached, point)
		c.stop()
	}
	if point == c.spec.Hold.Point && c.atHold.Add(1) == c.spec.Hold.N {
		c.say(sayHolding, point)
		c.hold()
	}
}

// stop ends this process, or makes it sleep, as nothing can catch it. (One can
// always send oneself a signal.)
func (c *child) stop() {
	if c.spec.Freeze {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until it arrives
}

// hold keeps the caller where it is.
func (c *child) hold() {
	timer := time.NewTimer(childHold)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.released:
	}
}
