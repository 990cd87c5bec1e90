package processors

import (
	"fmt"

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
	o.merge(&origin{
		tie: c.Tie, partition: c.Place.Partition, offset: c.Place.Offset,
		timestamp: c.Place.Timestamp, lateness: lateness, set: true,
	})
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
	acc *windows.Acc
	// version is the number of the last result that a correction published,
	// 0 where none did: a window that closed on time has published version 1
	// without a word in its pane, so that closing writes no state.
	version uint32
	origin  origin
	// fresh is the origin of the next correction, or of a total's next version:
	// of what this epoch has added. Not stored.
	fresh     origin
	dirty     bool
	corrected bool
}

func encodePane(dst []byte, l *windows.Layout, p *pane) []byte {
	dst = append(dst, paneVersion)
	dst = wire.AppendUint(dst, uint64(p.version))
	dst = p.origin.append(dst)
	return l.Append(dst, p.acc)
}

func decodePane(l *windows.Layout, b []byte) (*pane, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty pane", event.ErrCorrupt)
	}
	if b[0] != paneVersion {
		return nil, fmt.Errorf("%w: pane version %d, this build knows %d", event.ErrVersion, b[0], paneVersion)
	}
	rd := wire.NewReader(b[1:])
	p := &pane{version: rd.Uint32(), origin: readOrigin(rd)}
	if err := rd.Err(); err != nil {
		return nil, fmt.Errorf("%w: pane: %w", event.ErrCorrupt, err)
	}
	acc, err := l.Decode(b[len(b)-rd.Len():])
	if err != nil {
		return nil, fmt.Errorf("pane: %w", err)
	}
	p.acc = acc
	return p, nil
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
	dst := make([]byte, 0, len(k.prefix)+16+len(id))
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
