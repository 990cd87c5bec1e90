package oracle

import (
	"cmp"
	"slices"
)

// Put asserts a value of a key over a half-open interval of valid time, or
// deletes what is there. Instants are abstract integers.
type Put struct {
	Key       string
	Recorded  int64
	ValidFrom int64
	ValidTo   *int64 // exclusive; nil is open
	Value     string // means nothing in a delete
	Delete    bool
}

// Believed says what is believed at recorded time r about a key at valid time
// v. Puts stand in the order in which they were recorded. Of those of the key
// that were recorded at r or before and hold at v the last one decides; ok is
// false where that is a delete or there is none.
func Believed(puts []Put, key string, v, r int64) (value string, ok bool) {
	for _, p := range puts {
		if p.Key != key || p.Recorded > r || v < p.ValidFrom || p.ValidTo != nil && v >= *p.ValidTo {
			continue
		}
		value, ok = p.Value, !p.Delete
		if p.Delete {
			value = ""
		}
	}
	return value, ok
}

// TimelineEvent sets one property of one object from an instant of valid time
// on, until the next event in valid time; a delete ends it from there on. An
// event that does not touch the property is not in its timeline.
type TimelineEvent struct {
	Recorded  int64
	ValidFrom int64
	Tie       []int64 // order among events of one ValidFrom, compared from the left
	Value     string  // means nothing in a delete
	Delete    bool
}

// TimelineBelieved says what is believed at recorded time r about valid time
// v. Of the events that were recorded at r or before and begin at v or before
// the one with the greatest (ValidFrom, Tie) decides, and among equal ones the
// last in the list; ok is false where that is a delete or there is none. The
// order in which events were recorded has no say.
func TimelineBelieved(events []TimelineEvent, v, r int64) (value string, ok bool) {
	var decides *TimelineEvent
	for i := range events {
		e := &events[i]
		if e.Recorded <= r && e.ValidFrom <= v && (decides == nil || !before(*e, *decides)) {
			decides = e
		}
	}
	if decides == nil || decides.Delete {
		return "", false
	}
	return decides.Value, true
}

// before orders events in valid time, then by their tie order.
func before(a, b TimelineEvent) bool {
	return cmp.Or(cmp.Compare(a.ValidFrom, b.ValidFrom), slices.Compare(a.Tie, b.Tie)) < 0
}
