package mapping

import (
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/windows"
)

// aggregate reads one aggregate of a type. Where it names no stream it takes
// the object's, and where it names no id and has the object's stream, its id.
func (l *loader) aggregate(o *objectEntry, name string, s *section) {
	a := &Aggregate{Type: o.def.Name, Name: name}
	from := o.from
	switch {
	case s.has("from"):
		from = l.from(s)
	case !o.hasFrom:
		s.require("from", "name the stream whose events are counted")
	}
	switch {
	case s.has("id"):
		a.ID = s.idExpr("id", from)
	case o.hasID && o.hasFrom && from == o.from:
		a.ID = o.id
	default:
		s.require("id", "name whose aggregate this is, as in id: customer_id")
	}
	a.Where = s.condition("where", from)
	if s.require("window", "as in window: {tumbling: 1h}; window: none counts over all of time") {
		a.Assigner = s.window()
	}
	if s.require("values", "as in values: {orders: count()}") {
		l.values(o.def, a, s, from)
	}
	if from != nil {
		a.Stream = from.stream
		key := from.stream.Key
		a.Fused = from.stream.PartitionedByKey && key != nil && a.ID != nil && key.canon == a.ID.canon
	}
	l.plan.Aggregates = append(l.plan.Aggregates, a)
}

func (l *loader) values(t *ObjectType, a *Aggregate, s *section, from *streamEntry) {
	v := s.sub("values", nil)
	if v == nil {
		return
	}
	if len(v.order) == 0 {
		s.fault("values", "as in values: {orders: count()}", "there is no value")
	}
	// By name, so that the stored accumulators do not depend on the file's order.
	slices.Sort(v.order)
	var funcs []windows.Func
	for _, name := range v.order {
		v.nameOf(name, "a value")
		fn, input, ok := l.function(v, name, from)
		if !ok {
			continue
		}
		kind := event.KindDecimal
		if fn == windows.Count || fn == windows.CountValues {
			kind = event.KindInteger
		}
		funcs = append(funcs, fn)
		a.Values = append(a.Values, AggregateValue{Name: name, Kind: kind, Input: input})
		t.Properties = append(t.Properties, PropertyDef{Name: a.Name + "." + name, Kind: kind, Windowed: true})
	}
	a.Layout = windows.NewLayout(funcs)
}

// functionCall is an aggregate function around an expression.
var functionCall = regexp.MustCompile(`^\s*([A-Za-z_]+)\s*\((?s:(.*))\)\s*$`)

// function reads count(), count(expr), sum(expr) or {sum: expr}.
func (l *loader) function(v *section, name string, from *streamEntry) (windows.Func, *Expr, bool) {
	n, key := v.value[name], v.path(name)
	const advice = "write count(), count(x), sum(x), min(x), max(x), avg(x), {sum: x} and so on"
	if n.Kind == yaml.MappingNode {
		s := l.r.section(n, key, nil)
		if len(s.order) != 1 {
			l.r.fault(n, key, advice, "a value is one function, these are %d keys", len(s.order))
			return 0, nil, false
		}
		fn, ok := v.functionName(s.keys[s.order[0]], key, s.order[0])
		input := s.expr(s.order[0], from)
		if fn == windows.Count {
			return windows.CountValues, input, ok && s.counts(s.order[0], input)
		}
		return fn, s.numeric(s.order[0], input), ok
	}
	text, ok := v.text(name)
	if !ok {
		return 0, nil, false
	}
	m := functionCall.FindStringSubmatchIndex(text)
	if m == nil {
		v.fault(name, advice, "%s is not an aggregate function", quoteShort(text))
		return 0, nil, false
	}
	fn, ok := v.functionName(n, key, text[m[2]:m[3]])
	inner := text[m[4]:m[5]]
	empty := strings.TrimSpace(inner) == ""
	switch {
	case !ok:
		return 0, nil, false
	case fn == windows.Count && empty:
		return fn, nil, true
	case empty:
		v.fault(name, "", "%s needs an input, as in %s(amount)", text[m[2]:m[3]], text[m[2]:m[3]])
		return 0, nil, false
	}
	input := l.r.compile(n, key, inner, utf8.RuneCountInString(text[:m[4]]), from)
	if fn == windows.Count {
		return windows.CountValues, input, v.counts(name, input)
	}
	return fn, v.numeric(name, input), true
}

// counts refuses to count where a condition is: count(x) counts the events
// that have x, and every event has a condition.
func (s *section) counts(name string, x *Expr) bool {
	if x != nil && x.static == typeBool {
		s.fault(name, "write count(), and the condition under where of the aggregate", "count(x) counts the events that have x, and this is true or false for all of them")
		return false
	}
	return true
}

func (s *section) functionName(n *yaml.Node, key, name string) (windows.Func, bool) {
	switch name {
	case "count":
		return windows.Count, true
	case "sum":
		return windows.Sum, true
	case "min":
		return windows.Min, true
	case "max":
		return windows.Max, true
	case "avg":
		return windows.Avg, true
	}
	switch {
	case slices.Contains(laterFunctions(), name):
		s.r.fault(n, key, "the functions are "+strings.Join(functionNames(), ", "), "the function %s is not supported by this version yet", name)
	default:
		s.r.fault(n, key, s.r.adviseOneOf(name, functionNames()), "unknown aggregate function %s", name)
	}
	return 0, false
}

// numeric refuses an input that can never be a number.
func (s *section) numeric(name string, x *Expr) *Expr {
	if x != nil && (x.static == typeText || x.static == typeBool) {
		s.fault(name, "number(x) makes a number of a text", "the input is a %s and not a number", x.static)
		return nil
	}
	return x
}

// window reads {tumbling, offset}, {calendar, zone} or none.
func (s *section) window() windows.Assigner {
	n := s.value["window"]
	const advice = "as in {tumbling: 1h}, {calendar: day, zone: Europe/Berlin} or none"
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		if n.Value == "none" {
			return windows.Whole()
		}
		s.fault("window", advice, "%s is not a window", quoteShort(n.Value))
		return nil
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if k := n.Content[i]; slices.Contains(laterWindows(), k.Value) {
				s.r.fault(k, s.path("window"), "the windows are tumbling, calendar and none", "%s windows are not supported by this version yet", k.Value)
				return nil
			}
		}
	}
	w := s.sub("window", windowKeys())
	if w == nil {
		return nil
	}
	switch {
	case w.has("tumbling") == w.has("calendar"):
		s.fault("window", advice, "a window is either tumbling or calendar")
		return nil
	case w.has("tumbling"):
		return w.tumbling()
	default:
		return w.calendar()
	}
}

func (s *section) tumbling() windows.Assigner {
	if s.has("zone") {
		s.faultAtKey("zone", "use calendar: day for days in a time zone", "zone belongs to calendar")
	}
	size := s.durationFrom("tumbling", time.Hour, minWindow)
	offset := s.durationFrom("offset", 0, 0)
	if offset >= size {
		s.fault("offset", "", "the offset must be shorter than the window")
		return nil
	}
	return s.assigner(windows.Tumbling(size.Microseconds(), offset.Microseconds()))
}

func (s *section) calendar() windows.Assigner {
	if s.has("offset") {
		s.faultAtKey("offset", "leave it out", "offset belongs to tumbling")
	}
	unit, ok := s.text("calendar")
	switch {
	case ok && (unit == "week" || unit == "month"):
		s.fault("calendar", "use day", "calendar: %s is not supported by this version yet", unit)
	case ok && unit != "day":
		s.fault("calendar", "use day", "%s is not a part of the calendar", quoteShort(unit))
	}
	if !s.require("zone", "as in zone: Europe/Berlin, or zone: UTC") {
		return nil
	}
	name, ok := s.text("zone")
	if !ok {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		s.fault("zone", "a name of the IANA time zone database, as in Europe/Berlin or UTC", "there is no time zone %s", quoteShort(name))
		return nil
	}
	return s.assigner(windows.CalendarDay(zone))
}

// assigner passes an assigner on, or what windows has against it as a fault.
func (s *section) assigner(a windows.Assigner, err error) windows.Assigner {
	if err != nil {
		s.r.fault(s.node, s.key, "", "%v", err)
		return nil
	}
	return a
}
