package state

import (
	"bytes"
	"slices"
	"sync"

	"github.com/forge-platform/strom/event"
)

// Memory is a Store in memory: for `strom try`, the simulator and tests.
// It is safe for concurrent use.
type Memory struct {
	mu     sync.Mutex // guards the fields below
	values map[string][]byte
	// keys are those of values, sorted, unless stale.
	keys  []string
	stale bool
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{values: map[string][]byte{}} }

// Get implements Reader.
func (m *Memory) Get(key []byte) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[string(key)]
	return bytes.Clone(v), ok, nil
}

// Scan implements Reader; fn may read the store.
func (m *Memory) Scan(r Range, fn func(key, value []byte) (bool, error)) error {
	m.mu.Lock()
	keys := slices.Clone(m.inRange(r))
	found := make([]Change, len(keys))
	for i, k := range keys {
		found[i] = Change{Key: []byte(k), Value: m.values[k]}
	}
	m.mu.Unlock()
	for _, c := range found {
		if more, err := fn(c.Key, c.Value); err != nil || !more {
			return err
		}
	}
	return nil
}

// inRange gives the keys of the range; the caller holds mu.
func (m *Memory) inRange(r Range) []string {
	if m.stale {
		m.keys = m.keys[:0]
		for k := range m.values {
			m.keys = append(m.keys, k)
		}
		slices.Sort(m.keys)
		m.stale = false
	}
	from, _ := slices.BinarySearch(m.keys, string(r.From))
	to := len(m.keys)
	if r.To != nil {
		to, _ = slices.BinarySearch(m.keys, string(r.To))
	}
	return m.keys[from:max(from, to)]
}

// Apply implements Store.
func (m *Memory) Apply(b *Batch) error {
	// Nothing is applied before all of it is known to be right.
	var edits memoryEdits
	if err := applyBatch(&edits, b); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, edit := range edits {
		edit(m)
	}
	return nil
}

// Position implements Store.
func (m *Memory) Position() (event.Offset, error) {
	v, ok, _ := m.Get(positionKey())
	return decodePosition(v, ok)
}

// Wipe implements Store.
func (m *Memory) Wipe() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys, m.values, m.stale = nil, map[string][]byte{}, false
	return nil
}

// Close implements Store.
func (m *Memory) Close() error { return nil }

// memoryEdits is a batch as edits, each to be made under the store's mutex.
type memoryEdits []func(m *Memory)

func (e *memoryEdits) set(key, value []byte) error {
	k, v := string(key), bytes.Clone(value)
	*e = append(*e, func(m *Memory) {
		if _, known := m.values[k]; !known {
			m.stale = true
		}
		m.values[k] = v
	})
	return nil
}

func (e *memoryEdits) remove(key []byte) error {
	k := string(key)
	*e = append(*e, func(m *Memory) {
		if _, known := m.values[k]; known {
			m.stale = true
			delete(m.values, k)
		}
	})
	return nil
}

func (e *memoryEdits) removeRange(r Range) error {
	*e = append(*e, func(m *Memory) {
		for _, k := range m.inRange(r) {
			delete(m.values, k)
			m.stale = true
		}
	})
	return nil
}
