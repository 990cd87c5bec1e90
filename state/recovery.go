package state

import (
	"fmt"

	"github.com/forge-platform/strom/event"
)

// Facts are what can be observed of a task's local store and its changelog
// before the task is recovered.
type Facts struct {
	// Local is the store's changelog position, OffsetNone for an empty store.
	Local event.Offset
	// Corrupt says that the store could not be opened or read.
	Corrupt bool
	// Start and End are the changelog partition's first offset and its high
	// watermark.
	Start, End event.Offset
}

// Decision is what to do with a local store.
type Decision uint8

// The decisions.
const (
	// Continue: the store stands at the changelog's end, or both are empty.
	Continue Decision = iota
	// CatchUp: the store is behind; read the changelog from its position on.
	CatchUp
	// Rebuild: throw the store away and read the whole changelog.
	Rebuild
)

// String names the decision.
func (d Decision) String() string {
	switch d {
	case Continue:
		return "continue"
	case CatchUp:
		return "catch up"
	case Rebuild:
		return "rebuild"
	}
	return fmt.Sprintf("decision(%d)", uint8(d))
}

// Decide says how to recover. It is total: every combination of facts has its
// answer, and none is to go on and hope.
func Decide(f Facts) (Decision, string) {
	switch {
	case f.Corrupt:
		return Rebuild, "the local store is damaged"
	case f.Local == event.OffsetNone && f.End == 0:
		return Continue, "neither a local store nor a changelog has anything"
	case f.Local == event.OffsetNone:
		return CatchUp, "the local store is empty"
	case f.Local >= f.End:
		return Rebuild, "the local store is ahead of its changelog: the topic is another one, or has lost records"
	case f.Local+1 < f.Start:
		return Rebuild, "the changelog no longer has what follows the local store"
	case f.Local+1 == f.End:
		return Continue, "the local store is at the changelog's end"
	}
	return CatchUp, "the local store is behind its changelog"
}
