package sim

import (
	"context"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// readBacks asks the ontology for the windows that tasks have parked events
// for, once the sink has applied the epochs that can have published them.
type readBacks struct {
	engine *engine
	asked  []askedWindow
}

type askedWindow struct {
	task *task
	rb   processors.ReadBack
}

const readBackTick = 50 * millisecond

func (r *readBacks) ask(t *task, rbs []processors.ReadBack) {
	for _, rb := range rbs {
		r.asked = append(r.asked, askedWindow{t, rb})
	}
}

func (r *readBacks) run(p *process) error {
	for {
		if _, err := p.await(func() bool { return r.engine.stopping || len(r.asked) > 0 }, forever); err != nil {
			return err
		}
		if err := r.engine.goOn(); err != nil {
			return err
		}
		if err := r.answer(p); err != nil {
			return err
		}
		if err := p.sleep(readBackTick); err != nil {
			return err
		}
	}
}

// answer answers what can be answered.
func (r *readBacks) answer(p *process) error {
	e := r.engine
	progress, err := e.progress(p, e.goOn)
	if err != nil {
		return err
	}
	var ready, left []askedWindow
	for _, a := range r.asked {
		n := event.PartitionOf(event.ObjectKey(a.rb.Type, a.rb.ID), int32(len(e.sim.broker.Topic(e.sim.topology.ResultsTopic()))))
		switch {
		case a.task.session.cancelled:
			// The task is gone; its next owner asks again.
		case progress[n].Epoch >= a.rb.After:
			ready = append(ready, a)
		default:
			left = append(left, a)
		}
	}
	r.asked = left
	if len(ready) == 0 {
		return nil
	}
	refs := make([]ontology.WindowRef, len(ready))
	for i, a := range ready {
		refs[i] = ontology.WindowRef{
			Type: a.rb.Type, ID: a.rb.ID, Aggregate: a.rb.Aggregate, Start: a.rb.Start, End: a.rb.End, Values: a.rb.Values,
		}
	}
	states, err := query(e, p, "read back", e.goOn, func() ([]ontology.WindowState, error) {
		return e.sim.database.store.ReadBack(context.Background(), refs)
	})
	if err != nil {
		return err
	}
	for i, a := range ready {
		p.world.meet("window read back")
		s := &states[i]
		a.task.send(&item{answers: []processors.Answer{{
			Number: a.rb.Number, Found: s.Found, Version: s.Version, Properties: s.Values,
		}}})
	}
	return nil
}
