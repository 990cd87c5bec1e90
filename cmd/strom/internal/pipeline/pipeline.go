// Package pipeline runs the engine for a command and keeps what it says of
// itself.
package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/forge-platform/strom/cmd/strom/internal/metrics"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/membudget"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// First is the generation of a pipeline that has never been restored.
const First event.Generation = 1

// Topology gives the topology of the generation that a pipeline is at: what the
// ontology has registered, or the first where it knows nothing of the pipeline.
// Where both the ontology and Kafka are out of reach the error is Kafka's.
func Topology(ctx context.Context, plan *mapping.Plan, k mapping.Kafka, o mapping.Ontology, log *slog.Logger) (*processors.Topology, error) {
	g, err := ontology.CurrentGeneration(ctx, o, plan.Pipeline)
	if err != nil {
		if _, kafkaErr := kafka.CurrentGeneration(ctx, k, plan.Pipeline, log); kafkaErr != nil {
			return nil, kafkaErr
		}
		return nil, fmt.Errorf("ontology: %w", err)
	}
	return processors.NewTopology(plan, max(g, First)), nil
}

// OpenOntology opens an ontology, for kafka.Config.
func OpenOntology(conn mapping.Ontology, o ontology.Options) func(context.Context, ontology.Pipeline) (ontology.Store, error) {
	return func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error) {
		store, err := ontology.Open(ctx, conn, p, o)
		if err != nil {
			return nil, fmt.Errorf("ontology: %w", err)
		}
		return store, nil
	}
}

// Run is one run of a pipeline in this process.
type Run struct {
	Plan     *mapping.Plan
	Kafka    mapping.Kafka
	Ontology mapping.Ontology
	DataDir  string
	// CheckpointDir is where savepoints are kept.
	CheckpointDir string
	Replica       string
	// StaticMembership and SessionTimeout are as in kafka.Config.
	StaticMembership bool
	SessionTimeout   time.Duration
	// Memory is what this process may use; 0: membudget.Default.
	Memory   membudget.Bytes
	UntilEnd bool
	// Reinstate is as in kafka.Config.
	Reinstate bool
	Log       *slog.Logger
	// Watch, where set, is told of everything that the engine sees, and Metrics
	// of what it does.
	Watch   *Watch
	Metrics *metrics.Metrics
}

// Do runs the pipeline until ctx ends (the epoch under way is then still
// committed), until the input ends, or until an error.
func (r Run) Do(ctx context.Context) error {
	topology, err := Topology(ctx, r.Plan, r.Kafka, r.Ontology, r.Log)
	if err != nil {
		return err
	}
	if r.Memory == 0 {
		r.Memory = membudget.Default()
	}
	r.Memory.Apply()
	c := kafka.Config{
		Topology: topology, Kafka: r.Kafka, DataDir: r.DataDir, CheckpointDir: r.CheckpointDir, Memory: r.Memory,
		Replica: r.Replica, StaticMembership: r.StaticMembership, SessionTimeout: r.SessionTimeout, UntilEnd: r.UntilEnd, Reinstate: r.Reinstate, Log: r.Log,
	}
	o := ontology.Options{Logger: r.Log}
	if r.Metrics != nil {
		o.OnRetry = r.Metrics.Retried
	}
	c.OpenOntology = OpenOntology(r.Ontology, o)
	if r.Watch != nil {
		r.Watch.readBy(topology)
	}
	c.Observe = r.observe
	return kafka.Run(ctx, c, func(e *kafka.Engine) {
		if r.Metrics != nil {
			r.Metrics.Watch(e)
		}
	})
}

func (r Run) observe(o kafka.Observation) {
	if r.Watch != nil {
		r.Watch.observe(o)
	}
	if r.Metrics != nil {
		r.Metrics.Observe(o)
	}
}

// Watch keeps the newest of what an engine has seen. Its methods may be called
// from any goroutine.
type Watch struct {
	started time.Time

	mu       sync.Mutex // guards what follows
	newest   processors.Announcement
	counters map[processors.TaskID]processors.Counters
	applied  map[event.Partition]ontology.Progress
	halted   map[processors.TaskID]string
	sources  map[string]bool // stages that read a stream of the mapping
}

// NewWatch returns one that has seen nothing.
func NewWatch() *Watch {
	return &Watch{
		started: time.Now(), newest: processors.Announcement{Recorded: event.RecordedUnknown},
		counters: map[processors.TaskID]processors.Counters{}, applied: map[event.Partition]ontology.Progress{},
		halted: map[processors.TaskID]string{}, sources: map[string]bool{},
	}
}

func (w *Watch) readBy(t *processors.Topology) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range t.Stages {
		w.sources[s.Name] = s.Source()
	}
}

func (w *Watch) observe(o kafka.Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case o.Announced != nil:
		if o.Announced.Epoch > w.newest.Epoch {
			w.newest = *o.Announced
		}
	case o.Acked != nil:
		w.counters[o.Acked.Task] = o.Acked.Counters
		delete(w.halted, o.Acked.Task)
		if o.Acked.Halted != "" {
			w.halted[o.Acked.Task] = o.Acked.Halted
		}
	case o.Applied != nil:
		w.applied[o.Partition] = *o.Applied
	}
}

// Seen is what a Watch has seen.
type Seen struct {
	// Epoch is the newest announced, Recorded its R.
	Epoch      event.Epoch
	Recorded   event.RecordedTime
	Watermarks map[string]event.Watermark
	// Counters is the sum over the tasks; they count since the pipeline began.
	// Records are those of the streams: what stages hand to each other is not
	// counted again.
	Counters processors.Counters
	// Applied is the oldest epoch that a results partition has in the ontology.
	Applied event.Epoch
	Halted  map[processors.TaskID]string
	Elapsed time.Duration
}

// Seen gives a copy of what has been seen.
func (w *Watch) Seen() Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Seen{
		Epoch: w.newest.Epoch, Recorded: w.newest.Recorded, Watermarks: maps.Clone(w.newest.Watermarks),
		Halted: maps.Clone(w.halted), Elapsed: time.Since(w.started),
	}
	for t, c := range w.counters {
		if !w.sources[t.Stage] {
			c.Records = 0
		}
		s.Counters.Add(c)
	}
	some := false
	for _, p := range w.applied {
		if !some || p.Epoch < s.Applied {
			s.Applied, some = p.Epoch, true
		}
	}
	return s
}
