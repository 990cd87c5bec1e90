package event

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/apd/v3"
	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event/wire"
)

func mustDecimal(t testing.TB, s string) Decimal {
	t.Helper()
	d, err := ParseDecimal(s)
	if err != nil {
		t.Fatalf("ParseDecimal(%q): %v", s, err)
	}
	return d
}

// rat is the model: the same number as a fraction.
func rat(t testing.TB, s string) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		t.Fatalf("no fraction: %q", s)
	}
	return r
}

type fataler interface {
	Fatalf(format string, args ...any)
}

// checkLowest asserts the invariants at Decimal's fields.
func checkLowest(t fataler, d Decimal) {
	if d.scale < 0 {
		t.Fatalf("negative scale: %+v", d)
	}
	if d.wide == nil {
		if d.scale > 0 && d.coef%10 == 0 {
			t.Fatalf("not in lowest terms: %+v", d)
		}
		return
	}
	if d.coef != 0 || d.wide.IsInt64() {
		t.Fatalf("wide without need: %+v", d)
	}
	if d.scale > 0 && new(apd.BigInt).Rem(d.wide, apd.NewBigInt(10)).Sign() == 0 {
		t.Fatalf("not in lowest terms: %+v", d)
	}
}

// decimals draws numbers of every shape: short, near the ends of 64 bits,
// wide, with and without a fraction, and far from the point.
func decimals() *rapid.Generator[Decimal] {
	return rapid.Custom(func(t *rapid.T) Decimal {
		var text string
		switch rapid.IntRange(0, 4).Draw(t, "shape") {
		case 0:
			text = strconv.FormatInt(rapid.Int64Range(-1000, 1000).Draw(t, "small"), 10)
		case 1:
			text = strconv.FormatInt(rapid.Int64().Draw(t, "int64"), 10)
		case 2:
			edge := rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64, 1e18, -1e18, 0}).Draw(t, "edge")
			text = strconv.FormatInt(edge, 10)
		case 3:
			text = rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?`).Draw(t, "text")
		case 4:
			text = rapid.StringMatching(`-?[1-9][0-9]{0,100}`).Draw(t, "long")
		}
		if !strings.Contains(text, ".") && rapid.Bool().Draw(t, "shift") {
			text += "e" + strconv.Itoa(rapid.IntRange(-60, 60).Draw(t, "exponent"))
		}
		d, err := ParseDecimal(text)
		if err != nil {
			t.Fatalf("ParseDecimal(%q): %v", text, err)
		}
		return d
	})
}

func TestParseDecimalGivesCanonicalText(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"0", "0"},
		{"-0", "0"},
		{"-0.000", "0"},
		{"0e999", "0"},
		{"5.50", "5.5"},
		{"5.5", "5.5"},
		{"100", "100"},
		{"1e2", "100"},
		{"1E+2", "100"},
		{"1.5e1", "15"},
		{"1.50e-3", "0.0015"},
		{"120e-1", "12"},
		{"0.1e1", "1"},
		{"-7.000", "-7"},
		{"9223372036854775807", "9223372036854775807"},
		{"-9223372036854775808", "-9223372036854775808"},
		{"9223372036854775808", "9223372036854775808"},
		{"-92233720368547758.09", "-92233720368547758.09"},
		{"922337203685477580700e-2", "9223372036854775807"},
		{"0.3333333333333333333333333", "0.3333333333333333333333333"},
		{"1e20", "100000000000000000000"},
		{"12345678901234567890.123456789", "12345678901234567890.123456789"},
		{"1e0000000000000000000000000000000000000000001", "10"},
		{"1e-20", "0.00000000000000000001"},
		{"1e1000", "1" + strings.Repeat("0", 1000)},
		{"-1e-1000", "-0." + strings.Repeat("0", 999) + "1"},
		{strings.Repeat("9", 128), strings.Repeat("9", 128)},
		{strings.Repeat("1", 128) + strings.Repeat("0", 1000), strings.Repeat("1", 128) + strings.Repeat("0", 1000)},
	} {
		d := mustDecimal(t, c.in)
		checkLowest(t, d)
		if got := d.String(); got != c.want {
			t.Errorf("%q: got %q, want %q", c.in, got, c.want)
		}
		again, err := ParseCanonical(c.want)
		if err != nil || !again.Equal(d) {
			t.Errorf("%q: its text reads back as %v, %v", c.in, again, err)
		}
	}
}

func TestParseDecimalRefusesWhatIsNoJSONNumber(t *testing.T) {
	for _, s := range []string{
		"", "-", "+1", ".5", "5.", "01", "-01", "00", "1.", "1.e5", "1e", "1e+", "1e1.5", "e5", "- 1", " 1", "1 ",
		"1,5", "0x10", "NaN", "Infinity", "-Infinity", "1_000", "١", "1.2.3", "--1", "1e5e5", "\x00", "1\n",
	} {
		if d, err := ParseDecimal(s); err == nil {
			t.Errorf("%q was read as %s", s, d)
		}
	}
}

func TestParseDecimalRefusesNumbersBeyondTheLimits(t *testing.T) {
	for _, c := range []struct{ in, say string }{
		{strings.Repeat("1", 129), "129 significant digits, the limit is 128"},
		{"0." + strings.Repeat("1", 129), "significant digits"},
		{"1e1001", "exponent"},
		{"1e-1001", "exponent"},
		{"0e1001", "exponent"},
		{"1e99999999999999999999999999", "exponent"},
		{"1" + strings.Repeat("0", 1128), "before the point"},
		{"10e1000" + "", ""},
		{"1" + strings.Repeat("0", 200) + "e1000", "before the point"},
		{"0." + strings.Repeat("0", 1128) + "1", "after the point"},
		{"0." + strings.Repeat("0", 200) + "1e-1000", "after the point"},
		{strings.Repeat("0", 10), "not a number"},
		{"0." + strings.Repeat("0", 1<<20), "too long"},
	} {
		_, err := ParseDecimal(c.in)
		if c.say == "" {
			if err != nil {
				t.Errorf("%.20q: %v", c.in, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%.20q: got %v, want an error about %q", c.in, err, c.say)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("%.20q: an error of %d characters", c.in, len(err.Error()))
		}
	}
}

func TestParseCanonicalRefusesOtherSpellings(t *testing.T) {
	for _, s := range []string{"5.50", "1e2", "-0", "+1", "1.0", "01", "", "x", strings.Repeat("1", 5000)} {
		if d, err := ParseCanonical(s); err == nil {
			t.Errorf("%.20q was read as %.20s", s, d)
		}
	}
}

func TestASumOfAcceptedNumbersReadsBack(t *testing.T) {
	sum := mustDecimal(t, strings.Repeat("9", 128)+"e1000").Add(mustDecimal(t, strings.Repeat("9", 127)+"e-1000"))
	for range 100 {
		sum = sum.Add(sum)
	}
	checkLowest(t, sum)
	if _, err := ParseDecimal(sum.String()); err == nil {
		t.Fatal("a sum that should lie beyond the limits of an event's number does not")
	}
	text, err := ParseCanonical(sum.String())
	if err != nil || !text.Equal(sum) {
		t.Fatalf("as text: equal %v, %v", text.Equal(sum), err)
	}
	binary, err := ReadDecimal(wire.NewReader(AppendDecimal(nil, sum)))
	if err != nil || !binary.Equal(sum) {
		t.Fatalf("as bytes: equal %v, %v", binary.Equal(sum), err)
	}
}

func TestSumsWidenAtTheEndsOf64BitsAndNarrowAgain(t *testing.T) {
	top, one := FromInt64(math.MaxInt64), FromInt64(1)
	up := top.Add(one)
	if got := up.String(); got != "9223372036854775808" {
		t.Fatalf("got %s", got)
	}
	if down := up.Sub(one); down != top {
		t.Fatalf("%+v did not narrow again", down)
	}
	bottom := FromInt64(math.MinInt64)
	if got := bottom.Neg(); !got.Equal(up) {
		t.Fatalf("-(-2^63) = %s", got)
	}
	if got := bottom.Neg().Neg(); got != bottom {
		t.Fatalf("twice negated: %+v", got)
	}
	if got := bottom.MulInt(-1); !got.Equal(up) {
		t.Fatalf("-2^63 × -1 = %s", got)
	}
	if got := bottom.Sub(one).String(); got != "-9223372036854775809" {
		t.Fatalf("got %s", got)
	}
}

func TestArithmeticEqualsFractions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d, e := decimals().Draw(rt, "d"), decimals().Draw(rt, "e")
		n := rapid.Int64().Draw(rt, "n")
		x, y := rat(t, d.String()), rat(t, e.String())
		for _, c := range []struct {
			op   string
			got  Decimal
			want *big.Rat
		}{
			{"add", d.Add(e), new(big.Rat).Add(x, y)},
			{"sub", d.Sub(e), new(big.Rat).Sub(x, y)},
			{"neg", d.Neg(), new(big.Rat).Neg(x)},
			{"mul", d.MulInt(n), new(big.Rat).Mul(x, new(big.Rat).SetInt64(n))},
			{"add and take away", d.Add(e).Sub(e), x},
		} {
			checkLowest(rt, c.got)
			if rat(t, c.got.String()).Cmp(c.want) != 0 {
				rt.Fatalf("%s of %s, %s, %d: got %s, want %s", c.op, d, e, n, c.got, c.want)
			}
		}
		if got, want := d.Cmp(e), x.Cmp(y); got != want || e.Cmp(d) != -want {
			rt.Fatalf("%s against %s: got %d, want %d", d, e, got, want)
		}
		if d.Equal(e) != (x.Cmp(y) == 0) || !d.Equal(d.Neg().Neg()) {
			rt.Fatalf("Equal is wrong of %s, %s", d, e)
		}
		if d.Sign() != x.Sign() || d.IsZero() != (x.Sign() == 0) || d.IsInteger() != x.IsInt() {
			rt.Fatalf("Sign, IsZero or IsInteger is wrong of %s", d)
		}
		if f, _ := x.Float64(); d.Float64() != f {
			rt.Fatalf("%s: Float64 gives %v, want %v", d, d.Float64(), f)
		}
		v, exact := d.Int64()
		if exact != (x.IsInt() && x.Num().IsInt64()) || exact && v != x.Num().Int64() {
			rt.Fatalf("%s: Int64 gives %d, %v", d, v, exact)
		}
	})
}

func TestCmpAcrossScales(t *testing.T) {
	ascending := []string{
		"-1e30", "-9223372036854775808", "-1.000000000000000001", "-1", "-1e-20", "0", "1e-30", "1e-19", "1e-18",
		"0.9223372036854775807", "1", "1.000000000000000001", "9223372036854775806.5", "9223372036854775807", "1e19", "1e40",
	}
	for i, a := range ascending {
		for j, b := range ascending {
			if got, want := mustDecimal(t, a).Cmp(mustDecimal(t, b)), cmpInt64(int64(i), int64(j)); got != want {
				t.Errorf("%s against %s: got %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestDivRoundsHalfToEvenAtTwentyDigits(t *testing.T) {
	for _, c := range []struct {
		d    string
		n    int64
		want string
	}{
		{"0", 7, "0"},
		{"10", 4, "2.5"},
		{"10", 5, "2"},
		{"1", 3, "0.33333333333333333333"},
		{"2", 3, "0.66666666666666666667"},
		{"-2", 3, "-0.66666666666666666667"},
		{"2", -3, "-0.66666666666666666667"},
		{"10", 3, "3.3333333333333333333"},
		{"1e40", 3, "33333333333333333333" + strings.Repeat("0", 20)},
		{"0.000001", 3, "0.00000033333333333333333333"},
		{"1", 8, "0.125"},
		{"9223372036854775807", 1, "9223372036854775807"},
		{"-9223372036854775808", -1, "9223372036854775808"},
		{"5", math.MinInt64, "-0.00000000000000000054210108624275221700"},
		// 21 digits whose last is a 5: a tie goes to the even neighbour.
		{"100000000000000000000.5e1", 2, "500000000000000000000"},
		{"200000000000000000005", 1, "200000000000000000000"},
		{"200000000000000000015", 1, "200000000000000000020"},
		{"200000000000000000015.0000001", 1, "200000000000000000020"},
		{"999999999999999999995", 1, "1000000000000000000000"},
		{"999999999999999999994.999", 1, "999999999999999999990"},
	} {
		got := mustDecimal(t, c.d).Div(c.n)
		checkLowest(t, got)
		if want := mustDecimal(t, c.want); !got.Equal(want) {
			t.Errorf("%s / %d: got %s, want %s", c.d, c.n, got, want)
		}
	}
}

func TestDivIsTheNearestNumberOfTwentyDigits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := decimals().Draw(rt, "d")
		n := rapid.OneOf(rapid.Int64Range(1, 1000), rapid.Int64Min(1)).Draw(rt, "n")
		got := d.Div(n)
		checkLowest(rt, got)
		if len(strings.Trim(strings.ReplaceAll(got.String(), ".", ""), "-0")) > divDigits {
			rt.Fatalf("%s / %d = %s has more than %d digits", d, n, got, divDigits)
		}
		want := new(big.Rat).Quo(rat(t, d.String()), new(big.Rat).SetInt64(n))
		off := new(big.Rat).Sub(rat(t, got.String()), want)
		// Half a unit in the twentieth digit is at most |want| × 10^-19 / 2.
		bound := new(big.Rat).Mul(new(big.Rat).Abs(want), rat(t, "0.00000000000000000005"))
		if off.Abs(off).Cmp(bound) > 0 {
			rt.Fatalf("%s / %d = %s is off by %s", d, n, got, off.FloatString(40))
		}
		if again := mustDecimal(t, d.String()).Div(n); !again.Equal(got) {
			rt.Fatalf("%s / %d: %s, then %s", d, n, got, again)
		}
	})
}

func TestTheFastAndTheWideDivisionAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := FromInt64(rapid.Int64().Draw(rt, "d"))
		d.scale = rapid.Int32Range(0, 20).Draw(rt, "scale")
		d = narrow(d.coef, d.scale)
		n := rapid.OneOf(rapid.Int64Range(1, 64), rapid.Int64Range(-1000, -1), rapid.Int64Min(1)).Draw(rt, "n")
		if fast, ok := divExact(d, n); ok && !fast.Equal(divWide(d, n)) {
			rt.Fatalf("%s / %d: fast %s, wide %s", d, n, fast, divWide(d, n))
		}
	})
}

func TestDecimalBytesReadBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := decimals().Draw(rt, "d")
		b := AppendDecimal(nil, d)
		rd := wire.NewReader(b)
		got, err := ReadDecimal(rd)
		if err != nil || rd.Close() != nil || !got.Equal(d) {
			rt.Fatalf("%s: got %s, %v", d, got, err)
		}
		for cut := range b {
			if _, err := ReadDecimal(wire.NewReader(b[:cut])); !errors.Is(err, ErrCorrupt) {
				rt.Fatalf("%s cut after %d bytes: %v", d, cut, err)
			}
		}
	})
}

func TestReadDecimalRefusesASecondSpelling(t *testing.T) {
	for name, b := range map[string][]byte{
		"zeros at the end of a fraction": wire.AppendInt(wire.AppendUint(nil, 1<<2), 50),
		"zero with a fraction":           wire.AppendInt(wire.AppendUint(nil, 1<<2), 0),
		"wide without need":              wire.AppendBytes(wire.AppendUint(nil, decimalWide), []byte{5}),
		"wide zero":                      wire.AppendBytes(wire.AppendUint(nil, decimalWide), nil),
		"wide with a leading zero byte":  wire.AppendBytes(wire.AppendUint(nil, decimalWide), append([]byte{0}, make([]byte, 9)...)),
		"unknown kind":                   wire.AppendInt(wire.AppendUint(nil, 3), 5),
		"a scale without bounds":         wire.AppendInt(wire.AppendUint(nil, 1<<40), 5),
		"a magnitude without bounds":     wire.AppendBytes(wire.AppendUint(nil, decimalWide), make([]byte, 1<<20)),
	} {
		if d, err := ReadDecimal(wire.NewReader(b)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %.30s, %v", name, d, err)
		}
	}
}

func TestDecimalFastPathAllocatesNothing(t *testing.T) {
	bytes := []byte("-12345.25")
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		d, err := ParseDecimal(string(bytes))
		if err != nil {
			t.Fatal(err)
		}
		e, _ := ParseDecimal("9223372036854775807")
		f, _ := ParseDecimal("1.5e-7")
		d = d.Add(f).Sub(FromInt64(7)).Neg().MulInt(3)
		if d.Cmp(e) > 0 || d.Equal(e) || d.Div(4).Sign() == 0 {
			t.Fatal("wrong")
		}
		buf = d.AppendText(buf[:0])
		buf = AppendDecimal(buf[:0], d)
		if back, err := ReadDecimal(wire.NewReader(buf)); err != nil || back != d {
			t.Fatal(back, err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzParseDecimal(f *testing.F) {
	for _, s := range []string{"0", "-0.0", "5.50", "1e1000", "1e-1000", "01", "9223372036854775808", "1.5E+3", "-", "1e", "00.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDecimal(s)
		// JSON blanks around a number are no part of it.
		isNumber := json.Valid([]byte(s)) && strings.Trim(s, "0123456789+-.eE") == "" && s != ""
		if err != nil {
			if isNumber && len(s) <= MaxDigits && !strings.ContainsAny(s, "eE") {
				t.Fatalf("%q is within the limits: %v", s, err)
			}
			return
		}
		if !isNumber {
			t.Fatalf("%q is no JSON number", s)
		}
		checkLowest(t, d)
		if rat(t, s).Cmp(rat(t, d.String())) != 0 {
			t.Fatalf("%q was read as %s", s, d)
		}
		again, err := ParseDecimal(d.String())
		if err != nil || !again.Equal(d) || again.String() != d.String() {
			t.Fatalf("%q: the canonical text %s reads as %s, %v", s, d, again, err)
		}
	})
}

func FuzzReadDecimal(f *testing.F) {
	for _, s := range []string{"0", "5.5", "-1e30", "1e-30", "9223372036854775808"} {
		f.Add(AppendDecimal(nil, mustDecimal(f, s)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rd := wire.NewReader(b)
		d, err := ReadDecimal(rd)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("an error of no class: %v", err)
			}
			return
		}
		checkLowest(t, d)
		again, err := ReadDecimal(wire.NewReader(AppendDecimal(nil, d)))
		if err != nil || !again.Equal(d) {
			t.Fatalf("%s reads back as %s, %v", d, again, err)
		}
	})
}
