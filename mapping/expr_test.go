package mapping

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
)

// compiled compiles an expression, or fails the test.
func compiled(t testing.TB, text string, paths *pathSet) *Expr {
	t.Helper()
	e, faults := compileExpr(text, paths)
	if len(faults) > 0 {
		t.Fatalf("%s: %+v", text, faults)
	}
	return e
}

// fieldsOf decodes doc for the paths that expressions asked for.
func fieldsOf(t testing.TB, paths *pathSet, doc string) formats.Fields {
	t.Helper()
	d, err := formats.NewJSON(paths.paths, nil, formats.JSONOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var fields formats.Fields
	if err := d.Decode([]byte(doc), func(_ int32, f formats.Fields) error { fields = f; return nil }); err != nil {
		t.Fatal(err)
	}
	return fields
}

func show(s event.Scalar) string {
	switch s.Type {
	case event.ScalarText:
		return fmt.Sprintf("%q", s.Text)
	case event.ScalarNumber:
		return s.Num.String()
	case event.ScalarBool:
		return fmt.Sprint(s.Bool)
	case event.ScalarJSON:
		return "raw " + s.Text
	default:
		return s.Type.String()
	}
}

// evaluate gives an expression's value over doc, shown, or its error.
func evaluate(t testing.TB, text, doc string) string {
	t.Helper()
	paths := &pathSet{}
	e := compiled(t, text, paths)
	v, err := e.Eval(fieldsOf(t, paths, doc))
	if err != nil {
		if r, ok := errors.AsType[*event.Reject](err); !ok || r.Reason != event.ReasonExpression {
			t.Errorf("%s: an error of another kind: %v", text, err)
		}
		return "error: " + strings.TrimPrefix(err.Error(), "expression: "+text+": ")
	}
	return show(v)
}

const exprDoc = `{"a": 1, "b": 0.1, "c": 0.2, "big": 123456789012345678901234567890, "s": "Hello, World", "up": "ÄÖ", "yes": true,
 "no": false, "nil": null, "o": {"list": [{"x": 5}, "two"], "odd name": "odd"}, "n7": "7.50", "csv": "x,y,,z", "empty": ""}`

func TestExpressionsGiveTheirValue(t *testing.T) {
	for _, c := range [][2]string{
		// Fields.
		{"a", "1"},
		{"s", `"Hello, World"`},
		{"o.list[0].x", "5"},
		{"o.list[1]", `"two"`},
		{`o["odd name"]`, `"odd"`},
		{`$["a"]`, "1"},
		{"$.a", "1"},
		{"o.list", `raw [{"x": 5}, "two"]`},
		{"nil", "null"}, // expr's word for null
		{"$.nil", "null"},
		{"gone", "absent"},
		{"gone.b[3].c", "absent"},
		{"a.b", "absent"},
		// Literals.
		{"null", "null"}, {"true", "true"}, {`"x"`, `"x"`}, {"'x'", `"x"`}, {"1.50", "1.5"}, {"-3", "-3"}, {"1e3", "1000"},
		{"0.12345678901234567890123456789", "0.12345678901234567890123456789"},
		// Exact numbers.
		{"b + c == 0.3", "true"},
		{"0.1 + 0.2 == 0.3", "true"},
		{"b + c", "0.3"},
		{"a - b", "0.9"},
		{"b * c", "0.02"},
		{"0.1 * 0.1 * 10", "0.1"},
		{"big + 1", "123456789012345678901234567891"},
		{"big * big", "15241578753238836750495351562536198787501905199875019052100"},
		{"-a", "-1"}, {"-(a + 1)", "-2"},
		{"2 + 3 * 4", "14"},
		{"9007199254740993 == 9007199254740992", "false"},
		{"1.0 == 1", "true"},
		// Comparisons.
		{`s == "Hello, World"`, "true"}, {`"x" != s`, "true"}, {"a == 1", "true"}, {"1 != a", "false"}, {"yes == true", "true"}, {"yes == no", "false"},
		{"a < 2", "true"}, {"a >= 1.0", "true"}, {"a > b", "true"}, {"a <= 0.99", "false"}, {`s < "I"`, "true"}, {`s >= "I"`, "false"},
		{"0 < a and a < 2", "true"}, {"0 < a < 2", "true"}, {"0 < a < 1", "false"},
		// Absent and null.
		{"gone == null", "true"}, {"$.nil == null", "true"}, {"gone == $.nil", "true"}, {"a == null", "false"}, {"gone != null", "false"},
		{`gone == "x"`, "false"}, {`gone != "x"`, "true"}, {"gone != 1", "true"}, {"gone < 1", "false"}, {"gone >= 1", "false"}, {"1 < $.nil", "false"},
		{"gone + 1", "absent"}, {"$.nil + 1", "null"}, {"$.nil + gone", "absent"}, {"lower(gone)", "absent"}, {"lower($.nil)", "null"},
		{"not gone", "true"}, {"gone and yes", "false"}, {"gone or yes", "true"}, {"gone ? 1 : 2", "2"},
		{`gone contains "x"`, "false"}, {`not (gone contains "x")`, "true"}, {`gone not contains "x"`, "true"}, {`gone matches "x"`, "false"},
		{`gone in ["x"]`, "false"}, {`gone in ["x", null]`, "true"}, {`last(split(gone, ","))`, "absent"}, {"len(gone)", "absent"}, {"text(gone)", "absent"},
		{"number(gone)", "absent"}, {`gone in split(csv, ",")`, "false"},
		// Choosing.
		{"gone ?? $.nil ?? 5", "5"}, {"a ?? 5", "1"}, {"no ?? true", "false"}, {"gone ?? null", "null"}, {`yes ? "y" : "n"`, `"y"`},
		{"(gone ?? 0) + a", "1"},
		// Logic, and that the right side is not evaluated where the left decides.
		{"yes and no", "false"}, {"yes or no", "true"}, {"yes && !no || no", "true"}, {"not no", "true"},
		{"no and s == 1", "false"}, {"yes or s == 1", "true"},
		{"not (a == 1)", "false"},
		// Lists.
		{"a in [2, 1.0]", "true"}, {`s in ["x"]`, "false"}, {`s not in ["x"]`, "true"}, {"a in []", "false"}, {"a in [b, a]", "true"},
		{`"y" in split(csv, ",")`, "true"}, {`"w" in split(csv, ",")`, "false"}, {`"" in split(csv, ",")`, "true"},
		// Texts.
		{"lower(s)", `"hello, world"`}, {"upper(s)", `"HELLO, WORLD"`}, {`trim("  x ")`, `"x"`}, {"len(up)", "2"}, {"len(empty)", "0"},
		{`s + "!"`, `"Hello, World!"`}, {`s contains ", "`, "true"}, {`s startsWith "He"`, "true"}, {`s endsWith "He"`, "false"},
		{`s matches "^H.*d$"`, "true"}, {`s not matches "x"`, "true"},
		{`last(split(s, ", "))`, `"World"`}, {`first(split(s, ", "))`, `"Hello"`}, {`split(csv, ",")[1]`, `"y"`}, {`split(csv, ",")[2]`, `""`},
		{`split(csv, ",")[3]`, `"z"`}, {`split(csv, ",")[4]`, "absent"}, {`last(split(s, "#"))`, `"Hello, World"`}, {`first(split(s, "#"))`, `"Hello, World"`},
		{`len(split(csv, ","))`, "4"}, {`len(split(empty, ","))`, "1"}, {`split(s, "#")[0]`, `"Hello, World"`},
		{`lower(last(split(s, ", "))) == "world"`, "true"},
		{"text(a)", `"1"`}, {"text(b + c)", `"0.3"`}, {"text(yes)", `"true"`}, {"text(s)", `"Hello, World"`}, {"number(n7)", "7.5"}, {"number(a)", "1"},
		{`text(a) + "/" + s`, `"1/Hello, World"`},
		// What fails on an event.
		{"s == a", "error: cannot compare text with number"}, {"a == s", "error: cannot compare number with text"}, {`a == "1"`, "error: cannot compare number with text"},
		{"s < a", "error: cannot compare text with number by <"}, {"yes < no", "error: cannot compare boolean with boolean by <"},
		{`o == "x"`, "error: cannot compare object or array with text"}, {"o == o", "error: cannot compare object or array with object or array"},
		{"a + s", "error: cannot calculate number + text"}, {"s - s", "error: cannot calculate text - text"}, {"yes * 2", "error: cannot calculate boolean * number"},
		{"lower(a)", "error: lower wants a text, this is a number"}, {"s and yes", "error: a condition must be true or false, this is a text"},
		{"not a", "error: a condition must be true or false, this is a number"}, {"a ? 1 : 2", "error: a condition must be true or false, this is a number"},
		{"number(s)", `error: "Hello, World" is not a number`}, {"number(yes)", "error: number wants a text, this is a boolean"},
		{`a in ["x"]`, "error: cannot compare number with text"}, {`a contains "x"`, "error: contains wants two texts, these are a number and a text"},
		{`a matches "x"`, "error: matches wants a text, this is a number"}, {`last(split(a, ","))`, "error: split wants a text, this is a number"},
		{"text(o)", "error: text wants a single value, this is an object or array"}, {"-s", "error: cannot calculate number - text"},
	} {
		if got := evaluate(t, c[0], exprDoc); got != c[1] {
			t.Errorf("%s:\n got %s\nwant %s", c[0], got, c[1])
		}
	}
}

func TestConditionsAreTested(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"yes", "true"}, {"no", "false"}, {"gone", "false"}, {"a == 1", "true"}, {`s == "x"`, "false"}, {`s != "x"`, "true"},
		{"a", "expression: a: a condition must be true or false, this is a number"},
		{"s == a", "expression: s == a: cannot compare text with number"},
	} {
		paths := &pathSet{}
		e := compiled(t, c.text, paths)
		ok, err := e.Test(fieldsOf(t, paths, exprDoc))
		got := fmt.Sprint(ok)
		if err != nil {
			got = err.Error()
		}
		if got != c.want || e.Text() != c.text {
			t.Errorf("%s: got %s", c.text, got)
		}
	}
}

func TestFaultyExpressionsSayWhere(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "0: not an expression"},
		{"a = 1", `2: not an expression: unexpected "=" (compare with ==)`},
		{"a == ", "not an expression: it ends too early"},
		{"(a", "not an expression: it ends too early"},
		{"a $ b", "2: not an expression"},
		{`a == "x`, "not an expression"},
		{"now()", "0: unknown function now"},
		{"loer(s)", "0: unknown function loer (did you mean lower?)"},
		{"1 + lowr(s)", "4: unknown function lowr"},
		{"filter(a, true)", "0: unknown function filter"},
		{"map(a, # * 2)", "7: not an expression"},
		{"all([1], {# > 0})", "10: not an expression"},
		{"let x = 1; x", "4: this part"},
		{"a; b", "0: this part"},
		{"a / 2", "2: the operator / is not supported"},
		{"1..1000000", "1: the operator .. is not supported"},
		{"{a: 1}", "0: this part"},
		{"[1, 2]", "0: a list can only stand after in"},
		{"a[b]", "2: the index of a field"},
		{"a[-1]", "2: the index of a field"},
		{"a[1:2]", "1: slices are not supported"},
		{"a?.b", "?. is not needed here"},
		{`lower(s).x`, "only a piece of split"},
		{"a.b()", "fields have no methods"},
		{"$other", "0: unknown name $other"},
		{"$parent.x", "0: $parent is for streams with each"},
		{`1 == "x"`, "2: a number is never == a text"},
		{"true < false", "5: booleans have no order"},
		{`not a == "x"`, "0: not binds more tightly than =="},
		{`"a" - 1`, "4: cannot calculate a text - a number"},
		{`"a" + 1`, "4: cannot add a text and a number"},
		{"true + 1", "5: cannot calculate with a boolean"},
		{"lower(5)", "6: lower wants a text, this is a number"},
		{"lower(a, b)", "0: lower takes 1 argument, these are 2"},
		{`"x" and yes`, "0: and wants a boolean, this is a text"},
		{"not 5", "4: not wants a boolean"},
		{"split(a, \",\")", "0: split gives a list"},
		{"last(a)", "0: last takes the pieces of split"},
		{"last(split(a))", "5: split takes 2 arguments"},
		{"last(split(a, b))", "14: what split splits at"},
		{`last(split(a, ""))`, "14: what split splits at"},
		{`a matches "("`, "10: error parsing regexp"},
		{"a matches b", "10: the pattern of matches must be a text"},
		{"contains(a, b)", "not an expression"},
		{"sum(a)", "0: sum cannot stand here"},
		{"a in b", "5: in wants a list"},
		{`1 in ["x"]`, "6: a number is never in a list with a text"},
		{"0x10", "0: 0x10 is not a number here"},
		{"1_000", "0: 1_000 is not a number here"},
		{".5", "0: .5 is not a number here"},
		{"1e5000", "the number is too large for a literal"},
		{"1e300000000000000000000", "the number is too large for a literal"},
		{"1e200 * 1e1001", "the number is too large for a literal"},
		{"99999999999999999999", "the number is too large for a literal"},
		{"a ?? 1 == b", "parentheses around the part with ??"},
		{"ä == öx y", "8: not an expression"},
		{"+a", "0: the sign + is not supported"},
		{strings.Repeat("a", maxExprText+1), "0: the expression is longer than 4096 bytes"},
		{"a \xff", "0: the expression is not UTF-8"},
		{strings.Repeat("(", 4000), "not an expression"},
		{strings.Repeat("-", 4000) + "1", ""},
	} {
		e, faults := compileExpr(c.text, &pathSet{})
		if e != nil || len(faults) == 0 {
			t.Errorf("%.60s: no fault", c.text)
			continue
		}
		f := faults[0]
		got := fmt.Sprintf("%d: %s (%s)", f.at, f.message, f.advice)
		if !strings.Contains(got, c.want) {
			t.Errorf("%.60s:\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

func TestAllFaultsOfAnExpressionAreFound(t *testing.T) {
	_, faults := compileExpr(`lowr(a) == 1 and uper(b) == "x" / 2`, &pathSet{})
	if len(faults) != 3 {
		t.Fatalf("%+v", faults)
	}
}

func TestEqualExpressionsHaveOneCanonicalForm(t *testing.T) {
	for _, same := range [][]string{
		{"a", " a ", "$.a", `$["a"]`, "(a)"},
		{"a.b[0]", `a["b"][0]`, `a . b [ 0 ]`},
		{`a=="x"&&b`, `a == 'x' and b`, "(a == \"x\") and\n b // why"},
		{"not a", "!a"},
		{"1.50", "1.5", "15e-1"},
		{`last(split(a, ", "))`, `last(split( a,', ' ))`},
		{"null", "nil"},
		{`a ? b : c`, `(a) ? (b) : (c)`},
	} {
		for _, text := range same[1:] {
			a, b := compiled(t, same[0], &pathSet{}), compiled(t, text, &pathSet{})
			if a.Canonical() != b.Canonical() {
				t.Errorf("%s is %s, and %s is %s", same[0], a.Canonical(), text, b.Canonical())
			}
		}
	}
	for _, pair := range [][2]string{
		{"a", "b"}, {"a.b", `$["a.b"]`}, {`"a"`, "a"}, {"a - (b - c)", "a - b - c"}, {"-1", "1"}, {`split(a, ",")[0]`, `split(a, ",")[1]`},
		{"12345678901234567.1", "12345678901234567.2"}, {"a or b and c", "(a or b) and c"}, {"true", `"true"`}, {"a", "$parent.a"},
	} {
		a, b := compiled(t, pair[0], &pathSet{each: &formats.Path{Steps: []formats.Step{{Name: "items"}}}}), compiled(t, pair[1], &pathSet{each: &formats.Path{Steps: []formats.Step{{Name: "items"}}}})
		if a.Canonical() == b.Canonical() {
			t.Errorf("%s and %s are both %s", pair[0], pair[1], a.Canonical())
		}
	}
}

func TestArithmeticIsExact(t *testing.T) {
	number := rapid.StringMatching(`-?[1-9][0-9]{0,25}(\.[0-9]{1,25})?`)
	rapid.Check(t, func(rt *rapid.T) {
		x, y := number.Draw(rt, "x"), number.Draw(rt, "y")
		op := rapid.SampledFrom([]string{"+", "-", "*"}).Draw(rt, "op")
		a, _ := new(big.Rat).SetString(x)
		b, _ := new(big.Rat).SetString(y)
		want := new(big.Rat)
		switch op {
		case "+":
			want.Add(a, b)
		case "-":
			want.Sub(a, b)
		default:
			want.Mul(a, b)
		}
		got := evaluate(t, "x "+op+" y", fmt.Sprintf(`{"x":%s,"y":%s}`, x, y))
		if r, ok := new(big.Rat).SetString(got); !ok || r.Cmp(want) != 0 {
			rt.Fatalf("%s %s %s gives %s", x, op, y, got)
		}
		if less := evaluate(t, "x < y", fmt.Sprintf(`{"x":%s,"y":%s}`, x, y)); less != fmt.Sprint(a.Cmp(b) < 0) {
			rt.Fatalf("%s < %s gives %s", x, y, less)
		}
	})
}

func TestResultsAreBounded(t *testing.T) {
	doc := fmt.Sprintf(`{"a":%s,"s":%q}`, strings.Repeat("9", 128), strings.Repeat("x", maxText/2+1))
	product := "a" + strings.Repeat(" * a", 50)
	if got := evaluate(t, product, doc); !strings.HasPrefix(got, "error:") || !strings.Contains(got, "digits") {
		t.Errorf("product: %.200s", got)
	}
	if got := evaluate(t, "s + s", doc); got != fmt.Sprintf("error: the text would be longer than %d bytes", maxText) {
		t.Errorf("text: %.200s", got)
	}
}

func TestExpressionsAreSafeForConcurrentUse(t *testing.T) {
	paths := &pathSet{}
	e := compiled(t, `lower(last(split(s, ", "))) == "world" and a + b > 1 and s matches "H"`, paths)
	var wait sync.WaitGroup
	for range 4 {
		fields := fieldsOf(t, paths, exprDoc)
		wait.Go(func() {
			for range 200 {
				if ok, err := e.Test(fields); !ok || err != nil {
					t.Errorf("%v, %v", ok, err)
				}
			}
		})
	}
	wait.Wait()
}

func FuzzExpression(f *testing.F) {
	for _, s := range []string{
		`a == "x" and not (b < 1.5)`, `last(split(a, ", "))`, "a.b[0]?.c", "$parent.x ?? 0", "a in [1, 'x']", "let a = 1; a", "a | lower()", "::a", "#", "b'x'",
	} {
		f.Add(s, `{"a":"x","b":[1]}`)
	}
	f.Fuzz(func(t *testing.T, text, doc string) {
		paths := &pathSet{}
		e, faults := compileExpr(text, paths)
		if e == nil {
			if len(faults) == 0 {
				t.Fatal("neither an expression nor a fault")
			}
			return
		}
		again, faults := compileExpr(e.Canonical(), &pathSet{})
		if e.Canonical() != "" && len(faults) == 0 && again.Canonical() != e.Canonical() {
			t.Fatalf("%q is %q, which is %q", text, e.Canonical(), again.Canonical())
		}
		d, err := formats.NewJSON(paths.paths, nil, formats.JSONOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_ = d.Decode([]byte(doc), func(_ int32, fields formats.Fields) error {
			v, err := e.Eval(fields)
			w, err2 := e.Eval(fields)
			if show(v) != show(w) || (err == nil) != (err2 == nil) {
				t.Fatalf("%q gives %s and %s", text, show(v), show(w))
			}
			return nil
		})
	})
}

func BenchmarkExpression(b *testing.B) {
	for _, text := range []string{"a", `s == "Hello, World"`, "a == 1", `last(split(s, ", "))`, `s == "x" or a + b > 1`} {
		b.Run(text, func(b *testing.B) {
			paths := &pathSet{}
			e := compiled(b, text, paths)
			fields := fieldsOf(b, paths, exprDoc)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Eval(fields); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
