package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// How a mapping changes while a pipeline runs (docs/decisions/0021):
//
//	a replica with another file proposes it ──► kindChange
//	the coordinator announces barrier m with it ──► kindMapping, kindBarrier (one transaction)
//	every task commits m under the old mapping, the ontology applies m
//	every replica starts again inside, under the new mapping, which it takes
//	from the control topic; only then barrier m+1 is announced
//
// Invariants:
//
//  1. a record is processed under the mapping that the newest barrier before it
//     carries; barrier m itself still is the old one's;
//  2. nobody passes a barrier m to its tasks that another mapping than theirs
//     is in force before;
//  3. no change is announced that mapping.Compare does not class as in place.

// Run runs a pipeline as Engine.Run does, through changes of its mapping: c
// gives the mapping that this replica's file has. watch, where not nil, is told
// of each engine, one after the other.
func Run(ctx context.Context, c Config, watch func(*Engine)) error {
	if c.Replica == "" {
		c.Replica = randomReplica()
	}
	var done event.Epoch
	for ctx.Err() == nil {
		course, err := findCourse(ctx, c, done)
		if err != nil {
			return err
		}
		e := New(c)
		if done > 0 {
			e.config.At("mapping.begun")
		}
		e.take(course)
		if watch != nil {
			watch(e)
		}
		err = e.Run(ctx)
		if !errors.Is(err, errSwitch) {
			return err
		}
		done = event.Epoch(e.switching.done.Load())
		e.log.Info("the mapping changes: this replica goes on under the new one")
	}
	return nil // stopped
}

func randomReplica() string { return fmt.Sprintf("r%08x", rand.Uint32()) }

// errSwitch ends an engine whose mapping is not in force any more.
var errSwitch = errors.New("another mapping is in force")

// course is what the control log says of the mapping that an engine runs under.
type course struct {
	topology *processors.Topology
	// record is the kindMapping of it, and at its offset; nil before the first
	// barrier, and where an earlier build wrote none.
	record *controlRecord
	at     *event.Offset
	// announced: barrier m carries another mapping already, and some task may
	// still have to commit it.
	announced bool
	// propose is what this replica's file wants instead, nil for nothing.
	propose *mapping.Plan
	// done is the newest barrier with another mapping that this process has seen
	// settled; 0 for none.
	done event.Epoch
}

// leadsTo reports whether an engine that follows the course may run where the
// log says now. One that was found before the first barrier knows no record.
func (c *course) leadsTo(now *course) bool {
	return c.topology.Plan.Version == now.topology.Plan.Version && c.announced == now.announced &&
		(c.at == nil || (now.at != nil && *c.at == *now.at))
}

// take makes the engine follow a course; before Run.
func (e *Engine) take(c course) {
	e.course, e.topology = c, c.topology
}

// findCourse asks the control topic which mapping a replica runs under.
func findCourse(ctx context.Context, c Config, done event.Epoch) (course, error) {
	e := New(c)
	e.course.done = done
	if err := e.connect(ctx); err != nil {
		return course{}, err
	}
	defer e.client.Close()
	topic, err := lookUpTopic(ctx, e.client, e.topology.ControlTopic())
	if errors.Is(err, kerr.UnknownTopicOrPartition) || (err == nil && len(topic.Partitions) == 0) {
		return e.course, nil
	}
	if err != nil {
		return course{}, fmt.Errorf("look up topic %s: %w", e.topology.ControlTopic(), err)
	}
	log, err := e.openControlLog(ctx, false)
	if err != nil {
		return course{}, err
	}
	defer log.close()
	return e.chooseCourse(ctx, log.pending)
}

// chooseCourse decides from records that hold the newest barrier.
func (e *Engine) chooseCourse(ctx context.Context, recs []controlRecord) (course, error) {
	own := e.config.Topology.Plan
	newest := newestBarrier(recs)
	if newest == nil {
		return course{topology: e.config.Topology}, nil
	}
	if err := state.CheckFormat(newest.Format); err != nil {
		return course{}, err
	}
	switch {
	case newest.MappingAt == nil && newest.Mapping == own.Version:
		return course{topology: e.config.Topology}, nil
	case newest.MappingAt == nil:
		return course{}, &MappingError{Pipeline: own.Pipeline, Have: newest.Mapping, Want: own.Version, Epoch: newest.Epoch}
	}
	inForce, err := e.readMapping(ctx, *newest.MappingAt)
	if err != nil {
		return course{}, err
	}
	plan, err := e.planOf(inForce)
	if err != nil {
		return course{}, err
	}
	c := course{topology: processors.NewTopology(plan, e.topology.Generation), record: inForce, at: newest.MappingAt, done: e.course.done}
	propose, err := e.judge(newest, inForce, plan)
	if err != nil {
		return course{}, err
	}
	if newest.Epoch > inForce.Epoch || inForce.MappingAt == nil || c.done >= inForce.Epoch {
		c.propose = propose
		return c, nil
	}
	// Some task may still have to commit the barrier that brings it.
	before, err := e.readMapping(ctx, *inForce.MappingAt)
	if err != nil {
		return course{}, err
	}
	if plan, err = e.planOf(before); err != nil {
		return course{}, err
	}
	return course{
		topology: processors.NewTopology(plan, e.topology.Generation), record: before, at: inForce.MappingAt, announced: true, done: c.done,
	}, nil
}

// judge says what is to be proposed instead of the plan in force, if anything:
// an error where this replica's file must not run.
func (e *Engine) judge(newest, inForce *controlRecord, plan *mapping.Plan) (*mapping.Plan, error) {
	own := e.config.Topology.Plan
	switch {
	case own.Version == inForce.Mapping:
		return nil, nil //nolint:nilnil // nothing to propose
	case slices.Contains(inForce.Replaced, own.Version) && !e.config.Reinstate:
		e.log.Warn("this file is an older one, whose mapping was replaced: the mapping in force holds",
			"file", own.Version, "in_force", inForce.Mapping, "since_epoch", inForce.Epoch)
		return nil, nil //nolint:nilnil // nothing to propose
	}
	if changes := compare(inForce.Gone, plan, own); mapping.Worst(changes) != mapping.InPlace {
		return nil, &MappingError{
			Pipeline: own.Pipeline, Have: inForce.Mapping, Want: own.Version, Epoch: newest.Epoch, Changes: changes,
		}
	}
	return own, nil
}

// compare is mapping.Compare, and what only the history of the pipeline tells: a
// stage that was removed has left its state and its place in the input behind.
func compare(gone []string, before, after *mapping.Plan) []mapping.Change {
	var changes []mapping.Change
	for _, s := range processors.NewTopology(after, 1).Stages {
		if slices.Contains(gone, s.Name) {
			changes = append(changes, mapping.Change{
				Path: "stage " + s.Name, Class: mapping.Refused, What: "taken up again after it was removed",
				Why: "its state and its place in the input are of the time when it was removed",
				Do:  "give what is new another name",
			})
		}
	}
	return append(changes, mapping.Compare(before, after)...)
}

func newestBarrier(recs []controlRecord) *controlRecord {
	for i := len(recs) - 1; i >= 0; i-- {
		if recs[i].Kind == kindBarrier {
			return &recs[i]
		}
	}
	return nil
}

// readMapping reads the record of a mapping at its offset of the control topic.
func (e *Engine) readMapping(ctx context.Context, at event.Offset) (*controlRecord, error) {
	log, err := e.controlFrom(at)
	if err != nil {
		return nil, err
	}
	defer log.close()
	recs, err := log.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the mapping in force: %w", err)
	}
	if recs[0].Kind != kindMapping {
		return nil, fmt.Errorf("%w: %s offset %s holds no mapping, though a barrier says so: records at the topic's head were deleted",
			event.ErrCorrupt, log.topic, at)
	}
	return &recs[0], nil
}

// planOf reads a recorded mapping. Connections and the pace of epochs are this
// replica's own.
func (e *Engine) planOf(r *controlRecord) (*mapping.Plan, error) {
	own := e.config.Topology.Plan
	if r.Mapping == own.Version {
		return own, nil
	}
	plan, err := mapping.Parse("the mapping in force, version "+r.Mapping, []byte(r.Text), nil)
	if err != nil {
		return nil, fmt.Errorf("this build cannot read the mapping that the pipeline runs under; a newer one has written it: %w", err)
	}
	if plan.Version != r.Mapping {
		return nil, fmt.Errorf("%w: the mapping in force is version %s to this build, and was recorded as %s", event.ErrVersion, plan.Version, r.Mapping)
	}
	plan.Kafka, plan.Ontology, plan.Epoch.Interval = own.Kafka, own.Ontology, own.Epoch.Interval
	return plan, nil
}

// beginning is the barrier behind which a stage begins that the pipeline did not
// have from its first epoch on.
type beginning struct {
	Epoch    event.Epoch        `json:"epoch"`
	Recorded event.RecordedTime `json:"recorded"`
}

// begins gives the beginning of a stage; zero for one that was there at first.
func (c *course) begins(stage string) beginning {
	if c.record == nil {
		return beginning{Recorded: event.RecordedUnknown}
	}
	b, ok := c.record.Begins[stage]
	if !ok {
		b.Recorded = event.RecordedUnknown
	}
	return b
}

// replacing is the record of a mapping that follows the course's at a barrier.
func (c *course) replacing(plan *mapping.Plan, a *processors.Announcement, at *event.Offset, replaced string) controlRecord {
	r := controlRecord{
		Kind: kindMapping, Epoch: a.Epoch, Recorded: a.Recorded, Mapping: plan.Version, Text: string(plan.Text()), MappingAt: at,
	}
	if at == nil {
		return r
	}
	r.Begins = map[string]beginning{}
	next := processors.NewTopology(plan, c.topology.Generation)
	for _, s := range next.Stages {
		if c.topology.Stage(s.Name) == nil {
			r.Begins[s.Name] = beginning{a.Epoch, a.Recorded}
		} else if b := c.begins(s.Name); b.Epoch > 0 {
			r.Begins[s.Name] = b
		}
	}
	if c.record != nil {
		r.Replaced, r.Gone = c.record.Replaced, slices.Clone(c.record.Gone)
	}
	for _, s := range c.topology.Stages {
		if next.Stage(s.Name) == nil {
			r.Gone = append(r.Gone, s.Name)
		}
	}
	r.Replaced = append(slices.Clone(r.Replaced), replaced)
	r.Replaced = slices.DeleteFunc(r.Replaced, func(v string) bool { return v == plan.Version })
	return r
}

// switching is a barrier with another mapping that was heard of, and the same
// when it is settled.
type switching struct{ epoch, done atomic.Int64 }

func (s *switching) begun() bool { return s.epoch.Load() > 0 }

// heard takes a barrier before it goes to the tasks. Its error ends the engine,
// which has no part in what follows.
func (e *Engine) heard(r *controlRecord) error {
	if err := state.CheckFormat(r.Format); err != nil {
		return err
	}
	switch {
	case r.Mapping == e.topology.Plan.Version:
		return nil
	case e.course.record != nil && r.Epoch <= e.course.record.Epoch:
		return nil // the log begins before the newest barrier: these are past
	case r.changes() && !e.switching.begun():
		e.config.At("mapping.heard")
		e.switching.epoch.Store(int64(r.Epoch))
		e.log.Info("a barrier brings another mapping", "epoch", r.Epoch, "mapping", r.Mapping, "before", e.topology.Plan.Version)
		return nil
	}
	return errSwitch
}

// proposeEvery is how often a proposal is written until a barrier carries it: a
// coordinator that takes over may not have read it.
const proposeEvery = time.Second

// changeMapping proposes what this replica's file wants, and ends the engine
// when the barrier with another mapping is settled: committed by every task, and
// applied to the ontology.
func (e *Engine) changeMapping(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var proposed time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if !e.switching.begun() {
			if e.course.propose != nil && time.Since(proposed) > proposeEvery {
				proposed = time.Now()
				if err := e.proposeMapping(ctx); err != nil {
					return err
				}
			}
			continue
		}
		settled, err := e.settled(ctx, event.Epoch(e.switching.epoch.Load()))
		if err != nil && !retriable(err) {
			e.log.Debug("ask the ontology how far it is", "error", err)
		}
		if settled {
			e.config.At("mapping.settled")
			e.switching.done.Store(e.switching.epoch.Load())
			return errSwitch
		}
	}
}

func (e *Engine) proposeMapping(ctx context.Context) error {
	p := e.course.propose
	value, err := encodeControl(controlRecord{Kind: kindChange, Epoch: e.hub.newest().Epoch, Mapping: p.Version, Text: string(p.Text()), MappingAt: e.course.at})
	if err != nil {
		return err
	}
	// A lost one is written again.
	e.client.Produce(ctx, &kgo.Record{Topic: e.topology.ControlTopic(), Value: value}, func(_ *kgo.Record, err error) {
		if err == nil {
			e.config.At("mapping.proposed")
		}
	})
	return nil
}

// settled reports whether all is done that belongs to barrier m.
func (e *Engine) settled(ctx context.Context, m event.Epoch) (bool, error) {
	_, _, acks := e.monitor.copy()
	for stage, n := range e.layout.tasks {
		for p := range n {
			if acks[processors.TaskID{Stage: stage, Partition: event.Partition(p)}].Epoch < m {
				return false, nil
			}
		}
	}
	progress, err := e.store.Progress(ctx)
	if err != nil || len(progress) == 0 {
		return false, err
	}
	for _, p := range progress {
		if p.Epoch < m {
			return false, nil
		}
	}
	return true, nil
}

// proposal takes a record of another replica that wants another mapping. One
// that was meant for an earlier mapping, or that this build would not allow, has
// no effect.
func (a *announcer) proposal(r *controlRecord) {
	e := a.engine
	if a.next != nil || a.mappingAt == nil || r.MappingAt == nil || *r.MappingAt != *a.mappingAt {
		return
	}
	plan, err := e.planOf(r)
	if err == nil {
		var gone []string
		if r := e.course.record; r != nil {
			gone = r.Gone
		}
		if changes := compare(gone, e.topology.Plan, plan); mapping.Worst(changes) != mapping.InPlace {
			err = &MappingError{Pipeline: plan.Pipeline, Have: e.topology.Plan.Version, Want: plan.Version, Epoch: a.coordinator.Last().Epoch, Changes: changes}
		}
	}
	if err != nil {
		e.log.Warn("a proposed mapping cannot take effect", "mapping", r.Mapping, "why", err.Error())
		return
	}
	a.next = plan
	a.coordinator.TakeMapping(plan.Version)
}

// mappingIn takes what a barrier says of the mapping in force: proposals for the
// one before are void.
func (a *announcer) mappingIn(r *controlRecord) {
	if a.mappingAt != nil && r.MappingAt != nil && *a.mappingAt != *r.MappingAt {
		a.next = nil
		a.coordinator.TakeMapping(a.engine.topology.Plan.Version)
	}
	a.mappingAt = r.MappingAt
	// What this replica wants itself it announces with its first barrier.
	if own := &a.engine.course; a.next == nil && own.propose != nil && a.mappingAt != nil && *a.mappingAt == *own.at {
		a.next = own.propose
		a.coordinator.TakeMapping(own.propose.Version)
	}
}

// mappingRecord gives the record that goes before a barrier: of a mapping that
// it brings, or that nothing has recorded yet. nil where there is none.
func (a *announcer) mappingRecord(next *processors.Announcement) (value []byte, changes bool, err error) {
	plan := a.engine.topology.Plan
	changes = a.next != nil && next.Mapping == a.next.Version && next.Mapping != plan.Version
	switch {
	case changes:
		plan = a.next
	case a.mappingAt != nil:
		return nil, false, nil
	}
	value, err = encodeControl(a.engine.course.replacing(plan, next, a.mappingAt, a.engine.topology.Plan.Version))
	return value, changes, err
}

// Registered is the mapping that a pipeline runs under, as its control topic
// has it.
type Registered struct {
	Version string
	// Epoch is the barrier behind which it holds, Recorded its R. 0: since the
	// pipeline began, or since before a build that recorded it.
	Epoch    event.Epoch
	Recorded event.RecordedTime
	// Text is the mapping itself, without connections; empty where an earlier
	// build has not recorded it.
	Text string

	gone []string
}

// Compare is mapping.Compare of the registered mapping, which before was read
// from, with another one; and what only the history of the pipeline tells.
func (r *Registered) Compare(before, after *mapping.Plan) []mapping.Change {
	return compare(r.gone, before, after)
}

// ReadRegistered reads which mapping is in force, see ReadStatus.
func ReadRegistered(ctx context.Context, k mapping.Kafka, t *processors.Topology, log *slog.Logger) (Registered, error) {
	e := New(Config{Topology: t, Kafka: k, Log: log})
	if err := e.connect(ctx); err != nil {
		return Registered{}, err
	}
	defer e.client.Close()
	topics, err := kadm.NewClient(e.client).ListTopics(ctx, t.ControlTopic())
	if err != nil {
		return Registered{}, fmt.Errorf("look up topic %s: %w", t.ControlTopic(), err)
	}
	if d, ok := topics[t.ControlTopic()]; !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
		return Registered{}, &NeverRanError{Pipeline: t.Plan.Pipeline, Topic: t.ControlTopic()}
	}
	control, err := e.openControlLog(ctx, false)
	if err != nil {
		return Registered{}, err
	}
	defer control.close()
	return e.registered(ctx, newestBarrier(control.pending))
}

// registered gives what a barrier says of the mapping.
func (e *Engine) registered(ctx context.Context, newest *controlRecord) (Registered, error) {
	switch {
	case newest == nil:
		return Registered{}, &NeverRanError{Pipeline: e.topology.Plan.Pipeline, Topic: e.topology.ControlTopic()}
	case newest.MappingAt == nil:
		return Registered{Version: newest.Mapping}, nil
	}
	r, err := e.readMapping(ctx, *newest.MappingAt)
	if err != nil {
		return Registered{}, err
	}
	out := Registered{Version: r.Mapping, Text: r.Text, gone: r.Gone}
	if r.MappingAt != nil {
		out.Epoch, out.Recorded = r.Epoch, r.Recorded
	}
	return out, nil
}
