package formats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

func mustPath(t testing.TB, s string) Path {
	t.Helper()
	p, err := ParsePath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustJSON(t testing.TB, each string, opts JSONOptions, paths ...string) Decoder {
	t.Helper()
	var list []Path
	for _, p := range paths {
		list = append(list, mustPath(t, p))
	}
	var e *Path
	if each != "" {
		p := mustPath(t, each)
		e = &p
	}
	d, err := NewJSON(list, e, opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// show writes a scalar so that type and value can be read.
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

// decode gives each event as its fields, shown and joined by blanks.
func decode(d Decoder, doc string) ([]string, error) {
	var events []string
	err := d.Decode([]byte(doc), func(index int32, f Fields) error {
		if int(index) != len(events) {
			return fmt.Errorf("index %d after %d events", index, len(events))
		}
		shown := make([]string, len(f))
		for i, s := range f {
			shown[i] = show(s)
		}
		events = append(events, strings.Join(shown, " "))
		return nil
	})
	return events, err
}

func TestJSONGivesTheFieldsAtPaths(t *testing.T) {
	for _, c := range []struct{ paths, doc, want string }{
		{"a b", `{"a":1,"b":"x"}`, `1 "x"`},
		{"b a a", "\t{\"a\" : 1 ,\r\n \"b\" : \"x\" } ", `"x" 1 1`},
		{"a.b[0].c", `{"a":{"b":[{"c":true},{"c":false}]}}`, `true`},
		{"a[1] a[0] a[3]", `{"a":[10,20,30]}`, `20 10 absent`},
		{"a a.b", `{"a":{"b":1}}`, `raw {"b":1} 1`},
		{"a[1][0]", `{"a":[[1],[2]]}`, `2`},
		{"$ $[0]", `[1.50,null]`, `raw [1.50,null] 1.5`},
		{"a b c", `{"a":null,"c":false}`, `null absent false`},
		{"a.b", `{"a":5}`, `absent`},
		{"a[0]", `{"a":{"0":1}}`, `absent`},
		{"a", `{"a":-1.0e2}`, `-100`},
		{"a", `{"a":0.1}`, `0.1`},
		{"a", `{"a":123456789012345678901234567890.5}`, `123456789012345678901234567890.5`},
		{`$["odd name"] $[""] $["ü"]`, `{"odd name":1,"":2,"ü":3}`, `1 2 3`},
		{"a", `"just a text"`, `absent`},
		// Escapes, in values and in names.
		{"a", `{"a":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}`, `"\"\\/\b\f\n\r\té😀"`},
		{"a b", `{"\u0061":1,"b":2}`, `1 2`},
		{"a", `{"a":"\u0000"}`, `"\x00"`},
		// Of two members with one name the last holds, as a whole.
		{"a", `{"a":1,"a":2}`, `2`},
		{"a.b", `{"a":{"b":1},"a":{}}`, `absent`},
		{"a.b", `{"a":{"b":1},"a":3}`, `absent`},
		{"a.b a", `{"a":3,"a":{"b":1}}`, `1 raw {"b":1}`},
		{"a[0]", `{"a":[1],"a":[]}`, `absent`},
	} {
		paths := strings.Split(c.paths, " ")
		if strings.Contains(c.paths, `"`) {
			paths = []string{`$["odd name"]`, `$[""]`, `$["ü"]`}
		}
		got, err := decode(mustJSON(t, "", JSONOptions{}, paths...), c.doc)
		if err != nil || len(got) != 1 || got[0] != c.want {
			t.Errorf("%s of %s:\n got %v, %v\nwant %s", c.paths, c.doc, got, err, c.want)
		}
	}
}

func TestJSONFindsNamesAmongMany(t *testing.T) {
	var doc strings.Builder
	var paths, want []string
	for i := range 3 * manyNames {
		fmt.Fprintf(&doc, `%c"n%d":%d`, "{,"[min(i, 1)], i, i)
		paths = append(paths, fmt.Sprintf("n%d", i))
		want = append(want, fmt.Sprint(i))
	}
	doc.WriteString("}")
	got, err := decode(mustJSON(t, "", JSONOptions{}, paths...), doc.String())
	if err != nil || got[0] != strings.Join(want, " ") {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestJSONMakesAnEventOfEachElement(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{`{"id":7,"items":[{"sku":"a","n":1},{"sku":"b"}]}`, `"a" 1 7 | "b" absent 7`},
		{`{"items":[{"sku":"a"}],"id":7}`, `"a" absent 7`},
		{`{"items":[]}`, ``},
		{`{"items":[1,null,[{}]]}`, `absent absent absent | absent absent absent | absent absent absent`},
		{`{"items":[{"sku":"a"}],"items":[{"sku":"b","sku":"c"}]}`, `"c" absent absent`},
		{`{"items":[{"n":{"x":1}}]}`, `absent raw {"x":1} absent`},
	} {
		got, err := decode(mustJSON(t, "items", JSONOptions{}, "sku", "n", "$parent.id"), c.doc)
		if err != nil || strings.Join(got, " | ") != c.want {
			t.Errorf("%s:\n got %v, %v\nwant %s", c.doc, got, err, c.want)
		}
	}
	got, err := decode(mustJSON(t, "$", JSONOptions{}, "a", "$"), `[{"a":1},2]`)
	if err != nil || strings.Join(got, " | ") != `1 raw {"a":1} | absent 2` {
		t.Errorf("root array: %v, %v", got, err)
	}
	got, err = decode(mustJSON(t, "o.items", JSONOptions{}, "a", "$parent.o.b", "$parent.o.items"), `{"o":{"items":[{"a":1}],"b":2}}`)
	if err != nil || strings.Join(got, " | ") != `1 2 raw [{"a":1}]` {
		t.Errorf("nested array: %v, %v", got, err)
	}
}

func TestJSONRefusesAPathIntoTheExplodedArrayFromTheParent(t *testing.T) {
	each := mustPath(t, "items")
	if _, err := NewJSON([]Path{mustPath(t, "$parent.items[0].a")}, &each, JSONOptions{}); err == nil {
		t.Fatal("accepted")
	}
}

func TestJSONRejectsBeforeTheFirstEvent(t *testing.T) {
	long := strings.Repeat("1", 40)
	opts := JSONOptions{MaxDepth: 3, MaxNumber: 30, MaxElements: 2}
	for _, c := range []struct {
		each, doc, want string
		reason          event.Reason
	}{
		{"", "", "offset 0: expected a value, found the end of the record", event.ReasonNotJSON},
		{"", " ", "offset 1: expected a value, found the end of the record", event.ReasonNotJSON},
		{"", `{"a":1} x`, "offset 8: expected the end of the record, found 'x'", event.ReasonNotJSON},
		{"", `{"a"=1}`, "offset 4: expected ':' after a name, found '='", event.ReasonNotJSON},
		{"", `{"a":1,}`, "offset 7: expected a name in quotes, found '}'", event.ReasonNotJSON},
		{"", `{a:1}`, "offset 1: expected a name in quotes, found 'a'", event.ReasonNotJSON},
		{"", `[1 2]`, "offset 3: expected ',' or ']' after an element, found '2'", event.ReasonNotJSON},
		{"", `{"a":1 "b":2}`, "offset 7: expected ',' or '}' after a member, found '\"'", event.ReasonNotJSON},
		{"", `[1,]`, "offset 3: expected a value, found ']'", event.ReasonNotJSON},
		{"", `tru`, "offset 3: expected true, found the end of the record", event.ReasonNotJSON},
		{"", `nulL`, "offset 3: expected null, found 'L'", event.ReasonNotJSON},
		{"", `01`, "offset 1: expected the end of the record, found '1'", event.ReasonNotJSON},
		{"", `-`, "offset 1: expected a digit, found the end of the record", event.ReasonNotJSON},
		{"", `1.`, "offset 2: expected a digit, found the end of the record", event.ReasonNotJSON},
		{"", `1e+`, "offset 3: expected a digit, found the end of the record", event.ReasonNotJSON},
		{"", `+1`, "offset 0: expected a value, found '+'", event.ReasonNotJSON},
		{"", `NaN`, "offset 0: expected a value, found 'N'", event.ReasonNotJSON},
		{"", `"a`, "offset 2: expected '\"' at the end of a string, found the end of the record", event.ReasonNotJSON},
		{"", "\"a\nb\"", `offset 2: expected no control character in a string, found '\n'`, event.ReasonNotJSON},
		{"", `"\x"`, `offset 2: expected one of " \ / b f n r t u after '\', found 'x'`, event.ReasonNotJSON},
		{"", `"\u12g4"`, `offset 3: expected four hexadecimal digits after \u, found '1'`, event.ReasonNotJSON},
		{"", `"\ud800"`, "offset 1: a surrogate without its other half", event.ReasonNotJSON},
		{"", `"\ud800\u0041"`, "offset 1: a surrogate without its other half", event.ReasonNotJSON},
		{"", `"\udc00\ud800"`, "offset 1: a surrogate without its other half", event.ReasonNotJSON},
		{"", "{\"a\":\"\xff\"}", "offset 6: not UTF-8", event.ReasonNotJSON},
		{"", "\ufeff{}", "offset 0: expected a value, found '\\ufeff'", event.ReasonNotJSON},
		{"", `[[[[]]]]`, "offset 3: nested deeper than 3", event.ReasonNotJSON},
		{"", `{"x":{"x":{"x":{}}}}`, "offset 15: nested deeper than 3", event.ReasonNotJSON},
		{"", `{"x":` + long + `}`, "offset 5: a number longer than 30 bytes", event.ReasonNotJSON},
		{"", `{"a":1e5000}`, "offset 5: number beyond the limits: ", event.ReasonNotJSON},
		{"items", `{"items":[1,2,3]}`, "offset 14: more than 2 elements in the array of events", event.ReasonNotJSON},
		{"items", `{"items":[{"a":1},{"a":2]}`, "offset 24: expected ',' or '}' after a member, found ']'", event.ReasonNotJSON},
		{"items", `{"items":[{"a":1}]`, "offset 18: expected ',' or '}' after a member, found the end of the record", event.ReasonNotJSON},
		{"items", `{"items":{}}`, "items is object or array, but", event.ReasonBadValue},
		{"items", `{"items":"x"}`, "items is text, but", event.ReasonBadValue},
		{"items", `{"items":[1],"items":null}`, "items is null, but", event.ReasonBadValue},
		{"items", `{}`, "items is absent, but", event.ReasonBadValue},
	} {
		got, err := decode(mustJSON(t, c.each, opts, "a"), c.doc)
		var r *event.Reject
		if !errors.As(err, &r) || r.Reason != c.reason || !strings.HasPrefix(r.Message, c.want) || len(got) > 0 {
			t.Errorf("%s:\n got %v, %v\nwant %s", c.doc, got, err, c.want)
		}
	}
}

func TestJSONRejectsARecordWithoutAValue(t *testing.T) {
	err := mustJSON(t, "", JSONOptions{}, "a").Decode(nil, nil)
	if r, ok := errors.AsType[*event.Reject](err); !ok || r.Reason != event.ReasonNullValue {
		t.Fatalf("got %v", err)
	}
}

func TestJSONPassesOnAnErrorOfEmit(t *testing.T) {
	stop := errors.New("stop")
	n := 0
	err := mustJSON(t, "$", JSONOptions{}, "a").Decode([]byte(`[1,2,3]`), func(int32, Fields) error {
		n++
		return stop
	})
	if !errors.Is(err, stop) || n != 1 {
		t.Fatalf("%v after %d events", err, n)
	}
}

func TestJSONDecoderForgetsTheRecordBefore(t *testing.T) {
	d := mustJSON(t, "", JSONOptions{}, "a", "b.c")
	for _, c := range [][2]string{
		{`{"a":1,"b":{"c":2}}`, "1 2"},
		{`{}`, "absent absent"},
		{`{"a":1`, ""},
		{`{"b":{"c":3}}`, "absent 3"},
	} {
		if got, _ := decode(d, c[0]); strings.Join(got, "|") != c[1] {
			t.Errorf("%s: %v", c[0], got)
		}
	}
}

func TestPathsReadAsTheyAreWritten(t *testing.T) {
	for _, s := range []string{"a", "a.b[0].c", "$", "$[0]", `$["odd name"].x`, "$parent", "$parent.x[2]", `a["b.c"]`, `$parent["ü"]`} {
		if got := mustPath(t, s).String(); got != s {
			t.Errorf("%s is written %s", s, got)
		}
	}
	for _, s := range []string{"", ".", "a.", "a..b", "a[", "a[]", "a[-1]", "a[1", `a["x]`, "a b", "$x", "a[99999999999]", "1a"} {
		if p, err := ParsePath(s); err == nil {
			t.Errorf("%q is read as %+v", s, p)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.OneOf(
			rapid.Map(rapid.IntRange(0, 1<<30), func(i int) Step { return Step{Index: i, IsIndex: true} }),
			rapid.Map(rapid.String().Filter(utf8.ValidString), func(s string) Step { return Step{Name: s} }))
		p := Path{Parent: rapid.Bool().Draw(t, "parent"), Steps: rapid.SliceOfN(step, 0, 5).Draw(t, "steps")}
		q, err := ParsePath(p.String())
		if err != nil || q.Parent != p.Parent || len(q.Steps) != len(p.Steps) {
			t.Fatalf("%s: %+v, %v", p, q, err)
		}
		for i := range p.Steps {
			if p.Steps[i] != q.Steps[i] {
				t.Fatalf("%s: step %d: %+v", p, i, q)
			}
		}
	})
}

// fuzzPaths reads a little of everything.
func fuzzPaths() []string { return []string{"$", "a", "b.c", "a[0]", "a.a", "b[1].a"} }

// FuzzJSONAgainstStandard: what encoding/json takes is taken, with the same
// values, but for what NewJSON says that it refuses beyond the grammar.
func FuzzJSONAgainstStandard(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,"x",null],"b":{"c":true}}`, `{"a":1,"a":{"a":"\u00e9\ud83d\ude00"}}`, `[1e2,-0.5,"\n"]`, `"\ud800"`,
		`{"b":[0,{"a":1e999}]}`, "{\"a\":\"\xff\"}", ` "abcdefgh\"ijklmnop" `, `{"\u0061":"12345678"}`, `123456789012`, "[1,\u2028]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, err := decodeCompact(mustJSON(t, "", JSONOptions{}, fuzzPaths()...), doc)
		takes := json.Valid(doc) && utf8.Valid(doc)
		if err != nil && !takes {
			return
		}
		if err == nil && !takes {
			t.Fatalf("%q is taken, the standard library refuses it", doc)
		}
		want, beyond := reference(t, doc)
		switch {
		case beyond != "":
			if err == nil && beyond != "number" {
				t.Fatalf("%q is taken, though it has a %s", doc, beyond)
			}
		case err != nil:
			t.Fatalf("%q is refused: %v", doc, err)
		case !reflect.DeepEqual(got, []string{want}):
			t.Fatalf("%q:\n got %v\nwant %s", doc, got, want)
		}
	})
}

// reference reads the fuzzed paths with the standard library. It names what
// the document has beyond our limits, if anything.
func reference(t *testing.T, doc []byte) (want, beyond string) {
	t.Helper()
	if loneSurrogate(doc) {
		return "", "lone surrogate"
	}
	var root any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := dec.Decode(&root); err != nil {
		return "", "standard library: " + err.Error()
	}
	if depth(doc) > 128 {
		return "", "depth"
	}
	var shown []string
	for _, p := range fuzzPaths() {
		v, ok := root, true
		for _, s := range mustPath(t, p).Steps {
			var at any
			if list, isList := v.([]any); isList && s.IsIndex && s.Index < len(list) {
				at = list[s.Index]
			} else if object, isObject := v.(map[string]any); isObject && !s.IsIndex {
				at, ok = object[s.Name]
			} else {
				ok = false
			}
			if v = at; !ok {
				break
			}
		}
		text, fits := showAny(v, ok)
		if !fits {
			return "", "number"
		}
		shown = append(shown, text)
	}
	return strings.Join(shown, " "), ""
}

func showAny(v any, ok bool) (string, bool) {
	if !ok {
		return "absent", true
	}
	switch v := v.(type) {
	case nil:
		return "null", true
	case string:
		return fmt.Sprintf("%q", v), true
	case bool:
		return fmt.Sprint(v), true
	case json.Number:
		d, err := event.ParseDecimal(v.String())
		return d.String(), err == nil
	default:
		b, err := json.Marshal(v)
		return "raw " + string(b), err == nil
	}
}

// decodeCompact decodes one event, with raw values as the standard library
// writes them again.
func decodeCompact(d Decoder, doc []byte) ([]string, error) {
	var events []string
	err := d.Decode(doc, func(_ int32, f Fields) error {
		shown := make([]string, len(f))
		for i, s := range f {
			shown[i] = show(s)
			if s.Type != event.ScalarJSON {
				continue
			}
			var v any
			dec := json.NewDecoder(strings.NewReader(s.Text))
			dec.UseNumber()
			if err := dec.Decode(&v); err != nil {
				return err
			}
			shown[i], _ = showAny(v, true)
		}
		events = append(events, strings.Join(shown, " "))
		return nil
	})
	return events, err
}

// loneSurrogate looks for \u escapes of a surrogate without its other half.
func loneSurrogate(doc []byte) bool {
	high := false
	for i := 0; i < len(doc); i++ {
		if doc[i] == '\\' && i+5 < len(doc) && doc[i+1] == 'u' {
			var u rune
			fmt.Sscanf(string(doc[i+2:i+6]), "%04x", &u)
			isLow := u >= 0xDC00 && u <= 0xDFFF
			if isLow != high {
				return true
			}
			high = u >= 0xD800 && u <= 0xDBFF
			i += 5
			continue
		}
		if high {
			return true
		}
		if doc[i] == '\\' {
			i++
		}
	}
	return high
}

func depth(doc []byte) int {
	deep, most, inString := 0, 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			deep++
			most = max(most, deep)
		case c == '}' || c == ']':
			deep--
		}
	}
	return most
}

// FuzzJSONEach: exploding never panics, and gives what decoding each element
// alone gives.
func FuzzJSONEach(f *testing.F) {
	f.Add([]byte(`{"p":1,"items":[{"a":1},{"a":[2]},3]}`))
	f.Add([]byte(`{"items":[],"items":[{"a":{}}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, err := decode(mustJSON(t, "items", JSONOptions{}, "a", "$parent.p"), string(doc))
		if err != nil {
			return
		}
		var whole map[string]json.RawMessage
		var items []json.RawMessage
		if err := json.Unmarshal(doc, &whole); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(whole["items"], &items); err != nil {
			t.Fatal(err)
		}
		if len(items) != len(got) {
			t.Fatalf("%d events of %d elements", len(got), len(items))
		}
		one := mustJSON(t, "", JSONOptions{}, "a")
		parent, err := decode(mustJSON(t, "", JSONOptions{}, "p"), string(doc))
		if err != nil {
			t.Fatal(err)
		}
		for i, item := range items {
			alone, err := decode(one, string(item))
			if err != nil || got[i] != alone[0]+" "+parent[0] {
				t.Fatalf("element %d: %s, alone %v, %v", i, got[i], alone, err)
			}
		}
	})
}

const benchEvent = `{"order_id":"o-0012345678","customer_id":"c-004711","type":"OrderPlaced","total_minor":12995,"occurred_at":1700000000123,"restaurant":"r-99"}`

func BenchmarkJSONTwoFields(b *testing.B) {
	doc := []byte(benchEvent)
	d := mustJSON(b, "", JSONOptions{}, "order_id", "total_minor")
	n := 0
	emit := func(_ int32, f Fields) error { n += len(f[0].Text); return nil }
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(doc, emit); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSONFiveFields(b *testing.B) {
	doc := []byte(benchEvent)
	d := mustJSON(b, "", JSONOptions{}, "order_id", "customer_id", "type", "total_minor", "occurred_at")
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(doc, func(int32, Fields) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSONEachOfTen(b *testing.B) {
	doc := []byte(`{"id":1,"items":[` + strings.Repeat(benchEvent+",", 9) + benchEvent + `]}`)
	d := mustJSON(b, "items", JSONOptions{}, "order_id", "total_minor", "$parent.id")
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(doc, func(int32, Fields) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSONTwoFieldsStandard(b *testing.B) {
	doc := []byte(benchEvent)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		var v struct {
			OrderID string      `json:"order_id"`
			Total   json.Number `json:"total_minor"`
		}
		if err := json.Unmarshal(doc, &v); err != nil {
			b.Fatal(err)
		}
	}
}

func TestJSONAllocatesNothingWithoutEscapes(t *testing.T) {
	doc := []byte(benchEvent)
	d := mustJSON(t, "", JSONOptions{}, "order_id", "total_minor")
	emit := func(int32, Fields) error { return nil }
	if n := testing.AllocsPerRun(100, func() { d.Decode(doc, emit) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	each := mustJSON(t, "$", JSONOptions{}, "order_id", "total_minor")
	list := []byte("[" + benchEvent + "," + benchEvent + "]")
	if n := testing.AllocsPerRun(100, func() { each.Decode(list, emit) }); n > 0 {
		t.Errorf("each: %v allocations", n)
	}
}
