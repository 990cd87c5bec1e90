package broker

import (
	"fmt"
	"maps"
	"slices"

	"github.com/forge-platform/strom/event"
)

// OffsetCommit is one committed offset.
type OffsetCommit struct {
	Partition event.Partition
	Offset    event.Offset
	// ID and Epoch stand in the metadata: the transactional id that committed
	// it, and with which epoch.
	ID    string
	Epoch event.Epoch
}

// Group is a consumer group over one topic.
type Group struct {
	Name  string
	Topic string

	cluster    *Cluster
	partitions int32
	generation int32
	// joining: the group waits until deadline for its members to join again.
	joining  bool
	deadline int64
	members  []*Member
	offsets  map[event.Partition]OffsetCommit
	pending  []pendingCommit
}

type pendingCommit struct {
	producer int64
	offset   OffsetCommit
}

// Member is a member of a group.
type Member struct {
	ID string
	// Claim is what the member would like to keep.
	Claim []event.Partition
	// Assigned and Generation are those of the last rebalance that the member
	// took part in.
	Assigned   []event.Partition
	Generation int32

	joined  bool
	seen    int64
	session int64
}

// rebalanceTimeout is how long a group waits for members that do not join again.
const rebalanceTimeout = 15_000_000

// CreateGroup makes a group over a topic.
func (c *Cluster) CreateGroup(name, topic string) *Group {
	g := &Group{
		Name: name, Topic: topic, cluster: c, partitions: int32(len(c.topics[topic])),
		offsets: map[event.Partition]OffsetCommit{},
	}
	c.groups[name] = g
	return g
}

// Group gives a group.
func (c *Cluster) Group(name string) *Group { return c.groups[name] }

func (c *Cluster) groupsInOrder() []*Group {
	out := make([]*Group, 0, len(c.groups))
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		out = append(out, c.groups[name])
	}
	return out
}

// Generation is the present one.
func (g *Group) Generation() int32 { return g.generation }

// Settled reports whether nobody is expected to join.
func (g *Group) Settled() bool { return !g.joining }

// Members lists the members' ids.
func (g *Group) Members() []string {
	var out []string
	for _, m := range g.members {
		out = append(out, m.ID)
	}
	return out
}

// Has reports whether a member is one still.
func (g *Group) Has(m *Member) bool { return slices.Contains(g.members, m) }

func (g *Group) find(id string) *Member {
	for _, m := range g.members {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// Join lets a member in, or in again; an id that is empty asks for a new one.
// The member has its part when its Generation has gone on.
func (g *Group) Join(id string, claim []event.Partition, session int64) (*Member, error) {
	now := g.cluster.hooks.Now()
	m := g.find(id)
	switch {
	case id != "" && m == nil:
		return nil, ErrUnknownMember
	case id == "":
		g.cluster.nextMember++
		m = &Member{ID: fmt.Sprintf("%s-%d", g.Name, g.cluster.nextMember)}
		g.members = append(g.members, m)
	}
	m.Claim, m.session, m.seen, m.joined = claim, session, now, true
	if !g.joining {
		g.rebalance(now)
	}
	g.cluster.hooks.Later("complete "+g.Name, g.completeIfAll)
	return m, nil
}

func (g *Group) rebalance(now int64) {
	g.joining, g.deadline = true, now+rebalanceTimeout
}

func (g *Group) completeIfAll() {
	if !g.joining {
		return
	}
	for _, m := range g.members {
		if !m.joined {
			return
		}
	}
	g.complete()
}

// complete begins the next generation with the members that have joined.
func (g *Group) complete() {
	g.members = slices.DeleteFunc(g.members, func(m *Member) bool { return !m.joined })
	g.joining = false
	g.generation++
	g.assign()
	for _, m := range g.members {
		m.joined, m.Generation, m.seen = false, g.generation, g.cluster.hooks.Now()
	}
}

// assign gives the partitions out, to each member as many as to the others, or
// one more; what a member claims it keeps, if it can, unless all is shuffled.
func (g *Group) assign() {
	if len(g.members) == 0 {
		return
	}
	all := make([]event.Partition, g.partitions)
	for i := range all {
		all[i] = event.Partition(i)
	}
	members := slices.Clone(g.members)
	shuffled := g.cluster.hooks.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, m := range members {
		m.Assigned = nil
	}
	most := (int(g.partitions) + len(members) - 1) / len(members)
	var left []event.Partition
	for _, p := range all {
		i := slices.IndexFunc(members, func(m *Member) bool {
			return !shuffled && slices.Contains(m.Claim, p) && len(m.Assigned) < most
		})
		if i < 0 {
			left = append(left, p)
			continue
		}
		members[i].Assigned = append(members[i].Assigned, p)
	}
	for _, p := range left {
		least := members[0]
		for _, m := range members {
			if len(m.Assigned) < len(least.Assigned) {
				least = m
			}
		}
		least.Assigned = append(least.Assigned, p)
	}
	for _, m := range members {
		slices.Sort(m.Assigned)
	}
}

// Heartbeat says that a member is alive, and tells it where it stands.
func (g *Group) Heartbeat(id string, generation int32) error {
	m := g.find(id)
	if m == nil {
		return ErrUnknownMember
	}
	if generation != g.generation {
		return ErrIllegalGeneration
	}
	m.seen = g.cluster.hooks.Now()
	if g.joining {
		return ErrRebalancing
	}
	return nil
}

func (g *Group) check(generation int32, id string) error {
	if g.find(id) == nil {
		return ErrUnknownMember
	}
	if generation != g.generation {
		return ErrIllegalGeneration
	}
	return nil
}

// Leave takes a member out.
func (g *Group) Leave(id string) {
	m := g.find(id)
	if m == nil {
		return
	}
	g.remove(m, g.cluster.hooks.Now())
}

func (g *Group) remove(m *Member, now int64) {
	g.members = slices.DeleteFunc(g.members, func(x *Member) bool { return x == m })
	if !g.joining {
		g.rebalance(now)
	}
	g.cluster.hooks.Later("complete "+g.Name, g.completeIfAll)
}

// expire takes members out whose session has run out, and ends a rebalance
// that has waited for long enough.
func (g *Group) expire(now int64) {
	for _, m := range slices.Clone(g.members) {
		if !m.joined && now-m.seen > m.session {
			g.remove(m, now)
		}
	}
	if g.joining && now >= g.deadline {
		g.complete()
	}
}

// FetchOffsets gives the committed offsets. A stable fetch fails while an open
// transaction may still change one of them.
func (g *Group) FetchOffsets(partitions []event.Partition, stable bool) (map[event.Partition]OffsetCommit, error) {
	out := map[event.Partition]OffsetCommit{}
	for _, p := range partitions {
		for _, x := range g.pending {
			if stable && x.offset.Partition == p {
				return nil, ErrUnstable
			}
		}
		if o, ok := g.offsets[p]; ok {
			out[p] = o
		}
	}
	return out, nil
}

// Committed gives the committed offset of a partition.
func (g *Group) Committed(p event.Partition) (OffsetCommit, bool) {
	o, ok := g.offsets[p]
	return o, ok
}

func (g *Group) pend(producer int64, o OffsetCommit) {
	for i := range g.pending {
		if g.pending[i].producer == producer && g.pending[i].offset.Partition == o.Partition {
			g.pending[i].offset = o
			return
		}
	}
	g.pending = append(g.pending, pendingCommit{producer, o})
}

func (g *Group) pendingOf(producer int64) []GroupCommit {
	var out []GroupCommit
	for _, x := range g.pending {
		if x.producer == producer {
			out = append(out, GroupCommit{g, x.offset})
		}
	}
	return out
}

func (g *Group) settle(producer int64, commit bool) {
	kept := g.pending[:0]
	for _, x := range g.pending {
		switch {
		case x.producer != producer:
			kept = append(kept, x)
		case commit:
			g.offsets[x.offset.Partition] = x.offset
		}
	}
	g.pending = kept
}
