package feed_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/forge-platform/strom/cmd/strom/internal/feed"
)

func TestSpecsAreReadInTheirForm(t *testing.T) {
	tests := []struct {
		text  string
		want  feed.Spec
		fault string
	}{
		{text: "s=f.ndjson", want: feed.Spec{Stream: "s", File: "f.ndjson"}},
		{text: "s=f,timestamp=a.b[0]", want: feed.Spec{Stream: "s", File: "f", Timestamp: "a.b[0]"}},
		{text: "s=f,timestamp=t:us,key=k", want: feed.Spec{Stream: "s", File: "f", Timestamp: "t", Unit: "us", Key: "k"}},
		{text: "s=f,key=k,timestamp=t:s", want: feed.Spec{Stream: "s", File: "f", Timestamp: "t", Unit: "s", Key: "k"}},
		{text: "s=odd,name,key=k", want: feed.Spec{Stream: "s", File: "odd,name", Key: "k"}},
		{text: "s=f,foo=bar", fault: "unknown option foo="},
		{text: "s=f,foo=bar,key=k", fault: "unknown option foo="},
		{text: "s=f,timestamp=", fault: "timestamp= names no field"},
		{text: "s=f,timestamp=:ms", fault: "timestamp= names no field"},
		{text: "s=f,key=,timestamp=t", fault: "key= names no field"},
		{text: "s=f,key=a,key=b", fault: "key= stands there twice"},
		{text: "s", fault: "is not of the form"},
		{text: "=f", fault: "is not of the form"},
		{text: "s=", fault: "names no file"},
		{text: "s=f,timestamp=t:m", fault: "is not a unit of time"},
		{text: "s=f,key=a..b", fault: "path"},
	}
	for _, test := range tests {
		got, err := feed.ParseSpec(test.text)
		if test.fault != "" {
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%s: error %v, want %q", test.text, err, test.fault)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", test.text, got, err, test.want)
		}
	}
}

// show writes a record in one line.
func show(r feed.Record) string {
	s := fmt.Sprintf("%d: %q", r.Line, r.Value)
	if r.Value == nil {
		s = fmt.Sprintf("%d: none", r.Line)
	}
	if r.Key != nil {
		s += fmt.Sprintf(" key %q", r.Key)
	}
	if r.Timed {
		s += " at " + r.Timestamp.String()
	}
	if r.Partition != nil {
		s += " in " + r.Partition.String()
	}
	for _, h := range r.Headers {
		s += fmt.Sprintf(" %s=%s", h.Key, h.Value)
	}
	return s
}

func read(t *testing.T, s feed.Spec, text string) ([]string, feed.Summary, error) {
	t.Helper()
	var out []string
	sum, err := s.Parse(strings.NewReader(text), func(r feed.Record) error {
		out = append(out, show(r))
		return nil
	})
	return out, sum, err
}

func TestLinesAreValuesOrEnvelopes(t *testing.T) {
	got, sum, err := read(t, feed.Spec{File: "f", Timestamp: "t", Key: "id"}, strings.Join([]string{
		"{\"id\":\"a\",\"t\":1000}\r",
		``,
		`{"id": 7.50, "t":"2020-01-02T03:04:05.6Z", "value": 1}`, // has other keys: a value
		`{"value":{"id":"c","t":2000},"partition":3,"headers":{"b":"2","a":"1"}}`,
		`{"timestamp":"1969-12-31T23:59:59Z","value":"{not json","key":"k"}`,
		`{"value":null,"timestamp":5,"key":null}`,
		`{not json`,
		`{"id":true,"t":null}`,
	}, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`1: "{\"id\":\"a\",\"t\":1000}" key "a" at 1970-01-01T00:00:01Z`,
		`3: "{\"id\": 7.50, \"t\":\"2020-01-02T03:04:05.6Z\", \"value\": 1}" key "7.5" at 2020-01-02T03:04:05.6Z`,
		`4: "{\"id\":\"c\",\"t\":2000}" key "c" at 1970-01-01T00:00:02Z in 3 b=2 a=1`,
		`5: "{not json" key "k" at 1969-12-31T23:59:59Z`,
		`6: none at 1970-01-01T00:00:00.005Z`,
		`7: "{not json" at 1970-01-01T00:00:00.005Z`,
		`8: "{\"id\":true,\"t\":null}" key "true" at 1970-01-01T00:00:00.005Z`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if sum.Records != 7 || sum.Borrowed != 2 {
		t.Errorf("summary %+v", sum)
	}
}

func TestTheFirstLinesTakeTheFirstTimestamp(t *testing.T) {
	got, sum, err := read(t, feed.Spec{File: "f", Timestamp: "t", Unit: "s"}, "x\ny\n{\"t\":1.5}\n")
	if err != nil {
		t.Fatal(err)
	}
	want := "1: \"x\" at 1970-01-01T00:00:01.5Z\n2: \"y\" at 1970-01-01T00:00:01.5Z\n3: \"{\\\"t\\\":1.5}\" at 1970-01-01T00:00:01.5Z"
	if strings.Join(got, "\n") != want || sum.Borrowed != 2 {
		t.Errorf("got\n%s\n%+v", strings.Join(got, "\n"), sum)
	}
}

func TestUnitsOfTime(t *testing.T) {
	for unit, number := range map[string]string{"": "1500", "s": "1.5", "ms": "1500", "us": "1500000", "ns": "1500000999"} {
		got, _, err := read(t, feed.Spec{File: "f", Timestamp: "t", Unit: unit}, `{"t":`+number+`}`)
		if err != nil || !strings.HasSuffix(got[0], " at 1970-01-01T00:00:01.5Z") {
			t.Errorf("unit %q: %v, %v", unit, got, err)
		}
	}
}

func TestFaultsNameTheirLineAndWhatToDo(t *testing.T) {
	tests := []struct {
		spec feed.Spec
		text string
		want []string
	}{
		{feed.Spec{Timestamp: "t"}, "a\nb\n", []string{"f:1: ", "in the field t", "timestamp=FIELD:ms"}},
		{feed.Spec{Timestamp: "t"}, `{"t":1e300}`, []string{"f:1: "}},
		{feed.Spec{Key: "id"}, `{"id":1}` + "\nno JSON\n" + `{"value":{"ID":1}}`, []string{"f:3: ", "no field id", "key=FIELD"}},
		{feed.Spec{}, "{}\n" + `{"value":1,"timestamp":true}`, []string{"f:2: "}},
		{feed.Spec{}, `{"value":1,"timestamp":"noon"}`, []string{"f:1: ", "neither"}},
		{feed.Spec{}, `{"value":1,"partition":-1}`, []string{"f:1: ", "partition"}},
		{feed.Spec{}, `{"value":1,"partition":"x"}`, []string{"f:1: ", "partition"}},
		{feed.Spec{}, `{"value":1,"headers":[1]}`, []string{"f:1: ", "headers"}},
		{feed.Spec{}, `{"value":1,"headers":{"a":1}}`, []string{"f:1: ", `header "a"`}},
	}
	for _, test := range tests {
		test.spec.File = "f"
		_, _, err := read(t, test.spec, test.text)
		if _, ok := errors.AsType[*feed.Error](err); !ok {
			t.Errorf("%s: error %v", test.text, err)
			continue
		}
		for _, text := range test.want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %v lacks %q", test.text, err, text)
			}
		}
	}
}

func TestAnErrorOfTheTakerEndsTheReading(t *testing.T) {
	stop := errors.New("stop")
	n := 0
	_, err := feed.Spec{File: "f"}.Parse(strings.NewReader("a\nb\nc\n"), func(feed.Record) error {
		n++
		return stop
	})
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("%d records, %v", n, err)
	}
}

// Whatever a line holds, reading it ends, and gives a record or an error.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		`{"value":1}`, `{"value":"x","headers":{"a":"b"}}`, `{"value":1,"headers":{`, "\xff", `{"value":1,"timestamp":1e999999}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := feed.Spec{File: "f", Timestamp: "t", Key: "k"}.Parse(strings.NewReader(text), func(r feed.Record) error {
			if r.Timed && !r.Timestamp.Valid() {
				t.Errorf("timestamp %d", r.Timestamp)
			}
			return nil
		})
		if _, ok := errors.AsType[*feed.Error](err); err != nil && !ok {
			t.Error(err)
		}
	})
}
