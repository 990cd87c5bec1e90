// Package trial runs a mapping over records from files, in this process: the
// very tasks that run on Kafka, with an ontology in memory and nothing else.
package trial

import (
	"context"
	"errors"
	"fmt"

	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// Sink writes the results of a local run into an ontology in memory.
type Sink struct {
	memory   *ontology.Memory
	progress ontology.Progress
}

var _ processors.LocalSink = (*Sink)(nil)

// NewSink returns a sink for the topology's pipeline, with an empty ontology.
func NewSink(t *processors.Topology) *Sink {
	return &Sink{memory: ontology.NewMemory(ontology.Pipeline{
		Name: t.Plan.Pipeline, Generation: t.Generation, MappingVersion: t.Plan.Version,
		Types: t.Plan.Types, ResultsPartitions: 1,
	})}
}

// Memory is the ontology.
func (s *Sink) Memory() *ontology.Memory { return s.memory }

// Apply implements processors.LocalSink.
func (s *Sink) Apply(n event.Epoch, at event.RecordedTime, rows []processors.LocalRow) error {
	to := ontology.Progress{Epoch: n, Recorded: at, Offset: s.progress.Offset}
	chunk := ontology.Chunk{From: s.progress, Rows: make([]ontology.Row, len(rows))}
	for i, r := range rows {
		chunk.Rows[i] = ontology.Row(r)
		to.Offset = r.Offset + 1
	}
	chunk.To = to
	if err := s.memory.Apply(context.Background(), []ontology.Chunk{chunk}); err != nil {
		return err
	}
	s.progress = to
	return nil
}

// ReadBack implements processors.LocalSink.
func (s *Sink) ReadBack(asked []processors.ReadBack) ([]processors.Answer, error) {
	refs := make([]ontology.WindowRef, len(asked))
	for i := range asked {
		a := &asked[i]
		refs[i] = ontology.WindowRef{Type: a.Type, ID: a.ID, Aggregate: a.Aggregate, Start: a.Start, End: a.End, Values: a.Values}
	}
	states, err := s.memory.ReadBack(context.Background(), refs)
	if err != nil {
		return nil, err
	}
	answers := make([]processors.Answer, len(states))
	for i, st := range states {
		answers[i] = processors.Answer{Number: asked[i].Number, Found: st.Found, Version: st.Version, Properties: st.Values}
	}
	return answers, nil
}

// Input is the records of every stream, with the line that each came from.
type Input struct {
	plan    *mapping.Plan
	streams map[string][]processors.LocalRecord
	lines   map[place]string
	next    map[place]event.Offset // by partition
	// Borrowed counts as feed.Summary does.
	Borrowed int
}

type place struct {
	topic     string
	partition event.Partition
	offset    event.Offset
}

// NewInput returns the input of a plan, empty.
func NewInput(p *mapping.Plan) *Input {
	return &Input{
		plan: p, streams: map[string][]processors.LocalRecord{}, lines: map[place]string{}, next: map[place]event.Offset{},
	}
}

// Add reads a file into its stream, behind what the stream has.
func (in *Input) Add(s feed.Spec) error {
	var stream *mapping.Stream
	for _, candidate := range in.plan.Streams {
		if candidate.Name == s.Stream {
			stream = candidate
		}
	}
	if stream == nil {
		return fmt.Errorf("the mapping has no stream %q", s.Stream)
	}
	sum, err := s.Read(func(r feed.Record) error { return in.add(stream, s.File, &r) })
	in.Borrowed += sum.Borrowed
	return err
}

// maxPartition bounds the partitions that a file may name: each is a task.
const maxPartition = 1023

var errNoTimestamp = errors.New("this record has no timestamp, and under epoch.clock: log the recorded time comes from it")

func (in *Input) add(s *mapping.Stream, file string, r *feed.Record) error {
	p := event.Partition(0)
	if r.Partition != nil {
		p = *r.Partition
	}
	if p > maxPartition {
		return &feed.Error{File: file, Line: r.Line, Err: fmt.Errorf("partition %s is above %d", p, maxPartition)}
	}
	rec := processors.Record{Timestamp: processors.NoTimestamp, Key: r.Key, Value: r.Value}
	if r.Timed {
		// As Kafka keeps it.
		rec.Timestamp = event.EventTime(event.FloorDiv(int64(r.Timestamp), 1000) * 1000)
	} else if in.plan.Epoch.Clock == mapping.ClockLog {
		return &feed.Error{
			File: file, Line: r.Line, Err: errNoTimestamp,
			Advice: fmt.Sprintf("name the field that holds it, --input %s=%s,timestamp=FIELD, or give it in an envelope, {\"timestamp\":..., \"value\":...}", s.Name, file),
		}
	}
	for _, h := range r.Headers {
		rec.Headers = append(rec.Headers, processors.Header{Key: h.Key, Value: h.Value})
	}
	in.streams[s.Name] = append(in.streams[s.Name], processors.LocalRecord{Partition: p, Record: rec})
	at := place{topic: s.Topic, partition: p}
	in.lines[place{s.Topic, p, in.next[at]}] = fmt.Sprintf("%s:%d", file, r.Line)
	in.next[at]++
	return nil
}

// Line says which line of which file a record came from.
func (in *Input) Line(p event.Place) string { return in.lines[place{p.Topic, p.Partition, p.Offset}] }

// Run runs the pipeline over the input and gives what it has come to.
func (in *Input) Run(t *processors.Topology, epochEvery int) (*ontology.Memory, processors.LocalOutcome, error) {
	sink := NewSink(t)
	out, err := processors.RunLocal(processors.LocalConfig{Topology: t, Streams: in.streams, EpochEvery: epochEvery, Sink: sink})
	return sink.memory, out, err
}
