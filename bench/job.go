package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/membudget"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// spec is what a job is told, in arguments that all jobs understand.
type spec struct {
	Brokers            string
	Input, Output      string // topics
	Shape              string // of a pipeline: its mapping; empty: that of aggregate
	Group              string // names the job's group, topics and transactions
	StateDir           string
	WindowMs           int64
	LatenessMs         int64
	CommitMs           int64
	Partitions         int
	Threads            int
	CacheBytes, Events int64
	CPUProfile         string
}

func (s *spec) args() []string {
	return []string{
		"--brokers=" + s.Brokers, "--input=" + s.Input, "--output=" + s.Output, "--group=" + s.Group, "--state-dir=" + s.StateDir,
		fmt.Sprintf("--window-ms=%d", s.WindowMs), fmt.Sprintf("--lateness-ms=%d", s.LatenessMs), fmt.Sprintf("--commit-ms=%d", s.CommitMs),
		fmt.Sprintf("--partitions=%d", s.Partitions), fmt.Sprintf("--threads=%d", s.Threads), fmt.Sprintf("--cache-bytes=%d", s.CacheBytes),
	}
}

func (s *spec) parse(args []string) error {
	f := flag.NewFlagSet("job", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&s.Brokers, "brokers", "", "")
	f.StringVar(&s.Input, "input", "", "")
	f.StringVar(&s.Output, "output", "", "")
	f.StringVar(&s.Shape, "shape", "", "")
	f.StringVar(&s.Group, "group", "", "")
	f.StringVar(&s.StateDir, "state-dir", "", "")
	f.Int64Var(&s.WindowMs, "window-ms", 0, "")
	f.Int64Var(&s.LatenessMs, "lateness-ms", 0, "")
	f.Int64Var(&s.CommitMs, "commit-ms", 0, "")
	f.IntVar(&s.Partitions, "partitions", 0, "")
	f.IntVar(&s.Threads, "threads", 0, "")
	f.Int64Var(&s.CacheBytes, "cache-bytes", 0, "")
	f.Int64Var(&s.Events, "events", 0, "")
	f.StringVar(&s.CPUProfile, "cpuprofile", "", "")
	return f.Parse(args)
}

// Part is the part of a benchmark that a process of its own plays.
type Part string

// The parts.
const (
	// PartBroker is the embedded broker: it runs until its standard input ends.
	PartBroker Part = "broker"
	// PartStrom is a job that has peers, or may have, on Strom.
	PartStrom Part = "strom"
	// PartLive is a pipeline that runs until it is stopped.
	PartLive Part = "live"
	// PartFetch and PartDecode are the workload consume.
	PartFetch  Part = "fetch"
	PartDecode Part = "decode"
)

// Play plays a part in this process, until it is done or in ends. The harness
// runs it as Config.Self with the part and its arguments behind.
func Play(ctx context.Context, part Part, args []string, in io.Reader, out io.Writer) error {
	if part == PartBroker {
		return serveBroker(ctx, args, in, out)
	}
	var s spec
	if err := s.parse(args); err != nil {
		return err
	}
	var run func(context.Context, *spec, io.Writer) error
	switch part {
	case PartStrom:
		run = runStrom
	case PartLive:
		run = runLive
	case PartFetch, PartDecode:
		run = func(ctx context.Context, s *spec, out io.Writer) error {
			return consume(ctx, s, part == PartDecode, out)
		}
	default:
		return fmt.Errorf("there is no part %q", part)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel(errAlone)
	}()
	return profiled(s.CPUProfile, func() error { return run(ctx, &s, out) })
}

var errAlone = errors.New("the harness has ended")

// profiled writes a CPU profile of fn, where a file is named.
func profiled(path string, fn func() error) (err error) {
	if path == "" {
		return fn()
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return fn()
}

// clicks is the mapping of the workload aggregate; highestBids takes the same arguments.
const clicks = `
pipeline: %s
epoch: {clock: wall, interval: %dms}
streams:
  clicks:
    topic: %s
    key: user
    partitioned_by: key
    event_time: {field: at, format: ms}
    watermark: {out_of_orderness: 0s, idle_after: 1s}
    allowed_lateness: %dms
objects:
  User:
    aggregates:
      panes:
        from: clicks
        id: user
        window: {tumbling: %dms}
        values: {n: count(), total: sum(amount), least: min(amount), most: max(amount)}
`

func (s *spec) topology() (*processors.Topology, error) {
	form := clicks
	if s.Shape == shapeQ7 {
		form = highestBids
	}
	text := fmt.Sprintf(form, s.Group, s.CommitMs, s.Input, s.LatenessMs, s.WindowMs)
	if s.Shape == shapePuts {
		streams, _, _ := strings.Cut(text, "objects:")
		text = strings.TrimSuffix(streams, "\n") + putsOf
	}
	plan, err := mapping.Parse("bench.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, err
	}
	return processors.NewTopology(plan, 1), nil
}

// engineConfig is what all of our jobs run the engine with, and tells the
// runtime of the memory that there is.
func (s *spec) engineConfig() (kafka.Config, error) {
	topology, err := s.topology()
	if err != nil {
		return kafka.Config{}, err
	}
	memory := membudget.Default()
	memory.Apply()
	return kafka.Config{
		Topology: topology, Kafka: mapping.Kafka{Brokers: strings.Split(s.Brokers, ",")},
		DataDir: s.StateDir, Memory: memory, CacheBytes: s.CacheBytes,
	}, nil
}

// runStrom is the job: the engine as a pipeline runs it, with nothing in the
// ontology's place.
func runStrom(ctx context.Context, s *spec, out io.Writer) error {
	c, err := s.engineConfig()
	if err != nil {
		return err
	}
	var w witness
	c.UntilEnd, c.OpenOntology = true, openNull
	c.Observe = func(o kafka.Observation) { w.observe(o, out) }
	if err := kafka.New(c).Run(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended.IsZero() {
		return errors.New("no commit of the last epoch was seen")
	}
	say(out, "ended", w.ended)
	return nil
}

func say(out io.Writer, what string, at time.Time) {
	fmt.Fprintf(out, "%s %d\n", what, at.UnixMicro())
}

// witness notes when processing began, and when the last epoch was committed.
type witness struct {
	mu    sync.Mutex // guards all below
	begun bool
	last  event.Epoch // that ends the input; 0: not announced yet
	ended time.Time
}

func (w *witness) observe(o kafka.Observation, out io.Writer) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case o.TookOver != nil && o.TookOver.Err == nil && !w.begun:
		w.begun = true
		say(out, "started", now)
	case o.Announced != nil && o.Announced.End && w.last == 0:
		w.last = o.Announced.Epoch
	case o.Committed != nil && w.last != 0 && o.Committed.Epoch == w.last:
		w.ended = now
	}
}
