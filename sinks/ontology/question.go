package ontology

import "github.com/forge-platform/strom/event"

// Question asks what was believed at a recorded time.
type Question struct {
	Type string // empty: every type
	ID   string // empty: every object
	// Recorded is the recorded time asked for, at most the safe horizon.
	Recorded event.RecordedTime
	// Valid is the instant in the world asked for; nil: every valid interval.
	Valid *event.EventTime
	// Current leaves out what events put and what has ended in valid time
	// since: the values that hold until further notice remain, and windows.
	Current bool
	// Limit bounds the number of facts; 0: no bound.
	Limit int
}

// Bounds are the ends of what can be asked, both included.
type Bounds struct {
	// Floor is RecordedUnknown where history goes back to the beginning.
	Floor event.RecordedTime
	// Horizon is RecordedUnknown before the first complete epoch.
	Horizon event.RecordedTime
}

func (b Bounds) check(asked event.RecordedTime) error {
	if asked > b.Horizon || asked < b.Floor {
		return &HorizonError{Asked: asked, Floor: b.Floor, Horizon: b.Horizon}
	}
	return nil
}

// TypeInfo is one object type with its properties.
type TypeInfo struct {
	Name       string         `json:"name"`
	Properties []PropertyInfo `json:"properties"` // in the order of declaration
}

// PropertyInfo is one property of a type.
type PropertyInfo struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	LinkTo    string `json:"link_to,omitempty"`
	Aggregate string `json:"aggregate,omitempty"`
	Pipeline  string `json:"pipeline"`         // who writes it
	Hidden    bool   `json:"hidden,omitempty"` // no longer declared
}

// PipelineInfo is one pipeline with how far it is.
type PipelineInfo struct {
	Name           string
	Generation     event.Generation
	MappingVersion string
	Retired        bool
	Bounds         Bounds
	// Partitions holds the progress of each results partition.
	Partitions []Progress
}

// Stats counts assertions up to the horizon.
type Stats struct {
	Objects int64 `json:"objects"`
	// Believed and Closed count assertions, of every property.
	Believed int64 `json:"believed"`
	Closed   int64 `json:"closed"`
	// WindowResults counts the published results of windows by cause, each
	// once however many values it has.
	WindowResults map[string]int64 `json:"window_results"`
	// Puts counts what events asserted by cause, by property.
	Puts map[string]int64 `json:"puts"`
	// Reasserted counts the rests of assertions whose valid end moved.
	Reasserted int64 `json:"reasserted"`
}

// Change is one difference of belief between two recorded times, over one
// valid interval of one property.
type Change struct {
	Type      string  `json:"type"`
	ID        string  `json:"id"`
	Property  string  `json:"property"`
	ValidFrom string  `json:"valid_from"`
	ValidTo   *string `json:"valid_to"` // null: open
	// Before and After are what was believed; null: nothing.
	Before *Side `json:"before"`
	After  *Side `json:"after"`
}

// Side is one side of a Change.
type Side struct {
	Value        *string `json:"value"`
	Cause        string  `json:"cause"`
	Version      uint32  `json:"version,omitempty"`
	RecordedFrom string  `json:"recorded_from"`
	Place        string  `json:"place"` // of the event behind it: topic/partition/offset
}
