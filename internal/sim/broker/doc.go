// Package broker is a model of a Kafka cluster, for the simulator: a
// transactional log and consumer groups, as their clients see them.
//
// It models what the protocol's rules lean on, and nothing else:
//
//   - partitions with a start, a high watermark and a last stable offset,
//     control records that take offsets, readers of committed records only,
//     compaction and deletion of a head;
//   - transactional ids with producer epochs; InitProducerId that fences and
//     aborts; EndTxn that answers when the outcome is decided, while the
//     markers are still to be written to each partition and group;
//   - consumer groups of the classic protocol: generations, eager rebalances,
//     sessions that expire, TxnOffsetCommit under the generation, offsets that
//     are not stable while a transaction may still change them.
//
// Contract
//
//  1. It is passive and has one user at a time: a call is what a broker does
//     when a request arrives. Time comes from Hooks.Now, and what a broker does
//     by itself later (markers, expiry) goes through Hooks.Later.
//  2. It is deterministic: no map is ever walked in its own order.
//  3. There is one broker; it does not fail. Whoever calls it loses requests
//     and replies.
package broker

import "errors"

// The errors of the protocol that its rules depend on.
var (
	// ErrConcurrent: the transaction before is still being ended.
	ErrConcurrent = errors.New("CONCURRENT_TRANSACTIONS")
	// ErrFenced: another producer has called InitProducerId.
	ErrFenced = errors.New("PRODUCER_FENCED")
	// ErrInvalidEpoch: the same, said by a partition.
	ErrInvalidEpoch = errors.New("INVALID_PRODUCER_EPOCH")
	// ErrInvalidState: the request does not fit the state of the transaction.
	ErrInvalidState = errors.New("INVALID_TXN_STATE")
	// ErrOutOfOrder: a batch before this one did not arrive.
	ErrOutOfOrder = errors.New("OUT_OF_ORDER_SEQUENCE_NUMBER")
	// ErrUnknownMember: the group does not know the member, or no longer.
	ErrUnknownMember = errors.New("UNKNOWN_MEMBER_ID")
	// ErrIllegalGeneration: the group has gone on to another generation.
	ErrIllegalGeneration = errors.New("ILLEGAL_GENERATION")
	// ErrRebalancing: the group waits for its members to join again.
	ErrRebalancing = errors.New("REBALANCE_IN_PROGRESS")
	// ErrUnstable: an open transaction may still change the offsets.
	ErrUnstable = errors.New("UNSTABLE_OFFSET_COMMIT")
	// ErrOutOfRange: the log does not have the offset any more.
	ErrOutOfRange = errors.New("OFFSET_OUT_OF_RANGE")
)
