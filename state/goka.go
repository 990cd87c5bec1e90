package state

import (
	"errors"
	"fmt"

	"github.com/lovoo/goka/storage"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
)

// slabKey marks a goka Set as a whole changelog slab, see EncodeSlab.
const slabKey = "\x00slab"

const slabVersion = 1

// EncodeSlab packs changelog records into one goka message: goka's cost is
// then paid once for each slab and not once for each record. last is the
// offset of the last record behind the slab, control records counted.
func EncodeSlab(records []Change, last event.Offset) []byte {
	dst := []byte{slabVersion}
	dst = wire.AppendInt(dst, int64(last))
	dst = wire.AppendUint(dst, uint64(len(records)))
	for _, c := range records {
		dst = wire.AppendBytes(dst, c.Key)
		if c.Value == nil {
			dst = append(dst, 0)
			continue
		}
		dst = append(dst, 1)
		dst = wire.AppendBytes(dst, c.Value)
	}
	return dst
}

func decodeSlab(b []byte) (*Batch, error) {
	if len(b) == 0 || b[0] != slabVersion {
		return nil, fmt.Errorf("%w: changelog slab", event.ErrCorrupt)
	}
	rd := wire.NewReader(b[1:])
	batch := &Batch{Position: event.Offset(rd.Int())}
	batch.Changes = make([]Change, rd.Count())
	for i := range batch.Changes {
		c := &batch.Changes[i]
		c.Key = rd.Bytes()
		if rd.Byte() == 1 {
			c.Value = rd.Bytes()
			if c.Value == nil {
				c.Value = []byte{}
			}
		}
	}
	if err := rd.Close(); err != nil {
		return nil, fmt.Errorf("%w: changelog slab: %w", event.ErrCorrupt, err)
	}
	return batch, nil
}

// Recover is goka's update callback: it passes a changelog slab to the storage.
func Recover(s storage.Storage, slab []byte) error { return s.Set(slabKey, slab) }

// GokaStorage lets goka recover a Store from its changelog. goka opens and
// closes it with every rebalance; the Store below stays open. goka reads and
// writes nothing else through it: tasks read through a View, and the committer
// writes epochs with Apply.
type GokaStorage struct{ store Store }

var _ storage.Storage = (*GokaStorage)(nil)

// NewGokaStorage returns the goka side of a store.
func NewGokaStorage(s Store) *GokaStorage { return &GokaStorage{store: s} }

var errNotThroughGoka = errors.New("state is not read or written through goka")

// Open implements storage.Storage.
func (g *GokaStorage) Open() error { return nil }

// Close implements storage.Storage; the store stays open.
func (g *GokaStorage) Close() error { return nil }

// Has implements storage.Storage.
func (g *GokaStorage) Has(key string) (bool, error) {
	_, ok, err := g.store.Get([]byte(key))
	return ok, err
}

// Get implements storage.Storage.
func (g *GokaStorage) Get(key string) ([]byte, error) {
	v, _, err := g.store.Get([]byte(key))
	return v, err
}

// Set takes changelog slabs and nothing else.
func (g *GokaStorage) Set(key string, value []byte) error {
	if key != slabKey {
		return errNotThroughGoka
	}
	b, err := decodeSlab(value)
	if err != nil {
		return err
	}
	return g.store.Apply(b)
}

// Delete implements storage.Storage; it refuses.
func (g *GokaStorage) Delete(string) error { return errNotThroughGoka }

// GetOffset returns the changelog position, or def for an empty store.
func (g *GokaStorage) GetOffset(def int64) (int64, error) {
	p, err := g.store.Position()
	if err != nil || p == event.OffsetNone {
		return def, err
	}
	return int64(p), nil
}

// SetOffset is called by goka after each slab, which set the position itself.
func (g *GokaStorage) SetOffset(offset int64) error {
	p, err := g.store.Position()
	if err != nil || p >= event.Offset(offset) {
		return err
	}
	return g.store.Apply(&Batch{Position: event.Offset(offset)})
}

// MarkRecovered implements storage.Storage.
func (g *GokaStorage) MarkRecovered() error { return nil }

// Iterator implements storage.Storage.
func (g *GokaStorage) Iterator() (storage.Iterator, error) { return g.IteratorWithRange(nil, nil) }

// IteratorWithRange iterates over [start, limit), as the interface says; a nil
// bound is open.
func (g *GokaStorage) IteratorWithRange(start, limit []byte) (storage.Iterator, error) {
	it := &gokaIterator{at: -1}
	err := g.store.Scan(Range{From: start, To: limit}, func(k, v []byte) (bool, error) {
		it.entries = append(it.entries, Change{Key: append([]byte(nil), k...), Value: append([]byte(nil), v...)})
		return true, nil
	})
	return it, err
}

// gokaIterator holds a copy: goka iterates for its own views only, which Strom
// does not use.
type gokaIterator struct {
	entries []Change
	at      int
}

// Next implements storage.Iterator.
func (i *gokaIterator) Next() bool {
	i.at++
	return i.at < len(i.entries)
}

// Err implements storage.Iterator.
func (i *gokaIterator) Err() error { return nil }

// Key implements storage.Iterator.
func (i *gokaIterator) Key() []byte { return i.entries[i.at].Key }

// Value implements storage.Iterator.
func (i *gokaIterator) Value() ([]byte, error) { return i.entries[i.at].Value, nil }

// Release implements storage.Iterator.
func (i *gokaIterator) Release() {}

// Seek moves before the first entry at or behind key.
func (i *gokaIterator) Seek(key []byte) bool {
	for n, e := range i.entries {
		if string(e.Key) >= string(key) {
			i.at = n - 1
			return true
		}
	}
	i.at = len(i.entries)
	return false
}
