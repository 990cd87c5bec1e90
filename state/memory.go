package state

import (
	"bytes"
	"maps"
	"slices"
	"sync"

	"github.com/forge-platform/strom/event"
)

// Memory is a Store in memory: for `strom try`, the simulator and tests.
// It is safe for concurrent use.
type Memory struct {
	mu sync.RWMutex // guards the fields below
	// keys are sorted; values has exactly these keys.
	keys   []string
	values map[string][]byte
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{values: map[string][]byte{}} }

// Get implements Reader.
func (m *Memory) Get(key []byte) ([]byte, bool, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v, ok := m.values[string(key)]
	return bytes.Clone(v), ok, nil
}

// Scan implements Reader; fn may read the store.
func (m *Memory) Scan(r Range, fn func(key, value []byte) (bool, error)) error {
	m.mu.RLock()
	i, _ := slices.BinarySearch(m.keys, string(r.From))
	found := []Change{}
	for ; i < len(m.keys) && r.Contains([]byte(m.keys[i])); i++ {
		found = append(found, Change{Key: []byte(m.keys[i]), Value: m.values[m.keys[i]]})
	}
	m.mu.RUnlock()
	for _, c := range found {
		if more, err := fn(c.Key, c.Value); err != nil || !more {
			return err
		}
	}
	return nil
}

// Apply implements Store.
func (m *Memory) Apply(b *Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := &Memory{values: maps.Clone(m.values)}
	if err := applyBatch((*memoryWriter)(next), b); err != nil {
		return err
	}
	m.values = next.values
	m.keys = m.keys[:0]
	for k := range m.values {
		m.keys = append(m.keys, k)
	}
	slices.Sort(m.keys)
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
	m.keys, m.values = nil, map[string][]byte{}
	return nil
}

// Close implements Store.
func (m *Memory) Close() error { return nil }

type memoryWriter Memory

func (w *memoryWriter) set(key, value []byte) error {
	w.values[string(key)] = bytes.Clone(value)
	return nil
}

func (w *memoryWriter) remove(key []byte) error {
	delete(w.values, string(key))
	return nil
}

func (w *memoryWriter) removeRange(r Range) error {
	for k := range w.values {
		if r.Contains([]byte(k)) {
			delete(w.values, k)
		}
	}
	return nil
}
