package state

import (
	"fmt"
	"time"

	"github.com/forge-platform/strom/event"
)

// Facts are what is known of a task when it is taken over. They come in two
// steps: the first four before the changelog is read, while Barrier is
// BarrierUnread; the others, and Log and History once more, when the store has
// caught up.
type Facts struct {
	Local   Local
	Log     Log
	Age     Age
	History History

	Barrier Barrier
	Member  Member
	Reading Reading
	Origin  Origin
	Input   Input
}

// Local is what was found of the task's local store, compared with its changelog.
type Local uint8

// What a local store may be.
const (
	LocalAbsent   Local = iota // no directory, or an empty store
	LocalForeign               // of another pipeline, generation, task or cluster
	LocalDamaged               // torn or changed files, or no identity
	LocalOtherLog              // a copy of a changelog topic that is gone; the topic was made again
	LocalAhead                 // the changelog ends before the store's position
	LocalAtEnd                 // the changelog holds nothing committed behind the store's position
	LocalBehind                // the changelog holds what follows the store's position
	LocalCutOff                // what follows the store's position is deleted from the changelog
)

// String names the fact.
func (l Local) String() string {
	return nameOf(int(l), "absent", "foreign", "damaged", "of another log", "ahead", "at the end", "behind", "cut off")
}

// PlaceOf compares a store's position with the first offset of its changelog
// and its high watermark.
//
// Whatever is committed there stands before the marker of its transaction. So
// a single offset behind the position can hold no more than such a marker: the
// store is at the end.
func PlaceOf(position, start, end event.Offset) Local {
	switch {
	case position == event.OffsetNone:
		return LocalAbsent
	case position >= end:
		return LocalAhead
	case end-position <= 2:
		return LocalAtEnd
	case position+1 < start:
		return LocalCutOff
	}
	return LocalBehind
}

// Log is what the changelog partition holds.
type Log uint8

// What a changelog may be. Its last offset is a transaction's marker, which
// nobody is given; compaction leaves gaps: neither makes a difference.
const (
	LogNeverWritten Log = iota
	LogWhole            // it begins at offset 0
	LogBeheaded         // it begins later: records were deleted, or compacted away
	LogEmptied          // all its records were deleted
)

// String names the fact.
func (l Log) String() string {
	return nameOf(int(l), "never written", "whole", "beheaded", "emptied")
}

// LogOf classes a changelog by its first offset and its high watermark.
func LogOf(start, end event.Offset) Log {
	switch {
	case end == 0:
		return LogNeverWritten
	case start == 0:
		return LogWhole
	case start < end:
		return LogBeheaded
	}
	return LogEmptied
}

// Age is how long ago the store was last known to have missed nothing,
// measured by how long the changelog keeps tombstones.
type Age uint8

// The ages.
const (
	AgeUnknown Age = iota
	AgeFresh       // at most half of delete.retention.ms
	AgeStale       // longer: tombstones may have been compacted away unseen
	AgeFuture      // the clock has been set back: nothing can be said
)

// String names the fact.
func (a Age) String() string {
	return nameOf(int(a), "unknown", "fresh", "stale", "in the future")
}

// AgeOf measures the time since a store was caught up; keep is the changelog
// topic's delete.retention.ms. Half of it is left for clocks that differ and
// for the reading itself.
func AgeOf(caughtUp, now event.RecordedTime, keep time.Duration) Age {
	switch {
	case caughtUp == event.RecordedUnknown:
		return AgeUnknown
	case caughtUp > now:
		return AgeFuture
	case event.SaturatingAdd(int64(now), -int64(caughtUp)) > (keep / 2).Microseconds():
		return AgeStale
	}
	return AgeFresh
}

// Barrier compares the task's progress record with the offset that its group
// has committed: both are part of every transaction.
type Barrier uint8

// What the two may say.
const (
	BarrierUnread       Barrier = iota // the changelog is yet to be read
	BarrierNone                        // neither is there
	BarrierOffsetsOnly                 // no progress record
	BarrierProgressOnly                // no committed offset
	BarrierAgrees
	BarrierDiffers
)

// String names the fact.
func (b Barrier) String() string {
	return nameOf(int(b), "unread", "neither", "offset only", "progress only", "agree", "differ")
}

// BarrierOf compares the input offset of the progress record with the
// committed one; OffsetNone stands for one that is not there.
func BarrierOf(progress, committed event.Offset) Barrier {
	none := event.OffsetNone
	switch {
	case progress == none && committed == none:
		return BarrierNone
	case progress == none:
		return BarrierOffsetsOnly
	case committed == none:
		return BarrierProgressOnly
	case progress == committed:
		return BarrierAgrees
	}
	return BarrierDiffers
}

// Member is whether this member's generation is the group's current one, as
// the group says after the changelog was read.
type Member uint8

// What the group may say.
const (
	MemberUnsure Member = iota // a rebalance is under way, or there was no answer
	MemberCurrent
	MemberOld
)

// String names the fact.
func (m Member) String() string {
	return nameOf(int(m), "unsure", "current", "old")
}

// History is whether the pipeline has announced a barrier. None is announced
// before every task has been taken over once.
type History uint8

// The histories.
const (
	HistoryNone History = iota
	HistoryBegun
)

// String names the fact.
func (h History) String() string {
	return nameOf(int(h), "none", "begun")
}

// Reading is whether the changelog was read faster than it may drop tombstones.
type Reading uint8

// How long the reading may have taken.
const (
	ReadingInTime  Reading = iota // at most half of delete.retention.ms
	ReadingTooLong                // longer
)

// String names the fact.
func (r Reading) String() string {
	return nameOf(int(r), "in time", "too long")
}

// ReadingOf classes the time that reading the changelog took; keep is the
// topic's delete.retention.ms.
func ReadingOf(took, keep time.Duration) Reading {
	if took > keep/2 {
		return ReadingTooLong
	}
	return ReadingInTime
}

// Origin is whether the store holds the first record that the task ever wrote.
// It is written once and deleted only with everything before it, so that a
// store which holds it has missed nothing of the changelog's head.
type Origin uint8

// The origin is there or not.
const (
	OriginMissing Origin = iota
	OriginHeld
)

// String names the fact.
func (o Origin) String() string {
	return nameOf(int(o), "missing", "held")
}

// Input compares the next offset to read with what the input partition holds.
type Input uint8

// Where the next offset may lie.
const (
	InputThere    Input = iota // between the log's start and its end
	InputExpired               // before the log's start
	InputCutShort              // behind the log's end
)

// String names the fact.
func (i Input) String() string {
	return nameOf(int(i), "there", "expired", "cut short")
}

// InputOf finds the next offset to read in a log from start to its high
// watermark end.
func InputOf(next, start, end event.Offset) Input {
	switch {
	case next < start:
		return InputExpired
	case next > end:
		return InputCutShort
	}
	return InputThere
}

func nameOf(i int, names ...string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("fact(%d)", i)
}
