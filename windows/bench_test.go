package windows

import (
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
)

func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct {
		name  string
		funcs []Func
		input string
	}{
		{"count", []Func{Count}, "17"},
		{"count_sum_min_max/integers", []Func{Count, Sum, Min, Max}, "17"},
		{"count_sum_min_max/prices", []Func{Count, Sum, Min, Max}, "17.25"},
		{"count_sum_min_max/float64", []Func{Count, Sum, Min, Max}, "0.12345678901234567"},
		{"all", []Func{Count, Sum, Min, Max, Avg, CountValues}, "17"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			l := NewLayout(c.funcs)
			a := l.New()
			values := make([]event.Scalar, l.Inputs())
			for i := range values {
				values[i] = number(b, c.input)
			}
			for b.Loop() {
				if l.Check(values) == nil {
					l.Add(a, values)
				}
			}
		})
	}
}

func BenchmarkAcc(b *testing.B) {
	l := NewLayout([]Func{Count, Sum, Min, Max})
	a := addAll(b, l, "17", "1234", "5.5")
	enc := l.Append(nil, a)
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.New()
		}
	})
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, 64)
		for b.Loop() {
			buf = l.Append(buf[:0], a)
		}
		b.ReportMetric(float64(len(buf)), "bytes")
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := l.Decode(enc); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("results", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.Results(a)
		}
	})
}

func BenchmarkAssign(b *testing.B) {
	for _, c := range []struct {
		name string
		a    Assigner
	}{
		{"tumbling", tumblingOf(b, time.Hour, 0)},
		{"day_utc", dayIn(b, "UTC")},
		{"day_berlin", dayIn(b, "Europe/Berlin")},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			when, buf := at(b, "2024-05-01T10:00:00Z"), make([]Window, 0, 1)
			for b.Loop() {
				buf = c.a.Assign(when, buf[:0])
				when += 7919e6 // every two hours or so
			}
		})
	}
}

func BenchmarkCalendarDay(b *testing.B) {
	b.ReportAllocs()
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Calendar(CalendarDay, loc); err != nil {
			b.Fatal(err)
		}
	}
}
