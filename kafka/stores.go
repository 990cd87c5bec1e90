package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// stores holds the open stores of this process: a store is opened once and
// kept across rebalances.
type stores struct {
	engine *Engine
	cache  *pebble.Cache

	mu   sync.Mutex // guards open
	open map[processors.TaskID]*state.Pebble
}

func newStores(e *Engine, cache *pebble.Cache) *stores {
	return &stores{engine: e, cache: cache, open: map[processors.TaskID]*state.Pebble{}}
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

func (s *stores) get(t processors.TaskID) (*state.Pebble, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.open[t]; st != nil {
		return st, nil
	}
	top := s.engine.topology
	id := state.Identity{
		Pipeline: top.Plan.Pipeline, Generation: top.Generation, Stage: t.Stage,
		Partition: t.Partition, Cluster: s.engine.layout.cluster,
	}
	st, err := state.OpenPebble(s.dir(t), id, state.PebbleOptions{Cache: s.cache})
	if errors.Is(err, state.ErrDamaged) {
		s.engine.log.Warn("the local state is damaged and is rebuilt from the changelog", "stage", t.Stage, "partition", t.Partition, "error", err)
		if err := state.RemoveDir(s.dir(t)); err != nil {
			return nil, err
		}
		st, err = state.OpenPebble(s.dir(t), id, state.PebbleOptions{Cache: s.cache})
	}
	if err != nil {
		return nil, err
	}
	s.open[t] = st
	return st, nil
}

// prepare opens a task's store and makes it fit to be caught up from its changelog.
func (s *stores) prepare(ctx context.Context, adm *kadm.Client, t processors.TaskID, changelog string) (*state.Pebble, error) {
	st, err := s.get(t)
	if err != nil {
		return nil, err
	}
	b, err := partitionBounds(ctx, adm, changelog, t.Partition)
	if err != nil {
		return nil, err
	}
	local, err := st.Position()
	if err != nil {
		return nil, err
	}
	decision, why := state.Decide(state.Facts{Local: local, Start: b.start, End: b.high})
	s.engine.log.Debug("recovery", "stage", t.Stage, "partition", t.Partition, "decision", decision.String(), "why", why)
	if decision == state.Rebuild {
		s.engine.log.Warn("the local state is rebuilt from the changelog", "stage", t.Stage, "partition", t.Partition, "why", why)
		if err := st.Wipe(); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// discard closes a damaged store and removes its files: the next take-over
// rebuilds it. Nobody may use the store any more.
func (s *stores) discard(t processors.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.open[t]
	if st == nil {
		return
	}
	delete(s.open, t)
	s.engine.log.Warn("the local state is damaged and is rebuilt from the changelog", "stage", t.Stage, "partition", t.Partition)
	if err := errors.Join(st.Close(), state.RemoveDir(s.dir(t))); err != nil {
		s.engine.log.Debug("discard a damaged store", "error", err)
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
