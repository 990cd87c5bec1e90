package windows

import "github.com/forge-platform/strom/event"

type whole struct{}

// Whole returns the assigner of aggregates without a window: one window holds
// every event, from the beginning of time until further notice. It never
// closes; what it holds is published whenever it has changed.
func Whole() Assigner { return whole{} }

// IsWhole reports whether a is the assigner of aggregates without a window.
func IsWhole(a Assigner) bool {
	_, is := a.(whole)
	return is
}

// Assign implements Assigner.
func (whole) Assign(t event.EventTime, dst []Window) []Window {
	if !t.Valid() {
		return dst
	}
	return append(dst, Window{Start: event.MinEventTime, End: event.OpenEnd})
}

// String gives the mapping's notation.
func (whole) String() string { return "none" }
