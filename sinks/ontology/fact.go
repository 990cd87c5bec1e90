package ontology

import (
	"cmp"
	"encoding/json"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

// Fact is one assertion as a reader at some recorded time saw it. It says
// nothing that becomes known later, its own recorded end least of all: the
// answer as of a recorded time has the same bytes for ever.
type Fact struct {
	Type, ID, Property string
	// Value is null where the property is known to be absent.
	Value              event.Value
	ValidFrom, ValidTo event.EventTime
	// RecordedFrom is the recorded time of the epoch that asserted it.
	RecordedFrom event.RecordedTime
	Epoch        event.Epoch
	Generation   event.Generation
	Pipeline     string
	Cause        event.Cause
	// Reasserted: the rest of an earlier assertion whose valid end moved.
	Reasserted bool
	Lateness   int64  // microseconds
	Version    uint32 // of the window's result; 0 for a put
	Tie        event.Tie
	Place      event.Place
	KeyID      uint32
}

// Assertion is one version of a fact, with its recorded end and accumulator.
type Assertion struct {
	Fact
	// RecordedTo is RecordedNever while the assertion is believed. Equal to
	// RecordedFrom: superseded within its own epoch, outside every answer.
	RecordedTo event.RecordedTime
	State      []byte
}

func newFact(typ, id, property, pipeline string, a *timeline.Assertion) Fact {
	return Fact{
		Type: typ, ID: id, Property: property, Pipeline: pipeline,
		Value: a.Value, ValidFrom: a.ValidFrom, ValidTo: a.ValidTo,
		RecordedFrom: a.RecordedFrom, Epoch: a.Epoch, Generation: a.Generation,
		Cause: a.Cause, Reasserted: a.Reasserted, Lateness: a.Lateness,
		Version: a.Version, Tie: a.Tie, Place: a.Place, KeyID: a.KeyID,
	}
}

// compareFacts is the order of an as-of answer.
func compareFacts(a, b *Fact) int {
	return cmp.Or(
		cmp.Compare(a.Type, b.Type),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Property, b.Property),
		cmp.Compare(a.ValidFrom, b.ValidFrom),
		cmp.Compare(a.ValidTo, b.ValidTo),
	)
}

// compareAssertions is the order of a history: as it was recorded. Within one
// recorded time, by object, and what was superseded comes first.
func compareAssertions(a, b *Assertion) int {
	return cmp.Or(
		cmp.Compare(a.RecordedFrom, b.RecordedFrom),
		cmp.Compare(a.Type, b.Type),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Property, b.Property),
		cmp.Compare(a.ValidFrom, b.ValidFrom),
		cmp.Compare(a.Version, b.Version),
		a.Tie.Compare(b.Tie),
		cmp.Compare(a.RecordedTo, b.RecordedTo),
		-cmp.Compare(a.ValidTo, b.ValidTo),
	)
}

type placeJSON struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	// Timestamp is null for a record that had none (strom try).
	Timestamp *string `json:"timestamp"`
}

type tieJSON struct {
	Sequence  int64 `json:"sequence"`
	Rank      int32 `json:"rank"`
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
	Index     int32 `json:"index"`
}

// factJSON is the JSON form of a Fact; the order of its fields is fixed.
type factJSON struct {
	Type         string    `json:"type"`
	ID           string    `json:"id"`
	Property     string    `json:"property"`
	Value        *string   `json:"value"`
	ValidFrom    string    `json:"valid_from"`
	ValidTo      *string   `json:"valid_to"`
	RecordedFrom string    `json:"recorded_from"`
	Cause        string    `json:"cause"`
	Reasserted   bool      `json:"reasserted,omitempty"`
	Version      uint32    `json:"version,omitempty"`
	Lateness     int64     `json:"lateness_us"`
	Epoch        int64     `json:"epoch"`
	Generation   int32     `json:"generation"`
	Pipeline     string    `json:"pipeline"`
	Place        placeJSON `json:"place"`
	Tie          *tieJSON  `json:"tie,omitempty"`
	KeyID        uint32    `json:"key_id,omitempty"`
}

type assertionJSON struct {
	factJSON
	RecordedTo *string `json:"recorded_to"`
	State      []byte  `json:"state,omitempty"`
}

func (f *Fact) json() factJSON {
	j := factJSON{
		Type: f.Type, ID: f.ID, Property: f.Property,
		ValidFrom: f.ValidFrom.String(), RecordedFrom: f.RecordedFrom.String(),
		Cause: f.Cause.String(), Reasserted: f.Reasserted, Version: f.Version,
		Lateness: f.Lateness, Epoch: int64(f.Epoch), Generation: int32(f.Generation),
		Pipeline: f.Pipeline, KeyID: f.KeyID,
		Place: placeJSON{
			Topic: f.Place.Topic, Partition: int32(f.Place.Partition),
			Offset: int64(f.Place.Offset),
		},
	}
	if f.Place.Timestamp != event.OpenEnd {
		j.Place.Timestamp = new(f.Place.Timestamp.String())
	}
	if !f.Value.Null {
		j.Value = &f.Value.Text
	}
	if f.ValidTo != event.OpenEnd {
		s := f.ValidTo.String()
		j.ValidTo = &s
	}
	if f.Version == 0 {
		j.Tie = &tieJSON{
			Sequence: f.Tie.Sequence, Rank: f.Tie.Rank, Partition: int32(f.Tie.Partition),
			Offset: int64(f.Tie.Offset), Index: f.Tie.Index,
		}
	}
	return j
}

// MarshalJSON writes times as RFC 3339, an open valid end as null, and the
// value as its canonical text.
func (f Fact) MarshalJSON() ([]byte, error) { return json.Marshal(f.json()) }

// MarshalJSON writes the fact's fields and the recorded end; null while the
// assertion is believed.
func (a Assertion) MarshalJSON() ([]byte, error) {
	j := assertionJSON{factJSON: a.json(), State: a.State}
	if a.RecordedTo != event.RecordedNever {
		s := a.RecordedTo.String()
		j.RecordedTo = &s
	}
	return json.Marshal(j)
}
