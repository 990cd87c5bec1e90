package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// final checks what must hold in the end.
func (c *checks) final() {
	c.ask(c.horizon)
	for _, a := range c.answers {
		c.askAgain(a)
	}
	l := c.sim.readInput()
	c.deadLettersOnce(l)
	c.exactlyOnce(l)
	c.markersInOrder()
	versions := c.sim.database.store.Versions()
	c.snapshots(l, versions)
	c.recordedIntervals(versions)
	c.serialRun()
}

// reading is one record of the input as the oracle reads it.
type reading struct {
	place   event.Place
	record  *broker.Record
	arrival oracle.Arrival
	fate    oracle.Fate
	why     event.Reason // for a dead letter
	key     string
	room    string
	at      int64
	number  string // "" for null
}

// inputLog holds the whole input by stream and partition.
type inputLog map[string][][]*reading

// readInput reads what the source topics hold, without a word of the engine's.
func (s *simulation) readInput() inputLog {
	out := inputLog{}
	for _, st := range s.setup.plan.Streams {
		for n, part := range s.broker.Topic(st.Topic) {
			out[st.Name] = append(out[st.Name], s.readPartition(st, event.Partition(n), part.History()))
		}
	}
	return out
}

func (s *simulation) readPartition(st *mapping.Stream, n event.Partition, records []broker.Record) []*reading {
	all := make([]*reading, len(records))
	arrivals := make([]oracle.Arrival, len(records))
	for i := range records {
		all[i] = s.read(&records[i])
		all[i].place = event.Place{Topic: st.Topic, Partition: n, Offset: records[i].Offset, Timestamp: records[i].Timestamp}
		arrivals[i] = all[i].arrival
		s.checks.date(&arrivals[i], processors.TaskID{Stage: "ingest." + st.Name, Partition: n}, records[i].Offset)
	}
	for i, f := range oracle.Fates(arrivals, s.setup.horizon) {
		all[i].fate = f
		if f == oracle.Conflict {
			all[i].why = event.ReasonConflict
		}
	}
	return all
}

// date says which epoch a record fell in, and when that was recorded.
func (c *checks) date(a *oracle.Arrival, t processors.TaskID, offset event.Offset) {
	h := c.tasks[t]
	for n := 1; h != nil && n < len(h.offsets); n++ {
		if offset < h.offsets[n] {
			a.Epoch, a.Recorded = oracle.Epoch(n), oracle.Micros(c.announced[n-1].Recorded)
			if n > 1 {
				a.Before = oracle.Micros(c.announced[n-2].Recorded)
			}
			return
		}
	}
}

// read reads one record.
func (s *simulation) read(r *broker.Record) *reading {
	x := &reading{record: r, arrival: oracle.Arrival{Content: string(r.Value)}}
	refuse := func(why event.Reason) *reading {
		x.arrival.Unreadable, x.why = true, why
		return x
	}
	var v struct {
		ID, K, Room string
		At          json.RawMessage
		V           json.RawMessage
	}
	switch {
	case r.Value == nil:
		return refuse(event.ReasonNullValue)
	case json.Unmarshal(r.Value, &v) != nil:
		return refuse(event.ReasonNotJSON)
	case v.At == nil:
		return refuse(event.ReasonNoEventTime)
	}
	at, err := strconv.ParseInt(string(v.At), 10, 64)
	const year = 365 * 86_400_000_000
	switch {
	case err != nil:
		return refuse(event.ReasonBadEventTime)
	case at > startOfTime+5*year:
		return refuse(event.ReasonAhead)
	case v.ID == "":
		return refuse(event.ReasonNoIdentity)
	}
	x.arrival.ID, x.key, x.room, x.at = v.ID, v.K, v.Room, at
	switch {
	case bytes.HasPrefix(v.V, []byte(`"`)):
		x.arrival.Refused, x.why = true, event.ReasonBadValue
	case string(v.V) != "null":
		x.number = string(v.V)
	}
	return x
}

// events gives what counts of a stream, by partition and offset.
func (l inputLog) events(stream string) []*reading {
	var out []*reading
	for _, part := range l[stream] {
		for _, x := range part {
			if x.fate == oracle.Counted {
				out = append(out, x)
			}
		}
	}
	return out
}

func (c *checks) deadLettersOnce(l inputLog) {
	want := map[event.Place]*reading{}
	for _, st := range c.sim.setup.plan.Streams {
		for _, part := range l[st.Name] {
			for _, x := range part {
				if x.fate == oracle.Rejected || x.fate == oracle.Conflict {
					want[x.place] = x
				}
			}
		}
	}
	w := c.sim.world
	for i := range c.letters {
		r := &c.letters[i]
		letter, ok := r.Payload.(*deadLetter)
		if !ok {
			w.fail(Harness, "a dead letter without headers")
			return
		}
		x := want[letter.place]
		switch {
		case x == nil:
			w.fail(DeadLettersOnce, "%s, %s, is in the dead-letter topic twice, or is an event", letter.place, letter.reason)
		case x.why != letter.reason || !bytes.Equal(x.record.Value, r.Value) || !bytes.Equal(x.record.Key, r.Key):
			w.fail(DeadLettersOnce, "%s: reason %s, want %s; value %q, want %q", letter.place, letter.reason, x.why, r.Value, x.record.Value)
		}
		delete(want, letter.place)
	}
	for _, x := range want {
		w.fail(DeadLettersOnce, "%d records are lost, of them %s, %s: %q", len(want), x.place, x.why, x.record.Value)
	}
}

// markersInOrder reads the partitions of what stages write as their readers do.
func (c *checks) markersInOrder() {
	top := c.sim.topology
	for _, g := range top.Stages {
		for i, topic := range g.Outputs {
			if i == 0 && g != top.Stages[0] {
				continue // the results topic, which all stages write
			}
			writers := c.sim.taskCounts()
			if i > 0 {
				writers = map[string]int32{g.Name: writers[g.Name]}
			}
			for _, part := range c.sim.broker.Topic(topic) {
				if why := inOrder(part.History(), writers); why != "" {
					c.sim.world.fail(MarkersInOrder, "%s/%s: %s", topic, part.Number, why)
					return
				}
			}
		}
	}
}

func inOrder(records []broker.Record, writers map[string]int32) string {
	complete := event.Epoch(0)
	seen := map[processors.TaskID]bool{}
	left := 0
	for _, n := range writers {
		left += int(n)
	}
	total := left
	for i := range records {
		kind, err := event.RowKindOf(records[i].Value)
		if err != nil {
			return err.Error()
		}
		switch kind {
		case event.RowMarker:
			m, err := event.DecodeMarker(records[i].Value)
			if err != nil || m.Epoch != complete+1 {
				return fmt.Sprintf("offset %s: a marker of epoch %s, and %s is complete (%v)", records[i].Offset, m.Epoch, complete, err)
			}
			for _, n := range m.Tasks {
				if t := (processors.TaskID{Stage: m.Stage, Partition: n}); !seen[t] {
					seen[t] = true
					left--
				}
			}
			if left == 0 {
				complete, left = m.Epoch, total
				clear(seen)
			}
		case event.RowContribution: // says no epoch
		default:
			r, err := event.DecodeResult(records[i].Value)
			if err != nil || r.Epoch != complete+1 {
				return fmt.Sprintf("offset %s: a row of epoch %s, and %s is complete (%v)", records[i].Offset, r.Epoch, complete, err)
			}
		}
	}
	return ""
}

// exactlyOnce compares what is believed with what the oracle counts.
func (c *checks) exactlyOnce(l inputLog) {
	facts, err := c.sim.database.store.AsOf(ontology.Question{Recorded: c.horizon})
	if err != nil {
		c.sim.world.fail(ExactlyOnce, "as of the horizon: %v", err)
		return
	}
	got := map[string]string{}
	for i := range facts {
		if f := &facts[i]; f.Version > 0 {
			got[factName(f.Type, f.ID, f.Property, int64(f.ValidFrom), int64(f.ValidTo))] = textOf(f.Value)
		}
	}
	want := map[string]string{}
	for _, a := range c.sim.setup.aggregates {
		if err := a.fold(l, want); err != nil {
			c.sim.world.fail(Harness, "the oracle: %v", err)
			return
		}
	}
	if diff := differ(got, want); diff != "" {
		c.sim.world.fail(ExactlyOnce, "%s", diff)
	}
	c.timelines(l, facts)
}

func textOf(v event.Value) string {
	if v.Null {
		return "null"
	}
	return v.Text
}

func orNull(text string) string {
	if text == "" {
		return "null"
	}
	return text
}

func factName(typ, id, property string, from, to int64) string {
	return fmt.Sprintf("%s %s %s [%d, %d)", typ, id, property, from, to)
}

func (a *aggregate) keyOf(x *reading) string {
	if a.byRoom {
		return x.room
	}
	return x.key
}

// fold adds what the aggregate must be in the end.
func (a *aggregate) fold(l inputLog, to map[string]string) error {
	var samples []oracle.Sample
	for _, x := range l.events(a.stream) {
		samples = append(samples, oracle.Sample{Key: a.keyOf(x), At: oracle.Micros(x.at), Number: x.number})
	}
	panes, err := oracle.FoldSamples(samples, a.windows)
	for pane, sums := range panes {
		from, until := int64(pane.Start), int64(pane.End)
		if pane.Window == oracle.Always() {
			from, until = int64(event.MinEventTime), int64(event.OpenEnd)
		}
		mean, failed := sums.Mean()
		err = errors.Join(err, failed)
		for value, text := range map[string]string{"n": strconv.Itoa(sums.Count), "total": orNull(sums.Sum), "least": orNull(sums.Min), "most": orNull(sums.Max), "mean": orNull(mean)} {
			to[factName(a.object, pane.Key, a.name+"."+value, from, until)] = text
		}
	}
	return err
}

// timelines compares the property that events set, at each instant at which
// something changes and just before it.
func (c *checks) timelines(l inputLog, facts []ontology.Fact) {
	for _, put := range c.sim.setup.plan.Puts {
		byID := map[string][]oracle.TimelineEvent{}
		for _, x := range l.events(put.Stream.Name) {
			byID[x.key] = append(byID[x.key], oracle.TimelineEvent{
				ValidFrom: x.at, Tie: []int64{int64(x.place.Partition), int64(x.place.Offset)}, Value: x.number, Delete: x.number == "",
			})
		}
		for id, events := range byID {
			for _, e := range events {
				for _, at := range []int64{e.ValidFrom - 1, e.ValidFrom} {
					want, ok := oracle.TimelineBelieved(events, at, 0)
					got, has := believed(facts, put.Type, id, at)
					if ok != has || canonical(want) != canonical(got) {
						c.sim.world.fail(ExactlyOnce, "%s %s last at %d: %q (%v), want %q (%v)", put.Type, id, at, got, has, want, ok)
						return
					}
				}
			}
		}
	}
}

// canonical takes the zeros off that a decimal does not need.
func canonical(number string) string {
	if strings.Contains(number, ".") {
		return strings.TrimSuffix(strings.TrimRight(number, "0"), ".")
	}
	return number
}

func believed(facts []ontology.Fact, typ, id string, at int64) (string, bool) {
	for i := range facts {
		f := &facts[i]
		if f.Type == typ && f.ID == id && f.Property == "last" && int64(f.ValidFrom) <= at && at < int64(f.ValidTo) {
			return f.Value.Text, !f.Value.Null
		}
	}
	return "", false
}

// snapshots checks that as of each R(n) totals hold exactly the events before
// barrier n: of all keys, in all tasks alike.
func (c *checks) snapshots(l inputLog, versions []ontology.Assertion) {
	history := map[string][]*ontology.Assertion{}
	for i := range versions {
		v := &versions[i]
		if v.RecordedFrom < v.RecordedTo && strings.HasSuffix(v.Property, "ever.n") {
			name := v.Type + " " + v.ID
			history[name] = append(history[name], v)
		}
	}
	for _, a := range c.sim.setup.aggregates {
		if a.name != "ever" {
			continue
		}
		counts := map[string]int{}
		events := l.events(a.stream)
		for n := range c.announced {
			events = c.before(events, a.stream, event.Epoch(n+1), func(x *reading) { counts[a.object+" "+a.keyOf(x)]++ })
			for name, count := range counts {
				if got := valueAt(history[name], c.announced[n].Recorded); got != strconv.Itoa(count) {
					c.sim.world.fail(Snapshots, "%s ever.n as of R(%d) is %q, and %d events stand before the barrier", name, n+1, got, count)
					return
				}
			}
		}
	}
}

// before calls fn for the events that stand before barrier n, and gives the rest.
func (c *checks) before(events []*reading, stream string, n event.Epoch, fn func(*reading)) []*reading {
	var rest []*reading
	for _, x := range events {
		h := c.tasks[processors.TaskID{Stage: "ingest." + stream, Partition: x.place.Partition}]
		if h != nil && int(n) < len(h.offsets) && x.place.Offset < h.offsets[n] {
			fn(x)
			continue
		}
		rest = append(rest, x)
	}
	return rest
}

func valueAt(versions []*ontology.Assertion, at event.RecordedTime) string {
	for _, v := range versions {
		if v.RecordedFrom <= at && at < v.RecordedTo {
			return textOf(v.Value)
		}
	}
	return ""
}

// recordedIntervals checks that of every fact, at every instant of valid time
// that something is said of, recorded intervals follow each other without a gap.
func (c *checks) recordedIntervals(versions []ontology.Assertion) {
	lines := map[string][]*ontology.Assertion{}
	var names []string
	for i := range versions {
		v := &versions[i]
		if v.RecordedFrom == v.RecordedTo {
			continue // superseded within its own epoch
		}
		name := v.Type + " " + v.ID + " " + v.Property
		if v.Version > 0 {
			name = factName(v.Type, v.ID, v.Property, int64(v.ValidFrom), int64(v.ValidTo))
		}
		if lines[name] == nil {
			names = append(names, name)
		}
		lines[name] = append(lines[name], v)
	}
	for _, name := range names {
		line := lines[name]
		for _, probe := range line {
			if why := checkInstant(line, probe.ValidFrom); why != "" {
				c.sim.world.fail(RecordedIntervals, "%s at %s: %s", name, probe.ValidFrom, why)
				return
			}
		}
	}
}

func checkInstant(line []*ontology.Assertion, at event.EventTime) string {
	var over []*ontology.Assertion
	for _, v := range line {
		if v.ValidFrom <= at && at < v.ValidTo {
			over = append(over, v)
		}
	}
	slices.SortFunc(over, func(a, b *ontology.Assertion) int {
		if a.RecordedFrom < b.RecordedFrom {
			return -1
		}
		return 1
	})
	for i, v := range over {
		next := event.RecordedNever
		if i+1 < len(over) {
			next = over[i+1].RecordedFrom
		}
		if v.RecordedTo != next {
			return fmt.Sprintf("recorded until %s, and the next from %s", v.RecordedTo, next)
		}
	}
	return ""
}
