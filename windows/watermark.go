package windows

import (
	"fmt"

	"github.com/forge-platform/strom/event"
)

// PartitionWatermark follows the watermark of one input partition: the highest
// accepted event time minus the out-of-orderness that the stream allows. It
// never goes back. It takes effect only by announcement: see Classify.
//
// The zero value is not ready for use: build one with NewPartitionWatermark.
// It belongs to one goroutine at a time; a copy is independent.
type PartitionWatermark struct {
	outOfOrderness int64 // >= 0
	value          event.Watermark
}

// NewPartitionWatermark returns the watermark of a partition of which nothing
// is known yet. outOfOrderness is in microseconds; less than 0 counts as 0.
func NewPartitionWatermark(outOfOrderness int64) PartitionWatermark {
	return PartitionWatermark{outOfOrderness: max(outOfOrderness, 0), value: event.WatermarkUnknown}
}

// Observe takes note of the time of an accepted event. A time outside the
// years 1 to 9999 belongs to no accepted event and moves nothing.
func (p *PartitionWatermark) Observe(t event.EventTime) {
	if t.Valid() {
		p.Restore(event.Watermark(event.SaturatingAdd(int64(t), -p.outOfOrderness)))
	}
}

// Value returns the watermark: event.WatermarkUnknown before the first event,
// event.WatermarkEnd after End.
func (p *PartitionWatermark) Value() event.Watermark { return p.value }

// Restore raises the watermark to w, as a progress record kept it. A w below
// the present value changes nothing.
func (p *PartitionWatermark) Restore(w event.Watermark) { p.value = max(p.value, w) }

// End says that the input has ended: everything is in.
func (p *PartitionWatermark) End() { p.value = event.WatermarkEnd }

// Timeliness says how an event stands to a window that it belongs to.
type Timeliness uint8

// The ways in which an event can come.
const (
	// OnTime: the window is open; the event is counted.
	OnTime Timeliness = iota
	// Late: the window has closed, its state is kept: it is corrected there.
	Late
	// Gone: the window's state is no longer kept: it is read back first.
	Gone
)

// String gives the name.
func (t Timeliness) String() string {
	switch t {
	case OnTime:
		return "on time"
	case Late:
		return "late"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("timeliness(%d)", uint8(t))
}

// Classify says how an event that belongs to a window comes, under the
// watermark W that was announced last:
//
//	OnTime  W < End, or W is not known
//	Late    End <= W < End + allowedLateness
//	Gone    End + allowedLateness <= W
//
// It is the window that closes, not the event that is behind: an event before
// W is on time while its window is open. allowedLateness is in microseconds,
// at least 0; the sum saturates.
func Classify(w Window, announced event.Watermark, allowedLateness int64) Timeliness {
	switch {
	case !announced.Passed(w.End):
		return OnTime
	case !announced.Passed(w.End.Add(max(allowedLateness, 0))):
		return Late
	}
	return Gone
}
