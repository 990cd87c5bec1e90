package kafka

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// stores holds the open stores of this process: a store is opened once and
// kept across rebalances.
type stores struct {
	engine *Engine
	cache  *pebble.Cache

	mu      sync.Mutex // guards open and damaged
	open    map[processors.TaskID]*state.Pebble
	damaged map[processors.TaskID]error // a store that was closed because of it
}

func newStores(e *Engine, cache *pebble.Cache) *stores {
	return &stores{engine: e, cache: cache, open: map[processors.TaskID]*state.Pebble{}, damaged: map[processors.TaskID]error{}}
}

func (s *stores) dir(t processors.TaskID) string {
	top := s.engine.topology
	return filepath.Join(s.engine.config.DataDir, "state", fmt.Sprintf("%s.g%s", top.Plan.Pipeline, top.Generation),
		t.Stage, t.Partition.String())
}

// local lists the partitions of a stage of which the data directory holds
// state, in whatever condition.
func (s *stores) local(stage string) []int32 {
	entries, err := os.ReadDir(filepath.Dir(s.dir(processors.TaskID{Stage: stage})))
	if err != nil {
		return nil // none, or the opening will say what is wrong
	}
	var out []int32
	for _, e := range entries {
		if p, err := strconv.ParseInt(e.Name(), 10, 32); err == nil {
			out = append(out, int32(p))
		}
	}
	slices.Sort(out)
	return out
}

// get gives the store that prepare has opened.
func (s *stores) get(t processors.TaskID) (*state.Pebble, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.open[t]; st != nil {
		return st, nil
	}
	return nil, fmt.Errorf("stage %s, partition %s: its local store is not open", t.Stage, t.Partition)
}

// prepare finds out what the local store of a task is worth, and makes it fit
// to be caught up from its changelog.
func (s *stores) prepare(t processors.TaskID, log *changelog) (*state.Pebble, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	facts, found := s.inspect(t, log)
	if found != nil && facts.Local != state.LocalDamaged && facts.Local != state.LocalForeign {
		return nil, found
	}
	v, err := s.engine.decide(t, facts, found)
	if err != nil {
		return nil, err
	}
	switch v.Decision {
	case state.Continue, state.CatchUp:
		st := s.open[t]
		if facts.Local == state.LocalAbsent {
			return st, s.mark(st, log)
		}
		return st, nil
	case state.Rebuild:
		return s.renew(t, facts.Local, log)
	case state.Refuse:
		if v.Reason == state.ReasonForeign {
			return nil, found
		}
		b := log.bounds[t.Partition]
		return nil, &ChangelogError{Task: t, Topic: log.topic, Start: b.start, End: b.high, Verdict: v}
	case state.Undecided, state.Begin, state.BackToGroup:
	}
	return nil, fmt.Errorf("a bug in Strom: a local store is not to be decided upon by %q", v.Decision)
}

// inspect opens the store, if it is not open, and compares it with its
// changelog. found is what is wrong with it, or why that cannot be told. The
// caller holds mu.
func (s *stores) inspect(t processors.TaskID, log *changelog) (facts state.Facts, found error) {
	b := log.bounds[t.Partition]
	facts.Log, facts.History = state.LogOf(b.start, b.high), s.engine.history(t.Stage)
	if found = s.damaged[t]; found == nil {
		facts.Local, facts.Age, found = s.compare(t, log, b)
	}
	var foreign *state.ForeignError
	switch {
	case errors.As(found, &foreign):
		facts.Local = state.LocalForeign
	case errors.Is(found, event.ErrCorrupt):
		facts.Local = state.LocalDamaged
	}
	return facts, found
}

func (s *stores) compare(t processors.TaskID, log *changelog, b bounds) (state.Local, state.Age, error) {
	st, err := s.openStore(t)
	if err != nil {
		return 0, 0, err
	}
	position, err := st.Position()
	if err != nil {
		return 0, 0, err
	}
	mark, err := state.ReadMark(st)
	if err != nil {
		return 0, 0, err
	}
	local := state.PlaceOf(position, b.start, b.high)
	if local != state.LocalAbsent && mark.CaughtUp != event.RecordedUnknown && mark.Log != log.id {
		local = state.LocalOtherLog
	}
	return local, state.AgeOf(mark.CaughtUp, log.asked, log.keep), nil
}

func (s *stores) openStore(t processors.TaskID) (*state.Pebble, error) {
	if st := s.open[t]; st != nil {
		return st, nil
	}
	top := s.engine.topology
	st, err := state.OpenPebble(s.dir(t), state.Identity{
		Pipeline: top.Plan.Pipeline, Generation: top.Generation, Stage: t.Stage,
		Partition: t.Partition, Cluster: s.engine.layout.cluster,
	}, state.PebbleOptions{Cache: s.cache, TableBytes: s.engine.config.Memory.Table(s.engine.layout.all())})
	if err != nil {
		return nil, err
	}
	s.open[t] = st
	return st, nil
}

// renew empties a store; one that is damaged is made anew.
func (s *stores) renew(t processors.TaskID, local state.Local, log *changelog) (*state.Pebble, error) {
	if local == state.LocalDamaged {
		s.shut(t)
		if err := state.RemoveDir(s.dir(t)); err != nil {
			return nil, fmt.Errorf("remove damaged local state: %w", err)
		}
		delete(s.damaged, t)
	}
	st, err := s.openStore(t)
	if err != nil {
		return nil, err
	}
	if err := st.Wipe(); err != nil {
		return nil, err
	}
	return st, s.mark(st, log)
}

// mark says of an empty store that it lacks nothing of its changelog from now on.
func (s *stores) mark(st *state.Pebble, log *changelog) error {
	return st.Apply(&state.Batch{Position: event.OffsetNone, Mark: log.mark(log.asked)})
}

// condemn closes a store that was found damaged: the next take-over rebuilds
// it. Nobody may use the store any more.
func (s *stores) condemn(t processors.TaskID, damage error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damaged[t] = damage
	s.shut(t)
}

// shut closes a store, if it is open; the caller holds mu.
func (s *stores) shut(t processors.TaskID) {
	st := s.open[t]
	if st == nil {
		return
	}
	delete(s.open, t)
	if err := st.Close(); err != nil {
		s.engine.log.Debug("close a damaged store", "error", err)
	}
}

func (s *stores) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, st := range s.open {
		if err := st.Close(); err != nil {
			s.engine.log.Warn("close the local state", "stage", t.Stage, "partition", t.Partition, "error", err)
		}
	}
}
