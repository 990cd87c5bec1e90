package state

import (
	"bytes"

	"github.com/forge-platform/strom/event"
)

// Change is one dirty entry of an epoch; a nil Value deletes the key.
type Change struct {
	Key   []byte
	Value []byte
}

// Range is the half-open key range [From, To).
type Range struct{ From, To []byte }

// Batch is what one committed epoch does to a store.
type Batch struct {
	Changes []Change
	// Expired ranges are deleted after the changes have been applied: what
	// changed and expired in one epoch is gone.
	Expired []Range
	// Position is the offset, in the changelog partition, of the last record
	// that this batch reflects.
	Position event.Offset
	// Mark, where not nil, replaces the store's.
	Mark *Mark
}

// Reader reads a consistent state.
type Reader interface {
	// Get returns the value of key; ok is false where there is none. The
	// value is the caller's.
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan calls fn for every entry of the range in key order until fn
	// returns false or an error. Key and value are valid only during the call.
	Scan(r Range, fn func(key, value []byte) (bool, error)) error
}

// Store is the durable state of one task.
type Store interface {
	Reader
	// Apply moves the store to the next barrier, atomically.
	Apply(b *Batch) error
	// Position returns the changelog offset that the store reflects, or
	// OffsetNone for an empty store.
	Position() (event.Offset, error)
	// Wipe empties the store, position included.
	Wipe() error
	Close() error
}

// PrefixRange is the range of all keys that start with prefix.
func PrefixRange(prefix []byte) Range {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return Range{From: bytes.Clone(prefix), To: end[:i+1]}
		}
	}
	return Range{From: bytes.Clone(prefix)}
}

// Contains reports whether key lies in the range; a nil To is unbounded.
func (r Range) Contains(key []byte) bool {
	return bytes.Compare(key, r.From) >= 0 && (r.To == nil || bytes.Compare(key, r.To) < 0)
}
