package ontology

import (
	"errors"
	"fmt"

	"github.com/forge-platform/strom/event"
)

// The classes of this package's errors, for errors.Is. The typed errors below
// say the details.
var (
	// ErrFenced: the progress stored is not the one that the caller went on
	// from. The caller throws its work away and reads Progress again.
	ErrFenced = errors.New("fenced")
	// ErrLostState: a result contradicts what the ontology has of its window,
	// as it does when a task has lost its state. The sink stops.
	ErrLostState = errors.New("state was lost upstream")
	// ErrAboveHorizon: the question is about a recorded time that is not
	// complete yet. The caller may wait and ask again.
	ErrAboveHorizon = errors.New("recorded time above the safe horizon")
	// ErrBelowFloor: the question is about a recorded time that an explicit
	// retention has removed.
	ErrBelowFloor = errors.New("recorded time below the floor")
	// ErrOwner: another pipeline writes one of the properties.
	ErrOwner = errors.New("property written by another pipeline")
	// ErrKind: a property was declared in another way before.
	ErrKind = errors.New("declaration of a property changed")
	// ErrNewerSchema: a newer build has changed the tables.
	ErrNewerSchema = errors.New("tables of a newer version")
	// ErrPipeline: what the pipeline says of itself does not fit what is
	// stored of it (generation, number of partitions).
	ErrPipeline = errors.New("pipeline does not fit what is stored")
	// ErrNames: two things of the ontology would get the same name in SQL.
	ErrNames = errors.New("two names of the ontology meet in SQL")
	// ErrUnknownName: a type or property that nobody has declared.
	ErrUnknownName = errors.New("unknown name")
	// ErrChunk: a chunk breaks the rules of Chunk. It is a bug of the caller.
	ErrChunk = errors.New("malformed chunk")
	// ErrConnect: the database could not be reached or did not let us in.
	ErrConnect = errors.New("no connection to the ontology's database")
)

// FencedError says what the caller went on from and what is stored.
type FencedError struct {
	Pipeline   string
	Generation event.Generation
	Partition  event.Partition
	// Expected is the caller's From; Found what is stored.
	Expected, Found Progress
	// Gone: nothing is stored for this generation, a newer one has taken over.
	Gone bool
}

// Error gives both.
func (e *FencedError) Error() string {
	if e.Gone {
		return fmt.Sprintf("fenced: generation %s of pipeline %q is not the one that writes, a newer one has taken over",
			e.Generation, e.Pipeline)
	}
	return fmt.Sprintf("fenced: results partition %s of pipeline %q, generation %s: expected epoch %s and offset %s, found epoch %s and offset %s",
		e.Partition, e.Pipeline, e.Generation, e.Expected.Epoch, e.Expected.Offset, e.Found.Epoch, e.Found.Offset)
}

// Is matches ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// LostStateError says which window, what the row claims and what is believed.
type LostStateError struct {
	Type, ID, Aggregate string
	Start, End          event.EventTime
	Row, Believed       uint32 // versions
	Cause               event.Cause
	Partition           event.Partition // of the results topic
	Offset              event.Offset    // of the row
	Place               event.Place     // of the event that caused the row
}

// Error tells the whole.
func (e *LostStateError) Error() string {
	return fmt.Sprintf("state was lost upstream: the row at results partition %s offset %s (%s %q, %s [%s, %s), caused by %s) says version %d, %s, but version %d is believed already; stop the pipeline and rebuild the state of that aggregate",
		e.Partition, e.Offset, e.Type, e.ID, e.Aggregate, e.Start, e.End, e.Place, e.Row, e.Cause, e.Believed)
}

// Is matches ErrLostState.
func (e *LostStateError) Is(target error) bool { return target == ErrLostState }

// HorizonError refuses a question outside of what can be answered.
type HorizonError struct {
	Asked event.RecordedTime
	// Floor and Horizon are the ends of what can be asked, both included;
	// RecordedUnknown: from the beginning, and nothing yet.
	Floor, Horizon event.RecordedTime
}

// Error says which end was passed.
func (e *HorizonError) Error() string {
	switch {
	case e.Asked < e.Floor:
		return fmt.Sprintf("recorded time %s lies below the floor %s: history before it was removed", e.Asked, e.Floor)
	case e.Horizon == event.RecordedUnknown:
		return fmt.Sprintf("recorded time %s cannot be asked yet: no epoch is complete", e.Asked)
	}
	return fmt.Sprintf("recorded time %s lies above the safe horizon %s: later epochs are not complete yet", e.Asked, e.Horizon)
}

// Is matches ErrAboveHorizon or ErrBelowFloor.
func (e *HorizonError) Is(target error) bool {
	if e.Asked < e.Floor {
		return target == ErrBelowFloor
	}
	return target == ErrAboveHorizon
}

// OwnerError names the property and who writes it.
type OwnerError struct {
	Type, Property  string
	Owner, Pipeline string
}

// Error says who owns it.
func (e *OwnerError) Error() string {
	return fmt.Sprintf("property %s.%s is written by pipeline %q, so pipeline %q must not write it: give it another name, or take it out of the other mapping",
		e.Type, e.Property, e.Owner, e.Pipeline)
}

// Is matches ErrOwner.
func (e *OwnerError) Is(target error) bool { return target == ErrOwner }

// KindError says how a property was declared and how it is now.
type KindError struct {
	Type, Property string
	Was, Now       string
}

// Error says both.
func (e *KindError) Error() string {
	return fmt.Sprintf("property %s.%s is stored as %s and cannot become %s: give the property a new name", e.Type, e.Property, e.Was, e.Now)
}

// Is matches ErrKind.
func (e *KindError) Is(target error) bool { return target == ErrKind }

// NewerSchemaError says which version of the tables was found.
type NewerSchemaError struct{ Found, Known int }

// Error says both.
func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("the ontology's tables have version %d, this build knows %d: run a newer build", e.Found, e.Known)
}

// Is matches ErrNewerSchema.
func (e *NewerSchemaError) Is(target error) bool { return target == ErrNewerSchema }

// UnknownNameError names what nobody has declared.
type UnknownNameError struct{ Type, Property string }

// Error says what is unknown.
func (e *UnknownNameError) Error() string {
	if e.Property == "" {
		return fmt.Sprintf("unknown object type %q", e.Type)
	}
	return fmt.Sprintf("unknown property %s.%s", e.Type, e.Property)
}

// Is matches ErrUnknownName.
func (e *UnknownNameError) Is(target error) bool { return target == ErrUnknownName }
