package sim

import (
	"errors"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
)

// What the planted bugs do beside the engine's model.

// takesForAbort reports whether a bug takes the outcome of a commit for an abort.
func (s *session) takesForAbort(err error) bool {
	unknown, ok := errors.AsType[*unknownOutcome](err)
	if !ok || s.cancelled {
		return false
	}
	fenced := errors.Is(unknown, broker.ErrFenced) || errors.Is(unknown, broker.ErrInvalidEpoch)
	return s.engine.sim.bug == UnknownIsAbort && !fenced || s.engine.sim.bug == FencedIsAbort && fenced
}

// endEarly ends the transaction behind the offsets; the records come in another.
func (c *commit) endEarly() error {
	s := c.session
	producer := s.producer
	next, err := insist(c.p, "end transaction of the offsets", c.goOn, func() (broker.Producer, error) {
		return s.engine.sim.broker.EndTransaction(s.id, producer, true)
	})
	if err != nil {
		return &resetError{err}
	}
	s.next(next)
	return nil
}

// applyEarly writes the stores before the transaction has ended.
func (c *commit) applyEarly() error {
	for _, h := range c.waiting {
		if err := c.session.apply(h, c); err != nil {
			return err
		}
	}
	return nil
}

// oneMore adds a task that is not among them, if there is one.
func oneMore(tasks, all []event.Partition) []event.Partition {
	for _, n := range all {
		if !slices.Contains(tasks, n) {
			return append(slices.Clone(tasks), n)
		}
	}
	return tasks
}

// misled spoils what a coordinator knows and says.
func (a *announcer) misled() {
	if a.engine.sim.bug != AnnounceEarly {
		return
	}
	n := a.coordinator.Last().Epoch
	for _, t := range a.coordinator.Missing() {
		a.coordinator.Acked(processors.Ack{Task: t, Epoch: n, Watermark: event.WatermarkUnknown, Next: processors.Next{Known: true, None: true}})
	}
}
