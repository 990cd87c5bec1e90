package event

import (
	"errors"
	"fmt"
)

// ErrVersion is wrapped by every decoder that meets a record format version
// which this build does not know. The caller stops: a newer build wrote it.
var ErrVersion = errors.New("record format version not known to this build")

// ErrCorrupt is wrapped by every decoder that meets bytes which are not a
// record of the version they claim. The caller stops: nothing is guessed.
var ErrCorrupt = errors.New("corrupt record")

// Reason is the code under which a record is rejected; it stands in the
// dead-letter record's headers and in metrics, so a code never changes.
type Reason string

// The reasons.
const (
	ReasonNotJSON        Reason = "not_json"         // the value is no JSON, or beyond the parsing limits
	ReasonNullValue      Reason = "null_value"       // a record without a value, where the stream has no meaning for it
	ReasonNoEventTime    Reason = "no_event_time"    // the event-time field is absent or null
	ReasonBadEventTime   Reason = "bad_event_time"   // the event-time field is not a time in the declared format or range
	ReasonAhead          Reason = "ahead"            // the event lies further in the future than max_ahead
	ReasonNoKey          Reason = "no_key"           // the key is absent or null
	ReasonBadKey         Reason = "bad_key"          // the key is not a text or a number, or too long
	ReasonNoIdentity     Reason = "no_identity"      // the identity field is absent or null
	ReasonConflict       Reason = "conflict"         // same identity, other content
	ReasonBadSequence    Reason = "bad_sequence"     // the sequence number is no integer of 64 bits
	ReasonGaps           Reason = "gaps"             // the sequence numbers of the key have too many gaps
	ReasonExpression     Reason = "expression"       // an expression of the mapping failed on this event
	ReasonBadValue       Reason = "bad_value"        // a property's value is not of its declared kind
	ReasonTooLarge       Reason = "too_large"        // a result of this event would be too large for its topic
	ReasonBeyondReach    Reason = "beyond_retention" // a late event whose state is gone, in a pipeline without an ontology
	ReasonWrongPartition Reason = "wrong_partition"  // partitioned_by: key does not hold for this record
)

// Reject is the error of a record that cannot be an event. It never stops a
// stream by itself: the record goes to the dead-letter topic with it.
type Reject struct {
	Reason Reason
	// Message says what was wrong, for people, without the record's place.
	Message string
}

// Error gives reason and message.
func (r *Reject) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Message) }

// Rejectf builds a Reject.
func Rejectf(reason Reason, format string, args ...any) *Reject {
	return &Reject{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
