package mapping

import (
	"maps"
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
	var steps []windows.Step
	for _, name := range v.order {
		v.nameOf(name, "a value")
		c, ok := l.function(v, name, from)
		if !ok {
			continue
		}
		kind := c.kindOf()
		step := windows.Step{Func: c.fn}
		if c.publishesInput() {
			step.Convert = func(s event.Scalar) (event.Value, *event.Reject) { return ConvertValue(kind, s) }
		}
		steps = append(steps, step)
		a.Values = append(a.Values, AggregateValue{Name: name, Kind: kind, Input: c.input})
		t.Properties = append(t.Properties, PropertyDef{Name: a.Name + "." + name, Kind: kind, Windowed: true})
	}
	a.Layout = windows.NewLayoutOf(steps)
}

// functionOf is an aggregate function and its input.
type functionOf struct {
	fn    windows.Func
	input *Expr
	kind  event.Kind // as the mapping says it; KindUnknown where it does not
}

// publishesInput says that what the function publishes is one of its inputs.
func (c *functionOf) publishesInput() bool { return c.fn == windows.First || c.fn == windows.Last }

// kindOf is the kind of what the function publishes.
func (c *functionOf) kindOf() event.Kind {
	switch c.fn {
	case windows.Count, windows.CountValues:
		return event.KindInteger
	case windows.Any, windows.All:
		return event.KindBoolean
	case windows.First, windows.Last:
		switch {
		case c.kind != event.KindUnknown:
			return c.kind
		case c.input != nil && c.input.static == typeNumber:
			return event.KindDecimal
		case c.input != nil && c.input.static == typeBool:
			return event.KindBoolean
		}
		return event.KindText
	case windows.Sum, windows.Min, windows.Max, windows.Avg:
	}
	return event.KindDecimal
}

// functionCall is an aggregate function around an expression.
var functionCall = regexp.MustCompile(`^\s*([A-Za-z_]+)\s*\((?s:(.*))\)\s*$`)

// function reads count(), count(expr), sum(expr), {sum: expr} or
// {last: expr, kind: integer}.
func (l *loader) function(v *section, name string, from *streamEntry) (functionOf, bool) {
	n, key := v.value[name], v.path(name)
	const advice = "write count(), count(x), sum(x), min(x), max(x), avg(x), last(x), {sum: x} and so on"
	if n.Kind == yaml.MappingNode {
		return l.functionByKey(v, name, from, advice)
	}
	text, ok := v.text(name)
	if !ok {
		return functionOf{}, false
	}
	m := functionCall.FindStringSubmatchIndex(text)
	if m == nil {
		v.fault(name, advice, "%s is not an aggregate function", quoteShort(text))
		return functionOf{}, false
	}
	fn, ok := v.functionName(n, key, text[m[2]:m[3]])
	inner := text[m[4]:m[5]]
	empty := strings.TrimSpace(inner) == ""
	switch {
	case !ok:
		return functionOf{}, false
	case fn == windows.Count && empty:
		return functionOf{fn: fn}, true
	case empty:
		v.fault(name, "", "%s needs an input, as in %s(amount)", text[m[2]:m[3]], text[m[2]:m[3]])
		return functionOf{}, false
	}
	return v.checkInput(name, functionOf{fn: fn, input: l.r.compile(n, key, inner, utf8.RuneCountInString(text[:m[4]]), from)}, true)
}

// functionByKey reads {sum: expr}, and {last: expr, kind: integer}.
func (l *loader) functionByKey(v *section, name string, from *streamEntry, advice string) (functionOf, bool) {
	n, key := v.value[name], v.path(name)
	s := l.r.section(n, key, nil)
	called := slices.DeleteFunc(slices.Clone(s.order), func(k string) bool { return k == "kind" })
	if len(called) != 1 {
		l.r.fault(n, key, advice, "a value is one function, these are %d keys", len(called))
		return functionOf{}, false
	}
	var c functionOf
	var ok bool
	c.fn, ok = v.functionName(s.keys[called[0]], key, called[0])
	c.input = s.expr(called[0], from)
	if s.has("kind") {
		if ok && !c.publishesInput() {
			s.faultAtKey("kind", "leave it out", "%s has a kind of its own; only first and last take one", called[0])
			return functionOf{}, false
		}
		kind, fine := s.kindOfValue(called[0], c.input)
		c.kind, ok = kind, ok && fine
	}
	return s.checkInput(called[0], c, ok)
}

// kindOfValue reads the kind of a first or a last, whose input stands under name.
func (s *section) kindOfValue(name string, x *Expr) (event.Kind, bool) {
	before := len(s.r.faults)
	kind := s.kind()
	if kind == event.KindLink {
		s.fault("kind", "take kind: text, which keeps the id", "a value of an aggregate cannot be a link")
	}
	s.fits(name, kind, x)
	return kind, len(s.r.faults) == before
}

// checkInput refuses an input that the function can never take. name is where it
// stands.
func (s *section) checkInput(name string, c functionOf, ok bool) (functionOf, bool) {
	switch c.fn {
	case windows.Count:
		c.fn = windows.CountValues
		return c, ok && s.counts(name, c.input)
	case windows.Any, windows.All:
		if c.input != nil && (c.input.static == typeText || c.input.static == typeNumber) {
			s.fault(name, "as in any(total > 100)", "the input is a %s and not a condition", c.input.static)
			return c, false
		}
		return c, ok
	case windows.First, windows.Last, windows.CountValues:
		return c, ok
	case windows.Sum, windows.Min, windows.Max, windows.Avg:
	}
	c.input = s.numeric(name, c.input)
	return c, ok
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
	case "first":
		return windows.First, true
	case "last":
		return windows.Last, true
	case "any":
		return windows.Any, true
	case "all":
		return windows.All, true
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

// window reads {tumbling, offset}, {hopping, every, offset}, {calendar, zone} or
// none.
func (s *section) window() windows.Assigner {
	n := s.value["window"]
	const advice = "as in {tumbling: 1h}, {hopping: 1h, every: 15m}, {calendar: day, zone: Europe/Berlin} or none"
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
				s.r.fault(k, s.path("window"), "the windows are tumbling, hopping, calendar and none", "%s windows are not supported by this version yet", k.Value)
				return nil
			}
		}
	}
	w := s.sub("window", windowKeys())
	if w == nil {
		return nil
	}
	kinds := 0
	for _, kind := range []string{"tumbling", "hopping", "calendar"} {
		if w.has(kind) {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		s.fault("window", advice, "a window is one of tumbling, hopping and calendar")
		return nil
	case w.has("tumbling"):
		return w.tumbling()
	case w.has("hopping"):
		return w.hopping()
	default:
		return w.calendar()
	}
}

// without refuses keys that belong to another kind of window.
func (s *section) without(keys map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if s.has(key) {
			s.faultAtKey(key, "leave it out", "%s belongs to %s", key, keys[key])
		}
	}
}

func (s *section) tumbling() windows.Assigner {
	if s.has("zone") {
		s.faultAtKey("zone", "use calendar: day for days in a time zone", "zone belongs to calendar")
	}
	s.without(map[string]string{"every": "hopping"})
	size := s.durationFrom("tumbling", time.Hour, minWindow)
	offset, ok := s.offset("window", size)
	if !ok {
		return nil
	}
	return s.assigner(windows.Tumbling(size.Microseconds(), offset.Microseconds()))
}

func (s *section) hopping() windows.Assigner {
	s.without(map[string]string{"zone": "calendar"})
	size := s.durationFrom("hopping", time.Hour, minWindow)
	if !s.require("every", "how far the windows' starts lie apart, as in {hopping: 1h, every: 15m}") {
		return nil
	}
	every := s.durationFrom("every", time.Hour, minWindow)
	switch hops := (size-1)/every + 1; {
	case every > size:
		s.fault("every", "make it at most as long as the window", "windows of %s, one every %s, leave gaps: events between them would count nowhere", DurationText(size), DurationText(every))
		return nil
	case hops > windows.MaxHops:
		s.fault("every", "make the windows shorter, or their distance longer", "every event would count in %d windows, and %d is the most", hops, windows.MaxHops)
		return nil
	}
	offset, ok := s.offset("distance of the windows", every)
	if !ok {
		return nil
	}
	return s.assigner(windows.Hopping(size.Microseconds(), every.Microseconds(), offset.Microseconds()))
}

// offset reads by how much windows are moved: less than what they repeat after.
func (s *section) offset(what string, period time.Duration) (time.Duration, bool) {
	offset := s.durationFrom("offset", 0, 0)
	if offset >= period {
		s.fault("offset", "", "the offset must be shorter than the %s", what)
		return 0, false
	}
	return offset, true
}

func (s *section) calendar() windows.Assigner {
	s.without(map[string]string{"offset": "tumbling and hopping", "every": "hopping"})
	text, ok := s.text("calendar")
	unit := windows.CalendarUnit(text)
	if ok && !slices.Contains(windows.CalendarUnits(), unit) {
		s.fault("calendar", "use day, week or month", "%s is not a part of the calendar", quoteShort(text))
		return nil
	}
	if !s.require("zone", "as in zone: Europe/Berlin, or zone: UTC") {
		return nil
	}
	name, named := s.text("zone")
	if !named || !ok {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		s.fault("zone", "a name of the IANA time zone database, as in Europe/Berlin or UTC", "there is no time zone %s", quoteShort(name))
		return nil
	}
	return s.assigner(windows.Calendar(unit, zone))
}

// assigner passes an assigner on, or what windows has against it as a fault.
func (s *section) assigner(a windows.Assigner, err error) windows.Assigner {
	if err != nil {
		s.r.fault(s.node, s.key, "", "%v", err)
		return nil
	}
	return a
}
