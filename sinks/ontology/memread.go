package ontology

import (
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

// Horizon gives the safe horizon: the newest recorded time of which every
// results partition has completed the epoch; RecordedUnknown before the first.
func (m *Memory) Horizon() event.RecordedTime {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.horizon()
}

func (m *Memory) horizon() event.RecordedTime {
	h := event.RecordedNever
	for _, p := range m.progress {
		if p.Epoch == 0 {
			return event.RecordedUnknown
		}
		h = min(h, p.Recorded)
	}
	return h
}

// Versions gives every assertion version that was ever recorded, in the order
// of a history: by recorded time, then by object, property and valid time.
// Those above the horizon are among them.
func (m *Memory) Versions() []Assertion {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pick(func(*memoryVersion) bool { return true })
}

// pick gives the versions that are kept, in the order of a history.
func (m *Memory) pick(keep func(*memoryVersion) bool) []Assertion {
	var out []Assertion
	for i := range m.versions {
		v := &m.versions[i]
		if !keep(v) {
			continue
		}
		name := m.catalog.properties[v.property].name
		out = append(out, Assertion{
			Fact:       newFact(v.object.typ, v.object.id, name, m.pipeline.Name, &v.a),
			RecordedTo: v.to, State: v.a.State,
		})
	}
	sortAssertions(out)
	return out
}

func sortAssertions(as []Assertion) {
	slices.SortStableFunc(as, func(a, b Assertion) int { return compareAssertions(&a, &b) })
}

// History gives what Reader.History gives; an empty name asks for all.
func (m *Memory) History(typ, id, property string) []Assertion {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.horizon()
	as := m.pick(func(v *memoryVersion) bool {
		return (typ == "" || typ == v.object.typ) && (id == "" || id == v.object.id) &&
			(property == "" || property == m.catalog.properties[v.property].name) && v.a.RecordedFrom <= h
	})
	for i := range as {
		if as[i].RecordedTo > h {
			as[i].RecordedTo = event.RecordedNever
		}
	}
	sortAssertions(as)
	return as
}

// AsOf gives what Reader.AsOf gives.
func (m *Memory) AsOf(q Question) ([]Fact, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := Bounds{Floor: event.RecordedUnknown, Horizon: m.horizon()}
	if err := b.check(q.Recorded); err != nil {
		return nil, err
	}
	versions := m.pick(func(v *memoryVersion) bool {
		return (q.Type == "" || q.Type == v.object.typ) && (q.ID == "" || q.ID == v.object.id) &&
			v.a.RecordedFrom <= q.Recorded && q.Recorded < v.to && answers(&v.a, &q)
	})
	facts := make([]Fact, len(versions))
	for i := range versions {
		facts[i] = versions[i].Fact
	}
	slices.SortFunc(facts, func(a, b Fact) int { return compareFacts(&a, &b) })
	if q.Limit > 0 && len(facts) > q.Limit {
		facts = facts[:q.Limit]
	}
	return facts, nil
}

// answers says whether an assertion that is believed stands in an answer.
func answers(a *timeline.Assertion, q *Question) bool {
	if q.Valid != nil && (*q.Valid < a.ValidFrom || *q.Valid >= a.ValidTo) {
		return false
	}
	window := a.Version > 0
	if q.Current && !window && a.ValidTo != event.OpenEnd {
		return false
	}
	// A window's value may be null; a put's null means that nothing is there.
	return a.Cause != event.CauseRetraction && (window || !a.Value.Null)
}

// Stats gives what Reader.Stats gives.
func (m *Memory) Stats(typ string) Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.horizon()
	s := newStats()
	for o := range m.objects {
		if typ == "" || typ == o.typ {
			s.Objects++
		}
	}
	first := make(map[string]int32) // the first property of each aggregate
	for i := range m.versions {
		v := &m.versions[i]
		if v.a.RecordedFrom > h || typ != "" && typ != v.object.typ {
			continue
		}
		p := &m.catalog.properties[v.property]
		if _, ok := first[p.typ+"."+p.aggregate]; !ok {
			first[p.typ+"."+p.aggregate] = m.firstOf(p)
		}
		s.add(statsRow{
			windowed: p.windowed, reasserted: v.a.Reasserted, cause: v.a.Cause, n: 1, closed: v.to <= h,
			counted: !p.windowed || first[p.typ+"."+p.aggregate] == v.property,
		})
	}
	return s
}

func (m *Memory) firstOf(p *property) int32 {
	return int32(slices.IndexFunc(m.catalog.properties, func(q property) bool {
		return q.typ == p.typ && q.windowed && q.aggregate == p.aggregate
	}))
}
