package event

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func drawMicros(t *rapid.T, name string) int64 {
	return rapid.OneOf(rapid.Int64(), rapid.Int64Range(-20, 20),
		rapid.SampledFrom([]int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64 - 1, math.MaxInt64, int64(MinEventTime), int64(MaxEventTime)}),
	).Draw(t, name)
}

func TestAddingTimesSaturates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawMicros(t, "a"), drawMicros(t, "b")
		sum := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
		want := int64(math.MaxInt64)
		switch {
		case sum.IsInt64():
			want = sum.Int64()
		case sum.Sign() < 0:
			want = math.MinInt64
		}
		if got := SaturatingAdd(a, b); got != want {
			t.Fatalf("%d + %d = %d, want %d", a, b, got, want)
		}
		if got := EventTime(a).Add(b); got != EventTime(want) {
			t.Fatalf("%d + %d = %d, want %d", a, b, got, want)
		}
	})
}

func TestFloorDivisionRoundsTowardsThePast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawMicros(t, "a")
		b := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, math.MaxInt64)).Draw(t, "b")
		// Euclid's division is the floor for a positive divisor.
		want := new(big.Int).Div(big.NewInt(a), big.NewInt(b)).Int64()
		if got := FloorDiv(a, b); got != want {
			t.Fatalf("%d / %d = %d, want %d", a, b, got, want)
		}
	})
}

func TestTheYears1To9999AreTimes(t *testing.T) {
	for text, at := range map[string]EventTime{
		"0001-01-01T00:00:00Z": MinEventTime, "9999-12-31T23:59:59.999999Z": MaxEventTime,
		"1969-12-31T23:59:59.999999Z": -1, "1970-01-01T00:00:00Z": 0, "2024-02-29T12:00:00.5Z": 1709208000500000,
	} {
		parsed, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := FromTime(parsed); got != at || at.String() != text || !at.Valid() || !at.Time().Equal(parsed) {
			t.Errorf("%s: %d is %s, valid %v; want %d", text, got, at, at.Valid(), at)
		}
		if RecordedTime(at).String() != text || Watermark(at).String() != text || !RecordedTime(at).Time().Equal(parsed) {
			t.Errorf("%s as a recorded time %s, as a watermark %s", text, RecordedTime(at), Watermark(at))
		}
	}
	for _, at := range []EventTime{MinEventTime - 1, MaxEventTime + 1, OpenEnd, math.MinInt64} {
		if at.Valid() {
			t.Errorf("%d is valid", at)
		}
	}
}

func TestBelowTheMicrosecondIsCutTowardsThePast(t *testing.T) {
	for _, c := range []struct {
		seconds, nanos int64
		want           EventTime
	}{{0, 1999, 1}, {-1, 999_999_999, -1}, {-1, 999_999_001, -1}, {-1, 999_998_999, -2}, {-1, 0, -1_000_000}} {
		if got := FromTime(time.Unix(c.seconds, c.nanos)); got != c.want {
			t.Errorf("%d s %d ns: %d, want %d", c.seconds, c.nanos, got, c.want)
		}
	}
}

// A time that no int64 of microseconds holds saturates; it never wraps into the
// years that are valid.
func TestAFarTimeSaturates(t *testing.T) {
	for _, s := range []int64{1 << 45, 1 << 50, 1 << 58, math.MaxInt64 >> 3} {
		if got := FromTime(time.Unix(s, 0)); got != math.MaxInt64 {
			t.Errorf("%d seconds after 1970: %d, want the end", s, got)
		}
		if got := FromTime(time.Unix(-s, 0)); got != math.MinInt64 {
			t.Errorf("%d seconds before 1970: %d, want the beginning", s, got)
		}
	}
}

func TestAWatermarkHasPassedWhatItHasReached(t *testing.T) {
	for _, c := range []struct {
		w    Watermark
		at   EventTime
		want bool
	}{
		{5, 4, true}, {5, 5, true}, {5, 6, false}, {WatermarkUnknown, math.MinInt64, false}, {WatermarkUnknown, MinEventTime, false},
		{WatermarkEnd, MaxEventTime, true}, {WatermarkEnd, OpenEnd, true}, {Watermark(MaxEventTime), OpenEnd, false},
	} {
		if got := c.w.Passed(c.at); got != c.want {
			t.Errorf("%s has passed %s: %v", c.w, c.at, got)
		}
	}
}
