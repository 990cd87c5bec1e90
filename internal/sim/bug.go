package sim

import (
	"fmt"
	"slices"
)

// Bug is a fault that is known to be one, to be planted in the engine's model:
// the simulator must find it.
type Bug uint8

// The bugs.
const (
	// NoBug: the engine as it is meant to be.
	NoBug Bug = iota
	// OffsetsEarly commits the offsets in a transaction of their own, before
	// the records.
	OffsetsEarly
	// OffsetsPolled commits what was fetched instead of the barrier's offsets.
	OffsetsPolled
	// OffsetsPosition commits the position of a task that takes no part in the
	// epoch where its barrier belongs.
	OffsetsPosition
	// NoCompareAndSet lets the ontology take chunks from anybody.
	NoCompareAndSet
	// MarkerTooMany names a task in a marker that has not handed over.
	MarkerTooMany
	// AnnounceEarly announces barriers without waiting for acknowledgements.
	AnnounceEarly
	// AckOutside acknowledges before the transaction has ended, outside of it.
	AckOutside
	// ApplyEarly writes the store before the transaction has ended.
	ApplyEarly
	// UnknownIsAbort takes an unknown outcome of EndTxn for an abort.
	UnknownIsAbort
	// FencedIsAbort takes "fenced" as the answer to EndTxn for an abort.
	FencedIsAbort
	// ReuseRecorded announces with the recorded time of the barrier before.
	ReuseRecorded
	// NoGenerationCheck commits offsets without the group's generation.
	NoGenerationCheck
	// HighWatermarkEarly takes the changelog's high watermark before the stable
	// fetch.
	HighWatermarkEarly
	// NoStableFetch takes offsets that an open transaction may still change.
	NoStableFetch
	// NoInitProducer lets a new coordinator announce without fencing the old one.
	NoInitProducer
	// SeenForgotten loses the markers that stand before a sink's chunk border.
	SeenForgotten
	// NoNewEpoch keeps the producer's epoch where a request of the transaction
	// before may be on its way still, and the broker does not raise it.
	NoNewEpoch
	// AgeForgotten lets a store catch up that may have missed tombstones.
	AgeForgotten
	bugs
)

// trait is what there is to know of a bug.
type trait struct {
	name string
	// found by one of these first.
	by []Invariant
	// provoke makes what the bug needs come often.
	provoke func(s *setup)
}

// replicas lets several machines crash and pause.
func replicas(s *setup) {
	s.replicas, s.net.stall, s.every, s.faulty = max(2, s.replicas), 10, 3*second, 60*second
	s.kinds, s.atPoints, s.kills = []fault{faultPause, faultCrash, faultFence}, 10, 6
}

// stale lets machines be taken for dead while they are at a point.
func stale(point string, noFencing bool) func(s *setup) {
	return func(s *setup) {
		s.replicas, s.complete, s.duration, s.records, s.faulty = 3, false, 150*second, 80, 200*second
		s.kinds, s.every, s.kills, s.focus, s.noFencing = []fault{faultClock}, 10*second, 0, point, noFencing
		s.net.slow = 300 // so that who wakes does not always hear of it first
	}
}

func (b Bug) trait() trait {
	switch b {
	case OffsetsEarly:
		return trait{"offsets early", []Invariant{OffsetsAtBarrier}, nil}
	case OffsetsPolled:
		return trait{"offsets polled", []Invariant{OffsetsAtBarrier}, nil}
	case OffsetsPosition:
		return trait{"offsets of the position", []Invariant{OffsetsAtBarrier}, func(s *setup) {
			replicas(s)
			s.partitions["readings"] = 3
		}}
	case NoCompareAndSet:
		return trait{"no compare-and-set", []Invariant{HorizonNeverFalls}, stale("sink.apply", false)}
	case MarkerTooMany:
		return trait{"marker too many", []Invariant{MarkersAreTrue}, func(s *setup) { s.partitions["readings"] = 2 }}
	case AnnounceEarly:
		return trait{"announce early", []Invariant{LockStep}, nil}
	case AckOutside:
		return trait{"acknowledged outside", []Invariant{LockStep, AcksAreTrue}, nil}
	case ApplyEarly:
		return trait{"apply early", []Invariant{StateIsChangelog, SerialRun, VersionsGapless}, stale("commit.flushed", false)}
	case UnknownIsAbort:
		return trait{"unknown is abort", []Invariant{EpochsOnce}, func(s *setup) { s.net.lost, s.faulty, s.kinds = 200, 100*second, []fault{faultClock} }}
	case FencedIsAbort:
		return trait{"fenced is abort", []Invariant{EpochsOnce}, func(s *setup) {
			s.net.lost, s.faulty, s.kinds, s.fenceEnds, s.noFencing = 150, 200*second, []fault{faultClock}, true, false
			s.complete, s.duration = false, 150*second
		}}
	case ReuseRecorded:
		return trait{"recorded time reused", []Invariant{RecordedIncreases}, replicas}
	default:
		return b.rareTrait()
	}
}

// rareTrait is trait for those bugs that show only with several replicas.
func (b Bug) rareTrait() trait {
	switch b {
	case NoGenerationCheck:
		return trait{"no generation check", []Invariant{EpochsOnce, OffsetsAtBarrier, NoRefusal, StateIsChangelog}, stale("handover", true)}
	case HighWatermarkEarly:
		return trait{"high watermark early", []Invariant{StateIsChangelog, NoRefusal}, stale("commit.offsets", true)}
	case NoStableFetch:
		return trait{"no stable fetch", []Invariant{EpochsOnce, OffsetsAtBarrier, NoRefusal, StateIsChangelog}, stale("commit.flushed", true)}
	case NoInitProducer:
		return trait{"no InitProducerId", []Invariant{EpochsCount}, stale("announce", false)}
	case NoNewEpoch:
		return trait{"no new epoch", []Invariant{OffsetsAtBarrier, AcksAreTrue, MarkersAreTrue}, func(s *setup) {
			s.raiseEpochs, s.net.late, s.net.slow = false, 30, 300
			s.complete, s.duration, s.faulty, s.records, s.kinds, s.every = false, 100*second, 100*second, 100, []fault{faultClock}, 20*second
		}}
	case AgeForgotten:
		return trait{"age forgotten", []Invariant{StateIsChangelog}, func(s *setup) {
			s.replicas, s.complete, s.duration, s.faulty, s.records, s.tombstones = 2, false, 150*second, 200*second, 100, 20*second
			s.net, s.kinds, s.every, s.atPoints, s.focus = netProfile{}, []fault{faultPause}, 12*second, 0, ""
		}}
	case SeenForgotten:
		return trait{"markers seen are forgotten", []Invariant{NoRefusal, Liveness}, func(s *setup) {
			replicas(s)
			s.sinkChunk = 2
		}}
	default:
		return trait{name: "none"}
	}
}

// String names the bug.
func (b Bug) String() string {
	if b < bugs {
		return b.trait().name
	}
	return fmt.Sprintf("bug(%d)", uint8(b))
}

// Bugs lists every bug.
func Bugs() []Bug {
	var out []Bug
	for b := NoBug + 1; b < bugs; b++ {
		out = append(out, b)
	}
	return out
}

// ParseBug gives the bug of that name.
func ParseBug(name string) (Bug, bool) {
	for b := range bugs {
		if b.String() == name {
			return b, true
		}
	}
	return NoBug, false
}

// FoundBy reports whether the bug is meant to be found by the invariant.
func (b Bug) FoundBy(i Invariant) bool { return slices.Contains(b.trait().by, i) }

// provoke makes what the bug needs come often.
func (b Bug) provoke(s *setup) {
	if p := b.trait().provoke; p != nil {
		p(s)
	}
}
