package mapping

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forge-platform/strom/event"
)

// Class says how a change of a mapping can take effect.
type Class uint8

// The classes, the mildest first.
const (
	// InPlace takes effect at a barrier: what was published before it stays
	// right by what the new file says, or the change says what does not.
	InPlace Class = iota
	// ByReplay needs the input read again: what was published before, or the
	// state, would contradict the new file.
	ByReplay
	// Refused cannot take effect in this pipeline at all.
	Refused
)

// String gives the class as strom check prints it.
func (c Class) String() string {
	switch c {
	case InPlace:
		return "in place"
	case ByReplay:
		return "by replay"
	case Refused:
		return "refused"
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Change is one difference in meaning between two mappings.
type Change struct {
	// Path is the key that differs, as in objects.Meter.aggregates.tens.window.
	// What an aggregate takes from its object (from, id) has the aggregate's
	// path as well.
	Path  string
	Class Class
	// What gives both values on one line. Secrets are not shown.
	What string
	// Why says what the class comes of and what the user gets; Do, what to do.
	Why, Do string
}

// Compare gives what differs in meaning between two mappings of one pipeline,
// each difference with its class: the gravest first, then in the order of the
// grammar. Files that differ in layout, comments, the order of keys or
// defaults written out have no differences. Mappings of two pipelines are not
// compared any further.
//
// Where both plans have one Version, everything that differs is a matter of
// connections and pace, and takes effect when a process starts.
func Compare(before, after *Plan) []Change {
	c := &comparison{before: before, after: after, table: ruleTable()}
	c.differ(rulePipeline, "pipeline", before.Pipeline, after.Pipeline)
	if len(c.changes) > 0 {
		return c.changes
	}
	c.connections()
	c.epoch()
	c.streams()
	c.puts()
	c.aggregates()
	slices.SortStableFunc(c.changes, func(a, b Change) int { return cmp.Compare(b.Class, a.Class) })
	return c.changes
}

// Worst gives the gravest class among changes; InPlace where there are none.
func Worst(changes []Change) Class {
	worst := InPlace
	for i := range changes {
		worst = max(worst, changes[i].Class)
	}
	return worst
}

// comparison gathers the changes between two plans.
type comparison struct {
	before, after *Plan
	table         [rules]rule
	changes       []Change
}

func (c *comparison) add(id ruleID, path, what string) {
	r := c.table[id]
	c.changes = append(c.changes, Change{Path: path, Class: r.class, What: what, Why: r.why, Do: r.do})
}

// differ notes a change where two texts differ.
func (c *comparison) differ(id ruleID, path, before, after string) {
	if before != after {
		c.add(id, path, orNone(before)+" → "+orNone(after))
	}
}

// differExpr is differ for expressions, in their canonical form.
func (c *comparison) differExpr(id ruleID, path string, before, after *Expr) {
	c.differ(id, path, canonical(before), canonical(after))
}

// differMicros is differ for durations in microseconds.
func (c *comparison) differMicros(id ruleID, path string, before, after int64) {
	c.differ(id, path, microsText(before), microsText(after))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func microsText(us int64) string { return DurationText(time.Duration(us) * time.Microsecond) }

// pairs calls both for what two lists have in common by name, added and
// removed for the rest, in the order of the lists.
func pairs[T any](before, after []T, name func(T) string, both func(a, b T), added, removed func(T)) {
	find := func(in []T, want string) int {
		return slices.IndexFunc(in, func(t T) bool { return name(t) == want })
	}
	for _, b := range after {
		if i := find(before, name(b)); i >= 0 {
			both(before[i], b)
		} else {
			added(b)
		}
	}
	for _, a := range before {
		if find(after, name(a)) < 0 {
			removed(a)
		}
	}
}

func (c *comparison) connections() {
	a, b := c.before, c.after
	c.differ(ruleConnection, "kafka.brokers", strings.Join(a.Kafka.Brokers, ", "), strings.Join(b.Kafka.Brokers, ", "))
	c.tls(a.Kafka.TLS, b.Kafka.TLS)
	c.sasl(a.Kafka.SASL, b.Kafka.SASL)
	c.secret("ontology.postgres", a.Ontology.Postgres, b.Ontology.Postgres)
	c.secret("ontology.password", a.Ontology.Password, b.Ontology.Password)
}

func (c *comparison) tls(a, b *TLS) {
	if a == nil || b == nil {
		c.differ(ruleConnection, "kafka.tls", strconv.FormatBool(a != nil), strconv.FormatBool(b != nil))
		return
	}
	c.file("kafka.tls.ca", a.CAFile, b.CAFile)
	c.file("kafka.tls.cert", a.CertFile, b.CertFile)
	c.file("kafka.tls.key", a.KeyFile, b.KeyFile)
	c.differ(ruleConnection, "kafka.tls.server_name", a.ServerName, b.ServerName)
}

// file compares two paths. The files are often copies in two directories: what
// lies at one place beside both is the same.
func (c *comparison) file(path, a, b string) {
	if a != "" && b != "" && beside(c.before, a) == beside(c.after, b) {
		return
	}
	c.differ(ruleConnection, path, a, b)
}

func beside(p *Plan, path string) string {
	if rel, err := filepath.Rel(filepath.Dir(p.file), path); err == nil {
		return rel
	}
	return path
}

func (c *comparison) sasl(a, b *SASL) {
	if a == nil || b == nil {
		c.differ(ruleConnection, "kafka.sasl", strconv.FormatBool(a != nil), strconv.FormatBool(b != nil))
		return
	}
	c.differ(ruleConnection, "kafka.sasl.mechanism", a.Mechanism, b.Mechanism)
	c.differ(ruleConnection, "kafka.sasl.username", a.Username, b.Username)
	c.secret("kafka.sasl.password", a.Password, b.Password)
}

func (c *comparison) secret(path string, a, b Secret) {
	if a != b {
		c.add(ruleConnection, path, "another one (secrets are not shown)")
	}
}

func (c *comparison) epoch() {
	a, b := c.before.Epoch, c.after.Epoch
	c.differ(ruleInterval, "epoch.interval", DurationText(a.Interval), DurationText(b.Interval))
	clock := ruleClockToLog
	if b.Clock == ClockWall {
		clock = ruleClockToWall
	}
	c.differ(clock, "epoch.clock", a.Clock.String(), b.Clock.String())
	if a.Clock == ClockLog && b.Clock == ClockLog {
		c.differ(ruleStep, "epoch.step", DurationText(a.Step), DurationText(b.Step))
	}
}

func (c *comparison) streams() {
	pairs(c.before.Streams, c.after.Streams, func(s *Stream) string { return s.Name }, c.stream,
		func(s *Stream) { c.add(c.overNew(), "streams."+s.Name, "new: topic "+s.Topic) },
		func(s *Stream) { c.add(ruleStreamRemoved, "streams."+s.Name, "removed: topic "+s.Topic) })
}

func (c *comparison) stream(a, b *Stream) {
	path := "streams." + b.Name
	c.differ(ruleStreamPlace, path, placeText(a), placeText(b))
	c.differ(ruleTopic, path+".topic", a.Topic, b.Topic)
	c.differ(ruleEvents, path+".each", eachText(a), eachText(b))
	c.differExpr(ruleEvents, path+".key", a.Key, b.Key)
	partitioned := rulePartitionedBy
	if c.fuses(b.Name) {
		partitioned = rulePartitionedByFused
	}
	c.differ(partitioned, path+".partitioned_by", partitionedText(a), partitionedText(b))
	c.identity(path+".identity", a.Identity, b.Identity)
	c.differExpr(ruleEventTime, path+".event_time.field", a.EventTime, b.EventTime)
	c.differ(ruleEventTime, path+".event_time.format", a.EventTimeFormat.String(), b.EventTimeFormat.String())
	c.differMicros(ruleMaxAhead, path+".event_time.max_ahead", a.MaxAhead, b.MaxAhead)
	c.differMicros(ruleProgress, path+".watermark.out_of_orderness", a.OutOfOrderness, b.OutOfOrderness)
	c.differMicros(ruleProgress, path+".watermark.idle_after", a.IdleAfter, b.IdleAfter)
	c.differMicros(ruleAllowedLateness, path+".allowed_lateness", a.AllowedLateness, b.AllowedLateness)
	c.differ(ruleOnError, path+".on_error", onErrorText(a), onErrorText(b))
}

func placeText(s *Stream) string { return "place " + strconv.Itoa(int(s.Rank)+1) }

// eachText gives the exploded array; that there is one counts too.
func eachText(s *Stream) string {
	if !s.Each {
		return ""
	}
	return "each " + s.EachPath
}

func partitionedText(s *Stream) string {
	if s.PartitionedByKey {
		return "key"
	}
	return ""
}

func onErrorText(s *Stream) string {
	if s.Halt {
		return "halt"
	}
	return "dead_letter"
}

// fuses tells whether an aggregate over a stream is, or was, counted where the
// stream is read.
func (c *comparison) fuses(stream string) bool {
	fused := func(a *Aggregate) bool { return a.Fused && a.Stream.Name == stream }
	return slices.ContainsFunc(c.before.Aggregates, fused) || slices.ContainsFunc(c.after.Aggregates, fused)
}

func (c *comparison) identity(path string, a, b *Identity) {
	switch {
	case a == nil && b == nil:
	case a == nil:
		c.add(ruleIdentityNew, path, "new: "+identityText(b))
	case b == nil:
		c.add(ruleIdentityRemoved, path, "removed: "+identityText(a))
	case (a.Sequence == nil) != (b.Sequence == nil):
		c.differ(ruleEventID, path, identityText(a), identityText(b))
	default:
		c.differExpr(ruleEventID, path+".sequence", a.Sequence, b.Sequence)
		c.differExpr(ruleEventID, path+".event_id", a.EventID, b.EventID)
		c.differMicros(ruleHorizon, path+".horizon", a.Horizon, b.Horizon)
	}
}

func identityText(id *Identity) string {
	if id.Sequence != nil {
		return "sequence " + canonical(id.Sequence)
	}
	return canonical(id.EventID)
}

// overNew is the rule for what comes with a stream that was not read before.
func (c *comparison) overNew() ruleID {
	if c.after.Epoch.Clock == ClockLog {
		return ruleNewStreamLog
	}
	return ruleNewStream
}

// newPart is the rule for a property or an aggregate that is new over a stream:
// known where the stream was read before.
func (c *comparison) newPart(s *Stream, known ruleID) ruleID {
	same := func(have *Stream) bool { return have.Name == s.Name }
	if slices.ContainsFunc(c.before.Streams, same) {
		return known
	}
	return c.overNew()
}

func (c *comparison) puts() {
	added := func(p *Put) {
		for _, v := range p.Values {
			c.newProperty(p, v)
		}
	}
	removed := func(p *Put) {
		for _, v := range p.Values {
			c.propertyRemoved(p, v)
		}
	}
	pairs(c.before.Puts, c.after.Puts, func(p *Put) string { return p.Type }, c.put, added, removed)
}

func (c *comparison) newProperty(p *Put, v PutValue) {
	c.add(c.newPart(p.Stream, ruleNewProperty), propertyPath(p, v), "new: "+canonical(v.Value))
}

func (c *comparison) propertyRemoved(p *Put, v PutValue) {
	c.add(rulePropertyRemoved, propertyPath(p, v), "removed: "+canonical(v.Value))
}

func propertyPath(p *Put, v PutValue) string {
	return "objects." + p.Type + ".properties." + v.Property
}

func (c *comparison) put(a, b *Put) {
	path := "objects." + b.Type
	c.differ(ruleObject, path+".from", a.Stream.Name, b.Stream.Name)
	c.differExpr(ruleObject, path+".id", a.ID, b.ID)
	c.differExpr(ruleObject, path+".where", a.Where, b.Where)
	c.differ(ruleObject, path+".mode", modeText(a), modeText(b))
	property := func(v, w PutValue) {
		path := propertyPath(b, w)
		c.differ(ruleKind, path+".kind", v.Kind.String(), w.Kind.String())
		c.differ(ruleKind, path+".to", c.before.linkTo(a.Type, v.Property), c.after.linkTo(b.Type, w.Property))
		c.differExpr(rulePropertyValue, path+".value", v.Value, w.Value)
	}
	pairs(a.Values, b.Values, func(v PutValue) string { return v.Property }, property,
		func(v PutValue) { c.newProperty(b, v) }, func(v PutValue) { c.propertyRemoved(a, v) })
}

func modeText(p *Put) string {
	if p.Snapshot {
		return "snapshot"
	}
	return "changes"
}

// linkTo gives the type that a link leads to, or nothing.
func (p *Plan) linkTo(typ, property string) string {
	for _, t := range p.Types {
		if i := slices.IndexFunc(t.Properties, func(d PropertyDef) bool { return d.Name == property }); t.Name == typ && i >= 0 {
			return t.Properties[i].LinkTo
		}
	}
	return ""
}

func (c *comparison) aggregates() {
	pairs(c.before.Aggregates, c.after.Aggregates, (*Aggregate).StageName, c.aggregate,
		func(a *Aggregate) {
			c.add(c.newPart(a.Stream, ruleNewAggregate), aggregatePath(a), "new: "+a.summary())
		},
		func(a *Aggregate) { c.add(ruleAggregateRemoved, aggregatePath(a), "removed: "+a.summary()) })
}

func aggregatePath(a *Aggregate) string { return "objects." + a.Type + ".aggregates." + a.Name }

// summary says in one line what the aggregate counts.
func (a *Aggregate) summary() string {
	var values []string
	for _, v := range a.calls() {
		values = append(values, v.text)
	}
	return shorten(strings.Join(values, ", ")) + " over " + a.Stream.Name + ", window " + a.Assigner.String()
}

// call is a value of an aggregate as the mapping writes it, as in sum(total).
type call struct {
	name, text string
	kind       event.Kind
}

func (a *Aggregate) calls() []call {
	calls := make([]call, len(a.Values))
	for i, v := range a.Values {
		function := a.Layout.Funcs[i].String()
		if v.Input != nil {
			// count(x) has a name of its own in the layout, not in the mapping.
			function = strings.TrimSuffix(function, "_values")
		}
		calls[i] = call{v.Name, function + "(" + canonical(v.Input) + ")", v.Kind}
	}
	return calls
}

func (c *comparison) aggregate(a, b *Aggregate) {
	path := aggregatePath(b)
	c.differ(ruleAggregate, path+".from", a.Stream.Name, b.Stream.Name)
	c.differExpr(ruleAggregate, path+".id", a.ID, b.ID)
	c.differExpr(ruleAggregate, path+".where", a.Where, b.Where)
	c.differ(ruleAggregate, path+".window", a.Assigner.String(), b.Assigner.String())
	value := func(v, w call) {
		path := path + ".values." + w.name
		if v.kind != w.kind {
			c.add(ruleKind, path, fmt.Sprintf("%s, kind %s → %s, kind %s", v.text, v.kind, w.text, w.kind))
			return
		}
		c.differ(ruleValue, path, v.text, w.text)
	}
	pairs(a.calls(), b.calls(), func(v call) string { return v.name }, value,
		func(v call) { c.add(ruleNewValue, path+".values."+v.name, "new: "+v.text) },
		func(v call) { c.add(ruleValueRemoved, path+".values."+v.name, "removed: "+v.text) })
}
