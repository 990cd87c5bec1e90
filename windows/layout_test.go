package windows

import (
	"bytes"
	"errors"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

var everyFunc = []Func{Count, Sum, Min, Max, Avg, CountValues}

func number(t interface{ Fatalf(string, ...any) }, s string) event.Scalar {
	d, err := event.ParseDecimal(s)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return event.Scalar{Type: event.ScalarNumber, Num: d}
}

// scalar reads a test's notation: "" absent, "null", a number, or a text.
func scalar(t testing.TB, s string) event.Scalar {
	t.Helper()
	switch {
	case s == "":
		return event.Scalar{}
	case s == "null":
		return event.Scalar{Type: event.ScalarNull}
	case s == "true":
		return event.Scalar{Type: event.ScalarBool, Bool: true}
	case s[0] == '{':
		return event.Scalar{Type: event.ScalarJSON, Text: s}
	case strings.Trim(s, "0123456789.e-") == "":
		return number(t, s)
	}
	return event.Scalar{Type: event.ScalarText, Text: s}
}

// addAll counts one event for each input, which every function gets.
func addAll(t testing.TB, l *Layout, inputs ...string) *Acc {
	t.Helper()
	a := l.New()
	for _, s := range inputs {
		values := make([]event.Scalar, l.Inputs())
		for i := range values {
			values[i] = scalar(t, s)
		}
		if r := l.Check(values); r != nil {
			t.Fatal(r)
		}
		l.Add(a, values)
	}
	return a
}

func texts(l *Layout, a *Acc) string {
	var all []string
	for i, o := range l.Results(a) {
		all = append(all, l.Funcs[i].String()+"="+o.Value.String())
	}
	return strings.Join(all, " ")
}

func TestAggregatesOfAFewEvents(t *testing.T) {
	l := NewLayout(everyFunc)
	for _, c := range []struct {
		name   string
		inputs []string
		want   string
	}{
		{"nothing", nil, "count=0 sum=null min=null max=null avg=null count_values=0"},
		{"one", []string{"5.50"}, "count=1 sum=5.5 min=5.5 max=5.5 avg=5.5 count_values=1"},
		{"several", []string{"3", "-2", "0.5"}, "count=3 sum=1.5 min=-2 max=3 avg=0.5 count_values=3"},
		{"missing inputs are skipped", []string{"4", "", "null", "2"}, "count=4 sum=6 min=2 max=4 avg=3 count_values=2"},
		{"missing inputs alone", []string{"", "null"}, "count=2 sum=null min=null max=null avg=null count_values=0"},
		{"zeros are not nothing", []string{"0", "-0.0"}, "count=2 sum=0 min=0 max=0 avg=0 count_values=2"},
		{"one number in two spellings", []string{"5.50", "5.5"}, "count=2 sum=11 min=5.5 max=5.5 avg=5.5 count_values=2"},
		{"tenths are exact", []string{"0.1", "0.2"}, "count=2 sum=0.3 min=0.1 max=0.2 avg=0.15 count_values=2"},
		{"a sum beyond 64 bits", []string{"9223372036854775807", "9223372036854775807"}, "count=2 sum=18446744073709551614 min=9223372036854775807 max=9223372036854775807 avg=9223372036854775807 count_values=2"},
		{"an average that does not end", []string{"1", "0", "0"}, "count=3 sum=1 min=0 max=1 avg=0.33333333333333333333 count_values=3"},
	} {
		a := addAll(t, l, c.inputs...)
		if got := texts(l, a); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
		if a.Events() != int64(len(c.inputs)) {
			t.Errorf("%s: %d events", c.name, a.Events())
		}
	}
}

func TestOnlyAnAverageNeedsAState(t *testing.T) {
	l := NewLayout(everyFunc)
	for i, o := range l.Results(addAll(t, l, "1", "2")) {
		if (len(o.State) > 0) != (l.Funcs[i] == Avg) {
			t.Errorf("%s has a state of %d bytes", l.Funcs[i], len(o.State))
		}
	}
}

func TestCountHasNoInput(t *testing.T) {
	l := NewLayout([]Func{Sum, Count, Max})
	if l.Inputs() != 2 {
		t.Fatalf("%d inputs", l.Inputs())
	}
	a := l.New()
	l.Add(a, []event.Scalar{number(t, "1"), number(t, "7")})
	l.Add(a, []event.Scalar{number(t, "2"), {}})
	if got := texts(l, a); got != "sum=3 count=2 max=7" {
		t.Fatalf("got %s", got)
	}
	n := NewLayout([]Func{Count})
	if r := n.Check(nil); r != nil || n.Inputs() != 0 {
		t.Fatalf("%v, %d inputs", r, n.Inputs())
	}
	b := n.New()
	n.Add(b, nil)
	if got := texts(n, b); got != "count=1" {
		t.Fatalf("got %s", got)
	}
}

func TestCheckRefusesWhatIsNoNumberAndNamesFunctionAndType(t *testing.T) {
	for _, f := range []Func{Sum, Min, Max, Avg} {
		l := NewLayout([]Func{Count, Max, f})
		for in, say := range map[string]string{"twelve": "a text", "1 2": "a text", "true": "a boolean", `{"a":1}`: "an object or array"} {
			r := l.Check([]event.Scalar{number(t, "1"), scalar(t, in)})
			if r == nil || r.Reason != event.ReasonBadValue {
				t.Fatalf("%s of %q: %v", f, in, r)
			}
			want := f.String() + " needs a number, the event has " + say + " (input 2 of the aggregate)"
			if r.Message != want {
				t.Errorf("got %q, want %q", r.Message, want)
			}
		}
		for _, in := range []string{"", "null", "1.5"} {
			if r := l.Check([]event.Scalar{number(t, "1"), scalar(t, in)}); r != nil {
				t.Errorf("%s of %q: %v", f, in, r)
			}
		}
	}
}

func TestCountValuesTakesEveryType(t *testing.T) {
	l := NewLayout([]Func{CountValues})
	if got := texts(l, addAll(t, l, "x", "true", `{"a":1}`, "5", "", "null")); got != "count_values=4" {
		t.Fatalf("got %s", got)
	}
}

func TestCheckRefusesANumberOfValuesThatIsNotTheLayouts(t *testing.T) {
	l := NewLayout([]Func{Count, Sum})
	for _, n := range []int{0, 2} {
		if r := l.Check(make([]event.Scalar, n)); r == nil {
			t.Errorf("%d values passed", n)
		}
	}
}

// layouts and events draw what the properties below are checked over.
func layouts() *rapid.Generator[*Layout] {
	return rapid.Custom(func(t *rapid.T) *Layout {
		return NewLayout(rapid.SliceOfN(rapid.SampledFrom(everyFunc), 0, 7).Draw(t, "funcs"))
	})
}

func scalars() *rapid.Generator[event.Scalar] {
	return rapid.Custom(func(t *rapid.T) event.Scalar {
		switch rapid.IntRange(0, 9).Draw(t, "shape") {
		case 0:
			return event.Scalar{}
		case 1:
			return event.Scalar{Type: event.ScalarNull}
		case 2, 3:
			return number(t, rapid.StringMatching(`-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,8})?(e-?[1-9][0-9]?)?`).Draw(t, "any"))
		case 4:
			return number(t, rapid.SampledFrom([]string{"9223372036854775807", "-9223372036854775808", "1e30", "-1e-30"}).Draw(t, "edge"))
		}
		return number(t, rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,2})?`).Draw(t, "price"))
	})
}

func eventsFor(l *Layout) *rapid.Generator[[][]event.Scalar] {
	return rapid.SliceOfN(rapid.SliceOfN(scalars(), l.Inputs(), l.Inputs()), 0, 12)
}

func fold1(l *Layout, events [][]event.Scalar) *Acc {
	a := l.New()
	for _, e := range events {
		l.Add(a, e)
	}
	return a
}

func same(t *rapid.T, l *Layout, what string, got, want *Acc) {
	t.Helper()
	if g, w := l.Results(got), l.Results(want); !reflect.DeepEqual(g, w) {
		t.Fatalf("%s: got %s, want %s", what, texts(l, got), texts(l, want))
	}
}

func TestAggregatesEqualTheirDefinition(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := layouts().Draw(rt, "layout")
		events := eventsFor(l).Draw(rt, "events")
		results := l.Results(fold1(l, events))
		input := 0
		for i, f := range l.Funcs {
			var numbers []*big.Rat
			if f.HasInput() {
				for _, e := range events {
					if !e[input].Missing() {
						r, _ := new(big.Rat).SetString(e[input].Num.String())
						numbers = append(numbers, r)
					}
				}
				input++
			}
			checkDefinition(rt, f, results[i].Value, numbers, len(events))
		}
	})
}

func checkDefinition(t *rapid.T, f Func, got event.Value, numbers []*big.Rat, events int) {
	want := new(big.Rat)
	switch f {
	case Count:
		want.SetInt64(int64(events))
	case CountValues:
		want.SetInt64(int64(len(numbers)))
	default:
		if len(numbers) == 0 {
			if !got.Null {
				t.Fatalf("%s of nothing is %s", f, got)
			}
			return
		}
		for i, n := range numbers {
			switch {
			case f == Sum || f == Avg:
				want.Add(want, n)
			case i == 0 || f == Min && n.Cmp(want) < 0 || f == Max && n.Cmp(want) > 0:
				want.Set(n)
			}
		}
	}
	is, ok := new(big.Rat).SetString(got.Text)
	if !ok || got.Null {
		t.Fatalf("%s gives %s", f, got)
	}
	if f == Avg {
		want.Quo(want, new(big.Rat).SetInt64(int64(len(numbers))))
		off := new(big.Rat).Sub(is, want)
		bound, _ := new(big.Rat).SetString("0.00000000000000000005")
		if off.Abs(off).Cmp(bound.Mul(bound, new(big.Rat).Abs(want))) > 0 {
			t.Fatalf("avg gives %s, want %s", got, want.FloatString(40))
		}
		return
	}
	if is.Cmp(want) != 0 {
		t.Fatalf("%s gives %s, want %s", f, got, want.FloatString(40))
	}
}

func TestTheOrderOfEventsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := layouts().Draw(rt, "layout")
		events := eventsFor(l).Draw(rt, "events")
		a := fold1(l, events)
		b := fold1(l, rapid.Permutation(events).Draw(rt, "order"))
		same(rt, l, "permuted", b, a)
		if !bytes.Equal(l.Append(nil, a), l.Append(nil, b)) {
			rt.Fatal("the bytes differ")
		}
	})
}

func TestMergeIsCommutativeAndAssociativeAndEqualsAddingAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := layouts().Draw(rt, "layout")
		x, y, z := eventsFor(l).Draw(rt, "x"), eventsFor(l).Draw(rt, "y"), eventsFor(l).Draw(rt, "z")
		all := fold1(l, append(append(append([][]event.Scalar{}, x...), y...), z...))
		merged := func(parts ...[][]event.Scalar) *Acc {
			a := l.New()
			for _, p := range parts {
				l.Merge(a, fold1(l, p))
			}
			return a
		}
		same(rt, l, "x, y, z", merged(x, y, z), all)
		same(rt, l, "z, x, y", merged(z, x, y), all)
		right := fold1(l, y)
		l.Merge(right, fold1(l, z))
		left, before := fold1(l, x), l.Append(nil, right)
		l.Merge(left, right)
		same(rt, l, "x, (y, z)", left, all)
		if !bytes.Equal(before, l.Append(nil, right)) {
			rt.Fatal("the source of a merge has changed")
		}
		if !bytes.Equal(l.Append(nil, all), l.Append(nil, left)) {
			rt.Fatal("the bytes differ")
		}
	})
}

func TestRestoreGoesOnAsTheOriginalWould(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := layouts().Draw(rt, "layout")
		a := fold1(l, eventsFor(l).Draw(rt, "before"))
		published := l.Results(a)
		b, err := l.Restore(published)
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, l, "restored", b, a)
		for _, f := range l.Funcs {
			if f == Count && b.Events() != a.Events() {
				rt.Fatalf("%d events restored, %d counted", b.Events(), a.Events())
			}
		}
		if b.Events() > a.Events() {
			rt.Fatalf("%d events restored, %d counted", b.Events(), a.Events())
		}
		more := eventsFor(l).Draw(rt, "after")
		for _, e := range more {
			l.Add(a, e)
			l.Add(b, e)
			same(rt, l, "an event later", b, a)
		}
		// And through another round, and a merge.
		if b, err = l.Restore(l.Results(b)); err != nil {
			rt.Fatal(err)
		}
		l.Merge(b, fold1(l, more))
		l.Merge(a, fold1(l, more))
		same(rt, l, "merged", b, a)
	})
}

func TestDecodeReadsBackWhatAppendWrote(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := layouts().Draw(rt, "layout")
		a := fold1(l, eventsFor(l).Draw(rt, "events"))
		enc := l.Append([]byte("before"), a)[len("before"):]
		b, err := l.Decode(enc)
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, l, "decoded", b, a)
		if b.Events() != a.Events() || !bytes.Equal(l.Append(nil, b), enc) {
			rt.Fatal("the decoded accumulator has other bytes")
		}
		for cut := range enc {
			if _, err := l.Decode(enc[:cut]); !errors.Is(err, event.ErrCorrupt) {
				rt.Fatalf("cut after %d of %d bytes: %v", cut, len(enc), err)
			}
		}
		if _, err := l.Decode(append(enc, 0)); !errors.Is(err, event.ErrCorrupt) {
			rt.Fatalf("a byte too many: %v", err)
		}
	})
}

func TestTheEncodingStaysWhatItIs(t *testing.T) {
	l := NewLayout(everyFunc)
	got := l.Append(nil, addAll(t, l, "5.50", "", "-3"))
	want := []byte{
		1,                   // version
		6, 1, 2, 3, 4, 5, 6, // functions
		3,        // events
		1, 4, 50, // sum: 25 × 10^-1
		1, 0, 5, // min: -3
		1, 4, 110, // max: 55 × 10^-1
		2, 4, 50, // avg: two, their sum
		2, // count_values
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

func TestDecodeTellsWhatIsWrong(t *testing.T) {
	l := NewLayout([]Func{Count, Sum})
	good := l.Append(nil, addAll(t, l, "1", "2"))
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"empty", nil, event.ErrCorrupt},
		{"a newer version", change(0, 2), event.ErrVersion},
		{"version 0", change(0, 0), event.ErrVersion},
		{"another function in the mapping", change(3, byte(Min)), ErrLayout},
		{"another number of functions", NewLayout([]Func{Count}).Append(nil, &Acc{}), ErrLayout},
		{"more functions than bytes", change(1, 200), event.ErrCorrupt},
		{"a sum of two values at once", change(5, 2), event.ErrCorrupt},
		{"values of no events", change(4, 0), event.ErrCorrupt},
		{"a count beyond 63 bits", append(good[:4:4], 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0), event.ErrCorrupt},
	} {
		a, err := l.Decode(c.in)
		if !errors.Is(err, c.want) || a != nil {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestRestoreTellsWhatIsWrong(t *testing.T) {
	l := NewLayout([]Func{Count, Sum, Avg})
	a := addAll(t, l, "1", "2")
	for _, c := range []struct {
		name  string
		spoil func(o []Output) []Output
		want  error
	}{
		{"a value is missing", func(o []Output) []Output { return o[:2] }, ErrLayout},
		{"a count that is none", func(o []Output) []Output { o[0].Value.Text = "many"; return o }, event.ErrCorrupt},
		{"a negative count", func(o []Output) []Output { o[0].Value.Text = "-1"; return o }, event.ErrCorrupt},
		{"a null count", func(o []Output) []Output { o[0].Value = event.Value{Null: true}; return o }, event.ErrCorrupt},
		{"a sum that is none", func(o []Output) []Output { o[1].Value.Text = "3.0"; return o }, event.ErrCorrupt},
		{"a sum with a state", func(o []Output) []Output { o[1].State = []byte{1}; return o }, event.ErrCorrupt},
		{"an average without its state", func(o []Output) []Output { o[2].State = nil; return o }, event.ErrCorrupt},
		{"an average that its state does not give", func(o []Output) []Output { o[2].Value.Text = "2"; return o }, event.ErrCorrupt},
		{"a null average with a state", func(o []Output) []Output { o[2].Value = event.Value{Null: true}; return o }, event.ErrCorrupt},
		{"a newer state", func(o []Output) []Output { o[2].State[0] = 9; return o }, event.ErrVersion},
		{"a longer state", func(o []Output) []Output { o[2].State = append(o[2].State, 0); return o }, event.ErrCorrupt},
		{"more values than events", func(o []Output) []Output { o[0].Value.Text = "1"; return o }, event.ErrCorrupt},
	} {
		if _, err := l.Restore(c.spoil(l.Results(a))); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestAddAllocatesNothingWhereNumbersFit64Bits(t *testing.T) {
	l := NewLayout([]Func{Count, Sum, Min, Max, Avg, CountValues})
	a := l.New()
	values := make([]event.Scalar, l.Inputs())
	for i := range values {
		values[i] = number(t, "17.25")
	}
	if n := testing.AllocsPerRun(100, func() {
		if l.Check(values) == nil {
			l.Add(a, values)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	l := NewLayout(everyFunc)
	f.Add([]byte{})
	f.Add(l.Append(nil, l.New()))
	f.Add(l.Append(nil, addAll(f, l, "5.50", "", "-3")))
	f.Add(l.Append(nil, addAll(f, l, "1e40", "1e-40", "9223372036854775807")))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := l.Decode(b)
		if err != nil {
			if !errors.Is(err, event.ErrCorrupt) && !errors.Is(err, event.ErrVersion) && !errors.Is(err, ErrLayout) {
				t.Fatalf("an error of no class: %v", err)
			}
			return
		}
		again, err := l.Decode(l.Append(nil, a))
		if err != nil || !reflect.DeepEqual(l.Results(again), l.Results(a)) {
			t.Fatalf("reads back as %v, %v", again, err)
		}
	})
}

func FuzzRestoreAvg(f *testing.F) {
	l := NewLayout([]Func{Avg})
	for _, in := range []string{"1", "5.5", "1e40"} {
		o := l.Results(addAll(f, l, in, "2"))[0]
		f.Add(o.Value.Text, o.State)
	}
	f.Fuzz(func(t *testing.T, text string, state []byte) {
		in := []Output{{Value: event.Value{Text: text}, State: state}}
		a, err := l.Restore(in)
		if err != nil {
			if !errors.Is(err, event.ErrCorrupt) && !errors.Is(err, event.ErrVersion) {
				t.Fatalf("an error of no class: %v", err)
			}
			return
		}
		if got := l.Results(a)[0].Value; got != in[0].Value {
			t.Fatalf("%s restored as %s", text, got)
		}
	})
}
