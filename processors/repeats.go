package processors

import (
	"maps"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

// bucketsPerHorizon divides a horizon into time buckets. An id is forgotten
// with its bucket, so it is known for at least the horizon and at most one
// bucket longer.
const bucketsPerHorizon = 8

// repeats knows the event ids of a stream within its horizon. Time here is
// recorded time: an id belongs to the bucket of the barrier that ended its epoch.
type repeats struct {
	state   state.Reader
	width   int64 // of a bucket, microseconds
	horizon int64

	now   event.RecordedTime
	fresh map[string]uint64 // ids of the epoch under way
	order []state.SeenID    // the same, in arrival order
	bytes int               // that they take, about
	// recent holds the ids of the two epochs handed over last. In the store
	// they can be found only when their block has been unpacked there, and an
	// epoch may be announced, filled and handed over before that; the one
	// after it cannot. They are forgotten with their bucket, as in the store: a
	// restart must make no difference.
	recent  [2]recentIDs
	scratch []byte
	// filled tells which buckets may hold ids, as far as that is known: most
	// pipelines have run for less than their horizon.
	filled map[int64]bool
}

// recentIDs are the ids of one epoch, with the bucket that they belong to.
type recentIDs struct {
	bucket int64
	ids    map[string]uint64
}

func newRepeats(r state.Reader, horizon int64) *repeats {
	return &repeats{
		state: r, horizon: horizon, width: max(1, horizon/bucketsPerHorizon),
		now: event.RecordedUnknown, fresh: map[string]uint64{}, filled: map[int64]bool{},
	}
}

func (r *repeats) bucket(t event.RecordedTime) int64 {
	if t == event.RecordedUnknown {
		return 0
	}
	return event.FloorDiv(int64(t), r.width)
}

// seen looks an id up; content is the hash that it first came with.
func (r *repeats) seen(id string) (content uint64, ok bool, err error) {
	if h, ok := r.fresh[id]; ok {
		return h, true, nil
	}
	newest := r.bucket(r.now)
	for i := range r.recent {
		if h, ok := r.recent[i].ids[id]; ok && r.recent[i].bucket >= newest-bucketsPerHorizon {
			return h, true, nil
		}
	}
	for b := newest; b >= newest-bucketsPerHorizon; b-- {
		if filled, err := r.mayHold(b); err != nil || !filled {
			if err != nil {
				return 0, false, err
			}
			continue
		}
		r.scratch = state.IDKey(r.scratch[:0], b, id)
		raw, ok, err := r.state.Get(r.scratch)
		if err != nil {
			return 0, false, err
		}
		if ok {
			h, err := state.DecodeIDValue(raw)
			return h, err == nil, err
		}
	}
	return 0, false, nil
}

// mayHold looks into a bucket once, and remembers.
func (r *repeats) mayHold(bucket int64) (bool, error) {
	filled, known := r.filled[bucket]
	if known {
		return filled, nil
	}
	err := r.state.Scan(state.IDBucketRange(bucket), func([]byte, []byte) (bool, error) {
		filled = true
		return false, nil
	})
	if err == nil {
		r.filled[bucket] = filled
	}
	return filled, err
}

func (r *repeats) add(id string, content uint64) {
	id = strings.Clone(id)
	r.fresh[id] = content
	r.order = append(r.order, state.SeenID{ID: id, Content: content})
	r.bytes += 2*len(id) + idBytes
}

// barrier hands the epoch's ids over and expires buckets.
func (r *repeats) barrier(b *Barrier) (changes []state.Change, expired []state.Range) {
	for part, rest := uint32(0), r.order; len(rest) > 0; part++ {
		n := state.IDBlockFit(rest)
		changes = append(changes, state.Change{
			Key:   state.IDBlockKey(r.bucket(b.Recorded), b.Epoch, part),
			Value: state.AppendIDBlock(nil, rest[:n]),
		})
		rest = rest[n:]
		r.filled[r.bucket(b.Recorded)] = true
	}
	oldest := r.bucket(b.Recorded) - bucketsPerHorizon
	if before := r.bucket(r.now) - bucketsPerHorizon; r.now != event.RecordedUnknown && oldest > before {
		// The blocks expire as keys of the changelog; the ids behind them only
		// in the store.
		expired = append(expired,
			state.Range{From: state.IDBucketRange(before - 1).From, To: state.IDBucketRange(oldest - 1).To},
			state.IDBlockRange(oldest-1))
	}
	maps.DeleteFunc(r.filled, func(bucket int64, _ bool) bool { return bucket < oldest })
	r.recent[1], r.recent[0] = r.recent[0], recentIDs{bucket: r.bucket(b.Recorded), ids: r.fresh}
	r.fresh, r.order = map[string]uint64{}, nil
	r.bytes = 0
	r.now = b.Recorded
	return changes, expired
}
