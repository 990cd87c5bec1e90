package kafka

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// Holder is somebody whom the horizon waits for.
type Holder struct {
	// Stage is the name of a stage, SinkName (Partition is then one of the
	// results topic) or CoordinatorName.
	Stage     string
	Partition event.Partition
	Why       string
	// Since is when it began to be waited for; zero: not known.
	Since time.Time
}

// standing is how far a pipeline is.
type standing struct {
	newest      processors.Announcement
	announcedAt time.Time
	// wall: R is the clock on the wall. longest is the longest time between two
	// barriers of a pipeline that has nothing to do.
	wall    bool
	longest time.Duration
	tasks   []processors.TaskID // all of the pipeline
	acks    map[processors.TaskID]heardAck
	applied map[event.Partition]ontology.Progress // nil: not known
}

// A barrier takes its time: the next one is announced while the sink applies
// the one before. Nobody is named before things stand still for holdPatience,
// or the sink is more than holdEpochs behind.
const (
	holdPatience = 5 * time.Second
	holdEpochs   = 2
)

// heldBy names those whom the horizon waits for. A barrier is announced when
// every task has committed the one before, and counts when every results
// partition has applied it: so the first of these that is behind holds it.
func (s *standing) heldBy(now time.Time) []Holder {
	n := s.newest.Epoch
	if n == 0 {
		return nil
	}
	waited := now.Sub(s.announcedAt)
	done := n
	for _, t := range s.tasks {
		done = min(done, s.acks[t].Epoch)
	}
	out := s.sinkHolders(done, waited)
	switch {
	case done < n && waited > holdPatience:
		out = append(out, s.taskHolders()...)
	case done == n && s.wall && !s.newest.End && waited > holdPatience+s.longest:
		out = append(out, Holder{
			Stage: CoordinatorName, Since: s.lastAck(),
			Why: fmt.Sprintf("no barrier has been announced since %s, which every task has committed", n),
		})
	}
	return out
}

func (s *standing) sinkHolders(done event.Epoch, waited time.Duration) []Holder {
	if s.applied == nil {
		return nil
	}
	least, recorded := leastApplied(s.applied)
	if least >= done || (s.newest.Epoch-least <= holdEpochs && waited <= holdPatience) {
		return nil
	}
	var since time.Time
	if s.wall && least > 0 {
		since = recorded.Time()
	}
	var out []Holder
	for _, p := range slices.Sorted(maps.Keys(s.applied)) {
		if s.applied[p].Epoch == least {
			out = append(out, Holder{
				Stage: SinkName, Partition: p, Since: since,
				Why: fmt.Sprintf("results partition %s has applied epoch %s of %s", p, least, s.newest.Epoch),
			})
		}
	}
	return out
}

func (s *standing) taskHolders() []Holder {
	var out []Holder
	for _, t := range s.tasks {
		if s.acks[t].Epoch < s.newest.Epoch {
			out = append(out, Holder{
				Stage: t.Stage, Partition: t.Partition, Since: s.announcedAt,
				Why: fmt.Sprintf("stage %s partition %s has not acknowledged epoch %s", t.Stage, t.Partition, s.newest.Epoch),
			})
		}
	}
	return out
}

func (s *standing) lastAck() time.Time {
	var last time.Time
	for _, a := range s.acks {
		if a.at.After(last) {
			last = a.at
		}
	}
	return last
}

// leastApplied is the oldest epoch that a results partition has, with its R.
func leastApplied(applied map[event.Partition]ontology.Progress) (event.Epoch, event.RecordedTime) {
	first := true
	var least ontology.Progress
	for _, p := range applied {
		if first || p.Epoch < least.Epoch {
			least, first = p, false
		}
	}
	return least.Epoch, least.Recorded
}
