package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// readBacks asks the ontology for the windows that tasks have parked events
// for, once the sink has applied the epochs that can have published them. What
// waits is bounded by what the tasks may park before the sources hold.
type readBacks struct {
	engine *Engine
	wakeUp chan struct{} // something was asked, or the sink has applied something

	mu    sync.Mutex // guards asked
	asked []asked
}

type asked struct {
	task *task
	rb   processors.ReadBack
	at   *event.RecordedTime // as of when; nil: as last applied
}

const (
	readBackBatch = 1000
	readBackTick  = 50 * time.Millisecond
)

func newReadBacks(e *Engine) *readBacks {
	return &readBacks{engine: e, wakeUp: make(chan struct{}, 1)}
}

// ask asks for windows that were parked by barrier n, which has recorded time
// recorded. Where the ontology has applied more than that, as an epoch is
// repeated, the answer is as of then: nobody can have published a parked window
// before it is granted. It may be called from any goroutine; it does not block.
func (r *readBacks) ask(t *task, rbs []processors.ReadBack, n event.Epoch, recorded event.RecordedTime) {
	var at *event.RecordedTime
	if n <= r.engine.origin.applied {
		at = &recorded
	}
	r.engine.config.At("readback.asked")
	r.mu.Lock()
	for _, rb := range rbs {
		r.asked = append(r.asked, asked{t, rb, at})
	}
	r.mu.Unlock()
	r.wake()
}

func (r *readBacks) wake() {
	select {
	case r.wakeUp <- struct{}{}:
	default:
	}
}

func (r *readBacks) run(ctx context.Context) error {
	var waiting []asked
	tick := time.NewTicker(readBackTick)
	defer tick.Stop()
	for {
		var ticks <-chan time.Time
		if len(waiting) > 0 {
			ticks = tick.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wakeUp:
		case <-ticks:
		}
		r.mu.Lock()
		waiting = append(waiting, r.asked...)
		r.asked = nil
		r.mu.Unlock()
		for more := len(waiting) > 0; more; {
			left, err := r.answer(ctx, waiting)
			if err != nil {
				return err
			}
			more = len(left) > 0 && len(left) < len(waiting)
			waiting = left
		}
	}
}

// answer answers what can be answered and returns the rest.
func (r *readBacks) answer(ctx context.Context, waiting []asked) ([]asked, error) {
	progress, err := r.engine.store.Progress(ctx)
	if err != nil {
		return nil, err
	}
	var ready, left []asked
	for _, a := range waiting {
		switch p := r.partition(&a.rb); {
		case a.task.session.ctx.Err() != nil:
			// The task is gone; its next owner asks again.
		case progress[p].Epoch >= a.rb.After && len(ready) < readBackBatch:
			ready = append(ready, a)
		default:
			left = append(left, a)
		}
	}
	if len(ready) == 0 {
		return left, nil
	}
	refs := make([]ontology.WindowRef, len(ready))
	for i, a := range ready {
		refs[i] = windowRef(&a.rb)
		refs[i].At = a.at
	}
	states, err := r.engine.store.ReadBack(ctx, refs)
	if err != nil {
		return nil, err
	}
	if len(states) != len(refs) {
		return nil, fmt.Errorf("the ontology answered %d of %d read-backs", len(states), len(refs))
	}
	answers := map[*task][]processors.Answer{}
	for i, a := range ready {
		answers[a.task] = append(answers[a.task], answerOf(a.rb.Number, &states[i]))
	}
	r.engine.config.At("readback.answered")
	for t, list := range answers {
		t.send(&item{task: t, answers: list})
	}
	return left, nil
}

func (r *readBacks) partition(rb *processors.ReadBack) event.Partition {
	return event.PartitionOf(event.ObjectKey(rb.Type, rb.ID), r.engine.layout.results)
}

func windowRef(rb *processors.ReadBack) ontology.WindowRef {
	return ontology.WindowRef{
		Type: rb.Type, ID: rb.ID, Aggregate: rb.Aggregate, Start: rb.Start, End: rb.End, Values: rb.Values,
	}
}

func answerOf(number uint64, s *ontology.WindowState) processors.Answer {
	return processors.Answer{Number: number, Found: s.Found, Version: s.Version, Properties: s.Values}
}
