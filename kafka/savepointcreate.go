package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state/savepoint"
)

// SavepointRequest is what CreateSavepoint asks for.
type SavepointRequest struct {
	Kafka    mapping.Kafka
	Topology *processors.Topology
	// CheckpointDir is that of the replicas.
	CheckpointDir string
	Name          string
	Log           *slog.Logger
	// Progress, where set, is told how it goes; it must not block.
	Progress func(SavepointProgress)
}

// SavepointProgress is how far a savepoint is.
type SavepointProgress struct {
	// Epoch is the barrier that carries it, 0 before one does.
	Epoch   event.Epoch
	Missing []savepoint.Task
	Tasks   int
}

// SavepointError says why a savepoint did not become whole.
type SavepointError struct {
	Name, Dir string
	// Epoch is the barrier that carries it, 0 if none does.
	Epoch event.Epoch
	// Newest is the newest barrier that was announced meanwhile, 0 if none was.
	Newest  event.Epoch
	Missing []savepoint.Task
	// Elsewhere are those of the missing that a replica says it has written.
	Elsewhere []savepoint.Task
	Replica   string
	// Task is the one that could not write its part, and Why what it says.
	Task savepoint.Task
	Why  string
}

// Error says what to do as well.
func (e *SavepointError) Error() string {
	text := fmt.Sprintf("savepoint %s did not become whole: ", e.Name)
	switch {
	case e.Why != "":
		return text + fmt.Sprintf("task %s of replica %s could not write its part: %s", e.Task, e.Replica, e.Why)
	case e.Epoch == 0 && e.Newest == 0:
		return text + "no barrier was announced meanwhile; is the pipeline running? strom status tells (under epoch.clock: log a barrier comes only with further records)"
	case e.Epoch == 0:
		return text + fmt.Sprintf("barriers up to %s were announced, but none carries it: the coordinator is a replica of an older version", e.Newest)
	case len(e.Elsewhere) > 0:
		return text + fmt.Sprintf("replica %s has written the part of %s, and it is not in %s here: all replicas and this command need one checkpoint directory, a shared mount where they run on several machines (--checkpoint-dir)",
			e.Replica, savepoint.Names(e.Elsewhere), e.Dir)
	}
	return text + fmt.Sprintf("barrier %s carries it, but these tasks have not written their part: %s; ask again, with a longer --timeout where the state is large (a replica that stops or dies meanwhile loses its part)",
		e.Epoch, savepoint.Names(e.Missing))
}

const (
	askAgain  = 3 * time.Second
	lookAgain = 100 * time.Millisecond
	// longestWait is for a caller without a deadline.
	longestWait = time.Hour
)

// CreateSavepoint asks the running replicas of a pipeline for a savepoint and
// waits until it is whole, or until ctx ends: a deadline gives a
// *SavepointError. Other errors are *NeverRanError and those of Kafka and the
// file system.
func CreateSavepoint(ctx context.Context, r SavepointRequest) (*savepoint.Manifest, error) {
	if err := savepoint.ValidName(r.Name); err != nil {
		return nil, err
	}
	e := New(Config{Topology: r.Topology, Kafka: r.Kafka, Log: r.Log, CheckpointDir: r.CheckpointDir})
	if err := e.connect(ctx); err != nil {
		return nil, err
	}
	defer e.client.Close()
	if err := e.learnLayout(ctx); err != nil {
		return nil, err
	}
	c := &creation{
		engine: e, request: r, dir: savepoint.In(r.CheckpointDir, r.Topology.Plan.Pipeline),
		tasks: e.savedTasks(), written: map[savepoint.Task]string{},
	}
	if _, err := c.dir.Manifest(r.Name); err == nil {
		return nil, fmt.Errorf("there is a savepoint %s in %s already: choose another name", r.Name, c.dir.Path())
	}
	b, err := partitionBounds(ctx, kadm.NewClient(e.client), r.Topology.ControlTopic(), 0)
	if err != nil {
		return nil, err
	}
	log, err := e.controlFrom(b.high)
	if err != nil {
		return nil, err
	}
	defer log.close()
	return c.run(ctx, log)
}

// learnLayout learns the numbers of tasks of a pipeline that has run; it creates
// nothing.
func (e *Engine) learnLayout(ctx context.Context) error {
	meta, err := kadm.NewClient(e.client).Metadata(ctx)
	if err != nil {
		return fmt.Errorf("read the cluster's metadata: %w", err)
	}
	control := e.topology.ControlTopic()
	if d, ok := meta.Topics[control]; !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
		return &NeverRanError{Pipeline: e.topology.Plan.Pipeline, Topic: control}
	}
	e.layout = layout{tasks: map[string]int32{}, cluster: meta.Cluster}
	for _, s := range e.topology.Stages {
		d, ok := meta.Topics[s.Input]
		if !ok || d.Err != nil {
			return &MissingTopicError{Stream: s.Stream.Name, Topic: s.Input}
		}
		e.layout.tasks[s.Name] = int32(len(d.Partitions))
	}
	e.layout.results = int32(len(meta.Topics[e.topology.ResultsTopic()].Partitions))
	return nil
}

// creation is one savepoint on its way.
type creation struct {
	engine  *Engine
	request SavepointRequest
	dir     savepoint.Dir
	tasks   []savepoint.Task

	newest  event.Epoch
	carrier processors.Announcement // its Epoch is 0 until there is one
	written map[savepoint.Task]string
}

func (c *creation) run(ctx context.Context, log *controlLog) (*savepoint.Manifest, error) {
	records, failed := make(chan []controlRecord), make(chan error, 1)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go follow(reading, log, records, failed)
	look, ask := time.NewTicker(lookAgain), time.NewTicker(askAgain)
	defer look.Stop()
	defer ask.Stop()
	if err := c.ask(ctx); err != nil {
		return nil, c.late(ctx, err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil, c.late(ctx, ctx.Err())
		case err := <-failed:
			return nil, c.late(ctx, err)
		case recs := <-records:
			if err := c.hear(recs); err != nil {
				return nil, err
			}
		case <-ask.C:
			// A coordinator that begins may not have heard of it.
			if c.carrier.Epoch == 0 {
				if err := c.ask(ctx); err != nil {
					return nil, c.late(ctx, err)
				}
			}
		case <-look.C:
			if m, err := c.look(); m != nil || err != nil {
				return m, err
			}
		}
	}
}

// follow passes on what a control log says, until ctx ends.
func follow(ctx context.Context, log *controlLog, records chan<- []controlRecord, failed chan<- error) {
	for {
		recs, err := log.read(ctx)
		if err != nil {
			failed <- err
			return
		}
		select {
		case records <- recs:
		case <-ctx.Done():
			return
		}
	}
}

func (c *creation) ask(ctx context.Context) error {
	until := wallClock() + event.RecordedTime(longestWait.Microseconds())
	if deadline, ok := ctx.Deadline(); ok {
		until = event.RecordedTime(deadline.UnixMicro())
	}
	value, err := encodeControl(controlRecord{Kind: kindSavepoint, Savepoint: c.request.Name, Until: until})
	if err != nil {
		return err
	}
	r := &kgo.Record{Topic: c.request.Topology.ControlTopic(), Value: value}
	if err := c.engine.client.ProduceSync(ctx, r).FirstErr(); err != nil {
		return fmt.Errorf("ask for a savepoint: %w", err)
	}
	return nil
}

func (c *creation) hear(recs []controlRecord) error {
	for i := range recs {
		r := &recs[i]
		switch {
		case r.Kind == kindBarrier:
			c.newest = r.Epoch
			if r.Savepoint == c.request.Name {
				c.carrier = r.announcement()
			}
		case r.Kind == kindSaved && r.Savepoint == c.request.Name && len(r.Tasks) > 0:
			t := savepoint.Task{Stage: r.Stage, Partition: r.Tasks[0].Partition}
			if r.Why != "" {
				e := c.failure()
				e.Task, e.Why, e.Replica = t, r.Why, r.Member
				return e
			}
			c.written[t] = r.Member
		}
	}
	return nil
}

// look looks whether the savepoint is whole. All parts without a manifest is
// what a replica leaves that died in between.
func (c *creation) look() (*savepoint.Manifest, error) {
	name := c.request.Name
	if c.carrier.Epoch == 0 {
		return nil, nil //nolint:nilnil // not yet
	}
	missing := c.dir.Missing(name, c.tasks)
	if c.request.Progress != nil {
		c.request.Progress(SavepointProgress{Epoch: c.carrier.Epoch, Missing: missing, Tasks: len(c.tasks)})
	}
	if len(missing) > 0 {
		return nil, nil //nolint:nilnil // not yet
	}
	if _, err := c.dir.Complete(name, c.engine.savedPipeline(), savedBarrier(&c.carrier), c.tasks, nil); err != nil {
		return nil, err
	}
	return c.dir.Manifest(name)
}

// late says what is missing where the time is over; otherwise it gives err.
func (c *creation) late(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return c.failure()
	}
	return err
}

func (c *creation) failure() *SavepointError {
	e := &SavepointError{
		Name: c.request.Name, Dir: c.dir.Path(), Epoch: c.carrier.Epoch, Newest: c.newest,
		Missing: c.dir.Missing(c.request.Name, c.tasks),
	}
	for t, replica := range c.written {
		if slices.Contains(e.Missing, t) {
			e.Elsewhere, e.Replica = append(e.Elsewhere, t), replica
		}
	}
	return e
}
