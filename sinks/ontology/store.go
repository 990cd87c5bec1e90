package ontology

import (
	"context"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
)

// Pipeline is what one pipeline writes to the ontology, from its plan.
type Pipeline struct {
	Name string
	// Generation is the run that writes, from 1.
	Generation event.Generation
	// Continues says that the generation goes on from the state of the one
	// before (a restored savepoint), so that the versions of windows count on.
	Continues      bool
	MappingVersion string
	// Types are the object types with all properties that this pipeline writes.
	Types []*mapping.ObjectType
	// ResultsPartitions is the number of partitions of the results topic; it
	// is fixed for a generation.
	ResultsPartitions int32
	// Upstream names, for each stage that writes to the results topic, the
	// tasks whose markers complete an epoch. The store keeps nothing of it.
	Upstream map[string][]event.Partition
}

// Progress says how far one results partition has been applied.
type Progress struct {
	// Epoch is the last completed epoch and Recorded its R; both 0 before the
	// first.
	Epoch    event.Epoch
	Recorded event.RecordedTime
	// Offset is the next results offset to read.
	Offset event.Offset
	// UnderWay is the epoch of which a part stands before Offset; 0 if none.
	UnderWay event.Epoch
	// Seen names the tasks, by stage, whose markers for UnderWay stand before
	// Offset.
	Seen map[string][]event.Partition
}

// Row is one row of a results partition.
type Row struct {
	Offset event.Offset
	Result event.Result
}

// Chunk is a part of one results partition: the rows of From.Offset to
// To.Offset, in offset order, which belong to epochs later than From.Epoch.
// Markers are not among the rows; what they said is in To.
type Chunk struct {
	Partition event.Partition
	From, To  Progress
	Rows      []Row
}

// WindowRef names one window of one aggregate of one object.
type WindowRef struct {
	Type, ID, Aggregate string
	Start, End          event.EventTime
	// Values names the aggregate's values, without the aggregate's name.
	Values []string
	// At asks what was believed at a recorded time; nil: as last applied.
	At *event.RecordedTime
}

// WindowState is what is believed of a window.
type WindowState struct {
	// Found: the window is believed. A retracted one is not, though its
	// Version goes on counting.
	Found   bool
	Version uint32
	// Values holds one property for each of the ref's Values, in that order,
	// named as there, with its accumulator. A value that the ontology does not
	// have of this window (it was added to the mapping later) is null.
	Values []event.Property
}

// Standing is how far a pipeline is in the ontology.
type Standing struct {
	// Progress has one entry for each results partition.
	Progress map[event.Partition]Progress
	// Horizon is the stored safe horizon; RecordedUnknown before the first
	// complete epoch.
	Horizon event.RecordedTime
}

// Store keeps the results of one generation of one pipeline. All methods may
// be called concurrently.
//
// Errors of the infrastructure are retried inside, until the context ends; by
// all methods but Probe.
type Store interface {
	// Progress gives one entry for each results partition.
	Progress(ctx context.Context) (map[event.Partition]Progress, error)

	// Apply applies the chunks, at most one of each partition, in one
	// transaction, and stores To as the progress of each. It succeeds only
	// where the progress stored is From (compared on generation, partition,
	// epoch and offset), else it changes nothing and the error is a
	// *FencedError: somebody else has applied, or this call was made twice.
	Apply(ctx context.Context, chunks []Chunk) error

	// ReadBack gives the believed values of windows as last applied, or as of
	// the ref's recorded time, the horizon notwithstanding: one state for each
	// ref, in order.
	ReadBack(ctx context.Context, refs []WindowRef) ([]WindowState, error)

	// Probe asks once how far the pipeline is, and does not try again: whoever
	// watches the database wants to know that it does not answer.
	Probe(ctx context.Context) (Standing, error)

	// Close ends the connections. It is safe to call twice.
	Close()
}
