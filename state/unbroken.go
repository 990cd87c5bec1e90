package state

import (
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
)

// Pebble takes a manifest that is torn at its end for one whose last entries
// were never written: it then forgets tables, while the write-ahead log still
// gives the batches after them. Such a store shows the newest position and
// lacks older entries. So every batch merges its number into one key, and Pebble
// joins the numbers wherever it joins tables: where one is missing, it shows.

// span is the numbers of the batches that one value of the key stands for.
type span struct {
	first, last uint64
	broken      bool // a number in between is missing
}

const spanVersion = 1

func (s span) encode() []byte {
	dst := wire.AppendUint([]byte{spanVersion}, s.first)
	dst = wire.AppendUint(dst, s.last)
	if s.broken {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func decodeSpan(b []byte) (s span, err error) {
	if len(b) == 0 || b[0] != spanVersion {
		return s, fmt.Errorf("%w: the numbers of the batches", event.ErrCorrupt)
	}
	rd := wire.NewReader(b[1:])
	s.first, s.last, s.broken = rd.Uint(), rd.Uint(), rd.Bool()
	if err := rd.Close(); err != nil {
		return s, fmt.Errorf("%w: the numbers of the batches: %w", event.ErrCorrupt, err)
	}
	return s, nil
}

// then joins a span with the one that follows it.
func (s span) then(newer span) span {
	return span{first: s.first, last: newer.last, broken: s.broken || newer.broken || s.last+1 != newer.first}
}

// spanMerger is a pebble.ValueMerger.
type spanMerger struct{ span span }

func newSpanMerger(_, value []byte) (pebble.ValueMerger, error) {
	s, err := decodeSpan(value)
	return &spanMerger{s}, err
}

// MergeNewer implements pebble.ValueMerger.
func (m *spanMerger) MergeNewer(value []byte) error {
	s, err := decodeSpan(value)
	m.span = m.span.then(s)
	return err
}

// MergeOlder implements pebble.ValueMerger.
func (m *spanMerger) MergeOlder(value []byte) error {
	s, err := decodeSpan(value)
	m.span = s.then(m.span)
	return err
}

// Finish implements pebble.ValueMerger.
func (m *spanMerger) Finish(bool) ([]byte, io.Closer, error) { return m.span.encode(), nil, nil }

// merger's name is stored with the data: it never changes.
func merger() *pebble.Merger {
	return &pebble.Merger{Name: "strom.unbroken.v1", Merge: newSpanMerger}
}

// numbered merges the number of the next batch into it.
func (p *Pebble) numbered(b *pebble.Batch) error {
	return b.Merge(numbersKey(), span{first: p.last + 1, last: p.last + 1}.encode(), nil)
}

// checkUnbroken makes sure that no batch is missing, and finds the number of
// the last.
func (p *Pebble) checkUnbroken() error {
	raw, ok, err := p.Get(numbersKey())
	if err != nil {
		return err
	}
	p.last = 0
	if !ok {
		return nil
	}
	s, err := decodeSpan(raw)
	if err != nil {
		return fmt.Errorf("state %s: %w: %w", p.dir, ErrDamaged, err)
	}
	if s.broken || s.first != 1 {
		return fmt.Errorf("state %s: %w: batches up to number %d are missing", p.dir, ErrDamaged, s.last)
	}
	p.last = s.last
	return nil
}
