package event

import (
	"math"
	"time"
)

// EventTime is an instant in the world (valid time), in microseconds UTC since
// 1970-01-01. Accepted events lie in [MinEventTime, MaxEventTime].
type EventTime int64

// RecordedTime is the instant at which Strom learned something: the R(n) of a
// barrier, in microseconds UTC.
type RecordedTime int64

// Watermark W promises that every event with time < W is in.
type Watermark int64

// The range of event times, and the values with a meaning of their own.
const (
	MinEventTime EventTime = -62135596800000000 // 0001-01-01T00:00:00Z
	MaxEventTime EventTime = 253402300799999999 // 9999-12-31T23:59:59.999999Z
	// OpenEnd as the end of a valid interval means "until further notice".
	OpenEnd EventTime = math.MaxInt64

	// RecordedNever as the end of a recorded interval means "still believed".
	RecordedNever RecordedTime = math.MaxInt64
	// RecordedUnknown says that no barrier has been announced yet.
	RecordedUnknown RecordedTime = math.MinInt64

	// WatermarkUnknown: nothing is known to be complete.
	WatermarkUnknown Watermark = math.MinInt64
	// WatermarkEnd: the input has ended, everything is complete.
	WatermarkEnd Watermark = math.MaxInt64
)

// Layout is how Strom writes an instant: RFC 3339, UTC, microseconds where
// they are not zero.
const Layout = "2006-01-02T15:04:05.999999Z07:00"

// FromTime converts a time.Time, cutting below the microsecond (towards the
// past) and saturating.
func FromTime(t time.Time) EventTime {
	const most = math.MaxInt64 / 1_000_000
	switch s := t.Unix(); {
	case s >= most:
		return math.MaxInt64
	case s <= -most:
		return math.MinInt64
	default:
		return EventTime(s*1_000_000 + int64(t.Nanosecond())/1000)
	}
}

// Time converts to a time.Time in UTC.
func (t EventTime) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// Valid reports whether t lies between the years 1 and 9999.
func (t EventTime) Valid() bool { return t >= MinEventTime && t <= MaxEventTime }

// String gives RFC 3339, or "open" for OpenEnd.
func (t EventTime) String() string {
	if t == OpenEnd {
		return "open"
	}
	return t.Time().Format(Layout)
}

// Add returns t + d (microseconds), saturating.
func (t EventTime) Add(micros int64) EventTime { return EventTime(SaturatingAdd(int64(t), micros)) }

// Time converts to a time.Time in UTC.
func (r RecordedTime) Time() time.Time { return time.UnixMicro(int64(r)).UTC() }

// String gives RFC 3339, "never" or "unknown".
func (r RecordedTime) String() string {
	switch r {
	case RecordedNever:
		return "never"
	case RecordedUnknown:
		return "unknown"
	}
	return r.Time().Format(Layout)
}

// Passed reports whether the watermark has reached t: every event before t is in.
func (w Watermark) Passed(t EventTime) bool { return w != WatermarkUnknown && int64(w) >= int64(t) }

// String gives RFC 3339, "unknown" or "end".
func (w Watermark) String() string {
	switch w {
	case WatermarkUnknown:
		return "unknown"
	case WatermarkEnd:
		return "end"
	}
	return EventTime(w).String()
}

// SaturatingAdd returns a + b, held at the ends of int64.
func SaturatingAdd(a, b int64) int64 {
	s := a + b
	switch {
	case a > 0 && b > 0 && s < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && s >= 0:
		return math.MinInt64
	}
	return s
}

// FloorDiv divides rounding towards minus infinity, so that windows align
// before 1970 as after. The divisor must be positive.
func FloorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
