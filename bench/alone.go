package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// liveRun is one run of a workload that Strom runs alone: a topic, a database
// and a directory of its own, and one pipeline at a time.
type liveRun struct {
	harness  *harness
	run      *Run
	in       Input
	spec     *spec
	database string // its address; empty: none
	live     *live
	launched time.Time // when the first pipeline was
}

// alone says that a workload has no peers: Strom runs it alone, and it gives
// figures of its own.
func (w Workload) alone() bool { return w == Recover || w.needsDatabase() }

// needsDatabase says whether a workload writes to PostgreSQL.
func (w Workload) needsDatabase() bool { return w == Sink || w == Latency || w == Stall }

// runAlone runs a workload without peers.
func (h *harness) runAlone(ctx context.Context) (run *Run, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.config.Timeout, fmt.Errorf("it was not done after %s", h.config.Timeout))
	defer cancel()
	h.runs++
	id := fmt.Sprintf("bench-run-%d-%d", os.Getpid(), h.runs)
	in := h.config.Input
	r := &liveRun{
		harness: h, in: in, run: &Run{Engine: EngineStrom, Version: "strom " + h.config.Version, Load: loadAverage()},
		spec: &spec{
			Brokers: strings.Join(h.broker.addrs, ","), Input: id + "-input", Group: id, StateDir: filepath.Join(h.dir, id),
			WindowMs: in.Window.Milliseconds(), LatenessMs: in.Lateness.Milliseconds(), CommitMs: h.config.Commit.Milliseconds(),
			Partitions: int(in.Partitions), Threads: h.config.Threads, CacheBytes: h.config.CacheBytes,
		},
	}
	if err := os.MkdirAll(r.spec.StateDir, 0o750); err != nil {
		return nil, err
	}
	if err := createTopic(ctx, h.broker.addrs, r.spec.Input, in.Partitions); err != nil {
		return nil, err
	}
	defer func() {
		err = r.stop(err)
		cleaning := context.WithoutCancel(ctx)
		if r.database != "" {
			err = errors.Join(err, h.databases.drop(cleaning, id))
		}
		forget(cleaning, h.broker.addrs, id)
		_ = os.RemoveAll(r.spec.StateDir) // with the whole directory in the end
	}()
	if h.databases != nil {
		if r.database, err = h.databases.create(ctx, id); err != nil {
			return nil, err
		}
	}
	if err := h.aloneOf()(ctx, r); err != nil {
		return nil, err
	}
	r.settle()
	return r.run, nil
}

// aloneOf is what a workload does.
func (h *harness) aloneOf() func(context.Context, *liveRun) error {
	switch h.config.Workload {
	case Latency:
		return h.latencyRun
	case Recover:
		return h.recoverRun
	case Stall:
		return h.stallRun
	case Aggregate, Consume, Nexmark, Sink:
	}
	return h.sinkRun
}

// start starts the pipeline. The one before has been stopped.
func (r *liveRun) start(ctx context.Context) (*live, error) {
	var err error
	if r.live, err = r.harness.startLive(ctx, r.spec, r.database); err != nil {
		return nil, err
	}
	if r.launched.IsZero() {
		r.launched = r.live.launched
	}
	return r.live, nil
}

// stop stops the pipeline, where one runs; why is the error that is the reason.
func (r *liveRun) stop(why error) error {
	if r.live == nil {
		return why
	}
	return r.live.stop(r.run, why)
}

// wrongIf notes a difference.
func (r *liveRun) wrongIf(diff, when string) {
	if diff == "" {
		return
	}
	if r.run.Wrong != "" {
		r.run.Wrong += "; "
	}
	r.run.Wrong += when + ": " + diff
}

// settle takes the figures of a wrong result away, and says whether a run counts.
func (r *liveRun) settle() {
	r.run.Counts = r.run.Wrong == ""
	for i := range r.run.Figures {
		r.run.Counts = r.run.Counts && r.run.Figures[i].Counts
	}
	if r.run.Wrong != "" {
		r.run.Figures, r.run.Seconds = nil, 0
	}
}

// produce produces records and returns when the broker has all.
func (r *liveRun) produce(ctx context.Context, records iter.Seq[*kgo.Record]) error {
	return produce(ctx, r.harness.broker.addrs, r.spec.Input, records)
}
