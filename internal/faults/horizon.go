package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/event"
)

// horizonWatch asks for the safe horizon again and again while a case runs.
type horizonWatch struct {
	stop    context.CancelFunc
	done    chan struct{}
	samples []event.RecordedTime // the watcher's own until done is closed
}

const horizonEvery = 25 * time.Millisecond

func watchHorizon(ctx context.Context, postgres string) *horizonWatch {
	ctx, stop := context.WithCancel(ctx)
	w := &horizonWatch{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.run(ctx, postgres)
	}()
	return w
}

// end gives what was seen.
func (w *horizonWatch) end() []event.RecordedTime {
	w.stop()
	<-w.done
	return w.samples
}

func (w *horizonWatch) run(ctx context.Context, postgres string) {
	conn, err := pgx.Connect(ctx, postgres)
	if err != nil {
		return // the check says that nothing was seen
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tick := time.NewTicker(horizonEvery)
	defer tick.Stop()
	for {
		var at *int64
		err := conn.QueryRow(ctx, `SELECT (extract(epoch FROM horizon) * 1000000)::bigint FROM strom.pipeline_horizon
			WHERE horizon > '-infinity'`).Scan(&at)
		if err == nil && at != nil { // the tables may not be there yet
			w.samples = append(w.samples, event.RecordedTime(*at))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkHorizon makes sure that the horizon never falls.
func checkHorizon(samples []event.RecordedTime) error {
	if len(samples) == 0 {
		return errors.New("no horizon was seen")
	}
	for i, before := range samples[:len(samples)-1] {
		if now := samples[i+1]; now < before {
			return fmt.Errorf("the horizon has fallen from %s to %s", before, now)
		}
	}
	return nil
}
