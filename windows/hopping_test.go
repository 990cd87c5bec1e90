package windows

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

// The definition taken literally: every start near t, one by one.
func modelHops(t, size, every, offset int64) []Window {
	var out []Window
	k := event.FloorDiv(t-size-offset, every)
	for start := k*every + offset; start <= t; start += every {
		if t < start+size {
			out = append(out, clip(start, start+size))
		}
	}
	return out
}

func TestHoppingWindowsEqualTheDefinition(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		every := rapid.Int64Range(1, 5000).Draw(rt, "every")
		size := rapid.Int64Range(every, min(20*every+4000, MaxHops*every)).Draw(rt, "size")
		offset := rapid.Int64Range(-10_000, 10_000).Draw(rt, "offset")
		when := rapid.Int64Range(-30_000, 30_000).Draw(rt, "t")
		switch rapid.IntRange(0, 3).Draw(rt, "where") {
		case 0:
			when = int64(event.MinEventTime) + rapid.Int64Range(0, 30_000).Draw(rt, "from the first")
		case 1:
			when = int64(event.MaxEventTime) - rapid.Int64Range(0, 30_000).Draw(rt, "to the last")
		}
		a, err := Hopping(size, every, offset)
		if err != nil {
			rt.Fatal(err)
		}
		got, want := a.Assign(event.EventTime(when), nil), modelHops(when, size, every, floorMod(offset, every))
		if !slices.Equal(got, want) {
			rt.Fatalf("%s at %d: got %v, want %v", a, when, got, want)
		}
	})
}

func TestHoppingWindowsOfOneDistanceAreTumbling(t *testing.T) {
	hop, err := Hopping(3600e6, 3600e6, 900e6)
	if err != nil {
		t.Fatal(err)
	}
	piece := tumblingOf(t, time.Hour, 15*time.Minute)
	for _, when := range []string{"1969-12-31T23:14:59Z", "2024-01-01T00:15:00Z", "2024-01-01T01:14:59.999999Z"} {
		if got, want := only(t, hop, at(t, when)), only(t, piece, at(t, when)); got != want {
			t.Errorf("%s: %s and %s", when, got, want)
		}
	}
	if got := hop.String(); got != "{hopping: 1h, every: 1h, offset: 15m}" {
		t.Error(got)
	}
}

func TestHoppingRefusesWhatHasNoMeaning(t *testing.T) {
	for _, c := range []struct{ size, every int64 }{{0, 1}, {1, 0}, {-1, -1}, {1, 2}, {MaxHops + 1, 1}, {math.MaxInt64, 1}, {math.MinInt64, 5}} {
		if a, err := Hopping(c.size, c.every, 0); err == nil {
			t.Errorf("%s was accepted", a)
		}
	}
	if _, err := Hopping(MaxHops, 1, 0); err != nil {
		t.Error(err)
	}
}
