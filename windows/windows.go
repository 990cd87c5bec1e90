package windows

import "github.com/forge-platform/strom/event"

// endOfTime is the first instant behind the last event time. A window that
// ends here still has a result whose own event time, End - 1 µs, is valid.
const endOfTime = event.MaxEventTime + 1

// Window is a half-open interval of event time: it holds t where
// Start <= t < End.
type Window struct{ Start, End event.EventTime }

// Contains reports whether t lies in the window.
func (w Window) Contains(t event.EventTime) bool { return w.Start <= t && t < w.End }

// String gives the interval in RFC 3339.
func (w Window) String() string { return "[" + w.Start.String() + ", " + w.End.String() + ")" }

// clip cuts a window off at the ends of event time, beyond which no event can
// lie.
func clip(start, end int64) Window {
	return Window{
		Start: max(event.EventTime(start), event.MinEventTime),
		End:   min(event.EventTime(end), endOfTime),
	}
}

// Assigner says which windows an event belongs to. It is pure and safe for
// concurrent use.
//
// Windows that depend on more than one event, such as sessions, are not
// assigned but merged, and have no Assigner.
type Assigner interface {
	// Assign appends the windows that contain t, ordered by Start. They lie
	// within the years 1 to 9999; a t outside of them belongs to none.
	Assign(t event.EventTime, dst []Window) []Window
	// String describes the assigner as the mapping writes it.
	String() string
}
