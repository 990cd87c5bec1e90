package mapping

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
	"github.com/forge-platform/strom/windows"
)

const ordersMapping = `
pipeline: orders
kafka: {brokers: ["localhost:9092"]}
ontology: {postgres: "postgres:///forge"}
streams:
  customers: {topic: customers, key: id, event_time: at}
  orders:
    topic: orders
    key: order.id
    partitioned_by: key
    identity: {event_id: event_id, horizon: 7d}
    event_time: {field: at, format: rfc3339, max_ahead: 1d12h}
    watermark: {out_of_orderness: 30s, idle_after: 0s}
    allowed_lateness: 10m
objects:
  Order:
    from: orders
    id: order.id
    where: type == "OrderPlaced"
    mode: snapshot
    properties:
      status: type
      total: {value: total, kind: decimal}
      buyer: {value: customer_id, kind: link, to: Customer}
    aggregates:
      life: {window: {tumbling: 1h, offset: 15m}, values: {orders: count(), revenue: {sum: total}, least: min(total)}}
  Customer:
    from: customers
    id: id
    properties: {name: name}
    aggregates:
      daily:
        from: orders
        id: customer_id
        where: total > 0
        window: {calendar: day, zone: Europe/Berlin}
        values: {average: avg(total), most: {max: total}, rated: count(rating), noted: {count: note}}
`

func mustParse(t testing.TB, data string) *Plan {
	t.Helper()
	p, err := Parse("test.yaml", []byte(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAMappingBecomesAPlan(t *testing.T) {
	p := mustParse(t, ordersMapping)
	var b strings.Builder
	fmt.Fprintln(&b, p.Pipeline, p.Epoch.Clock, p.Epoch.Interval, p.Kafka.Brokers, p.Kafka.TLS, p.Ontology.Postgres)
	for _, s := range p.Streams {
		fmt.Fprintln(&b, "stream", s.Rank, s.Name, s.Topic, s.Each, s.Key.Text(), s.PartitionedByKey, s.EventTime.Text(), s.EventTimeFormat, s.MaxAhead,
			s.OutOfOrderness, s.IdleAfter, s.AllowedLateness, s.Identity != nil)
	}
	for _, ty := range p.Types {
		fmt.Fprintln(&b, "type", ty.Name, ty.Properties)
	}
	for _, put := range p.Puts {
		fmt.Fprint(&b, "put ", put.Stream.Name, " ", put.Type, " ", canonical(put.Where), " ", put.ID.Text(), " ", put.Snapshot)
		for _, v := range put.Values {
			fmt.Fprint(&b, " ", v.Property, "=", v.Value.Text(), ":", v.Kind)
		}
		fmt.Fprintln(&b)
	}
	for _, a := range p.Aggregates {
		fmt.Fprint(&b, "aggregate ", a.StageName(), " ", a.Stream.Name, " ", canonical(a.Where), " ", a.ID.Text(), " ", a.Assigner, " ", a.Fused)
		for i, v := range a.Values {
			fmt.Fprint(&b, " ", v.Name, "=", a.Layout.Funcs[i], "(", canonical(v.Input), "):", v.Kind)
		}
		fmt.Fprintln(&b)
	}
	want := strings.TrimPrefix(`
orders wall 200ms [localhost:9092] <nil> ********
stream 0 customers customers false id false at auto 300000000 0 60000000 0 false
stream 1 orders orders false order.id true at rfc3339 129600000000 30000000 0 600000000 true
type Customer [{daily.average decimal  true} {daily.most decimal  true} {daily.noted integer  true} {daily.rated integer  true} {name text  false}]
type Order [{buyer link Customer false} {life.least decimal  true} {life.orders integer  true} {life.revenue decimal  true} {status text  false} {total decimal  false}]
put customers Customer  id false name=name:text
put orders Order (type == "OrderPlaced") order.id true buyer=customer_id:link status=type:text total=total:decimal
aggregate Customer.daily orders (total > 0) customer_id {calendar: day, zone: Europe/Berlin} false average=avg(total):decimal most=max(total):decimal noted=count_values(note):integer rated=count_values(rating):integer
aggregate Order.life orders  order.id {tumbling: 1h, offset: 15m} true least=min(total):decimal orders=count():integer revenue=sum(total):decimal
`, "\n")
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
	if lacks := p.CheckConnections(); len(lacks) > 0 {
		t.Errorf("connections: %v", lacks)
	}
}

func TestAnAggregateIsFusedWhereItsIDIsTheKey(t *testing.T) {
	const m = `
pipeline: p
streams: {s: {topic: t, key: %s, event_time: at%s}}
objects: {O: {aggregates: {a: {from: s, id: %s, window: {tumbling: 1h}, values: {n: count()}}}}}
`
	for _, c := range []struct {
		key, more, id string
		want          bool
	}{
		{"a.b", ", partitioned_by: key", "a.b", true},
		{"a.b", ", partitioned_by: key", `'a["b"]'`, true},
		{"lower(a)", ", partitioned_by: key", "lower( a )", true},
		{"a.b", "", "a.b", false},
		{"a.b", ", partitioned_by: key", "a.c", false},
		{"a", ", partitioned_by: key", "lower(a)", false},
	} {
		p := mustParse(t, fmt.Sprintf(m, c.key, c.more, c.id))
		if got := p.Aggregates[0].Fused; got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestTheVersionIsOfTheMeaning(t *testing.T) {
	base := mustParse(t, ordersMapping).Version
	if len(base) != 16 {
		t.Fatalf("%q", base)
	}
	replace := func(pairs ...string) string {
		s := ordersMapping
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(s, pairs[i]) {
				t.Fatalf("%s is not in the mapping", pairs[i])
			}
			s = strings.ReplaceAll(s, pairs[i], pairs[i+1])
		}
		return s
	}
	for _, same := range []string{
		"# a comment\n" + ordersMapping,
		replace("localhost:9092", "broker:9093", "postgres:///forge", "postgres:///other"),
		replace("pipeline: orders", "pipeline: orders\nepoch: {interval: 1s, clock: wall}"),
		replace("      status: type\n", "", "      buyer:", "      status: {kind: text, value: (type)}\n      buyer:"),
		replace(`type == "OrderPlaced"`, `"type"=="x"`, `"type"=="x"`, `type=='OrderPlaced'`),
		replace("topic: customers, key: id", "key: id, format: json, on_error: dead_letter, allowed_lateness: 0s, topic: customers"),
		replace("{average: avg(total), most: {max: total}, rated: count(rating)", "{most: max( total ), rated: {count: rating}, average: {avg: total}"),
		replace("1d12h", "36h", "7d", "168h"),
		replace("0s}\n    allowed", "0ms}\n    allowed"),
	} {
		if v := mustParse(t, same).Version; v != base {
			t.Errorf("another version: %s", same)
		}
	}
	seen := map[string]string{base: ""}
	for _, other := range []string{
		replace("pipeline: orders", "pipeline: orders2"),
		replace("pipeline: orders", "pipeline: orders\nepoch: {clock: log}"),
		replace("pipeline: orders", "pipeline: orders\nepoch: {clock: log, step: 2s}"),
		replace("topic: orders", "topic: orders2"),
		replace("    partitioned_by: key\n", ""),
		replace("7d", "8d"), replace("format: rfc3339", "format: s"), replace("1d12h", "1d"), replace("30s", "31s"), replace("10m", "11m"),
		replace("mode: snapshot", "mode: changes"), replace("OrderPlaced", "OrderPayed"), replace("status: type", "state: type"),
		replace("kind: decimal", "kind: integer"), replace("to: Customer", "to: Buyer"), replace("offset: 15m", "offset: 16m"),
		replace("Europe/Berlin", "Europe/Paris"), replace("avg(total)", "sum(total)"), replace("where: total > 0", "where: total >= 0"),
		replace("  customers: {topic: customers, key: id, event_time: at}\n", "", "    allowed_lateness: 10m\n",
			"    allowed_lateness: 10m\n  customers: {topic: customers, key: id, event_time: at}\n"),
	} {
		v := mustParse(t, other).Version
		if before, taken := seen[v]; taken {
			t.Errorf("one version of %s and %s", before, other)
		}
		seen[v] = other
	}
}

func TestEachReadsElementsAndTheirParent(t *testing.T) {
	p := mustParse(t, `
pipeline: p
streams: {items: {topic: t, each: order.items, key: sku, event_time: $parent.at}}
objects: {Item: {from: items, id: $parent.order.id + "/" + sku, properties: {note: $parent.note}}}
`)
	var got []string
	doc := `{"at":1,"order":{"id":"o1","items":[{"sku":"a"},{"sku":"b"}]},"note":"n"}`
	err := p.Streams[0].Decode.Decode([]byte(doc), func(_ int32, f formats.Fields) error {
		id, err := p.Puts[0].ID.Eval(f)
		if err != nil {
			return err
		}
		note, err := p.Puts[0].Values[0].Value.Eval(f)
		got = append(got, id.Text+" "+note.Text)
		return err
	})
	if err != nil || strings.Join(got, ",") != "o1/a n,o1/b n" || !p.Streams[0].Each {
		t.Fatalf("%v, %v", got, err)
	}
}

func TestSecretsComeFromTheEnvironmentOrAFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte("s3cret\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const m = `
pipeline: p
kafka:
  brokers: ["b:9093"]
  tls: {ca: pw, server_name: kafka}
  sasl: {mechanism: PLAIN, username: u, password: {file: pw}}
ontology: {postgres: {env: DSN}, password: {env: PW}}
streams: {s: {topic: t, key: a, event_time: at}}
objects: {O: {from: s, id: a, properties: {a: a}}}
`
	file := filepath.Join(dir, "m.yaml")
	if err := os.WriteFile(file, []byte(m), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DSN": "postgres://u:pw@db/x", "PW": "other"}
	p, err := Load(file, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	if lacks := p.CheckConnections(); len(lacks) > 0 {
		t.Errorf("%v", lacks)
	}
	got := []string{p.Kafka.SASL.Password.Reveal(), p.Ontology.Postgres.Reveal(), p.Ontology.Password.Reveal(), p.Kafka.TLS.CAFile}
	want := []string{"s3cret", "postgres://u:pw@db/x", "other", filepath.Join(dir, "pw")}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %v", got)
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", p.Kafka.SASL, *p.Kafka.SASL, *p.Kafka.SASL, p.Ontology); strings.Contains(shown, "s3cret") || strings.Contains(shown, "other") {
		t.Errorf("a secret is shown: %s", shown)
	}

	// Without them the mapping can still be checked and tried.
	q, err := Parse(filepath.Join(dir, "none", "m.yaml"), []byte(m), nil)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, f := range q.CheckConnections() {
		keys = append(keys, fmt.Sprintf("%d %s", f.Line, f.Key))
	}
	if s := strings.Join(keys, ", "); s != "5 kafka.tls.ca, 6 kafka.sasl.password, 7 ontology.postgres, 7 ontology.password" {
		t.Errorf("%s", s)
	}
	if q.Version != p.Version {
		t.Error("the version depends on secrets")
	}
}

func TestAFileThatCannotBeReadIsNoMappingError(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "gone.yaml"), nil)
	var bad *Error
	if !errors.Is(err, fs.ErrNotExist) || errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	if _, err := Load(t.TempDir(), nil); err == nil || errors.As(err, &bad) {
		t.Errorf("a directory: %v", err)
	}
}

func TestHostileFilesEndInFaults(t *testing.T) {
	lines := func(n int, line func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(line(i))
		}
		return b.String()
	}
	for name, data := range map[string]string{
		"large":    strings.Repeat("# comment\n", maxFile/10+1),
		"deep":     strings.Repeat("[", 9000),
		"flow":     "a: " + strings.Repeat("{a: ", 40) + strings.Repeat("}", 40),
		"too deep": strings.Repeat("[", 500_000),
		"laughs": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n",
		"unknown keys": lines(50_000, func(i int) string { return fmt.Sprintf("streems%d: 1\n", i) }),
		"unknown streams": "pipeline: p\nstreams:\n" + lines(5000, func(i int) string { return fmt.Sprintf("  stream%d: {topic: t%d}\n", i, i) }) +
			"objects:\n" + lines(5000, func(i int) string { return fmt.Sprintf("  Type%d: {from: straem%d, id: a}\n", i, i) }),
		"unclosed": "pipeline: p\nstreams: [\n" + strings.Repeat("  a,\n", 100_000),
		"binary":   "\x00\x01\x02",
		"latin1":   "pipeline: \xe4",
	} {
		start := time.Now()
		_, err := Parse(name, []byte(data), nil)
		bad, ok := errors.AsType[*Error](err)
		if !ok || len(bad.Faults) == 0 || len(bad.Faults) > maxFaults+1 {
			t.Errorf("%s: %.200v", name, err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%s took %s", name, took)
		}
	}
}

func TestDurations(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0s": 0, "200ms": 200 * time.Millisecond, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "1us": time.Microsecond,
		"36600d": maxDuration, "0": 0,
	} {
		if got, err := parseDuration(s); err != nil || got != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "d", "1", "1w", "-1h", "+1h", "1d-1h", "1.5d", "36601d", "36600d1h", "100ns", "1h d", "9999999999999h", "1d1d", "99999999999d"} {
		if got, err := parseDuration(s); err == nil {
			t.Errorf("%q is %s", s, got)
		}
	}
}

func TestTheEarthquakeExampleReadsItsData(t *testing.T) {
	p, err := Load("../examples/earthquakes/mapping.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("../examples/earthquakes/quakes.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	s, quake, region := p.Streams[0], p.Puts[0], p.Aggregates[0]
	regions, events := map[string]bool{}, 0
	for line := range strings.Lines(string(data)) {
		err := s.Decode.Decode([]byte(line), func(_ int32, f formats.Fields) error {
			events++
			at, err := s.EventTime.Eval(f)
			if err != nil {
				return err
			}
			day, reject := ParseEventTime(s.EventTimeFormat, at)
			if reject != nil {
				return reject
			}
			if w := region.Assigner.Assign(day, nil); len(w) != 1 || !w[0].Contains(day) {
				return fmt.Errorf("windows %v", w)
			}
			for _, v := range quake.Values {
				x, err := v.Value.Eval(f)
				if err != nil {
					return err
				}
				if _, reject := ConvertValue(v.Kind, x); reject != nil {
					return reject
				}
			}
			id, err := region.ID.Eval(f)
			if err != nil {
				return err
			}
			key, reject := KeyText(id)
			if reject != nil {
				return reject
			}
			regions[strings.Clone(key)] = true
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if events != 1707 || !regions["Alaska"] || !regions["New Zealand"] || p.Epoch.Clock != ClockLog || p.Epoch.Step != time.Hour || region.Fused {
		t.Errorf("%d events, %d regions, %+v", events, len(regions), p.Epoch)
	}
	if region.Layout.Funcs[0] != windows.Max || region.Values[1].Kind != event.KindInteger {
		t.Errorf("%+v", region.Values)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(ordersMapping))
	for _, pattern := range []string{"testdata/faults/*.yaml", "../examples/*/mapping.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if data, err := os.ReadFile(file); err == nil {
				f.Add(data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("fuzz.yaml", data, nil)
		if err != nil {
			bad, ok := errors.AsType[*Error](err)
			if !ok || len(bad.Faults) == 0 {
				t.Fatalf("%v", err)
			}
			for _, f := range bad.Faults {
				if f.Line > len(splitLines(string(data)))+1 || f.Line < 0 || f.Message == "" {
					t.Fatalf("%+v", f)
				}
			}
			return
		}
		checkPlan(t, p)
	})
}

// checkPlan holds what every plan promises to its readers.
func checkPlan(t *testing.T, p *Plan) {
	t.Helper()
	for i, s := range p.Streams {
		if s.Decode == nil || s.Key == nil || s.EventTime == nil || s.Topic == "" || s.Name == "" || int(s.Rank) != i {
			t.Fatalf("stream %+v", s)
		}
	}
	for _, put := range p.Puts {
		if put.Stream == nil || put.ID == nil || len(put.Values) == 0 {
			t.Fatalf("put %+v", put)
		}
		for _, v := range put.Values {
			if v.Value == nil || v.Kind == event.KindUnknown {
				t.Fatalf("value %+v", v)
			}
		}
	}
	for _, a := range p.Aggregates {
		if a.Stream == nil || a.ID == nil || a.Assigner == nil || len(a.Values) == 0 || len(a.Values) != len(a.Layout.Funcs) {
			t.Fatalf("aggregate %+v", a)
		}
		for i, v := range a.Values {
			if (v.Input == nil) != (a.Layout.Funcs[i] == windows.Count) {
				t.Fatalf("value %+v", v)
			}
		}
	}
	p.CheckConnections()
}
