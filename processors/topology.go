package processors

import (
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
)

// StageKind says what a stage does.
type StageKind uint8

// The kinds of stages.
const (
	// StageIngest decodes a stream, and aggregates what needs no repartition.
	StageIngest StageKind = iota
	// StageAggregate aggregates the rows of a repartition topic.
	StageAggregate
)

// Stage is one goka processor group.
type Stage struct {
	// Name is unique in the pipeline; topics, groups and directories carry it.
	Name string
	Kind StageKind
	// Stream is the stream that the stage reads, or whose watermark closes
	// its windows.
	Stream *mapping.Stream
	// Input is the topic that the stage reads.
	Input string
	// Upstream is the stage whose markers mark Input, nil for a source stage.
	Upstream *Stage
	// Outputs are the topics that the stage writes, Output.Topic indexes them.
	Outputs []string

	// Puts and Fused are for an ingest stage: the objects that the stream
	// feeds, and the aggregates that need no repartition.
	Puts  []*mapping.Put
	Fused []*mapping.Aggregate
	// Feeds are the aggregates behind a repartition topic; Feeds[i] is
	// written to Outputs[FeedOutput[i]].
	Feeds      []*mapping.Aggregate
	FeedOutput []int
	// Aggregate is for an aggregate stage.
	Aggregate *mapping.Aggregate
}

// Source reports whether the stage reads a stream of the mapping.
func (s *Stage) Source() bool { return s.Upstream == nil }

// Topology is the graph of stages of a pipeline, and the names of everything
// that it owns in Kafka.
type Topology struct {
	Plan       *mapping.Plan
	Generation event.Generation
	// Stages stand in the order of the flow: a stage after its upstream.
	Stages []*Stage
}

// NewTopology lays out the stages of a plan.
func NewTopology(p *mapping.Plan, g event.Generation) *Topology {
	t := &Topology{Plan: p, Generation: g}
	for _, s := range p.Streams {
		ingest := &Stage{Name: "ingest." + s.Name, Kind: StageIngest, Stream: s, Input: s.Topic, Outputs: []string{t.ResultsTopic()}}
		t.Stages = append(t.Stages, ingest)
		for _, put := range p.Puts {
			if put.Stream == s {
				ingest.Puts = append(ingest.Puts, put)
			}
		}
		for _, a := range p.Aggregates {
			if a.Stream == s {
				t.addAggregate(ingest, a)
			}
		}
	}
	return t
}

func (t *Topology) addAggregate(ingest *Stage, a *mapping.Aggregate) {
	if a.Fused {
		ingest.Fused = append(ingest.Fused, a)
		return
	}
	stage := &Stage{
		Name: "aggregate." + a.StageName(), Kind: StageAggregate, Stream: a.Stream,
		Upstream: ingest, Aggregate: a, Outputs: []string{t.ResultsTopic()},
	}
	stage.Input = t.Prefix() + "." + stage.Name + "-repartition"
	ingest.Feeds = append(ingest.Feeds, a)
	ingest.FeedOutput = append(ingest.FeedOutput, len(ingest.Outputs))
	ingest.Outputs = append(ingest.Outputs, stage.Input)
	t.Stages = append(t.Stages, stage)
}

// Prefix begins the names of everything that the generation owns in Kafka, its
// transactional ids too; a dot follows.
func (t *Topology) Prefix() string {
	return fmt.Sprintf("strom.%s.g%s", t.Plan.Pipeline, t.Generation)
}

// ControlTopic carries announcements and acknowledgements; one partition.
func (t *Topology) ControlTopic() string { return t.Prefix() + ".control" }

// ResultsTopic carries what the ontology sink applies.
func (t *Topology) ResultsTopic() string { return t.Prefix() + ".results" }

// DeadLetterTopic carries rejected records. It belongs to the pipeline, not to
// a generation: a record is settled once.
func (t *Topology) DeadLetterTopic() string { return "strom." + t.Plan.Pipeline + ".deadletter" }

// Group is the consumer group of a stage.
func (t *Topology) Group(s *Stage) string { return t.Prefix() + "." + s.Name }

// Changelog is the changelog topic of a stage: the name that goka gives a
// group's table.
func (t *Topology) Changelog(s *Stage) string { return t.Group(s) + "-table" }

// SinkGroup is the consumer group of the ontology sink.
func (t *Topology) SinkGroup() string { return t.Prefix() + ".sink.ontology" }

// CoordinatorGroup is the consumer group whose owner announces barriers.
func (t *Topology) CoordinatorGroup() string { return t.Prefix() + ".coordinator" }

// CoordinatorTransactionalID is the one id under which barriers are announced.
func (t *Topology) CoordinatorTransactionalID() string { return t.Prefix() + ".coordinator" }

// Stage returns the stage of that name, or nil.
func (t *Topology) Stage(name string) *Stage {
	for _, s := range t.Stages {
		if s.Name == name {
			return s
		}
	}
	return nil
}
