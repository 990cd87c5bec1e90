package feed

import (
	"math"
	"time"

	"github.com/forge-platform/strom/event"
)

// instant reads a timestamp; ok is false where it is none.
func instant(s event.Scalar, unit string) (t event.EventTime, ok bool) {
	switch s.Type {
	case event.ScalarNumber:
		return fromNumber(s.Num, unit)
	case event.ScalarText:
		at, err := time.Parse(time.RFC3339Nano, s.Text)
		if err != nil {
			return 0, false
		}
		t = event.FromTime(at)
		return t, t.Valid()
	default:
		return 0, false
	}
}

// fromNumber reads a number of the unit, cutting below the microsecond.
func fromNumber(n event.Decimal, unit string) (event.EventTime, bool) {
	micros := n
	switch unit {
	case "s":
		micros = n.MulInt(1_000_000)
	case "", "ms":
		micros = n.MulInt(1000)
	case "ns":
		micros = n.Div(1000)
	}
	whole, exact := micros.Int64()
	if !exact {
		f := math.Floor(micros.Float64())
		if math.Abs(f) > float64(event.MaxEventTime) {
			return 0, false
		}
		whole = int64(f)
	}
	t := event.EventTime(whole)
	return t, t.Valid()
}
