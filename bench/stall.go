package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/membudget"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

const (
	// floodLead is how many events the input is ahead of what has been counted:
	// seconds of work, so that the pipeline never waits for more.
	floodLead = 500_000
	// beforeStall is how long memory is watched before the stall, at most.
	beforeStall = 10 * time.Second
	// sampleEvery is how often memory is looked at.
	sampleEvery = 100 * time.Millisecond
)

// stallRun floods a pipeline with events, has PostgreSQL answer nothing for a
// while, and reads what that does to the pipeline's memory, and how fast the
// ontology catches up.
//
// A lock on the table of progress holds the sink up, and whoever asks how far it
// is, as a server does that answers nothing: no connection is refused or closed.
func (h *harness) stallRun(ctx context.Context, r *liveRun) error {
	r.spec.Shape = shapeWindows
	l, err := r.start(ctx)
	if err != nil {
		return err
	}
	if resident(l.cmd.Process.Pid) == 0 {
		return errors.New("the memory of a process cannot be read here: there is no /proc")
	}
	if _, err := l.awaitRows(ctx, 0); err != nil {
		return err
	}
	f := r.flood(ctx, l)
	defer func() { _ = f.end() }() // whoever ends it first is told
	s, err := r.stall(ctx, l, f)
	if err != nil {
		return err
	}
	r.in.Events = f.produced.Load()
	if err := r.produce(ctx, r.in.closers(r.spec.Input)); err != nil {
		return err
	}
	right := Fold(&r.in)
	h.say("catching up: %d results in all", len(right))
	all, err := l.awaitRows(ctx, int64(len(right)))
	if err != nil {
		return err
	}
	if err := r.stop(nil); err != nil {
		return err
	}
	return r.judgeStall(ctx, right, s, &all)
}

// stall is what was seen of one.
type stall struct {
	before, during int64 // the most memory, in bytes
	// began and ended are what the pipeline had said then; it was over at over.
	began, ended soFar
	over         time.Time
}

// stall watches the pipeline for a while, and then while the database stalls.
// The flood ends with the stall.
func (r *liveRun) stall(ctx context.Context, l *live, f *flood) (*stall, error) {
	c, s := r.harness.config, &stall{}
	pid := l.cmd.Process.Pid
	var err error
	if s.before, err = mostResident(ctx, pid, min(c.For, beforeStall)); err != nil {
		return nil, err
	}
	r.harness.say("PostgreSQL answers nothing for %s", c.For)
	err = r.harness.databases.do(ctx, r.database, func(conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it only holds the lock
		if _, err := tx.Exec(ctx, "LOCK TABLE strom.progress IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		first, err := mostResident(ctx, pid, c.For/2)
		if err != nil {
			return err
		}
		if s.began, err = l.seen(); err != nil {
			return err
		}
		second, err := mostResident(ctx, pid, c.For/2)
		if err != nil {
			return err
		}
		s.during = max(first, second)
		if s.ended, err = l.seen(); err != nil {
			return err
		}
		err = f.end()
		s.over = time.Now()
		return err
	})
	if err == nil && s.ended.rows != s.began.rows {
		err = fmt.Errorf("PostgreSQL did not stall: %d rows went in meanwhile", s.ended.rows-s.began.rows)
	}
	return s, err
}

// mostResident watches the memory of a process.
func mostResident(ctx context.Context, pid int, during time.Duration) (int64, error) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	most := resident(pid)
	for began := time.Now(); time.Since(began) < during; {
		select {
		case <-ctx.Done():
			return most, context.Cause(ctx)
		case <-tick.C:
			most = max(most, resident(pid))
		}
	}
	return most, nil
}

// flood is input without a pause, for as long as it runs.
type flood struct {
	produced atomic.Int64
	stop     context.CancelFunc
	done     chan struct{}
	err      error // read after done
}

// flood begins to produce the events of the run, always a little ahead of what
// the pipeline has counted.
func (r *liveRun) flood(ctx context.Context, l *live) *flood {
	f := &flood{done: make(chan struct{})}
	flooding, stop := context.WithCancel(ctx)
	f.stop = stop
	go func() {
		defer close(f.done)
		// What has been handed over is produced to its end.
		f.err = r.produce(ctx, f.records(flooding, r, l))
	}()
	return f
}

func (f *flood) records(ctx context.Context, r *liveRun, l *live) iter.Seq[*kgo.Record] {
	return func(yield func(*kgo.Record) bool) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			so, err := l.seen()
			if err != nil {
				return // whoever awaits something of the pipeline is told
			}
			for i := f.produced.Load(); i < so.counted+floodLead && ctx.Err() == nil; i++ {
				if !yield(r.in.record(r.spec.Input, i, r.in.Event(i))) {
					return
				}
				f.produced.Store(i + 1)
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}
}

// end ends the flood and waits until the broker has all of it. It may be called
// again.
func (f *flood) end() error {
	f.stop()
	<-f.done
	return f.err
}

// judgeStall compares the ontology with the fold and makes the figures.
func (r *liveRun) judgeStall(ctx context.Context, right Panes, s *stall, all *soFar) error {
	reader, err := ontology.OpenReader(ctx, mapping.Ontology{Postgres: mapping.NewSecret(r.database)}, ontology.Options{})
	if err != nil {
		return err
	}
	defer reader.Close()
	panes, err := believedPanes(ctx, reader, all.recorded)
	if err != nil {
		return err
	}
	r.wrongIf(panes.Diff(right), "after the stall")
	c := r.harness.config
	r.run.Result, r.run.Events = panes.Hash(), r.in.Events
	r.run.Seconds = c.For.Seconds()
	counts := c.For >= MinTime
	mib := func(bytes int64) float64 { return float64(bytes) / (1 << 20) }
	rows, took := all.rows-s.ended.rows, all.appliedAt.Sub(s.over)
	counted := s.ended.counted - s.began.counted
	r.run.Figures = []Figure{
		{Name: "before", Value: mib(s.before), Unit: "MiB", Note: "resident, at most", Counts: counts},
		{Name: "during", Value: mib(s.during), Unit: "MiB", Note: "resident, at most", Goal: mib(int64(membudget.Default())), Counts: counts},
		{
			Name: "input", Value: float64(counted) / (c.For / 2).Seconds(), Unit: "events/s", Counts: counts,
			Note: fmt.Sprintf("%d counted in the second half of the stall", counted),
		},
		{
			Name: "catch-up", Value: float64(valuesOfRow*rows) / took.Seconds(), Unit: "assertions/s", Counts: counts,
			Note: fmt.Sprintf("%d in %.2f s", valuesOfRow*rows, took.Seconds()),
		},
	}
	return nil
}
