package kafka

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
)

// item is one goka message: a slab, word from the control plane, or nothing but
// a reason to look again.
type item struct {
	task *task
	// at most one of these
	slab      *processors.Slab
	answers   []processors.Answer
	committed event.Epoch
	forget    bool // what the coordinator was told of the next record did not arrive
	ends      bool // end is where the input's log ends now
	end       event.Offset
}

// registry carries items through goka, whose messages are bytes: the bytes are
// an item's number, and the codec gives the item back and forgets it. Numbers
// of a session that has ended are forgotten with it.
type registry struct {
	mu    sync.Mutex // guards next and items
	next  uint64
	items map[uint64]*item
}

func newRegistry() *registry { return &registry{items: map[uint64]*item{}} }

func (r *registry) put(it *item) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	r.items[r.next] = it
	return binary.BigEndian.AppendUint64(nil, r.next)
}

func (r *registry) purge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.items)
}

// Encode implements goka.Codec; nothing is encoded through goka.
func (r *registry) Encode(any) ([]byte, error) { return nil, errNoRows }

// Decode implements goka.Codec.
func (r *registry) Decode(data []byte) (any, error) {
	if len(data) != 8 {
		return nil, errors.New("not an item")
	}
	n := binary.BigEndian.Uint64(data)
	r.mu.Lock()
	defer r.mu.Unlock()
	it, ok := r.items[n]
	if !ok {
		return &item{}, nil // of a session that has ended: nobody's
	}
	delete(r.items, n)
	return it, nil
}
