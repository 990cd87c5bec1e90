package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/state/savepoint"
)

// saver writes this process's parts of savepoints. A checkpoint is taken by the
// committer, between two epochs: links beside the store. It is copied to the
// checkpoint directory, one after the other, while the pipeline goes on. What
// goes wrong is told on the control topic and stops nothing.
type saver struct {
	engine  *Engine
	staging string
	dir     savepoint.Dir
	wakeUp  chan struct{}

	mu   sync.Mutex // guards jobs
	jobs []saveJob
}

// saveJob is a checkpoint that waits to be copied, or why there is none.
type saveJob struct {
	barrier    processors.Announcement
	part       savepoint.Part
	checkpoint string
	err        error
}

// errNoCheckpointDir is for a replica that has none.
var errNoCheckpointDir = errors.New("this replica has no checkpoint directory: start it with --checkpoint-dir")

// newSaver also removes what a process before has left beside the stores.
func newSaver(e *Engine) (*saver, error) {
	s := &saver{
		engine: e, staging: filepath.Join(e.config.DataDir, "savepoints"), wakeUp: make(chan struct{}, 1),
		dir: savepoint.In(e.config.CheckpointDir, e.topology.Plan.Pipeline),
	}
	if err := os.RemoveAll(s.staging); err != nil {
		return nil, fmt.Errorf("remove what a savepoint has left: %w", err)
	}
	return s, nil
}

// take takes a checkpoint of a task's store if the barrier that it holds carries
// a savepoint. Whoever writes the store calls it, before the next epoch. Its
// error is one of the store: it is damaged.
func (s *saver) take(t *task) error {
	a := s.engine.hub.carries(t.barrier.epoch)
	if a.Savepoint == "" {
		return nil
	}
	id := savepoint.Task(t.id)
	job := saveJob{barrier: a, part: savepoint.Part{
		Savepoint: a.Savepoint, Task: id, Epoch: a.Epoch, Recorded: a.Recorded, Offsets: t.barrier.offsets,
	}}
	job.checkpoint, job.err = s.checkpoint(t, a.Savepoint)
	if errors.Is(job.err, state.ErrDamaged) {
		return job.err
	}
	s.engine.config.At("savepoint.checkpoint")
	s.mu.Lock()
	s.jobs = append(s.jobs, job)
	s.mu.Unlock()
	select {
	case s.wakeUp <- struct{}{}:
	default:
	}
	return nil
}

func (s *saver) checkpoint(t *task, name string) (string, error) {
	if s.engine.config.CheckpointDir == "" {
		return "", errNoCheckpointDir
	}
	if err := savepoint.ValidName(name); err != nil {
		return "", err
	}
	if len(s.dir.Missing(name, []savepoint.Task{savepoint.Task(t.id)})) == 0 {
		return "", nil // another owner has written it
	}
	st, err := s.engine.stores.get(t.id)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.staging, fmt.Sprintf("%s-%s-%s-%08x", name, t.id.Stage, t.id.Partition, rand.Uint32()))
	return dir, st.Checkpoint(dir)
}

// run copies what has been taken, until ctx ends.
func (s *saver) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wakeUp:
		}
		for {
			s.mu.Lock()
			if len(s.jobs) == 0 {
				s.mu.Unlock()
				break
			}
			job := s.jobs[0]
			s.jobs = s.jobs[1:]
			s.mu.Unlock()
			err := s.save(ctx, &job)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.report(&job, err)
		}
	}
}

// save copies one checkpoint, and completes the savepoint if it was the last.
func (s *saver) save(ctx context.Context, job *saveJob) error {
	if job.err != nil {
		return job.err
	}
	e := s.engine
	if job.checkpoint != "" {
		err := s.dir.WritePart(ctx, job.checkpoint, job.part, func() { e.config.At("savepoint.files") })
		if err := errors.Join(err, os.RemoveAll(job.checkpoint)); err != nil {
			return err
		}
		e.config.At("savepoint.part")
	}
	whole, err := s.dir.Complete(job.barrier.Savepoint, e.savedPipeline(), savedBarrier(&job.barrier), e.savedTasks(),
		func() { e.config.At("savepoint.manifest") })
	if whole {
		e.log.Info("the savepoint is whole", "savepoint", job.barrier.Savepoint, "epoch", job.barrier.Epoch, "directory", s.dir.Path())
	}
	return err
}

// report tells whoever waits.
func (s *saver) report(job *saveJob, failed error) {
	e := s.engine
	r := controlRecord{
		Kind: kindSaved, Epoch: job.barrier.Epoch, Savepoint: job.barrier.Savepoint, Stage: job.part.Stage,
		Member: e.config.Replica, Tasks: []ackJSON{{Partition: job.part.Partition}},
	}
	if failed != nil {
		r.Why = failed.Error()
		e.log.Warn("a task's part of a savepoint could not be written", "savepoint", job.barrier.Savepoint,
			"stage", job.part.Stage, "partition", job.part.Partition, "error", failed)
	}
	e.tell(r)
}

// tell writes a control record that nothing depends on.
func (e *Engine) tell(r controlRecord) {
	value, err := encodeControl(r)
	if err != nil {
		e.log.Error("encode a control record", "error", err)
		return
	}
	e.client.Produce(context.Background(), &kgo.Record{Topic: e.topology.ControlTopic(), Value: value}, func(_ *kgo.Record, err error) {
		if err != nil && !errors.Is(err, kgo.ErrClientClosed) {
			e.log.Warn("write to the control topic", "kind", r.Kind, "error", err)
		}
	})
}

// carries gives the announcement of an epoch if it carries a savepoint.
func (h *hub) carries(n event.Epoch) processors.Announcement {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.carrying.Epoch != n {
		return processors.Announcement{}
	}
	return h.carrying
}

// remember takes the savepoint that is under way when the engine starts.
func (h *hub) remember(recs []controlRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range recs {
		if r := &recs[i]; r.Kind == kindBarrier && r.Savepoint != "" {
			h.carrying = r.announcement()
		}
	}
}

func (e *Engine) savedPipeline() savepoint.Pipeline {
	t := e.topology
	return savepoint.Pipeline{
		Name: t.Plan.Pipeline, Generation: t.Generation, Mapping: t.Plan.Version, Cluster: e.layout.cluster, Formats: formats(),
	}
}

// formats are the versions of all records that a savepoint depends on.
func formats() map[string]int {
	f := state.Formats()
	f["control"] = controlVersion
	return f
}

// savedTasks are all tasks of the pipeline.
func (e *Engine) savedTasks() []savepoint.Task {
	var out []savepoint.Task
	for _, s := range e.topology.Stages {
		for p := range e.layout.tasks[s.Name] {
			out = append(out, savepoint.Task{Stage: s.Name, Partition: event.Partition(p)})
		}
	}
	return out
}

func savedBarrier(a *processors.Announcement) savepoint.Barrier {
	b := savepoint.Barrier{
		Epoch: a.Epoch, Recorded: a.Recorded, Watermarks: a.Watermarks, Granted: a.Granted, Hold: a.Hold, End: a.End,
	}
	for _, t := range a.Idle {
		b.Idle = append(b.Idle, savepoint.Task(t))
	}
	return b
}
