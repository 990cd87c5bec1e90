package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state/savepoint"
)

// RestoreRequest is what RestoreSavepoint is to do.
type RestoreRequest struct {
	Kafka mapping.Kafka
	// Topology is that of the generation that the pipeline is at.
	Topology      *processors.Topology
	CheckpointDir string
	Name          string
	// OpenOntology is as in Config.
	OpenOntology func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error)
	// Succeed lets the next generation take the place of this one in the ontology.
	Succeed func(ctx context.Context, s ontology.Succession) error
	// DryRun checks everything and changes nothing.
	DryRun bool
	Log    *slog.Logger
	// Progress, where set, is told what is being done; it must not block.
	Progress func(doing string, done, of int64)
	// At, where set, is called at the points that RestorePoints names.
	At func(point string)
}

// RestorePoints lists the points of a restore, in order: it must be possible to
// die at each, and to restore again.
func RestorePoints() []string {
	return []string{
		"restore.fenced",  // the generation before can commit nothing more
		"restore.drained", // the ontology has all that it has committed
		"restore.topics",  // the next one has its topics
		"restore.seeded",  // state and offsets are in them
		"restore.ended",   // the one before has ended
		"restore.ready",   // all of the next is in Kafka, the ontology knows nothing of it
		"restore.done",    // it does
	}
}

// Restored is what a restore has done, or would do.
type Restored struct {
	Manifest *savepoint.Manifest
	// From was the pipeline's generation, To is it now.
	From, To event.Generation
	// Applied is the last epoch that the ontology has of the generation before:
	// it stays as it is. Repeated is the last that the next one repeats.
	Applied, Repeated event.Epoch
}

// RestoreError says why a savepoint cannot be restored. Nothing has been changed
// that keeps the pipeline from running on, unless it says so.
type RestoreError struct{ Name, Why string }

// Error gives the reason.
func (e *RestoreError) Error() string {
	return fmt.Sprintf("savepoint %s cannot be restored: %s", e.Name, e.Why)
}

// RestoreSavepoint makes a new generation of a pipeline from a savepoint: its
// topics are made, their changelogs filled with the state of the savepoint, its
// groups' offsets are those of the savepoint, and the barriers that the
// generation before has announced since then are laid down to be repeated, each
// at its recorded time and with the same records. So all that was published
// stays as it is, and the pipeline goes on behind it: the result is what it
// would be without the restore. The pipeline must not run meanwhile; its older
// generation is fenced.
//
// Its errors are *savepoint.DamagedError, *savepoint.UnknownError, *RestoreError,
// *RetentionError, *TruncatedError, *NeverRanError and those of Kafka, the
// database and the file system. It can be called again after any of them.
func RestoreSavepoint(ctx context.Context, r RestoreRequest) (*Restored, error) {
	if r.Progress == nil {
		r.Progress = func(string, int64, int64) {}
	}
	if r.At == nil {
		r.At = func(string) {}
	}
	re := &restore{request: r, dir: savepoint.In(r.CheckpointDir, r.Topology.Plan.Pipeline)}
	var err error
	if re.manifest, err = re.verify(ctx); err != nil {
		return nil, err
	}
	e := New(Config{Topology: r.Topology, Kafka: r.Kafka, Log: r.Log, OpenOntology: r.OpenOntology})
	if err := e.connect(ctx); err != nil {
		return nil, err
	}
	defer e.client.Close()
	re.engine, re.adm = e, kadm.NewClient(e.client)
	if err := e.learnLayout(ctx); err != nil {
		return nil, err
	}
	if err := re.check(ctx); err != nil {
		return nil, err
	}
	return re.run(ctx)
}

// restore is one restore on its way.
type restore struct {
	request  RestoreRequest
	dir      savepoint.Dir
	manifest *savepoint.Manifest
	engine   *Engine // of the generation before
	adm      *kadm.Client
	next     event.Generation
	past     past
}

func (r *restore) refuse(format string, args ...any) error {
	return &RestoreError{Name: r.request.Name, Why: fmt.Sprintf(format, args...)}
}

// verify reads the whole savepoint, and offers another where it is damaged.
func (r *restore) verify(ctx context.Context) (*savepoint.Manifest, error) {
	total, done := int64(0), int64(0)
	if m, err := r.dir.Manifest(r.request.Name); err == nil {
		total = m.Bytes()
	}
	m, err := r.dir.Verify(ctx, r.request.Name, func(n int64) {
		done += n
		r.request.Progress("reading the savepoint", done, total)
	})
	if _, damaged := errors.AsType[*savepoint.DamagedError](err); !damaged {
		return m, err
	}
	other, otherErr := r.dir.NewestWhole(ctx, r.request.Name)
	switch {
	case otherErr != nil:
		return nil, errors.Join(err, otherErr)
	case other == "":
		return nil, fmt.Errorf("savepoint %s: %w; there is no other that is whole", r.request.Name, err)
	}
	return nil, fmt.Errorf("savepoint %s: %w; the newest other one, %s, is whole: restore that", r.request.Name, err, other)
}

// check refuses what does not fit, before anything is changed.
func (r *restore) check(ctx context.Context) error {
	m, e, plan := r.manifest, r.engine, r.engine.topology.Plan
	have := e.savedTasks()
	want := make([]savepoint.Task, len(m.Tasks))
	for i := range m.Tasks {
		want[i] = m.Tasks[i].Task
	}
	for _, t := range have {
		if !slices.Contains(want, t) {
			return r.refuse("it has no state of task %s: the topics had other numbers of partitions; changing them is a migration", t)
		}
	}
	switch {
	case len(have) != len(want):
		return r.refuse("it has the state of %d tasks, and the pipeline has %d now: the topics had other numbers of partitions; changing them is a migration", len(want), len(have))
	case m.Pipeline.Name != plan.Pipeline:
		return r.refuse("it is of pipeline %q", m.Pipeline.Name)
	case m.Pipeline.Mapping != plan.Version:
		return r.refuse("it was made under mapping version %s, and this file is version %s: its state means something else; restore it with the mapping that it was made with", m.Pipeline.Mapping, plan.Version)
	case m.Pipeline.Cluster != e.layout.cluster:
		return r.refuse("it is of Kafka cluster %q, and this is %q: its offsets mean nothing here", m.Pipeline.Cluster, e.layout.cluster)
	case !maps.Equal(m.Pipeline.Formats, formats()):
		return r.refuse("its records have formats %v, and this build writes %v: restore it with the build that made it", m.Pipeline.Formats, formats())
	case m.Pipeline.Generation > e.topology.Generation:
		return r.refuse("it is of generation %s, and the ontology says that the pipeline is at generation %s: the database was set back", m.Pipeline.Generation, e.topology.Generation)
	}
	return r.checkInputs(ctx)
}

// checkInputs makes sure that the inputs still hold what follows the savepoint.
func (r *restore) checkInputs(ctx context.Context) error {
	for _, s := range r.engine.topology.Stages {
		if !s.Source() {
			continue
		}
		held, err := topicBounds(ctx, r.adm, s.Input)
		if err != nil {
			return err
		}
		for p := range r.engine.layout.tasks[s.Name] {
			part := event.Partition(p)
			at, ok := r.manifest.Offsets(savepoint.Task{Stage: s.Name, Partition: part})[s.Input]
			b := held[part]
			switch {
			case !ok:
				return r.refuse("it has no offset of %s/%s: that stream read another topic", s.Input, part)
			case at < b.start:
				return &RetentionError{Topic: s.Input, Partition: part, Committed: at, Start: b.start}
			case at > b.high:
				return &TruncatedError{Topic: s.Input, Partition: part, Committed: at, End: b.high}
			}
		}
	}
	return nil
}

func (r *restore) run(ctx context.Context) (*Restored, error) {
	e := r.engine
	topics, err := r.adm.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	there := generations(topics, e.topology.Plan.Pipeline)
	r.next = max(e.topology.Generation, there[len(there)-1]) + 1 // learnLayout has seen one
	if err := r.refuseMembers(ctx); err != nil {
		return nil, err
	}
	if !r.request.DryRun {
		if err := r.fence(ctx); err != nil {
			return nil, err
		}
		r.request.At("restore.fenced")
	}
	if r.past, err = r.readPast(ctx, nil); err != nil {
		return nil, err
	}
	out := &Restored{
		Manifest: r.manifest, From: e.topology.Generation, To: r.next,
		Applied: r.past.applied, Repeated: r.past.repeats,
	}
	if r.request.DryRun {
		return out, nil
	}
	if err := r.drain(ctx); err != nil {
		return nil, err
	}
	r.request.At("restore.drained")
	return out, r.succeed(ctx)
}

// refuseMembers refuses while replicas run.
func (r *restore) refuseMembers(ctx context.Context) error {
	t := r.engine.topology
	groups := []string{t.CoordinatorGroup(), t.SinkGroup()}
	for _, s := range t.Stages {
		groups = append(groups, t.Group(s))
	}
	described, err := r.adm.DescribeGroups(ctx, groups...)
	if err != nil {
		return fmt.Errorf("look for running replicas: %w", err)
	}
	members := map[string]bool{}
	for _, g := range described {
		for _, m := range g.Members {
			members[strings.TrimPrefix(m.ClientID, clientPrefix)] = true
		}
	}
	if len(members) > 0 {
		return r.refuse("the pipeline is running (replicas %s): stop all of them first; one that was killed is known as a member until its session has timed out",
			strings.Join(slices.Sorted(maps.Keys(members)), ", "))
	}
	return nil
}

// fence ends the transactions of the generation before, and refuses those who
// still hold its ids. That its members can commit nothing more follows from
// their groups, which have none.
func (r *restore) fence(ctx context.Context) error {
	e := r.engine
	ids := map[string]bool{e.topology.CoordinatorTransactionalID(): true}
	listed, err := r.adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		e.log.Debug("list open transactions", "error", err)
	}
	for id := range listed {
		if strings.HasPrefix(id, e.topology.Prefix()+".") {
			ids[id] = true
		}
	}
	for _, s := range e.topology.Stages {
		owners, err := r.owners(ctx, s)
		if err != nil {
			return err
		}
		maps.Copy(ids, owners)
	}
	for id := range ids {
		if err := fence(ctx, e.client, id); err != nil {
			return fmt.Errorf("end the transactions of %s: %w", id, err)
		}
	}
	return nil
}

// owners are the ids under which the tasks of a stage were committed last.
func (r *restore) owners(ctx context.Context, s *processors.Stage) (map[string]bool, error) {
	committed, err := r.adm.FetchOffsets(ctx, r.engine.topology.Group(s))
	if err != nil {
		return nil, fmt.Errorf("fetch offsets: %w", err)
	}
	ids := map[string]bool{}
	committed.Each(func(o kadm.OffsetResponse) {
		if meta, ok := decodeMetadata(o.Metadata); ok {
			ids[meta.ID] = true
		}
	})
	return ids, nil
}

// drain lets the ontology apply all that the generation before has committed.
func (r *restore) drain(ctx context.Context) error {
	e, upTo := r.engine, r.past.applied
	store, err := r.request.OpenOntology(ctx, e.ontologyPipeline())
	if err != nil {
		return err
	}
	defer store.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	least := func() (event.Epoch, error) {
		progress, err := store.Progress(ctx)
		return leastOf(progress), err
	}
	done, err := least()
	if err != nil {
		return err
	}
	if done < upTo {
		err = e.drainInto(running, store, r.past.newest, func() (bool, error) {
			now, err := least()
			r.request.Progress("applying what is left of the generation before", int64(now-done), int64(upTo-done))
			return now >= upTo, err
		})
		if err != nil {
			return err
		}
	}
	progress, err := store.Progress(ctx)
	if err != nil {
		return err
	}
	for p, at := range progress {
		switch {
		case at.Epoch != upTo:
			return r.refuse("results partition %s has epoch %s in the ontology, but the control topic ends with %s: one of them was set back", p, at.Epoch, upTo)
		case at.UnderWay != 0:
			return r.refuse("results partition %s has a part of epoch %s in the ontology, which is not committed by all tasks yet: run the pipeline once, stop it, and restore then", p, at.UnderWay)
		}
	}
	return nil
}

func leastOf(progress map[event.Partition]ontology.Progress) event.Epoch {
	least, some := event.Epoch(0), false
	for _, at := range progress {
		if !some || at.Epoch < least {
			least, some = at.Epoch, true
		}
	}
	return least
}

// drained leaves out of the end of a sink that it was stopped.
func drained(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// drainInto runs the sink alone until it is done. Nobody follows the control
// topic meanwhile: that all epochs up to the newest are of this mapping is known.
func (e *Engine) drainInto(ctx context.Context, store ontology.Store, newest event.Epoch, done func() (bool, error)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e.store, e.asks = store, newReadBacks(e)
	e.hub.announce(processors.Announcement{Epoch: newest})
	ended := make(chan error, 1)
	go func() { ended <- e.runSink(ctx) }()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			stop()
			return errors.Join(err, drained(<-ended))
		}
		select {
		case err := <-ended:
			return fmt.Errorf("apply what is left to the ontology: %w", err)
		case <-look.C:
		}
	}
}
