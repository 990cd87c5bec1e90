package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/state"
)

// The goals for going on after a stop.
const (
	goalLocal     = 1.0 // seconds, at most
	goalChangelog = 1_000_000.0
	// recoverEntries is how many entries a state has at least that the goals are
	// meant for.
	recoverEntries = 1_000_000
)

// recoverInput has every event in one window, so that each key is one entry of
// the state for as long as nothing closes the window.
func recoverInput(in Input) Input {
	in.Window = 24 * time.Hour
	in.Events = in.Keys
	return in
}

// recoverRun stops a pipeline that has an entry of state for each key, and reads
// how long it takes until its tasks run again: with its local stores, and
// without, from the changelog alone.
//
// Each of its three lives counts every key once, with other amounts; what the
// windows come to in the end holds what all have counted.
func (h *harness) recoverRun(ctx context.Context, r *liveRun) error {
	in := recoverInput(r.in)
	r.spec.Shape, r.spec.WindowMs = shapeWindows, in.Window.Milliseconds()
	right := Panes{}
	h.say("making a state of %d entries", in.Keys)
	if _, err := r.life(ctx, in, right, 1); err != nil {
		return err
	}
	h.say("going on from the local stores")
	local, err := r.life(ctx, in, right, 2)
	if err != nil {
		return err
	}
	logged, err := r.changelogEntries(ctx)
	if err != nil {
		return err
	}
	h.say("going on from the changelog alone: %d entries", logged)
	if err := os.RemoveAll(r.spec.StateDir); err != nil {
		return err
	}
	if err := os.MkdirAll(r.spec.StateDir, 0o750); err != nil {
		return err
	}
	changelog, err := r.life(ctx, in, right, 3)
	if err != nil {
		return err
	}
	panes, err := (&ours{}).results(ctx, h.broker.addrs, r.spec)
	if err != nil {
		return fmt.Errorf("read its results: %w", err)
	}
	r.wrongIf(panes.Diff(right), "after three lives")
	r.run.Result, r.run.Events = panes.Hash(), lives*in.Events
	r.run.Seconds = (local.took + changelog.took).Seconds()
	r.run.Figures = recoverFigures(in.Keys, logged, local, changelog)
	return nil
}

// lives is how often the pipeline runs; the last one closes the windows.
const lives = 3

// comeback is how a pipeline has come back.
type comeback struct {
	took, whole time.Duration // the take-over of its tasks; all since its process was started
}

// life runs the pipeline until it has counted every key once more, and stops it.
func (r *liveRun) life(ctx context.Context, in Input, right Panes, n int64) (comeback, error) {
	in.Seed += uint64(n)
	if err := r.produce(ctx, in.records(r.spec.Input, in.Events)); err != nil {
		return comeback{}, err
	}
	right.add(&in)
	if n == lives {
		if err := r.produce(ctx, in.closers(r.spec.Input)); err != nil {
			return comeback{}, err
		}
	}
	l, err := r.start(ctx)
	if err != nil {
		return comeback{}, err
	}
	so, err := l.awaitCounted(ctx, n*in.Events)
	if err == nil && n == lives {
		so, err = l.awaitRows(ctx, in.Keys)
	}
	if err != nil {
		return comeback{}, err
	}
	return comeback{took: so.took, whole: so.started.Sub(l.launched)}, r.stop(nil)
}

// changelogEntries counts what a recovery without local stores reads: every
// write of a window that has not been compacted away.
func (r *liveRun) changelogEntries(ctx context.Context) (int64, error) {
	topology, err := r.spec.topology()
	if err != nil {
		return 0, err
	}
	var n int64
	for _, stage := range topology.Stages {
		err := readCommitted(ctx, r.harness.broker.addrs, func(rec *kgo.Record) error {
			if len(rec.Key) > 0 && rec.Key[0] == state.KeyPane {
				n++
			}
			return nil
		}, topology.Changelog(stage))
		if err != nil {
			return 0, fmt.Errorf("read the changelog: %w", err)
		}
	}
	return n, nil
}

func recoverFigures(entries, logged int64, local, changelog comeback) []Figure {
	counts := entries >= recoverEntries
	of := fmt.Sprintf("of %d entries", entries)
	start := func(name string, c comeback) Figure {
		return Figure{Name: name, Value: c.whole.Seconds(), Unit: "s", Note: "from the start of the process until its tasks run", Counts: counts}
	}
	return []Figure{
		{Name: "local", Value: local.took.Seconds(), Unit: "s", Note: "to take over " + of, Goal: goalLocal, Counts: counts},
		start("local-start", local),
		{
			Name: "changelog", Value: float64(logged) / changelog.took.Seconds(), Unit: "entries/s",
			Note: fmt.Sprintf("%d in %.2f s, to take over %d", logged, changelog.took.Seconds(), entries), Goal: goalChangelog, AtLeast: true, Counts: counts,
		},
		start("changelog-start", changelog),
	}
}
