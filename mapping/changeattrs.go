package mapping

import (
	"strings"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/windows"
)

// The lists below name every field of a plan: those that are compared, with the
// key of the grammar that sets them, and those that follow from others. A test
// holds them complete.

func planAttrs() []attr[*Plan] {
	return []attr[*Plan]{
		{field: "Pipeline", key: "pipeline", show: func(p *Plan) string { return p.Pipeline }},
		derived[*Plan]("Version"),
		derived[*Plan]("Kafka"), derived[*Plan]("Ontology"), derived[*Plan]("Epoch"), // compared by their own lists
		derived[*Plan]("Streams"), derived[*Plan]("Types"), derived[*Plan]("Puts"), derived[*Plan]("Aggregates"),
	}
}

func kafkaAttrs() []attr[*Kafka] {
	tls := func(show func(*TLS) string) func(*Kafka) string {
		return func(k *Kafka) string {
			if k.TLS == nil {
				return ""
			}
			return show(k.TLS)
		}
	}
	sasl := func(show func(*SASL) string) func(*Kafka) string {
		return func(k *Kafka) string {
			if k.SASL == nil {
				return ""
			}
			return show(k.SASL)
		}
	}
	return []attr[*Kafka]{
		{field: "Kafka.Brokers", key: "brokers", show: func(k *Kafka) string { return strings.Join(k.Brokers, ",") }},
		{field: "Kafka.TLS", key: "tls", act: addedRemoved, show: tls(func(*TLS) string { return "true" })},
		{field: "TLS.CAFile", key: "tls.ca", show: tls(func(t *TLS) string { return t.CAFile })},
		{field: "TLS.CertFile", key: "tls.cert", show: tls(func(t *TLS) string { return t.CertFile })},
		{field: "TLS.KeyFile", key: "tls.key", show: tls(func(t *TLS) string { return t.KeyFile })},
		{field: "TLS.ServerName", key: "tls.server_name", show: tls(func(t *TLS) string { return t.ServerName })},
		{field: "Kafka.SASL", key: "sasl", act: addedRemoved, show: sasl(func(*SASL) string { return "true" })},
		{field: "SASL.Mechanism", key: "sasl.mechanism", show: sasl(func(s *SASL) string { return s.Mechanism })},
		{field: "SASL.Username", key: "sasl.username", show: sasl(func(s *SASL) string { return s.Username })},
		{field: "SASL.Password", key: "sasl.password", secret: true, show: sasl(func(s *SASL) string { return s.Password.Reveal() })},
	}
}

func ontologyAttrs() []attr[*Ontology] {
	return []attr[*Ontology]{
		{field: "Postgres", key: "postgres", secret: true, show: func(o *Ontology) string { return o.Postgres.Reveal() }},
		{field: "Password", key: "password", secret: true, show: func(o *Ontology) string { return o.Password.Reveal() }},
	}
}

func epochAttrs() []attr[*EpochSettings] {
	return []attr[*EpochSettings]{
		{field: "Interval", key: "interval", show: func(e *EpochSettings) string { return DurationText(e.Interval) }},
		{
			field: "Clock", key: "clock", show: func(e *EpochSettings) string { return e.Clock.String() },
			act: func(before, after string) string { return "changed from " + before + " to " + after },
		},
		{field: "Step", key: "step", show: func(e *EpochSettings) string {
			if e.Clock != ClockLog {
				return "" // it has no meaning; that the clock changes is listed
			}
			return DurationText(e.Step)
		}, act: func(before, after string) string {
			if before == "" || after == "" {
				return "changed with the clock"
			}
			return actChanged
		}},
	}
}

func streamAttrs() []attr[*Stream] {
	text := microsText
	return []attr[*Stream]{
		derived[*Stream]("Name"), // what tells streams apart
		{field: "Topic", key: "topic", show: func(s *Stream) string { return s.Topic }},
		derived[*Stream]("Rank"),   // compared by comparison.order
		derived[*Stream]("Decode"), // of the format and the paths that expressions read
		derived[*Stream]("Each"),
		{field: "eachPath", key: "each", act: addedRemoved, show: func(s *Stream) string { return s.eachPath }},
		{field: "format", key: "format", show: func(s *Stream) string { return s.format }},
		{field: "Key", key: "key", show: func(s *Stream) string { return canonical(s.Key) }},
		{field: "PartitionedByKey", key: "partitioned_by", act: addedRemoved, show: func(s *Stream) string {
			if s.PartitionedByKey {
				return "key"
			}
			return ""
		}},
		derived[*Stream]("Identity"), // compared by its own list
		{field: "EventTime", key: "event_time.field", show: func(s *Stream) string { return canonical(s.EventTime) }},
		{field: "EventTimeFormat", key: "event_time.format", show: func(s *Stream) string { return s.EventTimeFormat.String() }},
		{field: "MaxAhead", key: "event_time.max_ahead", show: func(s *Stream) string { return text(s.MaxAhead) }},
		{field: "OutOfOrderness", key: "watermark.out_of_orderness", show: func(s *Stream) string { return text(s.OutOfOrderness) }},
		{field: "IdleAfter", key: "watermark.idle_after", show: func(s *Stream) string { return text(s.IdleAfter) }},
		{field: "AllowedLateness", key: "allowed_lateness", show: func(s *Stream) string { return text(s.AllowedLateness) }, act: grownShrunk},
		{field: "Halt", key: "on_error", show: func(s *Stream) string {
			if s.Halt {
				return "halt"
			}
			return "dead_letter"
		}},
	}
}

func microsText(micros int64) string { return DurationText(time.Duration(micros) * time.Microsecond) }

// grownShrunk names a change of a duration.
func grownShrunk(before, after string) string {
	b, errBefore := time.ParseDuration(before)
	a, errAfter := time.ParseDuration(after)
	switch {
	case errBefore != nil || errAfter != nil:
		return actChanged
	case a > b:
		return "grown"
	}
	return "shrunk"
}

func identityAttrs() []attr[*Identity] {
	return []attr[*Identity]{
		{field: "EventID", key: "event_id", show: func(i *Identity) string { return canonical(i.EventID) }},
		{field: "Horizon", key: "horizon", show: func(i *Identity) string { return microsText(i.Horizon) }},
	}
}

func propertyAttrs() []attr[*PropertyDef] {
	return []attr[*PropertyDef]{
		derived[*PropertyDef]("Name"),
		{field: "Kind", key: "kind", show: func(d *PropertyDef) string { return d.Kind.String() }},
		{field: "LinkTo", key: "to", act: addedRemoved, show: func(d *PropertyDef) string { return d.LinkTo }},
		derived[*PropertyDef]("Windowed"), // of an aggregate: its name holds a point
	}
}

func putAttrs() []attr[*Put] {
	return []attr[*Put]{
		{field: "Stream", key: "from", show: func(p *Put) string { return p.Stream.Name }},
		derived[*Put]("Type"),
		{field: "Where", key: "where", act: addedRemoved, show: func(p *Put) string { return canonical(p.Where) }},
		{field: "ID", key: "id", show: func(p *Put) string { return canonical(p.ID) }},
		derived[*Put]("Values"), // compared one by one
		{field: "Snapshot", key: "mode", show: func(p *Put) string {
			if p.Snapshot {
				return "snapshot"
			}
			return "changes"
		}},
	}
}

func putValueAttrs() []attr[*PutValue] {
	return []attr[*PutValue]{
		derived[*PutValue]("Property"),
		derived[*PutValue]("Kind"), // the property's
		{field: "Value", key: "value", show: func(v *PutValue) string { return canonical(v.Value) }},
	}
}

func aggregateAttrs() []attr[*Aggregate] {
	return []attr[*Aggregate]{
		{field: "Stream", key: "from", show: func(a *Aggregate) string { return a.Stream.Name }},
		derived[*Aggregate]("Type"), derived[*Aggregate]("Name"),
		{field: "Where", key: "where", act: addedRemoved, show: func(a *Aggregate) string { return canonical(a.Where) }},
		{field: "ID", key: "id", show: func(a *Aggregate) string { return canonical(a.ID) }},
		{field: "Assigner", key: "window", show: func(a *Aggregate) string { return a.Assigner.String() }},
		derived[*Aggregate]("Layout"), derived[*Aggregate]("Values"), // compared one by one
		derived[*Aggregate]("Fused"), // of the stream's key and partitioning, and the id
	}
}

// published is one value of an aggregate with its function.
type published struct {
	fn    windows.Func
	kind  event.Kind
	input *Expr
}

func (p *published) text() string { return p.fn.String() + "(" + canonical(p.input) + ")" }

func publishedAttrs() []attr[*published] {
	return []attr[*published]{
		derived[*published]("Name"),
		{field: "Kind", key: "", show: func(p *published) string { return p.kind.String() }, act: func(string, string) string { return "kind changed" }},
		{field: "Input", key: "", show: (*published).text},
	}
}

// published gives the value of that name, or nil.
func (a *Aggregate) published(name string) *published {
	for i := range a.Values {
		if v := &a.Values[i]; v.Name == name {
			return &published{a.Layout.Funcs[i], v.Kind, v.Input}
		}
	}
	return nil
}

func (p *Plan) stream(name string) *Stream {
	for _, s := range p.Streams {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func (p *Plan) put(typ string) *Put {
	for _, put := range p.Puts {
		if put.Type == typ {
			return put
		}
	}
	return nil
}

func (p *Put) value(property string) *PutValue {
	for i := range p.Values {
		if p.Values[i].Property == property {
			return &p.Values[i]
		}
	}
	return nil
}

func (p *Plan) aggregate(stage string) *Aggregate {
	for _, a := range p.Aggregates {
		if a.StageName() == stage {
			return a
		}
	}
	return nil
}

// property gives the declaration of a property that a put sets.
func (p *Plan) property(typ, name string) *PropertyDef {
	for _, t := range p.Types {
		for i := range t.Properties {
			if t.Name == typ && t.Properties[i].Name == name {
				return &t.Properties[i]
			}
		}
	}
	return &PropertyDef{}
}
