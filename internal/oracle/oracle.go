// Package oracle is a brute-force reading of what the engine must compute: a
// deliberately dumb model that tests and the demo compare the engine with.
//
// Its promises:
//
//  1. It shares nothing with the engine. It imports the standard library only,
//     and nothing of windows, state, processors or sinks; where both need a
//     rule, the rule is written a second time here, from its words.
//  2. It is a function of its input alone: no clock, no randomness, no
//     goroutine, no state between calls. Every function may be called
//     concurrently.
//  3. It prefers plain loops over the whole input to anything clever. It is
//     quadratic in places, and meant for thousands of records, not millions.
//
// It has three parts. The first reads the earthquake file: FoldQuakes gives the
// final table, Classify says which event is on time, a correction or a late
// correction, QuakeHistory gives every version that every window result goes
// through. The second, FoldMeters, reads the streams of the crash matrix. The
// third, Believed and TimelineBelieved, says by points what a bitemporal table
// must believe.
package oracle

import (
	"strconv"
	"time"
)

// Micros is an instant or a length of time in microseconds; an instant counts
// from 1970-01-01T00:00:00Z and may be negative.
type Micros int64

const (
	// Second is one second.
	Second Micros = 1_000_000
	// Hour is one hour.
	Hour = 3600 * Second
	// Day is one day of UTC, which knows no daylight saving.
	Day = 24 * Hour

	// NoWatermark stands for a watermark before the first event.
	NoWatermark Micros = -1 << 63
	// EndOfInput is the watermark that the end of the input announces: plus
	// infinity.
	EndOfInput Micros = 1<<63 - 1
)

// String prints an instant as RFC 3339 in UTC with as many decimals as needed.
func (m Micros) String() string {
	switch m {
	case NoWatermark:
		return "-infinity"
	case EndOfInput:
		return "+infinity"
	default:
		return time.UnixMicro(int64(m)).UTC().Format(time.RFC3339Nano)
	}
}

// plus adds a length of time and stays at the ends of the range rather than
// wrapping.
func (m Micros) plus(d Micros) Micros {
	switch {
	case d > 0 && m > EndOfInput-d:
		return EndOfInput
	case d < 0 && m < NoWatermark-d:
		return NoWatermark
	}
	return m + d
}

// floorTo gives the greatest multiple of step that is not above m, which is
// right before 1970 too.
func (m Micros) floorTo(step Micros) Micros {
	rest := m % step
	if rest < 0 {
		rest += step
	}
	return m - rest
}

// DayNumber is a day of UTC, counted from 1970-01-01.
type DayNumber int32

func dayOf(t Micros) DayNumber { return DayNumber(t.floorTo(Day) / Day) }

// Start is the first instant of the day.
func (d DayNumber) Start() Micros { return Micros(d) * Day }

// End is the first instant after the day.
func (d DayNumber) End() Micros { return d.Start() + Day }

// String prints the day as 2006-01-02.
func (d DayNumber) String() string {
	return time.UnixMicro(int64(d.Start())).UTC().Format(time.DateOnly)
}

// Epoch numbers the epochs of a run from 1; barrier n ends epoch n. Epoch 0 is
// what was before the first record: nothing.
type Epoch int

// String prints the number.
func (e Epoch) String() string { return strconv.Itoa(int(e)) }
