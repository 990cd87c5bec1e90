package windows

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/forge-platform/strom/event"
)

// tumbling cuts time into pieces of one length.
//
//	Start = offset + k × size, for every whole k, also below 0
//	0 <= offset < size
type tumbling struct{ size, offset int64 }

// Tumbling returns the assigner of windows that are size microseconds long and
// start at offset microseconds after 1970-01-01T00:00:00Z, and at every whole
// multiple of size before and after that. size must be positive; offset may be
// any number and counts modulo size.
func Tumbling(size, offset int64) (Assigner, error) {
	if size <= 0 {
		return nil, fmt.Errorf("a tumbling window needs a positive size, not %d µs", size)
	}
	return tumbling{size: size, offset: floorMod(offset, size)}, nil
}

func (w tumbling) Assign(t event.EventTime, dst []Window) []Window {
	if !t.Valid() {
		return dst
	}
	// Taking the remainders apart keeps t - offset from wrapping.
	into := floorMod(int64(t), w.size) - w.offset
	if into < 0 {
		into += w.size
	}
	start := event.SaturatingAdd(int64(t), -into)
	return append(dst, clip(start, event.SaturatingAdd(start, w.size)))
}

// String gives the mapping's notation, such as {tumbling: 1h30m, offset: 15m}.
func (w tumbling) String() string {
	if w.offset == 0 {
		return "{tumbling: " + durationText(w.size) + "}"
	}
	return "{tumbling: " + durationText(w.size) + ", offset: " + durationText(w.offset) + "}"
}

// floorMod is the remainder that goes with floor division: 0 <= r < b.
func floorMod(a, b int64) int64 {
	r := a % b
	if r < 0 {
		r += b
	}
	return r
}

// durationText writes microseconds in whole units: 1h30m, 1s600ms.
func durationText(micros int64) string {
	if micros == 0 {
		return "0s"
	}
	var b strings.Builder
	for _, u := range [...]struct {
		name   string
		length int64
	}{{"h", 3600e6}, {"m", 60e6}, {"s", 1e6}, {"ms", 1e3}, {"us", 1}} {
		if n := micros / u.length; n != 0 {
			b.WriteString(strconv.FormatInt(n, 10) + u.name)
			micros -= n * u.length
		}
	}
	return b.String()
}
