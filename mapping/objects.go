package mapping

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/forge-platform/strom/event"
)

func (l *loader) allObjects(top *section) {
	s := top.sub("objects", nil)
	if s == nil {
		return
	}
	if len(s.order) == 0 {
		top.fault("objects", "a pipeline writes at least one type of object", "there is no type of object")
	}
	spelled := map[string]string{}
	for _, name := range s.order {
		s.nameOf(name, "a type of object")
		if other, taken := spelled[strings.ToLower(name)]; taken {
			s.faultAtKey(name, "", "the name differs from %s only in capitals", other)
		}
		spelled[strings.ToLower(name)] = name
		if sub := s.sub(name, objectKeys()); sub != nil {
			l.object(name, sub)
		}
	}
}

// objectEntry is a type while it is read.
type objectEntry struct {
	def            *ObjectType
	from           *streamEntry // nil: none, or unknown
	id             *Expr        // nil: none, or faulty
	hasFrom, hasID bool
}

// object reads one type: what events set, and what is aggregated.
func (l *loader) object(name string, s *section) {
	o := &objectEntry{def: &ObjectType{Name: name}, hasFrom: s.has("from"), hasID: s.has("id")}
	o.from = l.from(s)
	o.id = s.idExpr("id", o.from)
	if !s.has("properties") && !s.has("aggregates") {
		l.r.fault(s.node, s.key, "add properties, aggregates or both", "the type has no properties and no aggregates")
	}
	if s.has("properties") {
		l.put(o, s)
	} else {
		for _, key := range []string{"where", "mode"} {
			if s.has(key) {
				s.faultAtKey(key, "add properties, or leave it out", "%s belongs to properties, and there are none", key)
			}
		}
		if s.has("id") && !s.has("from") {
			s.faultAtKey("id", "add from: STREAM", "an id is read from a stream, and from names none")
		}
	}
	if a := s.sub("aggregates", nil); a != nil {
		if len(a.order) == 0 {
			s.fault("aggregates", "", "there is no aggregate")
		}
		for _, aggregate := range a.order {
			a.nameOf(aggregate, "an aggregate")
			if sub := a.sub(aggregate, aggregateKeys()); sub != nil {
				l.aggregate(o, aggregate, sub)
			}
		}
	}
	t := o.def
	slices.SortFunc(t.Properties, func(a, b PropertyDef) int { return strings.Compare(a.Name, b.Name) })
	l.plan.Types = append(l.plan.Types, t)
}

// from gives the stream that a section names; nil where it names none, or
// with a fault an unknown one.
func (l *loader) from(s *section) *streamEntry {
	name, ok := s.text("from")
	if !ok {
		return nil
	}
	e := l.streams[name]
	if e == nil {
		advice := "declare it under streams"
		if len(l.names) > 0 {
			advice = l.r.adviseOneOf(name, l.names)
		}
		s.fault("from", advice, "there is no stream %s", quoteShort(name))
	}
	return e
}

// put reads what the events of a stream set.
func (l *loader) put(o *objectEntry, s *section) {
	t, p := o.def, &Put{Type: o.def.Name, ID: o.id}
	if s.require("from", "name the stream whose events set the properties") && o.from != nil {
		p.Stream = o.from.stream
	}
	s.require("id", "name what tells the objects apart, as in id: order_id")
	p.Where = s.condition("where", o.from)
	p.Snapshot = s.oneOf("mode", "changes", "changes", "snapshot") == "snapshot"
	props := s.sub("properties", nil)
	if props == nil {
		return
	}
	if len(props.order) == 0 {
		s.fault("properties", "", "there is no property")
	}
	for _, name := range props.order {
		props.nameOf(name, "a property")
		def, value := l.property(name, props, o.from)
		t.Properties = append(t.Properties, def)
		p.Values = append(p.Values, PutValue{Property: name, Kind: def.Kind, Value: value})
	}
	slices.SortFunc(p.Values, func(a, b PutValue) int { return strings.Compare(a.Property, b.Property) })
	l.plan.Puts = append(l.plan.Puts, p)
}

// property reads an expression alone, a text; or {value, kind, to}.
func (l *loader) property(name string, props *section, from *streamEntry) (PropertyDef, *Expr) {
	def := PropertyDef{Name: name, Kind: event.KindText}
	if props.value[name].Kind == yaml.ScalarNode {
		x := props.expr(name, from)
		props.fits(name, def.Kind, x)
		return def, x
	}
	s := props.sub(name, propertyKeys())
	if s == nil {
		return def, nil
	}
	def.Kind = s.kind()
	var x *Expr
	if s.require("value", "name the field, as in value: "+name) {
		x = s.expr("value", from)
		s.fits("value", def.Kind, x)
	}
	def.LinkTo, _ = s.text("to")
	switch {
	case def.Kind == event.KindLink && !s.has("to"):
		s.require("to", "name the type that the link leads to, as in to: Customer")
	case def.Kind != event.KindLink && s.has("to"):
		s.faultAtKey("to", "add kind: link, or leave to out", "to belongs to kind: link")
	case def.LinkTo != "" && !plainName.MatchString(def.LinkTo):
		s.fault("to", "", "%s is not the name of a type", quoteShort(def.LinkTo))
	}
	return def, x
}

func (s *section) kind() event.Kind {
	text, ok := s.text("kind")
	if !ok {
		return event.KindText
	}
	switch text {
	case "text":
		return event.KindText
	case "integer":
		return event.KindInteger
	case "decimal":
		return event.KindDecimal
	case "boolean":
		return event.KindBoolean
	case "timestamp":
		return event.KindTimestamp
	case "link":
		return event.KindLink
	}
	switch {
	case slices.Contains(laterKinds(), text):
		s.fault("kind", "the kinds are "+strings.Join(kindList(), ", "), "the kind %s is not supported by this version yet", text)
	default:
		s.fault("kind", s.r.adviseOneOf(text, kindList()), "%s is not a kind", quoteShort(text))
	}
	return event.KindText
}

// fits refuses a value that can never be of its kind.
func (s *section) fits(name string, kind event.Kind, x *Expr) {
	if x == nil {
		return
	}
	ok := true
	switch x.static {
	case typeText:
		ok = kind == event.KindText || kind == event.KindTimestamp || kind == event.KindLink
	case typeNumber:
		ok = kind == event.KindInteger || kind == event.KindDecimal || kind == event.KindLink
	case typeBool:
		ok = kind == event.KindBoolean
	case typeAny, typeNull:
	}
	if !ok {
		s.fault(name, "change the kind; text(x) and number(x) convert", "this is a %s, and never of kind %s", x.static, kind)
	}
}
