package event

import (
	"testing"

	"github.com/forge-platform/strom/event/wire"
)

func BenchmarkParseDecimal(b *testing.B) {
	for _, c := range []struct{ name, text string }{
		{"integer", "123456"},
		{"price", "1234.50"},
		{"float64", "0.12345678901234567"},
		{"exponent", "1.5e-7"},
		{"wide", "123456789012345678901234567890.5"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			text := []byte(c.text)
			for b.Loop() {
				if _, err := ParseDecimal(string(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecimalAdd(b *testing.B) {
	for _, c := range []struct{ name, start, add string }{
		{"integers", "1000000", "17"},
		{"cents", "1000000.25", "17.10"},
		{"aligning", "1000000.123", "17"},
		{"wide", "123456789012345678901234567890", "17"},
		{"wide_aligning", "123456789012345678901234567890.5", "0.25"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			d, e := mustDecimal(b, c.start), mustDecimal(b, c.add)
			minus := e.Neg()
			for b.Loop() {
				d = d.Add(e)
				d = d.Add(minus)
			}
			if !d.Equal(mustDecimal(b, c.start)) {
				b.Fatal(d)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/add")
		})
	}
}

func BenchmarkDecimalCmp(b *testing.B) {
	b.ReportAllocs()
	d, e, f := mustDecimal(b, "1234.5"), mustDecimal(b, "1234.25"), FromInt64(1234)
	for b.Loop() {
		if d.Cmp(e)+e.Cmp(f) != 2 {
			b.Fatal("wrong")
		}
	}
}

func BenchmarkDecimalDiv(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int64
	}{{"exact", 4}, {"rounded", 3}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			d := mustDecimal(b, "123456.5")
			for b.Loop() {
				d.Div(c.n)
			}
		})
	}
}

func BenchmarkDecimalText(b *testing.B) {
	b.ReportAllocs()
	d, buf := mustDecimal(b, "-1234.25"), make([]byte, 0, 64)
	for b.Loop() {
		buf = d.AppendText(buf[:0])
	}
}

func BenchmarkDecimalBytes(b *testing.B) {
	b.ReportAllocs()
	d, buf := mustDecimal(b, "-1234.25"), make([]byte, 0, 64)
	for b.Loop() {
		buf = AppendDecimal(buf[:0], d)
		if _, err := ReadDecimal(wire.NewReader(buf)); err != nil {
			b.Fatal(err)
		}
	}
}
