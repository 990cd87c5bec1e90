package faults

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/state/savepoint"
)

// saves says that the replicas of a case ask for savepoints.
func (c Case) saves() bool { return strings.HasPrefix(c.Point, "savepoint.") }

// savepoints is the checkpoint directory of the case.
func (r *run) savepoints() string { return filepath.Join(r.dir, "savepoints") }

// checkSavepoints makes sure that every savepoint with a manifest is whole: its
// bytes are those that were written, and all of its stores are of its epoch. A run
// may end before one of them becomes whole.
func (r *run) checkSavepoints(ctx context.Context) error {
	if !r.c.saves() {
		return nil
	}
	dir := savepoint.In(r.savepoints(), r.topology.Plan.Pipeline)
	list, err := dir.List()
	if err != nil {
		return err
	}
	for i := range list {
		e := &list[i]
		if e.Err != nil {
			return fmt.Errorf("savepoint %s: %w", e.Name, e.Err)
		}
		if !e.Whole() {
			continue
		}
		if _, err := dir.Verify(ctx, e.Name, nil); err != nil {
			return fmt.Errorf("savepoint %s: %w", e.Name, err)
		}
		for j := range e.Manifest.Tasks {
			if err := checkPart(dir, e.Manifest, e.Manifest.Tasks[j].Task); err != nil {
				return fmt.Errorf("savepoint %s, task %s: %w", e.Name, e.Manifest.Tasks[j].Task, err)
			}
		}
	}
	if len(list) == 0 {
		return fmt.Errorf("%s was reached, and there are no savepoints", r.c.Point)
	}
	return nil
}

func checkPart(dir savepoint.Dir, m *savepoint.Manifest, t savepoint.Task) (err error) {
	st, _, err := state.OpenCheckpoint(dir.PartDir(m.Name, t), state.PebbleOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	p, _, err := state.ReadProgress(st)
	if err != nil {
		return err
	}
	if p.Epoch != m.Barrier.Epoch || p.Recorded != m.Barrier.Recorded {
		return fmt.Errorf("it is of epoch %s, and the savepoint of %s", p.Epoch, m.Barrier.Epoch)
	}
	return nil
}
