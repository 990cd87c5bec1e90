package mapping

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Class says how a change of a mapping takes effect on a pipeline that has run.
type Class uint8

// The classes, from the mildest on. Unclassed is the zero value, so that
// nothing is fine by default; it is treated as Refused is.
const (
	Unclassed Class = iota
	InPlace
	ByReplay
	Refused
)

// String names the class as documents and commands do.
func (c Class) String() string {
	switch c {
	case InPlace:
		return "in place"
	case ByReplay:
		return "by replay"
	case Refused:
		return "refused"
	case Unclassed:
	}
	return "not classed"
}

// Change is one thing that two mappings of a pipeline do not say alike.
type Change struct {
	// Rule is the one that classes it, by its key and what happened to it.
	Rule ChangeRule
	// Key is the path in the file, as in streams.orders.key.
	Key string
	// File, Line and Column are its place in the new file, or that of what it was
	// removed from; Line is 0 where there is none.
	File         string
	Line, Column int
	// Old and New are the values, empty where there is none and where it is a
	// secret, or may hold one.
	Old, New string
}

// String gives file:line:column: key: what happened, the class, why, what to do.
func (c Change) String() string {
	f := Fault{File: c.File, Line: c.Line, Column: c.Column, Key: c.Key, Message: c.what() + ": " + c.Rule.Class.String() + ": " + c.Rule.Why, Advice: c.Rule.Do}
	return f.String()
}

// what says what happened: changed from A to B.
func (c Change) what() string {
	if c.Old == "" || c.New == "" {
		return c.Rule.Act
	}
	return fmt.Sprintf("%s from %s to %s", c.Rule.Act, shorten(c.Old), shorten(c.New))
}

// ChangeRule classes one kind of change. The table of them is ChangeRules.
type ChangeRule struct {
	// Key is a path with * for names, Act what happens to it.
	Key, Act string
	Class    Class
	// Why gives the reason, and what it means for what was read before; Do says
	// what to do, and is empty where there is nothing to do.
	Why, Do string
}

// Worst is the least mild class among changes; InPlace where there are none.
func Worst(changes []Change) Class {
	worst := InPlace
	for _, c := range changes {
		if c.Rule.Class == Unclassed {
			return Refused
		}
		worst = max(worst, c.Rule.Class)
	}
	return worst
}

// Compare lists what differs between two plans of a pipeline, by its place in
// the new file. It is pure, and total: a difference without a rule is listed as
// Unclassed. Connections are compared only where the old plan has any: the text
// that a running pipeline keeps has none (see Plan.Text).
func Compare(before, after *Plan) []Change {
	c := &comparison{plan: after, rules: map[[2]string]ChangeRule{}}
	for _, r := range ChangeRules() {
		c.rules[[2]string{r.Key, r.Act}] = r
	}
	compareAttrs(c, planAttrs(), "", before, after)
	if len(before.Kafka.Brokers) > 0 || before.Ontology.Postgres.Reveal() != "" {
		compareAttrs(c, kafkaAttrs(), "kafka", &before.Kafka, &after.Kafka)
		compareAttrs(c, ontologyAttrs(), "ontology", &before.Ontology, &after.Ontology)
	}
	compareAttrs(c, epochAttrs(), "epoch", &before.Epoch, &after.Epoch)
	c.streams(before.Streams, after.Streams)
	c.puts(before, after)
	c.aggregates(before, after)
	slices.SortStableFunc(c.changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), strings.Compare(a.Key, b.Key))
	})
	return c.changes
}

// comparison gathers the changes towards plan.
type comparison struct {
	plan    *Plan
	rules   map[[2]string]ChangeRule
	changes []Change
}

// add notes that act happened to key, which is path in the file.
func (c *comparison) add(key, act, path, before, after string) {
	rule, ok := c.rules[[2]string{key, act}]
	if !ok {
		rule = ChangeRule{Key: key, Act: act, Why: "this build does not know what the change means for what was read before", Do: doOtherName}
	}
	at := c.plan.placeOf(path)
	c.changes = append(c.changes, Change{
		Rule: rule, Key: path, File: c.plan.file, Line: at.line, Column: at.column, Old: before, New: after,
	})
}

// attr is one field of a plan's part, as it is compared.
type attr[T any] struct {
	// field is the Go field that it compares, key the grammar's path of it below
	// the part's.
	field, key string
	show       func(T) string
	// act names what happened where that is not "changed".
	act func(before, after string) string
	// secret values are compared and never shown.
	secret bool
}

// derived is a field that follows from others which are compared.
func derived[T any](field string) attr[T] { return attr[T]{field: field} }

// compareAttrs compares two parts of plans that stand at path, whose names are
// replaced by * in the rules.
func compareAttrs[T any](c *comparison, attrs []attr[T], path string, before, after T) {
	for _, a := range attrs {
		if a.show == nil {
			continue
		}
		b, n := a.show(before), a.show(after)
		if b == n {
			continue
		}
		act := actChanged
		if a.act != nil {
			act = a.act(b, n)
		}
		if a.secret || strings.Contains(act, " from ") { // then the act tells them
			b, n = "", ""
		}
		key := path
		if a.key != "" {
			key = join(path, a.key)
		}
		c.add(pattern(key), act, key, b, n)
	}
}

// pattern puts * in the place of the names that users give.
func pattern(path string) string {
	parts := strings.Split(path, ".")
	named := map[string]bool{"streams": true, "objects": true, "properties": true, "aggregates": true, "values": true}
	for i := 1; i < len(parts); i++ {
		if named[parts[i-1]] {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// What can happen to a key.
const (
	actAdded   = "added"
	actRemoved = "removed"
	actChanged = "changed"
)

// addedRemoved names a change of something that may be absent.
func addedRemoved(before, after string) string {
	switch {
	case before == "":
		return actAdded
	case after == "":
		return actRemoved
	}
	return actChanged
}

func (c *comparison) streams(before, after []*Stream) {
	was := map[string]*Stream{}
	for _, s := range before {
		was[s.Name] = s
	}
	for _, s := range after {
		path := "streams." + s.Name
		old := was[s.Name]
		delete(was, s.Name)
		if old == nil {
			c.add("streams.*", actAdded, path, "", s.Topic)
			continue
		}
		compareAttrs(c, streamAttrs(), path, old, s)
		switch {
		case old.Identity == nil && s.Identity != nil:
			c.add("streams.*.identity", actAdded, path+".identity", "", "")
		case old.Identity != nil && s.Identity == nil:
			c.add("streams.*.identity", actRemoved, path+".identity", "", "")
		case old.Identity != nil:
			compareAttrs(c, identityAttrs(), path+".identity", old.Identity, s.Identity)
		}
	}
	for _, s := range before {
		if was[s.Name] != nil {
			c.add("streams.*", actRemoved, "streams."+s.Name, s.Topic, "")
		}
	}
	c.order(before, after)
}

// order notes streams that have another rank among those of before.
func (c *comparison) order(before, after []*Stream) {
	ranks := map[string]int32{}
	for _, s := range before {
		ranks[s.Name] = s.Rank
	}
	for _, s := range after {
		if rank, ok := ranks[s.Name]; ok && rank != s.Rank {
			c.add("streams", "order changed", "streams."+s.Name, fmt.Sprint("place ", rank+1), fmt.Sprint("place ", s.Rank+1))
		}
	}
}

func (c *comparison) puts(before, after *Plan) {
	for _, put := range after.Puts {
		path := "objects." + put.Type
		old := before.put(put.Type)
		if old == nil {
			old = &Put{}
		} else {
			compareAttrs(c, putAttrs(), path, old, put)
		}
		for i := range put.Values {
			v := &put.Values[i]
			at := path + ".properties." + v.Property
			was := old.value(v.Property)
			if was == nil {
				c.add("objects.*.properties.*", actAdded, at, "", canonical(v.Value))
				continue
			}
			compareAttrs(c, putValueAttrs(), at, was, v)
			compareAttrs(c, propertyAttrs(), at, before.property(put.Type, v.Property), after.property(put.Type, v.Property))
		}
	}
	for _, old := range before.Puts {
		put := after.put(old.Type)
		for i := range old.Values {
			if name := old.Values[i].Property; put == nil || put.value(name) == nil {
				c.add("objects.*.properties.*", actRemoved, "objects."+old.Type+".properties."+name, canonical(old.Values[i].Value), "")
			}
		}
	}
}

func (c *comparison) aggregates(before, after *Plan) {
	const key = "objects.*.aggregates.*"
	for _, a := range after.Aggregates {
		path := "objects." + a.Type + ".aggregates." + a.Name
		old := before.aggregate(a.StageName())
		if old == nil {
			act := "added over a new stream"
			if before.stream(a.Stream.Name) != nil {
				act = "added over a stream that is read already"
			}
			c.add(key, act, path, "", "")
			continue
		}
		compareAttrs(c, aggregateAttrs(), path, old, a)
		for i := range a.Values {
			at := path + ".values." + a.Values[i].Name
			was, now := old.published(a.Values[i].Name), a.published(a.Values[i].Name)
			if was == nil {
				c.add(key+".values.*", actAdded, at, "", now.text())
				continue
			}
			compareAttrs(c, publishedAttrs(), at, was, now)
		}
		for i := range old.Values {
			if name := old.Values[i].Name; a.published(name) == nil {
				c.add(key+".values.*", actRemoved, path+".values."+name, old.published(name).text(), "")
			}
		}
	}
	for _, old := range before.Aggregates {
		if after.aggregate(old.StageName()) == nil {
			c.add(key, actRemoved, "objects."+old.Type+".aggregates."+old.Name, "", "")
		}
	}
}
