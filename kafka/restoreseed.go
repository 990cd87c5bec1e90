package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/state/savepoint"
)

// succeed makes the next generation, and lets it take the place of the one
// before. Until the last step nothing has changed for the ontology; what a crash
// leaves is a generation that nobody knows of.
func (r *restore) succeed(ctx context.Context) error {
	before, at := r.engine, r.request.At
	topology := processors.NewTopology(before.topology.Plan, r.next)
	e := New(Config{Topology: topology, Kafka: r.request.Kafka, Log: r.request.Log})
	e.client = before.client
	if err := e.prepareTopics(ctx); err != nil {
		return err
	}
	at("restore.topics")
	s, err := newSeeder(ctx, e)
	if err != nil {
		return err
	}
	defer s.client.Close()
	if err := r.seedTasks(ctx, s); err != nil {
		return err
	}
	at("restore.seeded")
	if err := before.end(ctx, r.next, r.request.Name); err != nil {
		return err
	}
	at("restore.ended")
	if err := r.seedControl(ctx, s); err != nil {
		return err
	}
	at("restore.ready")
	if err := r.request.Succeed(ctx, ontology.Succession{
		Pipeline: topology.Plan.Pipeline, From: before.topology.Generation, To: r.next, MappingVersion: topology.Plan.Version,
		ResultsPartitions: e.layout.results, Epoch: r.past.applied, Recorded: r.past.recorded,
	}); err != nil {
		return err
	}
	at("restore.done")
	return nil
}

// end says in the control topic of a generation that another follows.
func (e *Engine) end(ctx context.Context, next event.Generation, name string) error {
	value, err := encodeControl(controlRecord{Kind: kindEnded, Generation: next, Savepoint: name})
	if err != nil {
		return err
	}
	r := &kgo.Record{Topic: e.topology.ControlTopic(), Value: value}
	if err := e.client.ProduceSync(ctx, r).FirstErr(); err != nil {
		return fmt.Errorf("end generation %s: %w", e.topology.Generation, err)
	}
	return nil
}

// seedTasks fills the changelogs, and commits the offsets.
func (r *restore) seedTasks(ctx context.Context, s *seeder) error {
	done := int64(0)
	for i := range r.manifest.Tasks {
		t := r.manifest.Tasks[i].Task
		n, err := r.seedTask(ctx, s, t)
		if err != nil {
			return fmt.Errorf("savepoint %s, task %s: %w", r.request.Name, t, err)
		}
		done += n
		r.request.Progress("writing the state", int64(i)+1, int64(len(r.manifest.Tasks)))
	}
	if err := s.flush(ctx); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	s.engine.log.Info("the state is written", "entries", done)
	return s.commitOffsets(ctx, r.manifest)
}

// seedTask writes the changelog of one task: its origin, its entries, and last
// its progress, as a task writes it.
func (r *restore) seedTask(ctx context.Context, s *seeder, t savepoint.Task) (entries int64, err error) {
	st, id, err := state.OpenCheckpoint(r.dir.PartDir(r.request.Name, t), state.PebbleOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	progress, ok, err := state.ReadProgress(st)
	if err != nil {
		return 0, err
	}
	m := r.manifest
	if !ok || progress.Epoch != m.Barrier.Epoch || id.Stage != t.Stage || id.Partition != t.Partition || id.Pipeline != m.Pipeline.Name {
		return 0, fmt.Errorf("%w: it holds epoch %s of %s/%s of pipeline %q", event.ErrCorrupt, progress.Epoch, id.Stage, id.Partition, id.Pipeline)
	}
	stage := s.engine.topology.Stage(t.Stage)
	changelog := s.engine.topology.Changelog(stage)
	origin := state.OriginChange()
	s.produce(ctx, changelog, t.Partition, origin.Key, origin.Value)
	if err := state.Entries(st, m.Barrier.Epoch, func(k, v []byte) error {
		entries++
		s.produce(ctx, changelog, t.Partition, bytes.Clone(k), bytes.Clone(v))
		return s.failed()
	}); err != nil {
		return entries, err
	}
	progress.Offsets = map[string]event.Offset{stage.Input: s.offset(m, stage, t.Partition)}
	value, err := progress.Encode()
	if err != nil {
		return entries, err
	}
	s.produce(ctx, changelog, t.Partition, []byte{state.KeyProgress}, value)
	return entries, nil
}

// seedControl lays down the barriers to repeat, and the savepoint's own as the
// newest announcement. It makes sure that they are those that were found before.
func (r *restore) seedControl(ctx context.Context, s *seeder) error {
	m := r.manifest
	if err := s.control(ctx, controlRecord{
		Kind: kindOrigin, Epoch: m.Barrier.Epoch, Generation: r.engine.topology.Generation, Savepoint: r.request.Name,
		Applied: r.past.applied, Repeats: r.past.repeats,
	}); err != nil {
		return err
	}
	now, err := r.readPast(ctx, func(a processors.Announcement) error {
		rec := announcementRecord(a)
		rec.Kind = kindRepeat
		return s.control(ctx, rec)
	})
	if err != nil {
		return err
	}
	if now != r.past {
		return r.refuse("the pipeline ran meanwhile; stop all its replicas, and restore again")
	}
	a := processors.Announcement{
		Epoch: m.Barrier.Epoch, Recorded: m.Barrier.Recorded, Watermarks: m.Barrier.Watermarks,
		Granted: m.Barrier.Granted, Hold: m.Barrier.Hold, End: m.Barrier.End, Mapping: m.Pipeline.Mapping,
	}
	for _, t := range m.Barrier.Idle {
		a.Idle = append(a.Idle, processors.TaskID(t))
	}
	a.Format = r.past.format
	rec := announcementRecord(a)
	if rec.MappingAt, err = r.seedMapping(ctx, s); err != nil {
		return err
	}
	if err := s.control(ctx, rec); err != nil {
		return err
	}
	return s.flush(ctx)
}

// seedMapping copies the mapping in force, with what is known of those before
// it, and gives its offset; nil where the generation before has not recorded it.
// Every stage has its state, so none begins any more.
func (r *restore) seedMapping(ctx context.Context, s *seeder) (*event.Offset, error) {
	if r.past.mappingAt == event.OffsetNone {
		return nil, nil //nolint:nilnil // documented
	}
	rec, err := r.engine.readMapping(ctx, r.past.mappingAt)
	if err != nil {
		return nil, err
	}
	rec.MappingAt, rec.Begins = nil, nil
	if err := s.flush(ctx); err != nil { // it must stand behind what is repeated
		return nil, err
	}
	value, err := encodeControl(*rec)
	if err != nil {
		return nil, err
	}
	at := &kgo.Record{Topic: s.engine.topology.ControlTopic(), Value: value}
	if err := s.client.ProduceSync(ctx, at).FirstErr(); err != nil {
		return nil, fmt.Errorf("write to %s: %w", at.Topic, err)
	}
	return new(event.Offset(at.Offset)), nil
}

// seeder writes what a generation begins with.
type seeder struct {
	engine *Engine // of that generation
	client *kgo.Client

	mu  sync.Mutex // guards err
	err error      // the first failure of a record
}

func newSeeder(_ context.Context, e *Engine) (*seeder, error) {
	client, err := e.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(int32(e.layout.largest)),
		kgo.MaxBufferedRecords(100_000), kgo.MaxBufferedBytes(64<<20))
	return &seeder{engine: e, client: client}, err
}

// produce waits while too much is under way; failed tells what went wrong.
func (s *seeder) produce(ctx context.Context, topic string, p event.Partition, key, value []byte) {
	s.client.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(p), Key: key, Value: value}, func(r *kgo.Record, err error) {
		if err == nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = fmt.Errorf("write to %s/%d: %w", r.Topic, r.Partition, err)
		}
	})
}

func (s *seeder) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *seeder) flush(ctx context.Context) error {
	return errors.Join(s.client.Flush(ctx), s.failed())
}

func (s *seeder) control(ctx context.Context, rec controlRecord) error {
	value, err := encodeControl(rec)
	if err != nil {
		return err
	}
	s.produce(ctx, s.engine.topology.ControlTopic(), 0, nil, value)
	return s.failed()
}

// offset is where a task goes on in its input. A topic between two stages begins
// anew: at a barrier nothing is under way there.
func (s *seeder) offset(m *savepoint.Manifest, stage *processors.Stage, p event.Partition) event.Offset {
	if !stage.Source() {
		return 0
	}
	return m.Offsets(savepoint.Task{Stage: stage.Name, Partition: p})[stage.Input]
}

func (s *seeder) commitOffsets(ctx context.Context, m *savepoint.Manifest) error {
	adm := kadm.NewClient(s.engine.client)
	for _, stage := range s.engine.topology.Stages {
		offsets := kadm.Offsets{}
		for p := range s.engine.layout.tasks[stage.Name] {
			offsets.AddOffset(stage.Input, p, int64(s.offset(m, stage, event.Partition(p))), -1)
		}
		committed, err := adm.CommitOffsets(ctx, s.engine.topology.Group(stage), offsets)
		if err == nil {
			err = committed.Error()
		}
		if err != nil {
			return fmt.Errorf("commit the offsets of stage %s: %w", stage.Name, err)
		}
	}
	return nil
}
