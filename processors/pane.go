package processors

import (
	"fmt"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/windows"
)

const paneVersion = 1

// origin says which event a result is owed to, and how late it was. Of several
// events the one last in the tie order stands for all, and the greatest
// lateness, so that the origin is a function of the set of events.
type origin struct {
	tie       event.Tie
	partition event.Partition
	offset    event.Offset
	timestamp event.EventTime
	lateness  int64
	set       bool
}

func (o *origin) observe(c *event.Contribution, lateness int64) {
	lateness = max(o.lateness, lateness)
	if !o.set || o.tie.Compare(c.Tie) < 0 {
		*o = origin{
			tie: c.Tie, partition: c.Place.Partition, offset: c.Place.Offset, timestamp: c.Place.Timestamp, set: true,
		}
	}
	o.lateness = lateness
}

func (o *origin) merge(p *origin) {
	if !p.set {
		return
	}
	lateness := max(o.lateness, p.lateness)
	if !o.set || o.tie.Compare(p.tie) < 0 {
		*o = *p
	}
	o.lateness = lateness
}

func (o *origin) place(topic string) event.Place {
	return event.Place{Topic: topic, Partition: o.partition, Offset: o.offset, Timestamp: o.timestamp}
}

func (o *origin) append(dst []byte) []byte {
	dst = event.AppendTie(dst, o.tie)
	dst = wire.AppendInt(dst, int64(o.partition))
	dst = wire.AppendInt(dst, int64(o.offset))
	dst = wire.AppendInt(dst, int64(o.timestamp))
	return wire.AppendInt(dst, o.lateness)
}

func readOrigin(rd *wire.Reader) origin {
	return origin{
		tie: event.ReadTie(rd), partition: event.Partition(rd.Int32()), offset: event.Offset(rd.Int()),
		timestamp: event.EventTime(rd.Int()), lateness: rd.Int(), set: true,
	}
}

// pane is the state of one window of one object.
type pane struct {
	bucket *bucket // nil for one that is only read
	id     string
	acc    *windows.Acc
	// fresh is the origin of the next correction, or of a total's next version:
	// of what this epoch has added. Not stored. Nil where neither ever was.
	fresh  *origin
	origin origin
	// version is the number of the last result that a correction published,
	// 0 where none did: a window that closed on time has published version 1
	// without a word in its pane, so that closing writes no state.
	version   uint32
	dirty     bool
	corrected bool
	// shared: whoever publishes the closing window reads the pane, beside the
	// task. It stays as it was at that barrier; a late event replaces it.
	shared bool
}

// observeFresh notes an event that the next correction, or version, is owed to.
func (p *pane) observeFresh(c *event.Contribution, lateness int64) {
	if p.fresh == nil {
		p.fresh = &origin{}
	}
	p.fresh.observe(c, lateness)
}

// bucket holds the cached panes of one window. Panes of a window go together,
// so they lie side by side in a few pieces of memory.
type bucket struct {
	window windows.Window
	panes  map[string]*pane
	// complete says that the cache holds every pane of the window that
	// exists, so that a miss need not look into the store.
	complete bool

	room  []pane
	accs  []windows.Acc
	made  int
	texts *strings.Builder // ids; it never grows, so what it has given stays
}

// Panes are made by so many at once.
const (
	leastPanes = 4
	mostPanes  = 512
)

// add makes an empty pane.
func (b *bucket) add(l *windows.Layout, id string) *pane {
	p := b.take(l)
	p.id = b.keep(id)
	b.panes[p.id] = p
	return p
}

// replace puts a copy in the place of a pane that must not change any more.
func (b *bucket) replace(l *windows.Layout, old *pane) *pane {
	p := b.take(l)
	p.id, p.version, p.origin = old.id, old.version, old.origin
	l.Merge(p.acc, old.acc)
	b.panes[p.id] = p
	return p
}

func (b *bucket) take(l *windows.Layout) *pane {
	if len(b.room) == 0 {
		n := min(max(b.made, leastPanes), mostPanes)
		b.room, b.accs = make([]pane, n), l.Block(n)
		b.made += n
	}
	p := &b.room[0]
	p.bucket, p.acc = b, &b.accs[0]
	b.room, b.accs = b.room[1:], b.accs[1:]
	return p
}

// keep copies a text that may alias a record.
func (b *bucket) keep(s string) string {
	if b.texts == nil || b.texts.Cap()-b.texts.Len() < len(s) {
		b.texts = &strings.Builder{}
		b.texts.Grow(max(len(s), len(s)*min(max(len(b.panes), leastPanes), mostPanes)))
	}
	from := b.texts.Len()
	b.texts.WriteString(s)
	return b.texts.String()[from:]
}

func appendPane(dst []byte, l *windows.Layout, p *pane) []byte {
	dst = append(dst, paneVersion)
	dst = wire.AppendUint(dst, uint64(p.version))
	dst = p.origin.append(dst)
	return l.Append(dst, p.acc)
}

// decode reads what appendPane wrote into a pane that has an accumulator.
func (p *pane) decode(l *windows.Layout, b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: empty pane", event.ErrCorrupt)
	}
	if b[0] != paneVersion {
		return fmt.Errorf("%w: pane version %d, this build knows %d", event.ErrVersion, b[0], paneVersion)
	}
	rd := wire.NewReader(b[1:])
	p.version, p.origin = rd.Uint32(), readOrigin(rd)
	if err := rd.Err(); err != nil {
		return fmt.Errorf("%w: pane: %w", event.ErrCorrupt, err)
	}
	if err := l.DecodeInto(p.acc, b[len(b)-rd.Len():]); err != nil {
		return fmt.Errorf("pane: %w", err)
	}
	return nil
}

// paneKeys builds the keys of one aggregate's panes:
// KeyPane · aggregate · 0 · window end · window start · id.
// By the end first, so that the windows to close, and those to expire, are ranges.
type paneKeys struct{ prefix []byte }

func newPaneKeys(a *mapping.Aggregate) paneKeys {
	p := append([]byte{state.KeyPane}, a.StageName()...)
	return paneKeys{prefix: append(p, 0)}
}

func (k paneKeys) key(w windows.Window, id string) []byte {
	return k.append(make([]byte, 0, len(k.prefix)+16+len(id)), w, id)
}

func (k paneKeys) append(dst []byte, w windows.Window, id string) []byte {
	dst = append(dst, k.prefix...)
	dst = wire.AppendOrdered64(dst, int64(w.End))
	dst = wire.AppendOrdered64(dst, int64(w.Start))
	return append(dst, id...)
}

func (k paneKeys) parse(key []byte) (w windows.Window, id string, err error) {
	rest := key[len(k.prefix):]
	if len(rest) < 16 {
		return w, "", fmt.Errorf("%w: pane key of %d bytes", event.ErrCorrupt, len(key))
	}
	w.End = event.EventTime(wire.Ordered64(rest))
	w.Start = event.EventTime(wire.Ordered64(rest[8:]))
	return w, string(rest[16:]), nil
}

// window is the range of all panes of the windows [w.Start, w.End).
func (k paneKeys) window(w windows.Window) state.Range {
	return state.PrefixRange(k.key(w, ""))
}

// endingIn is the range of the panes whose windows end after `after` and at or
// before w. An unknown `after` starts at the first pane.
func (k paneKeys) endingIn(after, upTo event.Watermark) (r state.Range, some bool) {
	if upTo == event.WatermarkUnknown || after >= upTo {
		return state.Range{}, false
	}
	r = state.PrefixRange(k.prefix)
	if after != event.WatermarkUnknown {
		r.From = wire.AppendOrdered64(append([]byte(nil), k.prefix...), int64(after)+1)
	}
	if upTo != event.WatermarkEnd {
		r.To = wire.AppendOrdered64(append([]byte(nil), k.prefix...), int64(upTo)+1)
	}
	return r, true
}
