package state

import "fmt"

// Decision is what to do with a task that is taken over.
type Decision uint8

// The decisions. Savepoints add none: a restored one is written to the changelogs
// of a new generation, and its tasks are rebuilt from there.
const (
	Undecided Decision = iota // never decided: see UndecidedError
	// Begin: the task has never run; it starts at its input's first record.
	Begin
	// Continue: before the changelog is read, the store lacks nothing of it;
	// afterwards, the task goes on at its last barrier.
	Continue
	// CatchUp: the store is behind; read the changelog from its position on.
	CatchUp
	// Rebuild: throw the store away and read the whole changelog.
	Rebuild
	// BackToGroup: somebody else may own the task by now; join again.
	BackToGroup
	// Refuse: stop, and say why. Somebody must decide.
	Refuse
)

// String names the decision.
func (d Decision) String() string {
	return nameOf(int(d), "undecided", "begin", "continue", "catch up", "rebuild", "back to the group", "refuse")
}

// Reason classes refusals.
type Reason uint8

// The reasons.
const (
	ReasonNone      Reason = iota
	ReasonForeign          // the local store is somebody else's
	ReasonLost             // what the task has committed is in no changelog
	ReasonChangelog        // the changelog has lost its head
	ReasonSlow             // the changelog cannot be read before it drops tombstones
	ReasonPreset           // somebody has committed an offset for a task that never ran
	ReasonDisagree         // progress record and committed offset are of different barriers
	ReasonExpired          // the input's retention has passed the task
	ReasonCutShort         // the input has lost what the task has read
)

// Advice says what the operator is to do.
func (r Reason) Advice() string {
	const anew = "begin anew under another pipeline name"
	const savepoint = "restore a savepoint, or " + anew
	return nameOf(int(r), "nothing",
		"name another directory with --data-dir, or remove this one if that pipeline is gone",
		"restore the pipeline's topics and offsets from one backup, or "+savepoint,
		"start a replica that still has the local state, or "+savepoint,
		"raise delete.retention.ms of the changelog topic",
		"delete the group's committed offsets",
		"if the group's offset was reset or has expired, set it back to the progress record's; else "+savepoint,
		"raise retention.ms of the topic, and "+anew,
		"restore the topic's records, or "+anew)
}

// Verdict is a decision and why.
type Verdict struct {
	Decision Decision
	// Reason is ReasonNone unless the decision is Refuse.
	Reason Reason
	Why    string
}

// UndecidedError is a bug: facts that Decide has no answer for.
type UndecidedError struct{ Facts Facts }

// Error gives the facts.
func (e *UndecidedError) Error() string {
	return fmt.Sprintf("a bug in Strom: no decision for the facts %+v", e.Facts)
}

// Decide says how to recover a task. It is total: every combination of facts
// has its answer, and none is to go on and hope. docs/recovery.md shows it as a
// table. Its error is an *UndecidedError.
func Decide(f Facts) (Verdict, error) {
	decide := decideTask
	if f.Barrier == BarrierUnread {
		decide = decideStore
	}
	v := decide(f)
	if v.Decision == Undecided {
		return v, &UndecidedError{f}
	}
	return v, nil
}

// The switches below have no default on purpose: the linter then demands a case
// for every value that a fact may have.

// decideStore decides before the changelog is read.
func decideStore(f Facts) Verdict {
	switch f.Local {
	case LocalAbsent:
		return decideAbsent(f.Log)
	case LocalForeign:
		return refuse(ReasonForeign, "a directory serves one task of one pipeline on one cluster")
	case LocalDamaged:
		return rebuild("nothing in it can be trusted, and the changelog has it all")
	case LocalOtherLog:
		return decideUseless(f, "what it copies is no longer the truth")
	case LocalAhead:
		return decideUseless(f, "it holds what Kafka does not: the changelog was set back, or has lost records")
	case LocalAtEnd:
		return decideAtEnd(f)
	case LocalBehind:
		return decideBehind(f)
	case LocalCutOff:
		return decideUseless(f, "records are missing between it and what the changelog holds")
	}
	return Verdict{}
}

func decideAbsent(l Log) Verdict {
	switch l {
	case LogNeverWritten:
		return Verdict{Decision: Continue, Why: "there is nothing to read"}
	case LogWhole, LogBeheaded, LogEmptied:
		return rebuild("everything is read from the changelog; whether it is whole shows then")
	}
	return Verdict{}
}

const contradiction = "the store's position and the changelog's bounds contradict each other"

func decideAtEnd(f Facts) Verdict {
	switch f.Log {
	case LogNeverWritten:
		return decideUseless(f, contradiction)
	case LogWhole, LogBeheaded, LogEmptied:
		switch f.Age {
		case AgeUnknown:
			return decideUseless(f, "nothing says which changelog it copies")
		case AgeFresh, AgeStale, AgeFuture:
			return Verdict{Decision: Continue, Why: "nothing was committed since, so nothing can have been missed"}
		}
	}
	return Verdict{}
}

func decideBehind(f Facts) Verdict {
	switch f.Log {
	case LogNeverWritten, LogEmptied:
		return decideUseless(f, contradiction)
	case LogWhole, LogBeheaded:
		switch f.Age {
		case AgeFresh:
			return Verdict{Decision: CatchUp, Why: "the changelog still holds all that follows, tombstones included"}
		case AgeUnknown, AgeStale, AgeFuture:
			return rebuild("tombstones that it has not seen may have been compacted away: what they delete would live on in it")
		}
	}
	return Verdict{}
}

// decideUseless decides about a store that cannot be used: it is thrown away,
// unless there is nothing to rebuild it from though the pipeline has run. What
// it holds may be all that is left then.
func decideUseless(f Facts, why string) Verdict {
	switch f.Log {
	case LogWhole, LogBeheaded:
		return rebuild(why)
	case LogNeverWritten, LogEmptied:
		switch f.History {
		case HistoryNone:
			return rebuild(why)
		case HistoryBegun:
			return refuse(ReasonLost, "the changelog holds nothing to rebuild it from, though the pipeline has run; the store is left as it is")
		}
	}
	return Verdict{}
}

// decideTask decides when the changelog has been read. Only a member of the
// group's current generation may refuse: what another sees may be half of what
// a new owner has done.
func decideTask(f Facts) Verdict {
	switch f.Member {
	case MemberCurrent:
		return decideBarrier(f)
	case MemberUnsure:
		v := decideBarrier(f)
		if v.Decision == Refuse {
			return Verdict{Decision: BackToGroup, Why: "only a member of the current generation may refuse"}
		}
		return v
	case MemberOld:
		return Verdict{Decision: BackToGroup, Why: "somebody else may own the task by now"}
	}
	return Verdict{}
}

func decideBarrier(f Facts) Verdict {
	switch f.Barrier {
	case BarrierNone:
		return decideNone(f)
	case BarrierOffsetsOnly:
		return decideOffsetsOnly(f.History)
	case BarrierProgressOnly:
		return refuse(ReasonDisagree, "the group's offset is gone: it was deleted, it has expired, or the input topic was made again")
	case BarrierAgrees:
		return decideAgrees(f)
	case BarrierDiffers:
		return refuse(ReasonDisagree, "they are of different barriers: somebody has reset the group's offset, or removed records of the changelog")
	case BarrierUnread: // decideStore's
	}
	return Verdict{}
}

func decideNone(f Facts) Verdict {
	switch f.History {
	case HistoryBegun:
		return refuse(ReasonLost, "the task has run: every task commits both before the first barrier")
	case HistoryNone:
		switch f.Origin {
		case OriginMissing:
			return Verdict{Decision: Begin, Why: "the task has never run"}
		case OriginHeld:
			return refuse(ReasonLost, "the task has run: its first record is there")
		}
	}
	return Verdict{}
}

func decideOffsetsOnly(h History) Verdict {
	switch h {
	case HistoryNone:
		return refuse(ReasonPreset, "the task has never run: somebody else has committed an offset for it")
	case HistoryBegun:
		return refuse(ReasonLost, "the changelog was emptied or made again: the state that goes with the offset is gone")
	}
	return Verdict{}
}

// decideAgrees decides where both are of one barrier: what is left to ask is
// whether the state is whole, and whether the input goes on there.
func decideAgrees(f Facts) Verdict {
	switch f.Reading {
	case ReadingTooLong:
		return refuse(ReasonSlow, "tombstones may have been compacted away while the changelog was read")
	case ReadingInTime:
		switch f.Log {
		case LogNeverWritten:
			return refuse(ReasonLost, "the changelog was made again while it was read")
		case LogWhole:
			return decideInput(f.Input)
		case LogBeheaded, LogEmptied:
			switch f.Origin {
			case OriginMissing:
				return refuse(ReasonChangelog, "records at the changelog's head are deleted, and entries of the state with them")
			case OriginHeld:
				return decideInput(f.Input)
			}
		}
	}
	return Verdict{}
}

func decideInput(i Input) Verdict {
	switch i {
	case InputThere:
		return Verdict{Decision: Continue, Why: "the state is that of the last barrier, and the input goes on there"}
	case InputExpired:
		return refuse(ReasonExpired, "the topic's retention has deleted records that were not read")
	case InputCutShort:
		return refuse(ReasonCutShort, "the topic was made again, or has lost records")
	}
	return Verdict{}
}

func rebuild(why string) Verdict { return Verdict{Decision: Rebuild, Why: why} }

func refuse(r Reason, why string) Verdict { return Verdict{Decision: Refuse, Reason: r, Why: why} }
