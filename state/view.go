package state

import (
	"bytes"
	"slices"
	"sync"
)

// Layer holds the dirty entries of one epoch that is being committed.
type Layer struct {
	// changes are sorted by key, each key once.
	changes []Change
}

// NewLayer sorts the changes into a layer. Of two changes of one key the later holds.
func NewLayer(changes []Change) *Layer {
	// Sorted by what came when, too: a stable sort, which would do the same,
	// takes several times as long.
	type placed struct {
		Change
		place int
	}
	all := make([]placed, len(changes))
	for i, c := range changes {
		all[i] = placed{c, i}
	}
	slices.SortFunc(all, func(a, b placed) int {
		if d := bytes.Compare(a.Key, b.Key); d != 0 {
			return d
		}
		return a.place - b.place
	})
	kept := changes[:0]
	for i := range all {
		if i+1 < len(all) && bytes.Equal(all[i].Key, all[i+1].Key) {
			continue
		}
		kept = append(kept, all[i].Change)
	}
	return &Layer{changes: kept}
}

// Changes returns the entries in key order.
func (l *Layer) Changes() []Change { return l.changes }

func (l *Layer) find(key []byte) (int, bool) {
	return slices.BinarySearchFunc(l.changes, key, func(c Change, k []byte) int { return bytes.Compare(c.Key, k) })
}

// Over returns a Reader that shows the layer's entries over those of base.
func (l *Layer) Over(base Reader) Reader { return layered{top: l, base: base} }

type layered struct {
	top  *Layer
	base Reader
}

// Get implements Reader.
func (l layered) Get(key []byte) ([]byte, bool, error) {
	if i, ok := l.top.find(key); ok {
		v := l.top.changes[i].Value
		return bytes.Clone(v), v != nil, nil
	}
	return l.base.Get(key)
}

// Scan implements Reader: it merges both in key order.
func (l layered) Scan(r Range, fn func(key, value []byte) (bool, error)) error {
	i, _ := l.top.find(r.From)
	stopped := false
	// emitTop passes on the layer's entries below key (all of them for nil).
	emitTop := func(key []byte) error {
		for i < len(l.top.changes) && !stopped {
			c := l.top.changes[i]
			if !r.Contains(c.Key) || (key != nil && bytes.Compare(c.Key, key) >= 0) {
				return nil
			}
			i++
			if c.Value == nil {
				continue
			}
			more, err := fn(c.Key, c.Value)
			if err != nil {
				return err
			}
			stopped = !more
		}
		return nil
	}
	err := l.base.Scan(r, func(key, value []byte) (bool, error) {
		if err := emitTop(key); err != nil || stopped {
			return false, err
		}
		if i < len(l.top.changes) && bytes.Equal(l.top.changes[i].Key, key) {
			return true, nil // the layer's entry holds; the next round passes it on
		}
		more, err := fn(key, value)
		stopped = !more
		return more, err
	})
	if err != nil || stopped {
		return err
	}
	return emitTop(nil)
}

// View is what a task reads between barriers: the epochs that are being
// committed over the store. The task's goroutine reads and calls Begin, the
// committer calls Applied.
type View struct {
	store Store

	mu sync.RWMutex // guards layers
	// layers were handed over and are not applied yet, the oldest first. There
	// is one at most but for the moment in which the committer still writes an
	// epoch to the store that Kafka already has.
	layers []*Layer
}

// NewView returns a view of the store.
func NewView(s Store) *View { return &View{store: s} }

// Begin shows the layer from now on.
func (v *View) Begin(l *Layer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.layers = append(slices.Clip(v.layers), l)
}

// Applied says that the store has the oldest layer.
func (v *View) Applied() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.layers = v.layers[1:]
}

// Store returns the store below the view.
func (v *View) Store() Store { return v.store }

func (v *View) current() Reader {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var r Reader = v.store
	for _, l := range v.layers {
		r = l.Over(r)
	}
	return r
}

// Get implements Reader. A layer that is applied between the look at it and
// the look at the store does no harm: the store then has the same entry.
func (v *View) Get(key []byte) ([]byte, bool, error) { return v.current().Get(key) }

// Scan implements Reader.
func (v *View) Scan(r Range, fn func(key, value []byte) (bool, error)) error {
	return v.current().Scan(r, fn)
}
