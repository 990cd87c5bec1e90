package mapping

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// sections are the keys of the grammar, by the heading of the reference that
// lists them and the definition of the schema.
func sections() []struct {
	heading, definition string
	keys                []string
} {
	return []struct {
		heading, definition string
		keys                []string
	}{
		{"## Top level", "", topKeys()},
		{"## `kafka`", "kafka", kafkaKeys()},
		{"### `kafka.tls`", "tls", tlsKeys()},
		{"### `kafka.sasl`", "sasl", saslKeys()},
		{"**A secret**", "secret", secretKeys()},
		{"## `ontology`", "ontology", ontologyKeys()},
		{"## `epoch`", "epoch", epochKeys()},
		{"## `streams`", "stream", streamKeys()},
		{"### `identity`", "identity", identityKeys()},
		{"### `event_time`", "event_time", eventTimeKeys()},
		{"### `watermark`", "watermark", watermarkKeys()},
		{"## `objects`", "object", objectKeys()},
		{"### `properties`", "property", propertyKeys()},
		{"### `aggregates`", "aggregate", aggregateKeys()},
		{"The keys of `window`:", "window", windowKeys()},
	}
}

func TestTheReferenceListsEveryKey(t *testing.T) {
	doc := readFile(t, "../docs/mapping.md")
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|")
	for _, s := range sections() {
		_, text, found := strings.Cut(doc, s.heading)
		if !found {
			t.Errorf("no section %s", s.heading)
			continue
		}
		_, text, _ = strings.Cut(text, "\n| key |") // the first table of keys
		text, _, _ = strings.Cut(text, "\n\n")
		var listed []string
		for _, m := range row.FindAllStringSubmatch(text, -1) {
			listed = append(listed, m[1])
		}
		if !slices.Equal(listed, s.keys) {
			t.Errorf("%s lists %v, the grammar has %v", s.heading, listed, s.keys)
		}
	}
	for _, names := range [][]string{kindList(), functionNames(), timeFormats(), exprFunctions(), laterFormats()} {
		for _, name := range names {
			if !strings.Contains(doc, "`"+name+"`") && !strings.Contains(doc, "`"+name+"(") {
				t.Errorf("%s is not in the reference", name)
			}
		}
	}
}

type schema struct {
	Properties map[string]schema
	Enum       []string
	AnyOf      []schema
	Defs       map[string]schema `json:"$defs"`
	Required   []string
	Additional any `json:"additionalProperties"`
}

func TestTheSchemaHasEveryKey(t *testing.T) {
	var root schema
	if err := json.Unmarshal([]byte(readFile(t, "../docs/mapping.schema.json")), &root); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"duration": true, "expression": true, "function": true}
	for _, s := range sections() {
		at := root
		if s.definition != "" {
			at = root.Defs[s.definition]
		}
		known[s.definition] = true
		var got []string
		for key := range at.Properties {
			got = append(got, key)
		}
		want := slices.Clone(s.keys)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || at.Additional != false {
			t.Errorf("%s: the schema has %v, the grammar %v", s.heading, got, want)
		}
	}
	for name := range root.Defs {
		if !known[name] {
			t.Errorf("the schema has the definition %s, the grammar has not", name)
		}
	}
	for _, c := range []struct{ got, want []string }{
		{root.Defs["property"].Properties["kind"].Enum, kindList()},
		{root.Defs["event_time"].Properties["format"].Enum, timeFormats()},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("the schema allows %v, the grammar %v", c.got, c.want)
		}
	}
}

func TestCompleteExamplesAreMappings(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml complete\n(.*?)```").FindAllStringSubmatch(readFile(t, "../docs/mapping.md"), -1)
	if len(blocks) < 2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	for _, b := range blocks {
		p, err := Parse("docs/mapping.md", []byte(b[1]), nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, b[1])
			continue
		}
		checkPlan(t, p)
	}
}

func TestExamplesOfExpressionsGiveWhatTheReferenceSays(t *testing.T) {
	doc := readFile(t, "../docs/mapping.md")
	example := regexp.MustCompile("(?s)```json example\n(.*?)```(.*?)\n\n## ").FindStringSubmatch(doc)
	if example == nil {
		t.Fatal("no example")
	}
	rows := regexp.MustCompile("(?m)^\\| `(.*)` \\| (.*) \\|$").FindAllStringSubmatch(example[2], -1)
	if len(rows) < 10 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		got := evaluate(t, row[1], example[1])
		want := strings.Trim(row[2], "`")
		switch {
		case strings.HasPrefix(got, "raw "):
			got = "an object, which no property can take"
		case strings.HasPrefix(got, "error: "):
			got = "rejected: " + strings.TrimPrefix(got, "error: ")
		}
		if got != want {
			t.Errorf("%s gives %s, the reference says %s", row[1], got, want)
		}
	}
}

func TestTheReferenceGivesTheDefaults(t *testing.T) {
	doc := readFile(t, "../docs/mapping.md")
	p := mustParse(t, `
pipeline: p
epoch: {clock: log}
streams: {s: {topic: t, key: a, event_time: at, identity: {event_id: a}}}
objects: {O: {from: s, id: a, properties: {a: a}}}
`)
	s := p.Streams[0]
	micros := func(d string) int64 {
		v, err := parseDuration(d)
		if err != nil {
			t.Fatal(err)
		}
		return v.Microseconds()
	}
	for key, got := range map[string]int64{
		"interval": p.Epoch.Interval.Microseconds(), "step": p.Epoch.Step.Microseconds(), "horizon": s.Identity.Horizon, "max_ahead": s.MaxAhead,
		"out_of_orderness": s.OutOfOrderness, "idle_after": s.IdleAfter, "allowed_lateness": s.AllowedLateness,
	} {
		m := regexp.MustCompile("(?m)^\\| `" + key + "` \\|.*\\| (\\S+) \\|$").FindStringSubmatch(doc)
		if len(m) < 2 || micros(m[1]) != got {
			t.Errorf("%s: the reference says %v, the default is %d µs", key, m, got)
		}
	}
}

// The limits that the reference gives are those of the code.
func TestTheReferenceGivesTheLimits(t *testing.T) {
	doc := readFile(t, "../docs/mapping.md")
	o := formats.JSONOptions{}.WithDefaults()
	for text, holds := range map[string]bool{
		"at most 1 MiB and 32 levels":       maxFile == 1<<20 && maxLevels == 32,
		"at most 4 KiB":                     maxExprText == 4<<10,
		"at most 1,024 bytes":               maxKeyBytes == 1024,
		"at most 10,000 elements":           o.MaxElements == 10_000,
		"nest at most 128 deep":             o.MaxDepth == 128,
		"at most 2,320 bytes":               o.MaxNumber == 2320,
		"at most 128 significant digits":    event.MaxDigits == 128,
		"an exponent of at most 1000":       event.MaxExponent == 1000,
		"at most 64 KiB":                    maxSecret == 64<<10,
		"the longest a hundred years":       maxDuration.Hours() == 100*366*24,
		"`{tumbling: 1h}` | Pieces of one":  true,
		"half to even at 20 significant di": true,
	} {
		if !holds || !strings.Contains(strings.ToLower(doc), strings.ToLower(text)) {
			t.Errorf("%q: holds %v", text, holds)
		}
	}
}
