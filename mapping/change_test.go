package mapping

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/forge-platform/strom/windows"
)

// changesBase uses the whole grammar.
const changesBase = `
pipeline: shop
kafka:
  brokers: ["localhost:9092"]
  tls: {ca: ca.pem, cert: cert.pem, key: key.pem, server_name: kafka}
  sasl: {mechanism: PLAIN, username: strom, password: {env: KAFKA}}
ontology: {postgres: "postgres:///forge", password: {env: PG}}
epoch: {interval: 1s, clock: log, step: 2s}
streams:
  orders:
    topic: orders
    key: order.id
    partitioned_by: key
    identity: {event_id: event_id, horizon: 7d}
    event_time: {field: at, format: rfc3339, max_ahead: 1d12h}
    watermark: {out_of_orderness: 30s, idle_after: 2m}
    allowed_lateness: 10m
  lines: {topic: baskets, each: basket.lines, key: sku, event_time: $parent.at, partitioned_by: key, identity: {sequence: n}}
  rest: {topic: rest, key: a, event_time: at}
objects:
  Order:
    from: orders
    id: order.id
    where: type == "OrderPlaced"
    mode: snapshot
    properties:
      status: type
      buyer: {value: customer, kind: link, to: Customer}
    aggregates:
      life: {window: {tumbling: 1h, offset: 15m}, values: {orders: count(), revenue: sum(total)}}
  Product:
    aggregates:
      sold: {from: lines, id: shop, where: pieces > 0, window: none, values: {pieces: sum(pieces), rated: count(rating)}}
`

func parseChanges(t testing.TB, dir string, replace ...string) *Plan {
	t.Helper()
	text := changesBase
	for i := 0; i+1 < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("%q is not in the mapping", replace[i])
		}
		text = strings.Replace(text, replace[i], replace[i+1], 1)
	}
	env := func(name string) (string, bool) { return "secret of " + name, true }
	p, err := Parse(dir+"/shop.yaml", []byte(text), env)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// changeCases show what a change of the text comes to. ids are the rules, to
// which the class belongs.
func changeCases() []struct {
	replace []string
	want    string // path: what, one a line
	ids     []ruleID
} {
	const sold, status = "where: pieces > 0, window: none", "      status: type\n"
	const linesStream = "  lines: {topic: baskets, each: basket.lines, key: sku, event_time: $parent.at, partitioned_by: key, identity: {sequence: n}}\n"
	const more = "  more: {topic: more, key: a, event_time: at}\n"
	return []struct {
		replace []string
		want    string
		ids     []ruleID
	}{
		{[]string{"pipeline: shop", "pipeline: shop2", "1h", "2h"}, "pipeline: shop → shop2", []ruleID{rulePipeline}},
		{[]string{"localhost:9092", "a:1", "username: strom", "username: me", "postgres:///forge", "postgres:///f2"}, `
kafka.brokers: localhost:9092 → a:1
kafka.sasl.username: strom → me
ontology.postgres: another one (secrets are not shown)`, []ruleID{ruleConnection, ruleConnection, ruleConnection}},
		{[]string{"interval: 1s", "interval: 500ms"}, "epoch.interval: 1s → 500ms", []ruleID{ruleInterval}},
		{[]string{"clock: log, step: 2s", "clock: wall"}, "epoch.clock: log → wall", []ruleID{ruleClockToWall}},
		{[]string{"step: 2s", "step: 3s"}, "epoch.step: 2s → 3s", []ruleID{ruleStep}},
		{[]string{"topic: orders", "topic: orders2"}, "streams.orders.topic: orders → orders2", []ruleID{ruleTopic}},
		{[]string{"each: basket.lines", "each: lines"}, "streams.lines.each: each basket.lines → each lines", []ruleID{ruleEvents}},
		{[]string{"key: sku", "key: lower(sku)"}, "streams.lines.key: sku → lower(sku)", []ruleID{ruleEvents}},
		{[]string{", partitioned_by: key, identity: {sequence: n}}", "}"}, `
streams.lines.identity: removed: sequence n
streams.lines.partitioned_by: key → none`, []ruleID{ruleIdentityRemoved, rulePartitionedBy}},
		{[]string{"    partitioned_by: key\n", ""}, "streams.orders.partitioned_by: key → none", []ruleID{rulePartitionedByFused}},
		{[]string{"{sequence: n}", "{sequence: m}"}, "streams.lines.identity.sequence: n → m", []ruleID{ruleEventID}},
		{[]string{"{sequence: n}", "{event_id: n}"}, "streams.lines.identity: sequence n → n", []ruleID{ruleEventID}},
		{[]string{", identity: {sequence: n}", ""}, "streams.lines.identity: removed: sequence n", []ruleID{ruleIdentityRemoved}},
		{[]string{"    identity: {event_id: event_id, horizon: 7d}\n", ""}, "streams.orders.identity: removed: event_id", []ruleID{ruleIdentityRemoved}},
		{[]string{"{topic: rest, key: a", "{topic: rest, identity: {event_id: n}, key: a"}, "streams.rest.identity: new: n", []ruleID{ruleIdentityNew}},
		{[]string{"event_id: event_id, horizon: 7d", "event_id: id, horizon: 1d"}, `
streams.orders.identity.event_id: event_id → id
streams.orders.identity.horizon: 168h → 24h`, []ruleID{ruleEventID, ruleHorizon}},
		{[]string{"field: at, format: rfc3339, max_ahead: 1d12h", "field: when, format: ms, max_ahead: 1d"}, `
streams.orders.event_time.field: at → when
streams.orders.event_time.format: rfc3339 → ms
streams.orders.event_time.max_ahead: 36h → 24h`, []ruleID{ruleEventTime, ruleEventTime, ruleMaxAhead}},
		{[]string{"30s, idle_after: 2m", "1m30s, idle_after: 0s", "lateness: 10m", "lateness: 1h"}, `
streams.orders.watermark.out_of_orderness: 30s → 1m30s
streams.orders.watermark.idle_after: 2m → 0s
streams.orders.allowed_lateness: 10m → 1h`, []ruleID{ruleProgress, ruleProgress, ruleAllowedLateness}},
		// A stream at the end changes no place; one in front changes all.
		{[]string{"objects:\n", more + "objects:\n"}, "streams.more: new: topic more", []ruleID{ruleNewStreamLog}},
		{[]string{"streams:\n", "streams:\n" + more}, `
streams.more: new: topic more
streams.orders: place 1 → place 2
streams.lines: place 2 → place 3
streams.rest: place 3 → place 4`, []ruleID{ruleNewStreamLog, ruleStreamPlace, ruleStreamPlace, ruleStreamPlace}},
		{[]string{"clock: log, step: 2s", "clock: wall", "objects:\n", more + "objects:\n  More: {from: more, id: a, properties: {b: b}}\n"}, `
epoch.clock: log → wall
streams.more: new: topic more
objects.More.properties.b: new: b`, []ruleID{ruleClockToWall, ruleNewStream, ruleNewStream}},
		{[]string{linesStream, "", "from: lines", "from: orders"}, `
objects.Product.aggregates.sold.from: lines → orders
streams.lines: removed: topic baskets
streams.rest: place 3 → place 2`, []ruleID{ruleAggregate, ruleStreamRemoved, ruleStreamPlace}},
		{[]string{"from: orders\n    id: order.id\n    where: type == \"OrderPlaced\"\n    mode: snapshot",
			"from: lines\n    id: order\n    mode: changes", "life: {", "life: {from: orders, id: order.id, "}, `
objects.Order.from: orders → lines
objects.Order.id: order.id → order
objects.Order.where: (type == "OrderPlaced") → none
objects.Order.mode: snapshot → changes`, []ruleID{ruleObject, ruleObject, ruleObject, ruleObject}},
		{[]string{status, "      state: type\n"}, `
objects.Order.properties.state: new: type
objects.Order.properties.status: removed: type`, []ruleID{ruleNewProperty, rulePropertyRemoved}},
		{[]string{status, "      status: kind\n"}, "objects.Order.properties.status.value: type → kind", []ruleID{rulePropertyValue}},
		{[]string{status, "      status: {value: type, kind: decimal}\n", "to: Customer", "to: Buyer"}, `
objects.Order.properties.buyer.to: Customer → Buyer
objects.Order.properties.status.kind: text → decimal`, []ruleID{ruleKind, ruleKind}},
		{[]string{sold, "where: pieces > 1, window: {calendar: day, zone: UTC}", "id: shop", "id: place"}, `
objects.Product.aggregates.sold.id: shop → place
objects.Product.aggregates.sold.where: (pieces > 0) → (pieces > 1)
objects.Product.aggregates.sold.window: none → {calendar: day, zone: UTC}`, []ruleID{ruleAggregate, ruleAggregate, ruleAggregate}},
		{[]string{"sold:", "bought:"}, `
objects.Product.aggregates.bought: new: sum(pieces), count(rating) over lines, window none
objects.Product.aggregates.sold: removed: sum(pieces), count(rating) over lines, window none`, []ruleID{ruleNewAggregate, ruleAggregateRemoved}},
		{[]string{"pieces: sum(pieces), rated: count(rating)", "pieces: max(pieces), most: max(pieces)"}, `
objects.Product.aggregates.sold.values.most: new: max(pieces)
objects.Product.aggregates.sold.values.pieces: sum(pieces) → max(pieces)
objects.Product.aggregates.sold.values.rated: removed: count(rating)`, []ruleID{ruleNewValue, ruleValue, ruleValueRemoved}},
		{[]string{"rated: count(rating)", "rated: sum(rating)"},
			"objects.Product.aggregates.sold.values.rated: count(rating), kind integer → sum(rating), kind decimal", []ruleID{ruleKind}},
		{[]string{"rated: count(rating)", "rated: count()"}, "objects.Product.aggregates.sold.values.rated: count(rating) → count()", []ruleID{ruleValue}},
	}
}

func TestEveryKindOfChangeHasItsClass(t *testing.T) {
	table, shown := ruleTable(), map[ruleID]bool{ruleOnError: true} // on_error has one value so far
	base := parseChanges(t, "a")
	check := func(before, after *Plan, want string, ids []ruleID) {
		t.Helper()
		changes := Compare(before, after)
		if !slices.IsSortedFunc(changes, func(a, b Change) int { return int(b.Class) - int(a.Class) }) {
			t.Errorf("not by gravity: %v", changes)
		}
		lines := strings.Split(strings.TrimPrefix(want, "\n"), "\n")
		if len(lines) != len(ids) {
			t.Fatalf("%d lines and %d rules", len(lines), len(ids))
		}
		var got, wanted []string
		for _, c := range changes {
			got = append(got, fmt.Sprintf("%s: %s | %s | %s | %s", c.Path, c.What, c.Class, c.Why, c.Do))
		}
		for i, id := range ids {
			shown[id] = true
			wanted = append(wanted, fmt.Sprintf("%s | %s | %s | %s", lines[i], table[id].class, table[id].why, table[id].do))
		}
		slices.Sort(got)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
		}
		// What the version does not see is a matter of a restart only.
		outside := !slices.ContainsFunc(ids, func(id ruleID) bool { return id != ruleConnection && id != ruleInterval })
		if same := before.Version == after.Version; same != outside {
			t.Errorf("%s: one version is %v", want, same)
		}
	}
	for _, c := range changeCases() {
		check(base, parseChanges(t, "b", c.replace...), c.want, c.ids)
	}
	wall := parseChanges(t, "a", "clock: log, step: 2s", "clock: wall")
	check(wall, base, "epoch.clock: wall → log", []ruleID{ruleClockToLog})
	for id := range rules {
		if r := table[id]; !shown[id] || r.change == "" || r.why == "" || r.do == "" {
			t.Errorf("rule %d (%s) is incomplete or shown by no case", id, r.change)
		}
	}
}

func TestWhatMeansTheSameIsNoChange(t *testing.T) {
	base := parseChanges(t, "a")
	for _, replace := range [][]string{
		nil, // a copy in another directory, where relative paths lead elsewhere
		{"pipeline: shop", "# a comment\npipeline: shop"},
		{`where: type == "OrderPlaced"`, `where: 'type=="OrderPlaced"'`},
		{"each: basket.lines", "each: basket.lines, allowed_lateness: 0s, format: json, on_error: dead_letter"},
		{"horizon: 7d", "horizon: 168h", "revenue: sum(total)", "revenue: {sum: total}"},
		{"status: type", "status: {value: type, kind: text}", "life: {", "life: {from: orders, id: order.id, "},
		{"      status: type\n", "", "to: Customer}\n", "to: Customer}\n      status: type\n"},
	} {
		if changes := Compare(base, parseChanges(t, "b", replace...)); len(changes) > 0 {
			t.Errorf("%q: %v", replace, changes)
		}
	}
}

func TestSecretsAreComparedAndNotShown(t *testing.T) {
	before, after := parseChanges(t, "a"), parseChanges(t, "a")
	after.Kafka.SASL.Password = NewSecret("hunter2")
	after.Ontology.Password = NewSecret("hunter3")
	changes := Compare(before, after)
	if text := fmt.Sprintf("%+v", changes); len(changes) != 2 || strings.Contains(text, "hunter") || strings.Contains(text, "secret of") {
		t.Errorf("%s", text)
	}
}

// underived are the fields of a plan that follow from compared ones, or do not
// belong to the mapping.
func underived() map[string]string {
	return map[string]string{
		"Plan.Version":         "a hash of the fields that are compared",
		"Plan.file":            "where the mapping was read",
		"Plan.text":            "the document that all others are read from",
		"Plan.missing":         "what of the connections could not be read here",
		"PropertyDef.Kind":     "the kinds of puts' and aggregates' values",
		"PropertyDef.Windowed": "properties of aggregates are, others are not",
		"Stream.Decode":        "reads the fields that expressions name",
		"Aggregate.Fused":      "from the key, partitioned_by and the id",
	}
}

// A field that a later version adds to the plan has to be compared, or to be
// listed above with a reason.
func TestEveryFieldOfThePlanIsComparedOrDerived(t *testing.T) {
	derived := underived()
	met := map[string]bool{}
	var sites int
	for at := 0; ; at++ {
		p := parseChanges(t, "a")
		m := &mutation{at: at, other: parseChanges(t, "a", "key: sku", "key: other.key").Streams[1], seen: map[uintptr]bool{}}
		m.walk(t, reflect.ValueOf(p).Elem())
		if m.changed == "" {
			sites = at
			break
		}
		// Where a field has several values, some may be without effect: a link's
		// type in what is no link.
		met[m.changed] = met[m.changed] || !m.hidden && len(Compare(parseChanges(t, "a"), p)) > 0
	}
	if sites < 60 {
		t.Errorf("only %d values were changed", sites)
	}
	for _, field := range planFields(reflect.TypeFor[Plan](), map[reflect.Type]bool{}) {
		compared, seen := met[field]
		switch reason := derived[field]; {
		case !seen:
			t.Errorf("the mapping of the test has no %s", field)
		case compared && reason != "":
			t.Errorf("%s is compared, and listed as %s", field, reason)
		case !compared && reason == "":
			t.Errorf("another %s is no change: give it a class, or say what it follows from", field)
		}
		delete(derived, field)
	}
	for field := range derived {
		t.Errorf("there is no field %s", field)
	}
}

// ours tells whether a type is a struct of the plan that is looked into.
func ours(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[Plan]().PkgPath() &&
		t != reflect.TypeFor[Expr]() && t != reflect.TypeFor[Secret]() && t != reflect.TypeFor[Fault]()
}

// inner is what a pointer points to, and what a slice holds.
func inner(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

func planFields(t reflect.Type, seen map[reflect.Type]bool) []string {
	if !ours(t) || seen[t] {
		return nil
	}
	seen[t] = true
	var fields []string
	for f := range t.Fields() {
		if !ours(inner(f.Type)) || f.Type.Kind() == reflect.Pointer {
			fields = append(fields, t.Name()+"."+f.Name)
		}
		fields = append(fields, planFields(inner(f.Type), seen)...)
	}
	return fields
}

// mutation gives one value of a plan, the one at a place, another value.
type mutation struct {
	at, count int
	other     *Stream // whose name and expressions are others
	seen      map[uintptr]bool
	changed   string // the field, once it is done
	hidden    bool   // the field is not exported, and was left
}

func (m *mutation) walk(t *testing.T, v reflect.Value) {
	t.Helper()
	typ := v.Type()
	for i := 0; i < v.NumField() && m.changed == ""; i++ {
		f, name := v.Field(i), typ.Name()+"."+typ.Field(i).Name
		if f.Kind() == reflect.Slice && ours(inner(f.Type())) {
			for j := 0; j < f.Len() && m.changed == ""; j++ {
				m.into(t, f.Index(j))
			}
			continue
		}
		if ours(f.Type()) {
			m.into(t, f)
			continue
		}
		if m.count == m.at {
			m.changed, m.hidden = name, !typ.Field(i).IsExported()
			if !m.hidden {
				m.set(t, f)
			}
			return
		}
		m.count++
		m.into(t, f)
	}
}

func (m *mutation) into(t *testing.T, v reflect.Value) {
	t.Helper()
	if v.Kind() == reflect.Pointer {
		if v.IsNil() || m.seen[v.Pointer()] {
			return
		}
		m.seen[v.Pointer()] = true
		v = v.Elem()
	}
	if ours(v.Type()) {
		m.walk(t, v)
	}
}

func (m *mutation) set(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case **Expr:
		*x = m.other.Key
		return
	case **Stream:
		other := *m.other
		other.Name = "another"
		*x = &other
		return
	case *Secret:
		*x = NewSecret("another")
		return
	case *windows.Assigner:
		day, err := windows.Tumbling(7, 0)
		if err != nil {
			t.Fatal(err)
		}
		*x = day
		return
	case **windows.Layout:
		funcs := slices.Clone((*x).Funcs)
		funcs[0] = windows.Avg
		*x = windows.NewLayout(funcs)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1_000_000)
	case reflect.Uint8:
		v.SetUint(v.Uint() ^ 1)
	default: // pointers, slices and the rest: without it
		v.SetZero()
	}
}

// The table of classes in docs/mapping.md is that of the code.
func TestTheReferenceShowsTheClassesOfChanges(t *testing.T) {
	var want strings.Builder
	want.WriteString("| what changes | class | why | what to do |\n|---|---|---|---|\n")
	for _, r := range ruleTable() {
		fmt.Fprintf(&want, "| %s | %s | %s | %s |\n", r.change, r.class, r.why, r.do)
	}
	if !strings.Contains(readFile(t, "../docs/mapping.md"), "\n"+want.String()+"\n") {
		t.Errorf("docs/mapping.md has to show this table:\n%s", want.String())
	}
}
