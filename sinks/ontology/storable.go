package ontology

import (
	"strings"
	"unicode/utf8"

	"github.com/forge-platform/strom/event"
)

// MaxIDBytes bounds an object's id: it stands in an index.
const MaxIDBytes = 1024

// MaxValueBytes bounds the canonical text of one value.
const MaxValueBytes = 64 << 20

// minStored bounds the start of a window: the window of an event in the year 1
// may begin before it. PostgreSQL reaches back to 4713 BC.
const minStored = event.MinEventTime - 4000*365*86400*1_000_000

// Storable says whether the ontology can keep a result: what PostgreSQL would
// refuse is refused here, so that the record can go to the dead letters before
// its result is published. Apply refuses a row that is not storable.
func Storable(r *event.Result) *event.Reject {
	switch {
	case r.ID == "":
		return event.Rejectf(event.ReasonNoKey, "the object id is empty")
	case len(r.ID) > MaxIDBytes:
		return event.Rejectf(event.ReasonBadKey, "the object id has %d bytes, at most %d can be kept", len(r.ID), MaxIDBytes)
	case !text(r.ID):
		return event.Rejectf(event.ReasonBadKey, "the object id is not UTF-8, or holds a zero character")
	case r.Kind == event.RowPut && !r.ValidFrom.Valid(), r.ValidFrom < minStored:
		return event.Rejectf(event.ReasonBadEventTime, "the valid time lies outside the years 1 to 9999")
	}
	for i := range r.Properties {
		p := &r.Properties[i]
		switch {
		case len(p.Value.Text) > MaxValueBytes:
			return event.Rejectf(event.ReasonBadValue, "property %s has %d bytes, at most %d can be kept", p.Name, len(p.Value.Text), MaxValueBytes)
		case !text(p.Value.Text):
			return event.Rejectf(event.ReasonBadValue, "property %s is not UTF-8, or holds a zero character", p.Name)
		}
	}
	return nil
}

func text(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
