package windows

import (
	"fmt"

	"github.com/forge-platform/strom/event"
)

// MaxHops is the number of windows of one aggregate that an event can belong to
// at most: each of them costs what an event of a tumbling window costs.
const MaxHops = 2000

// hopping lays windows of one length over each other.
//
//	Start = offset + k × every, for every whole k, also below 0
//	End   = Start + size
//	0 < every <= size, 0 <= offset < every
type hopping struct{ size, every, offset int64 }

// Hopping returns the assigner of windows that are size microseconds long, one
// of which starts every so many microseconds: at offset after
// 1970-01-01T00:00:00Z, and at every whole multiple of every before and after
// that. An event belongs to all windows that hold it, of which there are
// size/every, rounded up or down. Where every is size the windows are those of
// Tumbling.
//
// Both lengths must be positive, and every at most size: a longer one would leave
// time between the windows, in which events count nowhere. offset may be any
// number and counts modulo every.
func Hopping(size, every, offset int64) (Assigner, error) {
	switch {
	case size <= 0 || every <= 0:
		return nil, fmt.Errorf("a hopping window needs a positive size and a positive distance, not %d µs and %d µs", size, every)
	case every > size:
		return nil, fmt.Errorf("windows of %s, one every %s, would leave gaps: events between them would count nowhere", durationText(size), durationText(every))
	case (size-1)/every >= MaxHops:
		return nil, fmt.Errorf("windows of %s, one every %s, would count every event in %d windows; %d is the most", durationText(size), durationText(every), (size-1)/every+1, MaxHops)
	}
	return hopping{size: size, every: every, offset: floorMod(offset, every)}, nil
}

func (w hopping) Assign(t event.EventTime, dst []Window) []Window {
	if !t.Valid() {
		return dst
	}
	// Taking the remainders apart keeps t - offset from wrapping.
	into := floorMod(int64(t), w.every) - w.offset
	if into < 0 {
		into += w.every
	}
	// The last window that holds t starts into before it, the first one earlier by
	// as many whole distances as fit into the rest of the size.
	for back := into + (w.size-1-into)/w.every*w.every; back >= into; back -= w.every {
		start := event.SaturatingAdd(int64(t), -back)
		dst = append(dst, clip(start, event.SaturatingAdd(start, w.size)))
	}
	return dst
}

// String gives the mapping's notation, such as {hopping: 1h, every: 15m}.
func (w hopping) String() string {
	text := "{hopping: " + durationText(w.size) + ", every: " + durationText(w.every)
	if w.offset != 0 {
		text += ", offset: " + durationText(w.offset)
	}
	return text + "}"
}
