package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Options are the rules under which records are read as a stream.
type Options struct {
	Step     Micros // length of a step of the log's clock; positive
	Lateness Micros // allowed lateness of a window; not negative
	MaxAhead Micros // how far `time` may lie after the record's timestamp
}

// DemoOptions are the rules of the earthquake example.
func DemoOptions() Options {
	return Options{Step: Hour, Lateness: 6 * Hour, MaxAhead: Day}
}

// Class says how an event stands to its window.
type Class int

// The classes.
const (
	OnTime         Class = iota // its window was not closed
	Correction                  // closed, and within the allowed lateness
	LateCorrection              // later still
)

// String is the cause that a result of such an event carries.
func (c Class) String() string {
	switch c {
	case OnTime:
		return "on_time"
	case Correction:
		return "correction"
	case LateCorrection:
		return "late_correction"
	}
	return fmt.Sprintf("class %d", int(c))
}

// Barrier ends an epoch.
type Barrier struct {
	N         Epoch
	R         Micros // recorded time
	Watermark Micros // announced with this barrier
}

// EventClass is how one event was read.
type EventClass struct {
	Line  int    // in the file, from 1
	ID    string // of the quake
	Epoch Epoch  // that its record falls in
	Class Class
}

// Timing is a reading of records by the clock of their log.
//
// The rules, n counting from 1. R(n) is the least multiple of the step that is
// strictly above the timestamp of the first record that no earlier epoch
// holds; steps without a record have no barrier. Epoch n holds the records
// from there to the first one whose timestamp is greater than R(n). A
// watermark is the greatest `time` of the valid events of an epoch and those
// before it. W(n), announced with barrier n, is the watermark of epoch n−1,
// one behind, so W(1) is none. The day of an event of epoch n was closed if
// end ≤ W(n−1): for all regions at once, also for a region that has no quake
// on that day yet. The event is on time if not; a correction if W(n−1) < end +
// lateness; a late correction otherwise. After the last record one more
// barrier, a step after the one before, announces the end of the input.
type Timing struct {
	Barriers []Barrier // with the one at the end of the input, which is the last
	Events   []EventClass
	Skipped  Skipped

	OnTime, Correction, LateCorrection int
}

// Epochs is how many epochs hold records.
func (t Timing) Epochs() int { return max(0, len(t.Barriers)-1) }

// Classify reads records in their order. It returns an error where timestamps
// fall, or an option is out of its range.
func Classify(records []Record, o Options) (Timing, error) {
	timing, _, err := classify(records, o)
	return timing, err
}

// classify also gives the valid quakes, in the order of Timing.Events.
func classify(records []Record, o Options) (Timing, []quake, error) {
	if o.Step <= 0 || o.Lateness < 0 {
		return Timing{}, nil, fmt.Errorf("step %d must be positive, lateness %d not negative", o.Step, o.Lateness)
	}
	for i := 1; i < len(records); i++ {
		if records[i].Timestamp < records[i-1].Timestamp {
			return Timing{}, nil, fmt.Errorf("line %d: its timestamp is before that of line %d",
				records[i].Line, records[i-1].Line)
		}
	}
	barriers := cutSteps(records, o.Step)
	quakes, skipped := parseQuakes(records, o.MaxAhead)
	epochs := make([]Epoch, len(quakes))
	for i, q := range quakes {
		epochs[i] = epochOf(barriers, q.record.Timestamp)
	}
	announce(barriers, quakes, epochs)
	timing := Timing{Barriers: barriers, Skipped: skipped}
	for i, q := range quakes {
		n := epochs[i]
		class := classOf(dayOf(q.time).End(), announcedBefore(barriers, n), o.Lateness)
		timing.Events = append(timing.Events, EventClass{Line: q.record.Line, ID: q.id, Epoch: n, Class: class})
		switch class {
		case OnTime:
			timing.OnTime++
		case Correction:
			timing.Correction++
		case LateCorrection:
			timing.LateCorrection++
		}
	}
	return timing, quakes, nil
}

// cutSteps gives the barriers without their watermarks, the one at the end of
// the input included. Without records there are none.
func cutSteps(records []Record, step Micros) []Barrier {
	var barriers []Barrier
	for _, record := range records {
		if n := len(barriers); n == 0 || record.Timestamp > barriers[n-1].R {
			barriers = append(barriers, Barrier{N: Epoch(n + 1), R: record.Timestamp.floorTo(step) + step})
		}
	}
	if n := len(barriers); n > 0 {
		barriers = append(barriers, Barrier{N: Epoch(n + 1), R: barriers[n-1].R + step})
	}
	return barriers
}

// epochOf is the first epoch whose barrier is not before the timestamp of a
// record, which there always is.
func epochOf(barriers []Barrier, timestamp Micros) Epoch {
	for _, b := range barriers {
		if timestamp <= b.R {
			return b.N
		}
	}
	return Epoch(len(barriers))
}

// announce fills in the watermarks; epochs are those of the quakes.
func announce(barriers []Barrier, quakes []quake, epochs []Epoch) {
	for i := range barriers {
		barriers[i].Watermark = NoWatermark
		for j, q := range quakes {
			if epochs[j] < barriers[i].N {
				barriers[i].Watermark = max(barriers[i].Watermark, q.time)
			}
		}
		if i == len(barriers)-1 {
			barriers[i].Watermark = EndOfInput
		}
	}
}

// announcedBefore is W(n−1): what was announced last when epoch n was read.
func announcedBefore(barriers []Barrier, n Epoch) Micros {
	if n == 1 {
		return NoWatermark
	}
	return barriers[n-2].Watermark
}

func classOf(end, announced, lateness Micros) Class {
	switch {
	case announced < end:
		return OnTime
	case announced < end.plus(lateness):
		return Correction
	}
	return LateCorrection
}

// Version is one published result of a window.
type Version struct {
	Number  int // from 1
	Barrier Epoch
	R       Micros // recorded from
	Cause   Class
	Count   int
	MaxMag  string // canonical decimal; "" where no quake has a magnitude
}

// String prints the version in one line.
func (v Version) String() string {
	return fmt.Sprintf("v%d\t%s\t%s\t%d\t%s", v.Number, v.R, v.Cause, v.Count, orNull(v.MaxMag))
}

// WindowHistory is what was published of one region and day, in order.
type WindowHistory struct {
	Region   string
	Day      DayNumber
	Versions []Version
}

// History is everything that a run over the records publishes of its windows.
//
// At barrier n a window counts the events of the epochs up to n that are on
// time or corrections, and the late corrections of the epochs up to n−1, which
// wait one barrier until the window's state is read back. It is published when
// end ≤ W(n) and its events are others than when it was published last (the
// first time: when it has any), under the cause of what is new. So all events
// of an epoch that correct one window make one version, and a window that
// never was starts with version 1 of cause correction or late_correction.
type History struct {
	Timing  Timing
	Windows []WindowHistory // by region (bytewise), then day
}

// QuakeHistory reads records in their order under the rules of Timing and
// History.
func QuakeHistory(records []Record, o Options) (History, error) {
	timing, quakes, err := classify(records, o)
	if err != nil {
		return History{}, err
	}
	members := map[regionDayKey][]int{} // indexes of quakes and Timing.Events
	for i, q := range quakes {
		members[q.window()] = append(members[q.window()], i)
	}
	history := History{Timing: timing}
	for _, key := range slices.SortedFunc(maps.Keys(members), compareKeys) {
		window := WindowHistory{Region: key.region, Day: key.day}
		for _, b := range timing.Barriers {
			window.publish(b, timing, quakes, members[key])
		}
		history.Windows = append(history.Windows, window)
	}
	return history, nil
}

func compareKeys(a, b regionDayKey) int {
	return cmp.Or(cmp.Compare(a.region, b.region), cmp.Compare(a.day, b.day))
}

// publish appends the version that leaves at a barrier, if one does.
func (w *WindowHistory) publish(b Barrier, timing Timing, quakes []quake, members []int) {
	if b.Watermark < w.Day.End() {
		return
	}
	next := Version{Number: len(w.Versions) + 1, Barrier: b.N, R: b.R}
	var largest magnitude
	for _, i := range members {
		event := timing.Events[i]
		counted := event.Epoch
		if event.Class == LateCorrection {
			counted++
		}
		if counted > b.N {
			continue
		}
		next.Count++
		largest = largest.larger(quakes[i].mag)
		if counted == b.N {
			next.Cause = max(next.Cause, event.Class)
		}
	}
	next.MaxMag = largest.text
	before := 0
	if n := len(w.Versions); n > 0 {
		before = w.Versions[n-1].Count
	}
	if next.Count != before {
		w.Versions = append(w.Versions, next)
	}
}

// AsOf is the table that was believed at recorded time r: of each window the
// newest version recorded at r or before. It is sorted as FoldQuakes sorts.
func (h History) AsOf(r Micros) []RegionDay {
	table := []RegionDay{}
	for _, w := range h.Windows {
		var believed *Version
		for i := range w.Versions {
			if w.Versions[i].R <= r {
				believed = &w.Versions[i]
			}
		}
		if believed != nil {
			table = append(table, RegionDay{w.Region, w.Day, believed.Count, believed.MaxMag})
		}
	}
	return table
}

// Window finds one region and day.
func (h History) Window(region string, day DayNumber) (WindowHistory, bool) {
	for _, w := range h.Windows {
		if w.Region == region && w.Day == day {
			return w, true
		}
	}
	return WindowHistory{}, false
}

// Versions counts the published versions of all windows by cause.
func (h History) Versions() map[Class]int {
	counts := map[Class]int{}
	for _, w := range h.Windows {
		for _, v := range w.Versions {
			counts[v.Cause]++
		}
	}
	return counts
}

// String prints every version of every window, one a line, fields separated by
// tabs.
func (h History) String() string {
	var b strings.Builder
	for _, w := range h.Windows {
		for _, v := range w.Versions {
			fmt.Fprintf(&b, "%s\t%s\t%s\n", w.Region, w.Day, v)
		}
	}
	return b.String()
}
