package kafka

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/sinks/ontology"
)

// Points lists the named points of the protocol, in the order in which an epoch
// passes them: where Config.At is called, and ontology.Options.At. A replica
// must be able to die at each of them, at any time, without a trace in what is
// published; the crash matrix (internal/faults) kills it there, and refuses a
// point that is not in this list, or is never reached.
func Points() []string {
	own := []string{
		// The coordinator begins, and announces a barrier.
		"lead",                  // it holds the partition, its producer id is next
		"lead.fenced",           // whoever led before can announce nothing more
		"announce",              // the transaction has begun
		"announce.produce_sent", // its record is on the wire
		"announce.end_sent",     // EndTxn is on the wire, its outcome open
		"announced",             // EndTxn was acknowledged

		// A task and its barrier.
		"notice",           // about to tell the coordinator of the next record
		"noticed",          // the broker has the notice
		"barrier.heard",    // an announcement has reached a session
		"barrier.injected", // a source task is at the barrier
		"barrier.markers",  // a task behind others has the markers of some of them, not of all
		"handover",         // a task is about to hand its epoch over
		"handed",           // the committer has it

		// Late events.
		"readback.asked",    // the ontology is about to be asked for a window
		"readback.answered", // its answer is here, and not yet with the task
		"readback.granted",  // an announcement has granted it, the correction is handed over

		// An epoch is committed.
		"commit.begun",        // before anything is sent
		"commit.offsets_sent", // TxnOffsetCommit is on the wire
		"commit.offsets",      // TxnOffsetCommit was acknowledged
		"commit.changelog",    // a task's changelog entries are buffered or sent
		"commit.deadletter",   // so is a dead letter
		"commit.produce_sent", // a Produce request is on the wire
		"commit.rows",         // every task's records are buffered or sent
		"commit.flushed",      // every record was acknowledged, EndTxn is next
		"commit.end_sent",     // EndTxn is on the wire, its outcome open
		"commit.ended",        // EndTxn was acknowledged, the stores know nothing
		"commit.stored",       // one store has the epoch
		"commit.applied",      // all stores have it

		// A savepoint is kept.
		"savepoint.checkpoint", // one task's checkpoint lies beside its store
		"savepoint.files",      // its files are in the savepoint's directory, under another name
		"savepoint.part",       // they have their name
		"savepoint.manifest",   // all parts are there, the manifest is about to be

		// Another mapping takes effect.
		"mapping.proposed",  // the broker has the proposal of a replica with another file
		"mapping.announced", // the barrier that brings it is announced
		"mapping.heard",     // a replica has heard of it, its tasks have not
		"mapping.settled",   // all have committed that barrier, the engine is about to end
		"mapping.begun",     // the next one is about to be made, under the new mapping

		// The sink.
		"sink.apply",   // chunks are about to be applied
		"sink.applied", // the database has confirmed them, the group's offset is behind
		"sink.between", // a chunk that ends within an epoch was applied

		// Tasks are given up. The first three are of a planned end.
		"revoke.idle",      // nothing is under way
		"revoke.partly",    // some tasks have handed their epoch over, others not
		"revoke.in_flight", // an epoch is being committed
		"session.end",      // nothing of the session goes on from here, planned or not
		"revoke.ended",     // the session has ended, the group does not know

		// Tasks are taken over.
		"recovery.old_ended", // what old owners left open has been ended
		"recovery.fenced",    // the new owner has its producer id
		"recovery.offsets",   // it has the stable offsets
		"recovery.tables",    // its stores are open, the changelogs are next
		"recovery.slab",      // a store has a part of its changelog
		"recovery.recovered", // all stores have all of theirs
		"recovery.adopt",     // the first transaction is next
		"adopt.offsets_sent", // as in commit
		"adopt.offsets",      //
		"adopt.produce_sent", //
		"adopt.flushed",      //
		"adopt.end_sent",     //
		"adopt.ended",        //
		"adopt.applied",      // the stores have it, the tasks are about to run
	}
	return slices.Concat(own, ontology.Points())
}

// sentHook is told of requests of a transaction that have just been written to
// a broker: the answers are open.
type sentHook func(step string)

var _ kgo.HookBrokerWrite = sentHook(nil)

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (h sentHook) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		return
	}
	switch kmsg.Key(key) {
	case kmsg.TxnOffsetCommit:
		h("offsets_sent")
	case kmsg.Produce:
		h("produce_sent")
	case kmsg.EndTxn:
		h("end_sent")
	default:
	}
}
