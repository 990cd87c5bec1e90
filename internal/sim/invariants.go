package sim

// Invariant is something that must hold, by the name that a failure prints.
type Invariant string

// The invariants, checked while a simulation runs unless said otherwise.
const (
	// LockStep: barrier n is announced only when all tasks have acknowledged n-1.
	LockStep Invariant = "lock-step"
	// EpochsCount: announced epochs count up from 1, none missing, none twice.
	EpochsCount Invariant = "epochs-count"
	// RecordedIncreases: R(n) > R(n-1).
	RecordedIncreases Invariant = "recorded-increases"
	// WatermarksNeverFall: neither announced ones nor those of a task.
	WatermarksNeverFall Invariant = "watermarks-never-fall"
	// WatermarksFromAcks: what is announced with n+1 follows from what the tasks
	// acknowledged first with n: the least watermark of those that are not idle.
	WatermarksFromAcks Invariant = "watermarks-from-acks"
	// EpochsOnce: a task commits each epoch once, in order; who takes it over
	// commits its last one again, unchanged.
	EpochsOnce Invariant = "epochs-once"
	// OffsetsAtBarrier: a committed offset is that of the task's last committed
	// barrier, and committed with it.
	OffsetsAtBarrier Invariant = "offsets-at-barrier"
	// AcksAreTrue: what is acknowledged is committed by the same transaction.
	AcksAreTrue Invariant = "acks-are-true"
	// MarkersAreTrue: a marker names exactly the tasks that hand over in its
	// transaction, once in each partition, behind their rows.
	MarkersAreTrue Invariant = "markers-are-true"
	// StateIsChangelog: a recovered store holds what all committed changes add
	// up to.
	StateIsChangelog Invariant = "state-is-changelog"
	// HorizonNeverFalls: nor does the progress of a results partition.
	HorizonNeverFalls Invariant = "horizon-never-falls"
	// AsOfStable: an answer as of a recorded time at or below the horizon has
	// the same bytes for ever.
	AsOfStable Invariant = "as-of-stable"
	// VersionsGapless: the results of a window count up from 1, each once.
	VersionsGapless Invariant = "versions-gapless"
	// NoRefusal: nothing stops for good: no process meets an error that it
	// takes for a bug, for corruption, or for state that it cannot trust.
	NoRefusal Invariant = "no-refusal"
	// Liveness: when nothing goes wrong any more, all is caught up with, and a
	// run until the end ends, within a bounded time and number of steps.
	Liveness Invariant = "liveness"

	// In the end:

	// MarkersInOrder: in a partition nothing of epoch n+1 stands before a marker
	// of n.
	MarkersInOrder Invariant = "markers-in-order"
	// ExactlyOnce: what is believed equals what the oracle counts.
	ExactlyOnce Invariant = "exactly-once"
	// DeadLettersOnce: every record that is no event stands in the dead-letter
	// topic, once, unchanged; no other does.
	DeadLettersOnce Invariant = "dead-letters-once"
	// Snapshots: as of each R(n), totals hold exactly the events before barrier n.
	Snapshots Invariant = "snapshots"
	// RecordedIntervals: those of a fact neither overlap nor leave a gap.
	RecordedIntervals Invariant = "recorded-intervals"
	// SerialRun: what each epoch publishes is what a serial run over exactly its
	// records, watermarks and grants publishes.
	SerialRun Invariant = "serial-run"
	// ByteEqual: under the log clock, over a log that was complete from the
	// start, all that is published equals that of a run without faults.
	ByteEqual Invariant = "byte-equal"

	// Harness: the simulator itself has met an error.
	Harness Invariant = "harness"
)

// Invariants lists them all.
func Invariants() []Invariant {
	return []Invariant{
		LockStep, EpochsCount, RecordedIncreases, WatermarksNeverFall, WatermarksFromAcks, EpochsOnce, OffsetsAtBarrier, AcksAreTrue,
		MarkersAreTrue, MarkersInOrder, StateIsChangelog, HorizonNeverFalls, AsOfStable, VersionsGapless, NoRefusal, Liveness,
		ExactlyOnce, DeadLettersOnce, Snapshots, RecordedIntervals, SerialRun, ByteEqual, Harness,
	}
}
