package windows

import (
	"math"
	"testing"
	"time"
	_ "time/tzdata" // zones by name on a machine that has none

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

func at(t testing.TB, s string) event.EventTime {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return event.FromTime(when)
}

func tumblingOf(t testing.TB, size, offset time.Duration) Assigner {
	t.Helper()
	a, err := Tumbling(size.Microseconds(), offset.Microseconds())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func dayIn(t testing.TB, zone string) Assigner {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Calendar(CalendarDay, loc)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// only returns the one window that a assigns t to.
func only(t fataler, a Assigner, when event.EventTime) Window {
	t.Helper()
	ws := a.Assign(when, nil)
	if len(ws) != 1 {
		t.Fatalf("%s: %s lies in %d windows, want 1", a, when, len(ws))
	}
	if !ws[0].Contains(when) {
		t.Fatalf("%s: %s is not in its window %s", a, when, ws[0])
	}
	return ws[0]
}

func TestTumblingWindowsAreHalfOpenAndAlignedBefore1970AsAfter(t *testing.T) {
	hour := tumblingOf(t, time.Hour, 0)
	for _, c := range []struct{ at, start, end string }{
		{"2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z", "2024-05-01T11:00:00Z"},
		{"2024-05-01T10:59:59.999999Z", "2024-05-01T10:00:00Z", "2024-05-01T11:00:00Z"},
		{"2024-05-01T11:00:00Z", "2024-05-01T11:00:00Z", "2024-05-01T12:00:00Z"},
		{"1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T01:00:00Z"},
		{"1969-12-31T23:59:59.999999Z", "1969-12-31T23:00:00Z", "1970-01-01T00:00:00Z"},
		{"1969-12-31T23:00:00Z", "1969-12-31T23:00:00Z", "1970-01-01T00:00:00Z"},
		{"1969-12-31T22:59:59.999999Z", "1969-12-31T22:00:00Z", "1969-12-31T23:00:00Z"},
		{"0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T01:00:00Z"},
	} {
		if got, want := only(t, hour, at(t, c.at)), (Window{at(t, c.start), at(t, c.end)}); got != want {
			t.Errorf("%s: got %s, want %s", c.at, got, want)
		}
	}
}

func TestTumblingOffsetMovesTheGrid(t *testing.T) {
	for _, offset := range []time.Duration{15 * time.Minute, -45 * time.Minute, 25*time.Hour + 15*time.Minute} {
		a := tumblingOf(t, time.Hour, offset)
		for _, c := range []struct{ at, start string }{
			{"2024-05-01T10:14:59.999999Z", "2024-05-01T09:15:00Z"},
			{"2024-05-01T10:15:00Z", "2024-05-01T10:15:00Z"},
			{"1969-12-31T23:59:00Z", "1969-12-31T23:15:00Z"},
			{"1969-12-31T23:14:00Z", "1969-12-31T22:15:00Z"},
		} {
			if got := only(t, a, at(t, c.at)); got.Start != at(t, c.start) || got.End != got.Start.Add(3600e6) {
				t.Errorf("%s in %s: got %s", c.at, a, got)
			}
		}
	}
}

func TestTumblingWindowsWithAnOriginYearsBackHoldEveryInstantOnce(t *testing.T) {
	// A size that divides neither a second nor the distance of the origin.
	a := tumblingOf(t, 1600*time.Millisecond, time.Duration(-1234567890123)*time.Millisecond)
	w := only(t, a, event.EventTime(1709315512577e3))
	for s := w.Start - 2e6; s < w.End+2e6; s += 99991 {
		if v := only(t, a, s); (v == w) != w.Contains(s) {
			t.Fatalf("%s lies in %s", s, v)
		}
	}
}

func TestWindowsEndWithTime(t *testing.T) {
	end := event.MaxEventTime + 1
	for _, a := range []Assigner{
		tumblingOf(t, 7*time.Hour, 0), tumblingOf(t, 106000*24*time.Hour, time.Hour),
		dayIn(t, "America/Sao_Paulo"), dayIn(t, "Asia/Tokyo"), dayIn(t, "Europe/Berlin"),
	} {
		first, last := only(t, a, event.MinEventTime), only(t, a, event.MaxEventTime)
		if first.Start != event.MinEventTime || last.End != end {
			t.Errorf("%s: the first window is %s, the last %s", a, first, last)
		}
		if !(last.End - 1).Valid() {
			t.Errorf("%s: the time of the last window's result is not valid", a)
		}
		for _, out := range []event.EventTime{event.MinEventTime - 1, end, math.MinInt64, math.MaxInt64} {
			if ws := a.Assign(out, nil); len(ws) != 0 {
				t.Errorf("%s: %d lies in %v", a, int64(out), ws)
			}
		}
	}
	widest, err := Tumbling(math.MaxInt64, math.MinInt64)
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range []event.EventTime{event.MinEventTime, -1, 0, event.MaxEventTime} {
		only(t, widest, when)
	}
}

func TestAssignersPartitionTime(t *testing.T) {
	assigners := []Assigner{
		tumblingOf(t, time.Second, 0), tumblingOf(t, 1600*time.Millisecond, 700*time.Millisecond), tumblingOf(t, 24*time.Hour, -time.Hour),
		dayIn(t, "UTC"), dayIn(t, "America/Sao_Paulo"), dayIn(t, "Asia/Beirut"), dayIn(t, "America/St_Johns"), dayIn(t, "Pacific/Apia"),
	}
	rapid.Check(t, func(rt *rapid.T) {
		a := rapid.SampledFrom(assigners).Draw(rt, "assigner")
		when := event.EventTime(rapid.Int64Range(int64(event.MinEventTime), int64(event.MaxEventTime)).Draw(rt, "t"))
		w := only(rt, a, when)
		inside := event.EventTime(rapid.Int64Range(int64(w.Start), int64(w.End)-1).Draw(rt, "inside"))
		if v := only(rt, a, inside); v != w {
			rt.Fatalf("%s: %s and %s overlap", a, w, v)
		}
		if w.End.Valid() {
			if next := only(rt, a, w.End); next.Start != w.End {
				rt.Fatalf("%s: a gap or an overlap between %s and %s", a, w, next)
			}
		}
	})
}

func TestAssignAppends(t *testing.T) {
	a := tumblingOf(t, time.Hour, 0)
	ws := a.Assign(2*3600e6, a.Assign(0, nil))
	if len(ws) != 2 || ws[0].Start != 0 || ws[1].Start != 2*3600e6 {
		t.Fatalf("got %v", ws)
	}
}

func TestAssignersDescribeThemselvesAsTheMappingWritesThem(t *testing.T) {
	for _, c := range []struct {
		a    Assigner
		want string
	}{
		{tumblingOf(t, time.Hour, 0), "{tumbling: 1h}"},
		{tumblingOf(t, 90*time.Minute, 15*time.Minute), "{tumbling: 1h30m, offset: 15m}"},
		{tumblingOf(t, 1600*time.Millisecond, time.Microsecond), "{tumbling: 1s600ms, offset: 1us}"},
		{tumblingOf(t, 24*time.Hour, -time.Hour), "{tumbling: 24h, offset: 23h}"},
		{dayIn(t, "America/Sao_Paulo"), "{calendar: day, zone: America/Sao_Paulo}"},
	} {
		if got := c.a.String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestAssignersRefuseWhatHasNoMeaning(t *testing.T) {
	for _, size := range []int64{0, -1, math.MinInt64} {
		if _, err := Tumbling(size, 0); err == nil {
			t.Errorf("a size of %d was accepted", size)
		}
	}
	for _, loc := range []*time.Location{nil, time.Local} {
		if _, err := Calendar(CalendarDay, loc); err == nil {
			t.Errorf("the zone %v was accepted", loc)
		}
	}
}
