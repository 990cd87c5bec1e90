package event

import (
	"cmp"
	"strconv"
)

// Offset is a position in one partition of a topic, as Kafka counts it: the
// offset of the next record to read, unless a name says otherwise.
type Offset int64

// OffsetNone says that no offset is known.
const OffsetNone Offset = -1

// String gives the offset in decimal, or "none".
func (o Offset) String() string {
	if o < 0 {
		return "none"
	}
	return strconv.FormatInt(int64(o), 10)
}

// Partition numbers a partition of a topic; a task is one partition of one stage.
type Partition int32

// String gives the partition in decimal.
func (p Partition) String() string { return strconv.FormatInt(int64(p), 10) }

// Epoch numbers a barrier and what lies between it and the barrier before.
// Epochs count up from 1 without a gap within a generation; 0 is the state
// before the first barrier.
type Epoch int64

// String gives the epoch in decimal.
func (e Epoch) String() string { return strconv.FormatInt(int64(e), 10) }

// Generation numbers the runs of a pipeline over its log: the first is 1, a
// replay or a restored savepoint is the next.
type Generation int32

// String gives the generation in decimal.
func (g Generation) String() string { return strconv.FormatInt(int64(g), 10) }

// Place says where a record stood in the log and when the log took it.
type Place struct {
	Topic     string
	Partition Partition
	Offset    Offset
	// Timestamp is the record's timestamp in the log, microseconds UTC
	// (Kafka keeps milliseconds).
	Timestamp EventTime
}

// String gives topic/partition/offset.
func (p Place) String() string {
	return p.Topic + "/" + p.Partition.String() + "/" + p.Offset.String()
}

// Tie orders two events that say something about one property from the same
// valid time on: per-key sequence first, then the stream's rank in the
// mapping, partition, offset, and the index within an exploded array.
type Tie struct {
	Sequence  int64 // 0 where the stream declares none
	Rank      int32
	Partition Partition
	Offset    Offset
	Index     int32
}

// Compare returns -1, 0 or +1 as t comes before, equals or comes after u.
func (t Tie) Compare(u Tie) int {
	switch {
	case t.Sequence != u.Sequence:
		return cmp.Compare(t.Sequence, u.Sequence)
	case t.Rank != u.Rank:
		return cmp.Compare(t.Rank, u.Rank)
	case t.Partition != u.Partition:
		return cmp.Compare(t.Partition, u.Partition)
	case t.Offset != u.Offset:
		return cmp.Compare(t.Offset, u.Offset)
	}
	return cmp.Compare(t.Index, u.Index)
}
