package mapping

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const changeBase = `
pipeline: shop
kafka: {brokers: ["a:1"], tls: {ca: change_test.go, cert: change_test.go, key: change_test.go, server_name: a}, sasl: {mechanism: PLAIN, username: u, password: {file: change_test.go}}}
ontology: {postgres: "postgres:///a", password: {file: change_test.go}}
epoch: {interval: 200ms, clock: log, step: 1s}
streams:
  orders:
    topic: orders
    each: items
    key: id
    partitioned_by: key
    identity: {event_id: event, horizon: 24h}
    event_time: {field: at, format: ms, max_ahead: 5m}
    watermark: {out_of_orderness: 0s, idle_after: 1m}
    allowed_lateness: 10m
  visits: {topic: visits, key: id, event_time: at}
objects:
  Order:
    from: orders
    id: id
    where: total > 0
    mode: changes
    properties:
      status: type
      buyer: {value: buyer, kind: link, to: Customer}
    aggregates:
      hourly: {where: total > 1, window: {tumbling: 1h}, values: {n: count(), most: max(total)}}
      daily: {id: buyer, window: {calendar: day, zone: UTC}, values: {n: count()}}
`

// changeCases edit the base. What is expected is one "KEY: ACT: CLASS" for each
// change.
func changeCases() []struct {
	from, to string
	want     []string
} {
	type c = struct {
		from, to string
		want     []string
	}
	const hourly = "objects.Order.aggregates.hourly"
	return []c{
		{"pipeline: shop", "pipeline: shop2", []string{"pipeline: changed: refused"}},
		{`["a:1"]`, `["b:1"]`, []string{"kafka.brokers: changed: in place"}},
		{"tls: {ca: change_test.go, ", "tls: {ca: change.go, ", []string{"kafka.tls.ca: changed: in place"}},
		{"cert: change_test.go", "cert: change.go", []string{"kafka.tls.cert: changed: in place"}},
		{"key: change_test.go", "key: change.go", []string{"kafka.tls.key: changed: in place"}},
		{"server_name: a", "server_name: b", []string{"kafka.tls.server_name: changed: in place"}},
		{"tls: {ca: change_test.go, cert: change_test.go, key: change_test.go, server_name: a}, ", "", []string{
			"kafka.tls: removed: in place", "kafka.tls.ca: changed: in place", "kafka.tls.cert: changed: in place",
			"kafka.tls.key: changed: in place", "kafka.tls.server_name: changed: in place",
		}},
		{"mechanism: PLAIN", "mechanism: SCRAM-SHA-256", []string{"kafka.sasl.mechanism: changed: in place"}},
		{"username: u", "username: v", []string{"kafka.sasl.username: changed: in place"}},
		{"password: {file: change_test.go}}}\nontology", "password: {file: change.go}}}\nontology", []string{"kafka.sasl.password: changed: in place"}},
		{", sasl: {mechanism: PLAIN, username: u, password: {file: change_test.go}}", "", []string{
			"kafka.sasl: removed: in place", "kafka.sasl.mechanism: changed: in place",
			"kafka.sasl.password: changed: in place", "kafka.sasl.username: changed: in place",
		}},
		{"postgres:///a", "postgres:///b", []string{"ontology.postgres: changed: in place"}},
		{"password: {file: change_test.go}}\nepoch", "password: {file: change.go}}\nepoch", []string{"ontology.password: changed: in place"}},
		{"interval: 200ms", "interval: 1s", []string{"epoch.interval: changed: in place"}},
		{"clock: log, step: 1s", "clock: wall", []string{"epoch.clock: changed from log to wall: in place", "epoch.step: changed with the clock: in place"}},
		{"step: 1s", "step: 2s", []string{"epoch.step: changed: in place"}},
		{"objects:", "  more: {topic: more, key: id, event_time: at}\nobjects:", []string{"streams.more: added: in place"}},
		{"  visits: {topic: visits, key: id, event_time: at}\n", "", []string{"streams.visits: removed: by replay"}},
		{"  visits: {topic: visits, key: id, event_time: at}\n", "  visits: {topic: visits2, key: id, event_time: at}\n", []string{"streams.visits.topic: changed: by replay"}},
		{"    each: items\n", "", []string{"streams.orders.each: removed: by replay"}},
		{"each: items", "each: lines", []string{"streams.orders.each: changed: by replay"}},
		{"    topic: orders\n    each: items\n    key: id\n", "    topic: orders\n    each: items\n    key: key\n", []string{"streams.orders.key: changed: by replay"}},
		{"    partitioned_by: key\n", "", []string{"streams.orders.partitioned_by: removed: by replay"}},
		{"    identity: {event_id: event, horizon: 24h}\n", "", []string{"streams.orders.identity: removed: by replay"}},
		{"event_id: event", "event_id: other", []string{"streams.orders.identity.event_id: changed: by replay"}},
		{"horizon: 24h", "horizon: 1h", []string{"streams.orders.identity.horizon: changed: by replay"}},
		{"field: at", "field: then", []string{"streams.orders.event_time.field: changed: by replay"}},
		{"format: ms", "format: us", []string{"streams.orders.event_time.format: changed: by replay"}},
		{"max_ahead: 5m", "max_ahead: 6m", []string{"streams.orders.event_time.max_ahead: changed: in place"}},
		{"out_of_orderness: 0s", "out_of_orderness: 1s", []string{"streams.orders.watermark.out_of_orderness: changed: in place"}},
		{"idle_after: 1m", "idle_after: 2m", []string{"streams.orders.watermark.idle_after: changed: in place"}},
		{"allowed_lateness: 10m", "allowed_lateness: 1h", []string{"streams.orders.allowed_lateness: grown: by replay"}},
		{"allowed_lateness: 10m", "allowed_lateness: 9m", []string{"streams.orders.allowed_lateness: shrunk: by replay"}},
		{"from: orders\n    id: id", "from: visits\n    id: id", []string{
			"objects.Order.from: changed: by replay", "objects.Order.aggregates.daily.from: changed: by replay", hourly + ".from: changed: by replay",
		}},
		{"from: orders\n    id: id", "from: orders\n    id: buyer", []string{"objects.Order.id: changed: by replay", hourly + ".id: changed: by replay"}},
		{"where: total > 0", "where: total > 2", []string{"objects.Order.where: changed: by replay"}},
		{"    where: total > 0\n", "", []string{"objects.Order.where: removed: by replay"}},
		{"mode: changes", "mode: snapshot", []string{"objects.Order.mode: changed: by replay"}},
		{"status: type", "status: type\n      place: place", []string{"objects.Order.properties.place: added: in place"}},
		{"      status: type\n", "", []string{"objects.Order.properties.status: removed: in place"}},
		{"status: type", "status: kind", []string{"objects.Order.properties.status.value: changed: by replay"}},
		{"status: type", "status: {value: type, kind: integer}", []string{"objects.Order.properties.status.kind: changed: refused"}},
		{"to: Customer", "to: Person", []string{"objects.Order.properties.buyer.to: changed: refused"}},
		{"kind: link, to: Customer", "kind: text", []string{"objects.Order.properties.buyer.kind: changed: refused", "objects.Order.properties.buyer.to: removed: refused"}},
		{"    aggregates:\n", "    aggregates:\n      more: {window: none, values: {n: count()}}\n", []string{"objects.Order.aggregates.more: added over a stream that is read already: by replay"}},
		{"      daily: {id: buyer, window: {calendar: day, zone: UTC}, values: {n: count()}}\n", "", []string{"objects.Order.aggregates.daily: removed: by replay"}},
		{"where: total > 1", "where: total > 3", []string{hourly + ".where: changed: by replay"}},
		{"where: total > 1, ", "", []string{hourly + ".where: removed: by replay"}},
		{"tumbling: 1h", "tumbling: 2h", []string{hourly + ".window: changed: by replay"}},
		{"tumbling: 1h", "tumbling: 1h, offset: 1m", []string{hourly + ".window: changed: by replay"}},
		{"zone: UTC", "zone: Europe/Berlin", []string{"objects.Order.aggregates.daily.window: changed: by replay"}},
		{"{calendar: day, zone: UTC}", "{tumbling: 24h}", []string{"objects.Order.aggregates.daily.window: changed: by replay"}},
		{"id: buyer", "id: id", []string{"objects.Order.aggregates.daily.id: changed: by replay"}},
		{"most: max(total)", "most: max(price)", []string{hourly + ".values.most: changed: by replay"}},
		{"most: max(total)", "most: min(total)", []string{hourly + ".values.most: changed: by replay"}},
		{"most: max(total)", "most: count()", []string{hourly + ".values.most: kind changed: refused", hourly + ".values.most: changed: by replay"}},
		{", most: max(total)", ", most: max(total), least: min(total)", []string{hourly + ".values.least: added: by replay"}},
		{", most: max(total)", "", []string{hourly + ".values.most: removed: by replay"}},
	}
}

func edited(t *testing.T, from, to string) string {
	t.Helper()
	if strings.Count(changeBase, from) != 1 {
		t.Fatalf("%q stands %d times in the base", from, strings.Count(changeBase, from))
	}
	return strings.Replace(changeBase, from, to, 1)
}

func described(changes []Change) []string {
	out := []string{}
	for _, c := range changes {
		out = append(out, fmt.Sprintf("%s: %s: %s", c.Key, c.Rule.Act, c.Rule.Class))
	}
	slices.Sort(out)
	return out
}

// opposite gives the rule that the way back has.
func opposite(act string) string {
	pairs := []string{actAdded, actRemoved, "grown", "shrunk", "changed from log to wall", "changed from wall to log"}
	i := slices.Index(pairs, act)
	if i < 0 {
		return act
	}
	return pairs[i^1]
}

func TestEveryChangeIsClassed(t *testing.T) {
	hit := map[[2]string]bool{}
	note := func(changes []Change) {
		for _, c := range changes {
			hit[[2]string{c.Rule.Key, c.Rule.Act}] = true
			if c.Rule.Class == Unclassed || c.Rule.Why == "" {
				t.Errorf("%s has no class or no reason", c)
			}
		}
	}
	base := mustParse(t, changeBase)
	for _, c := range changeCases() {
		after := mustParse(t, edited(t, c.from, c.to))
		got := Compare(base, after)
		slices.Sort(c.want)
		if !slices.Equal(described(got), c.want) {
			t.Errorf("%q for %q:\n%s\nwant\n%s", c.to, c.from, strings.Join(described(got), "\n"), strings.Join(c.want, "\n"))
		}
		note(got)
		back := Compare(after, base)
		note(back)
		for _, b := range back {
			if !slices.ContainsFunc(got, func(g Change) bool {
				return g.Key == b.Key && (opposite(g.Rule.Act) == b.Rule.Act || strings.HasPrefix(b.Rule.Act, actAdded) && g.Rule.Act == actRemoved || g.Rule.Act != actChanged)
			}) && b.Rule.Act != "order changed" {
				t.Errorf("the way back of %q is %s", c.from, b)
			}
		}
	}
	more := "  more: {topic: more, key: id, event_time: at}\nobjects:\n  More: {aggregates: {all: {from: more, id: id, window: none, values: {n: count()}}}}"
	note(Compare(base, mustParse(t, edited(t, "objects:", more))))
	moved := "  first: {topic: first, key: id, event_time: at}\n  orders:\n    topic: orders"
	note(Compare(base, mustParse(t, edited(t, "  orders:\n    topic: orders", moved))))
	// A file cannot say these two yet: each key has one value.
	halting := mustParse(t, changeBase)
	halting.Streams[0].Halt, halting.Streams[0].format = true, "avro"
	note(Compare(base, halting))
	for _, r := range ChangeRules() {
		if !hit[[2]string{r.Key, r.Act}] {
			t.Errorf("no case meets the rule %s: %s", r.Key, r.Act)
		}
	}
}

// A key that is new in the grammar needs a rule, or stands here with the reason
// why it needs none.
func TestEveryKeyOfTheGrammarHasARule(t *testing.T) {
	none := map[string]string{
		"kafka": "its keys have", "ontology": "its keys have", "epoch": "its keys have", "objects": "its keys have",
		"secret.env": "the secret has, wherever it comes from", "secret.file": "the secret has, wherever it comes from",
		"stream.event_time": "its keys have", "stream.watermark": "its keys have",
		"object.properties": "each has", "object.aggregates": "each has", "aggregate.values": "each has",
		"window.tumbling": "the window has", "window.offset": "the window has", "window.calendar": "the window has", "window.zone": "the window has",
	}
	path := map[string]string{
		"": "", "tls": "kafka.tls.", "sasl": "kafka.sasl.", "stream": "streams.*.", "identity": "streams.*.identity.", "event_time": "streams.*.event_time.",
		"watermark": "streams.*.watermark.", "object": "objects.*.", "property": "objects.*.properties.*.", "aggregate": "objects.*.aggregates.*.",
	}
	for _, s := range sections() {
		at, ok := path[s.definition]
		if !ok {
			at = s.definition + "."
		}
		for _, key := range s.keys {
			name := strings.TrimPrefix(s.definition+"."+key, ".")
			has := slices.ContainsFunc(ChangeRules(), func(r ChangeRule) bool { return r.Key == at+key })
			if has == (none[name] != "") {
				t.Errorf("%s: has a rule: %v; listed as needing none: %q", name, has, none[name])
			}
		}
	}
}

// A field that is new in a plan must be compared, or be said to follow from others.
func TestEveryFieldOfAPlanIsCompared(t *testing.T) {
	listed := map[string]bool{}
	listAttrs(listed, "Plan", planAttrs())
	listAttrs(listed, "", kafkaAttrs())
	listAttrs(listed, "Ontology", ontologyAttrs())
	listAttrs(listed, "EpochSettings", epochAttrs())
	listAttrs(listed, "Stream", streamAttrs())
	listAttrs(listed, "Identity", identityAttrs())
	listAttrs(listed, "PropertyDef", propertyAttrs())
	listAttrs(listed, "Put", putAttrs())
	listAttrs(listed, "PutValue", putValueAttrs())
	listAttrs(listed, "Aggregate", aggregateAttrs())
	listAttrs(listed, "AggregateValue", publishedAttrs())
	for _, known := range []string{
		"Plan.file", "Plan.missing", "Plan.text", "Plan.places", // of the file, not of its meaning
		"ObjectType.Name", "ObjectType.Properties", // of puts and aggregates
	} {
		listed[known] = true
	}
	for _, part := range []any{
		Plan{}, Kafka{}, TLS{}, SASL{}, Ontology{}, EpochSettings{}, Stream{}, Identity{}, ObjectType{}, PropertyDef{}, Put{}, PutValue{}, Aggregate{}, AggregateValue{},
	} {
		typ := reflect.TypeOf(part)
		for f := range typ.Fields() {
			if name := typ.Name() + "." + f.Name; !listed[name] {
				t.Errorf("%s is not compared: add it to the lists of changeattrs.go, and a rule", name)
			}
		}
	}
}

func listAttrs[T any](listed map[string]bool, typ string, attrs []attr[T]) {
	for _, a := range attrs {
		name := a.field
		if typ != "" {
			name = typ + "." + a.field
		}
		listed[name] = true
	}
}

func TestAChangeNamesItsPlaceAndHidesSecrets(t *testing.T) {
	base := mustParse(t, changeBase)
	got := Compare(base, mustParse(t, edited(t, "tumbling: 1h", "tumbling: 2h")))
	want := "test.yaml:27:34: objects.Order.aggregates.hourly.window: changed from {tumbling: 1h} to {tumbling: 2h}: by replay: open windows hold what was counted in the old way"
	if len(got) != 1 || !strings.HasPrefix(got[0].String(), want) {
		t.Errorf("%v, want %s", got, want)
	}
	for _, c := range Compare(base, mustParse(t, edited(t, "postgres:///a", "postgres:///secret"))) {
		if strings.Contains(c.String(), "secret") {
			t.Errorf("%s shows an address that may hold a password", c)
		}
	}
	if changes := Compare(base, base); len(changes) != 0 || Worst(changes) != InPlace {
		t.Errorf("a mapping differs from itself: %v", changes)
	}
}

// What a running pipeline keeps of its mapping is enough to compare with.
func TestTheTextOfAMappingMeansTheSameWithoutItsConnections(t *testing.T) {
	for _, text := range []string{changeBase, ordersMapping, readFile(t, "../examples/earthquakes/mapping.yaml")} {
		p := mustParse(t, text)
		again, err := Parse("kept", p.Text(), nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, p.Text())
		}
		if again.Version != p.Version || len(Compare(again, p)) != 0 {
			t.Errorf("version %s, was %s; changes %v", again.Version, p.Version, Compare(again, p))
		}
		if regexp.MustCompile(`brokers|postgres|#`).Match(p.Text()) {
			t.Errorf("the text holds connections or comments:\n%s", p.Text())
		}
	}
}

// A change without a rule must not pass.
func TestWhatIsNotClassedIsRefused(t *testing.T) {
	c := &comparison{plan: &Plan{}, rules: map[[2]string]ChangeRule{}}
	c.add("streams.*.nosuch", actChanged, "streams.a.nosuch", "1", "2")
	if got := c.changes[0]; got.Rule.Class != Unclassed || Worst(c.changes) != Refused || !strings.Contains(got.String(), "not classed") {
		t.Errorf("%s is %s", got, Worst(c.changes))
	}
}

// docs/changes.md shows the table; -rewrite-changes writes it anew.
func TestTheTableOfChangesIsThatOfTheCode(t *testing.T) {
	const path, begin, end = "../docs/changes.md", "| key | change | class | why, and what it means | what to do |\n|---|---|---|---|---|\n", "\n\n"
	var b strings.Builder
	for _, r := range ChangeRules() {
		fmt.Fprintf(&b, "| `%s` | %s | **%s** | %s | %s |\n", r.Key, r.Act, r.Class, r.Why, r.Do)
	}
	text := readFile(t, path)
	head, rest, found := strings.Cut(text, begin)
	table, tail, _ := strings.Cut(rest, end)
	if found && table+"\n" == b.String() {
		return
	}
	if !*rewriteChanges {
		t.Fatalf("%s does not show the rules of the code; go test ./mapping -run TheTableOfChanges -rewrite-changes writes them", path)
	}
	if err := os.WriteFile(path, []byte(head+begin+strings.TrimSuffix(b.String(), "\n")+end+tail), 0o600); err != nil {
		t.Fatal(err)
	}
}

var rewriteChanges = flag.Bool("rewrite-changes", false, "write the table of docs/changes.md anew")
