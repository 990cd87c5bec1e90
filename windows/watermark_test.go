package windows

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

func TestThePartitionWatermarkTrailsTheHighestEventAndNeverGoesBack(t *testing.T) {
	p := NewPartitionWatermark(30)
	if p.Value() != event.WatermarkUnknown {
		t.Fatalf("before the first event: %s", p.Value())
	}
	for _, c := range []struct {
		observe event.EventTime
		want    event.Watermark
	}{{100, 70}, {90, 70}, {100, 70}, {131, 101}, {-5, 101}} {
		p.Observe(c.observe)
		if p.Value() != c.want {
			t.Fatalf("after %d: got %d, want %d", int64(c.observe), int64(p.Value()), int64(c.want))
		}
	}
}

func TestARestoredWatermarkIsTheOneThatWasSaved(t *testing.T) {
	p := NewPartitionWatermark(10)
	p.Observe(100)
	saved := p.Value()
	q := NewPartitionWatermark(10)
	q.Restore(saved)
	q.Observe(5) // as late after the restart as without one
	if q.Value() != saved {
		t.Fatalf("got %d, want %d", int64(q.Value()), int64(saved))
	}
	q.Restore(50)
	if q.Value() != saved {
		t.Fatalf("a restore went back to %d", int64(q.Value()))
	}
	q.Restore(event.WatermarkUnknown)
	if q.Value() != saved {
		t.Fatalf("an unknown watermark took it back to %d", int64(q.Value()))
	}
}

func TestTheWatermarkAtTheEndOfInput(t *testing.T) {
	p := NewPartitionWatermark(10)
	p.End()
	p.Observe(100)
	if p.Value() != event.WatermarkEnd {
		t.Fatalf("got %s", p.Value())
	}
}

func TestTheWatermarkSaturatesAndIgnoresTimesThatAreNone(t *testing.T) {
	p := NewPartitionWatermark(math.MaxInt64)
	p.Observe(event.MinEventTime)
	if p.Value() != event.WatermarkUnknown {
		t.Fatalf("got %d", int64(p.Value()))
	}
	q := NewPartitionWatermark(-7)
	q.Observe(event.OpenEnd)
	q.Observe(event.MaxEventTime + 1)
	q.Observe(math.MinInt64)
	if q.Value() != event.WatermarkUnknown {
		t.Fatalf("times that are none moved it to %d", int64(q.Value()))
	}
	q.Observe(event.MaxEventTime)
	if q.Value() != event.Watermark(event.MaxEventTime) {
		t.Fatalf("got %d", int64(q.Value()))
	}
}

func TestTheWatermarkEqualsTheHighestEventOfAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := NewPartitionWatermark(30)
		times := rapid.SliceOfN(rapid.Int64Range(-1000, 1000), 1, 20).Draw(rt, "times")
		highest, before := int64(math.MinInt64), event.WatermarkUnknown
		for _, v := range times {
			highest = max(highest, v)
			p.Observe(event.EventTime(v))
			if p.Value() < before || p.Value() != event.Watermark(highest-30) {
				rt.Fatalf("after %v: %d", times, int64(p.Value()))
			}
			before = p.Value()
		}
	})
}

func TestClassify(t *testing.T) {
	w := Window{Start: 0, End: 1000}
	for _, c := range []struct {
		name      string
		w         Window
		announced event.Watermark
		lateness  int64
		want      Timeliness
	}{
		{"no watermark yet", w, event.WatermarkUnknown, 0, OnTime},
		{"one microsecond before the end", w, 999, 0, OnTime},
		{"at the end it closes", w, 1000, 100, Late},
		{"one microsecond before the lateness ends", w, 1099, 100, Late},
		{"at the end of the lateness it is gone", w, 1100, 100, Gone},
		{"without lateness it is gone when it closes", w, 1000, 0, Gone},
		{"a negative lateness is none", w, 999, -5, OnTime},
		{"end of input", w, event.WatermarkEnd, 100, Gone},
		{"endless lateness", w, event.Watermark(event.MaxEventTime), math.MaxInt64, Late},
		{"endless lateness, end of input", w, event.WatermarkEnd, math.MaxInt64, Gone},
		{"the last window of time", Window{0, event.MaxEventTime + 1}, event.Watermark(event.MaxEventTime), 0, OnTime},
		{"before 1970", Window{-2000, -1000}, -1001, 0, OnTime},
		{"before 1970, closed", Window{-2000, -1000}, -1000, 1, Late},
	} {
		if got := Classify(c.w, c.announced, c.lateness); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestAnEventOfAClosedDayIsLateAndNotSkipped(t *testing.T) {
	days := dayIn(t, "UTC")
	p := NewPartitionWatermark(0)
	p.Observe(at(t, "2025-02-18T00:00:01Z"))
	w := only(t, days, at(t, "2025-02-17T22:59:59Z"))
	if got := Classify(w, p.Value(), (24 * time.Hour).Microseconds()); got != Late {
		t.Fatalf("got %s", got)
	}
	if got := Classify(w, p.Value(), time.Microsecond.Microseconds()); got != Gone {
		t.Fatalf("beyond the lateness: got %s", got)
	}
}

func TestAnEventAheadOfTheWatermarkIsOnTime(t *testing.T) {
	for _, size := range []time.Duration{time.Millisecond, time.Second, time.Hour} {
		w := only(t, tumblingOf(t, size, 0), 707598e3)
		for _, announced := range []event.Watermark{707322e3, event.WatermarkUnknown} {
			if got := Classify(w, announced, 0); got != OnTime {
				t.Errorf("windows of %s, W=%s: got %s", size, announced, got)
			}
		}
	}
}

func TestAnEventBehindTheWatermarkIsOnTimeWhileItsWindowIsOpen(t *testing.T) {
	w := only(t, tumblingOf(t, 10*time.Second, 0), 5e6)
	if got := Classify(w, 7e6, 0); got != OnTime {
		t.Fatalf("got %s", got)
	}
}
