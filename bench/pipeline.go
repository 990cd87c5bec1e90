package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/membudget"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// postgresVariable holds the address of the database for a job: other users of a
// machine can read a command line, and an address may hold a password.
const postgresVariable = "STROM_BENCH_POSTGRES"

// The shapes of a live pipeline: what it makes of an event.
const (
	// shapeWindows is the mapping of the workload aggregate: a result of four
	// values for each key and window.
	shapeWindows = "windows"
	// shapePuts puts four properties of an object, one for each event.
	shapePuts = "puts"
)

// valuesOfRow is how many assertions come of a row, of either shape.
const valuesOfRow = 4

// putsOf is the part of a mapping that puts properties.
const putsOf = `
objects:
  Click:
    from: clicks
    id: user
    properties:
      amount: {value: amount, kind: integer}
      page: page
      agent: agent
      session: session
`

// liveIdleAfter keeps a partition from being idle before what it has said of its
// watermark is announced, however long an epoch takes: where all partitions are
// idle the last windows stay open.
const liveIdleAfter = "1h"

func (s *spec) liveTopology() (*processors.Topology, error) {
	text := fmt.Sprintf(clicks, s.Group, s.CommitMs, s.Input, liveIdleAfter, s.LatenessMs, s.WindowMs)
	if s.Shape == shapePuts {
		streams, _, _ := strings.Cut(text, "objects:")
		text = strings.TrimSuffix(streams, "\n") + putsOf
	}
	plan, err := mapping.Parse("clicks.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, err
	}
	return processors.NewTopology(plan, 1), nil
}

// runLive is a pipeline that runs until ctx ends, into a real ontology where
// there is the address of one. It says in lines how far it is:
//
//	started MICROS              its tasks have been taken over; nothing has been fetched
//	took MICROSECONDS           how long that take-over took
//	counted N MICROS            so many events are in committed epochs
//	applied ROWS NEWEST COMPLETE RECORDED MICROS
//	                            the ontology has so many rows, of epochs up to NEWEST;
//	                            COMPLETE is complete in all partitions, and RECORDED
//	                            its recorded time
func runLive(ctx context.Context, s *spec, out io.Writer) error {
	topology, err := s.liveTopology()
	if err != nil {
		return err
	}
	memory := membudget.Default()
	memory.Apply()
	w := liveWitness{out: out, counted: map[processors.TaskID]int64{}, applied: map[event.Partition]ontology.Progress{}}
	return kafka.New(kafka.Config{
		Topology: topology, Kafka: mapping.Kafka{Brokers: strings.Split(s.Brokers, ",")},
		DataDir: s.StateDir, Memory: memory, CacheBytes: s.CacheBytes, Observe: w.observe,
		OpenOntology: func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error) {
			w.begin(p.ResultsPartitions)
			if address := os.Getenv(postgresVariable); address != "" {
				return ontology.Open(ctx, mapping.Ontology{Postgres: mapping.NewSecret(address)}, p, ontology.Options{})
			}
			return openNull(ctx, p)
		},
	}).Run(ctx)
}

// liveWitness says what a live pipeline does.
type liveWitness struct {
	out io.Writer

	mu      sync.Mutex // guards all below, and out
	started bool
	counted map[processors.TaskID]int64
	events  int64
	applied map[event.Partition]ontology.Progress
	rows    int
	newest  event.Epoch
}

// begin says how many results partitions there are.
func (w *liveWitness) begin(partitions int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range partitions {
		w.applied[event.Partition(p)] = ontology.Progress{}
	}
}

func (w *liveWitness) observe(o kafka.Observation) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case o.TookOver != nil && o.TookOver.Err == nil && !w.started:
		w.started = true
		say(w.out, "started", now)
		fmt.Fprintf(w.out, "took %d\n", o.TookOver.Took.Microseconds())
	case o.Acked != nil:
		w.count(o.Acked, now)
	case o.Applied != nil:
		w.applied[o.Partition] = *o.Applied
		w.newest = max(w.newest, o.Applied.Epoch, o.Applied.UnderWay)
	case o.Batch != nil:
		w.rows += o.Batch.Rows
		complete := w.complete()
		fmt.Fprintf(w.out, "applied %d %d %d %d %d\n", w.rows, w.newest, complete.Epoch, complete.Recorded, now.UnixMicro())
	}
}

func (w *liveWitness) count(a *processors.Ack, now time.Time) {
	more := a.Counters.Events - w.counted[a.Task]
	if more <= 0 {
		return
	}
	w.counted[a.Task] = a.Counters.Events
	w.events += more
	fmt.Fprintf(w.out, "counted %d %d\n", w.events, now.UnixMicro())
}

// complete is the progress of the partition that has come least far.
func (w *liveWitness) complete() ontology.Progress {
	var least ontology.Progress
	some := false
	for _, p := range w.applied {
		if !some || p.Epoch < least.Epoch {
			least, some = p, true
		}
	}
	return least
}
