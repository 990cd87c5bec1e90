package processors

import (
	"fmt"
	"slices"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
	"github.com/forge-platform/strom/state"
)

const sequencesVersion = 1

// MaxSequenceRanges is how many runs of numbers without a gap a key may have: what
// is remembered of a key is bounded.
const MaxSequenceRanges = 1000

// sequences knows which sequence numbers of each key have been counted. They are
// kept for ever, as runs: a key whose numbers come without a gap takes one, however
// many there are. A number that fills a gap later is no repeat.
type sequences struct {
	state state.Reader
	// known are the runs of the keys that the epoch under way has met.
	known map[string]*runs
	order []string // the keys among them that it has changed, in order of arrival
	bytes int      // that all take, about
}

func newSequences(r state.Reader) *sequences {
	return &sequences{state: r, known: map[string]*runs{}}
}

func sequenceKey(key string) []byte { return append([]byte{state.KeySequence}, key...) }

// of gives what is known of a key. The text may alias a record.
func (s *sequences) of(key string) (*runs, error) {
	if r := s.known[key]; r != nil {
		return r, nil
	}
	raw, ok, err := s.state.Get(sequenceKey(key))
	if err != nil {
		return nil, err
	}
	r := &runs{}
	if ok {
		if r, err = decodeRuns(raw); err != nil {
			return nil, fmt.Errorf("sequence numbers of key %q: %w", key, err)
		}
	}
	key = strings.Clone(key)
	s.known[key] = r
	s.bytes += len(key) + len(raw) + idBytes
	return r, nil
}

// add counts a number of a key that of has given.
func (s *sequences) add(key string, n int64) {
	r := s.known[key]
	if !r.changed {
		r.changed = true
		s.order = append(s.order, strings.Clone(key))
	}
	r.add(n)
}

// barrier hands over what the epoch has changed.
func (s *sequences) barrier() []state.Change {
	changes := make([]state.Change, 0, len(s.order))
	for _, key := range s.order {
		changes = append(changes, state.Change{Key: sequenceKey(key), Value: s.known[key].encode()})
	}
	s.known, s.order, s.bytes = map[string]*runs{}, nil, 0
	return changes
}

// run is numbers without a gap, both ends included.
type run struct{ from, to int64 }

// runs are ordered, and neither touch nor overlap.
type runs struct {
	all     []run
	changed bool
}

// place finds the first run that ends at n - 1 or later, and says whether it
// holds n.
func (r *runs) place(n int64) (i int, holds bool) {
	i, _ = slices.BinarySearchFunc(r.all, n, func(x run, n int64) int {
		if x.to < n && uint64(n)-uint64(x.to) > 1 {
			return -1
		}
		return 1
	})
	return i, i < len(r.all) && r.all[i].from <= n && n <= r.all[i].to
}

func (r *runs) has(n int64) bool {
	_, holds := r.place(n)
	return holds
}

// full says that n would be one run too many.
func (r *runs) full(n int64) bool {
	if len(r.all) < MaxSequenceRanges {
		return false
	}
	i, holds := r.place(n)
	return !holds && (i == len(r.all) || !r.all[i].touches(n))
}

// touches says whether n lies right beside the run.
func (x run) touches(n int64) bool {
	return n < x.from && uint64(x.from)-uint64(n) == 1 || n > x.to && uint64(n)-uint64(x.to) == 1
}

func (r *runs) add(n int64) {
	i, holds := r.place(n)
	switch {
	case holds:
	case i < len(r.all) && r.all[i].to < n: // right behind it
		r.all[i].to = n
		if i+1 < len(r.all) && r.all[i+1].touches(n) {
			r.all[i].to = r.all[i+1].to
			r.all = slices.Delete(r.all, i+1, i+2)
		}
	case i < len(r.all) && r.all[i].touches(n): // right before it
		r.all[i].from = n
	default:
		r.all = slices.Insert(r.all, i, run{n, n})
	}
}

// encode gives version, number of runs, and of each its first number and how many
// follow.
func (r *runs) encode() []byte {
	dst := []byte{sequencesVersion}
	dst = wire.AppendUint(dst, uint64(len(r.all)))
	for _, x := range r.all {
		dst = wire.AppendInt(dst, x.from)
		dst = wire.AppendUint(dst, uint64(x.to)-uint64(x.from))
	}
	return dst
}

func decodeRuns(b []byte) (*runs, error) {
	rd := wire.NewReader(b)
	if v := rd.Byte(); rd.Err() == nil && v != sequencesVersion {
		return nil, fmt.Errorf("%w: version %d, this build knows %d", event.ErrVersion, v, sequencesVersion)
	}
	r := &runs{}
	for range rd.Count() {
		x := run{from: rd.Int()}
		x.to = int64(uint64(x.from) + rd.Uint())
		if n := len(r.all); x.to < x.from || n > 0 && (x.from <= r.all[n-1].to || r.all[n-1].touches(x.from)) {
			return nil, fmt.Errorf("%w: runs out of order", event.ErrCorrupt)
		}
		r.all = append(r.all, x)
	}
	if err := rd.Close(); err != nil {
		return nil, fmt.Errorf("%w: %w", event.ErrCorrupt, err)
	}
	return r, nil
}
