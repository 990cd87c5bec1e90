package sim

import (
	"errors"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
)

// member is a replica's part in one stage: kafka's member.
type member struct {
	engine *engine
	stage  *processors.Stage
	claim  []event.Partition
	// lastID is the transactional id of the last session: the next one ends
	// what it may have left open.
	lastID string
}

// run joins the group again and again until the process stops or the member
// fails.
func (m *member) run(p *process) error {
	for wait := 50 * millisecond; ; wait = min(2*wait, 5*second) {
		err := m.incarnation(p)
		switch {
		case errors.Is(err, errKilled):
			return err
		case m.engine.stopping:
			return errStopping
		case err != nil && !passing(err):
			return err
		}
		p.world.tracef("%s joins again: %v", p.name, err)
		if err := p.sleep(wait/2 + p.world.upTo(wait/2)); err != nil {
			return err
		}
	}
}

// incarnation is one life of a group consumer.
func (m *member) incarnation(p *process) error {
	g := m.engine.newMembership(p, m.engine.sim.topology.Group(m.stage))
	g.assigned = m.claim
	err := m.live(p, g)
	if errors.Is(err, errKilled) {
		return err
	}
	if left := g.leave(p); left != nil {
		return left
	}
	return err
}

// live takes part in one generation after the other until a session breaks.
func (m *member) live(p *process, g *membership) error {
	for {
		if err := g.join(p); err != nil {
			return err
		}
		m.claim = g.assigned
		s, err := m.assigned(p, g)
		if s != nil && err == nil {
			err = m.poll(p, g, s)
		}
		if errors.Is(err, errKilled) {
			return err
		}
		if s != nil {
			// Lost or broken: nothing is waited for. Else a planned end.
			if ended := s.finish(p, !g.lost && s.err == nil); ended != nil {
				return ended
			}
			if s.err != nil {
				return s.err
			}
		}
		switch {
		case m.engine.stopping:
			return errStopping
		case g.lost || g.rejoin:
			if g.lost {
				g.id = ""
			}
			continue
		}
		return errorOr(err, "the session ended")
	}
}

// assigned makes a session of what the group has given; nil for nothing.
func (m *member) assigned(p *process, g *membership) (*session, error) {
	if m.engine.sim.bug == HighWatermarkEarly {
		g.early = map[*broker.Partition]event.Offset{}
		for _, n := range g.assigned {
			part := m.engine.sim.broker.Topic(m.engine.sim.topology.Changelog(m.stage))[n]
			g.early[part] = part.High()
		}
	}
	if err := m.endOldTransactions(p, g); err != nil {
		return nil, err
	}
	// The client waits for stable offsets by itself before it lets anybody in.
	if _, err := m.stableOffsets(p, g); err != nil {
		return nil, err
	}
	if len(g.assigned) == 0 {
		_, err := p.await(func() bool { return g.goOn() != nil }, forever)
		if err != nil {
			return nil, err
		}
		return nil, g.goOn()
	}
	return m.takeOver(p, g)
}

// poll fetches and delivers until the group or the session ends it.
func (m *member) poll(p *process, g *membership, s *session) error {
	over := func() error {
		if s.err != nil {
			return s.err
		}
		return g.goOn()
	}
	for {
		var ready []*task
		look := func() bool {
			ready = ready[:0]
			for _, t := range s.inOrder() {
				if t.wanted() && (t.source().Has(t.fetched) || t.fetched < t.source().Start()) {
					ready = append(ready, t)
				}
			}
			return len(ready) > 0
		}
		if _, err := p.await(func() bool { return over() != nil || look() }, forever); err != nil {
			return err
		}
		if err := over(); err != nil {
			return err
		}
		if !look() {
			continue
		}
		t := ready[p.world.rng.IntN(len(ready))]
		from, limit := t.fetched, 1+p.world.rng.IntN(40)
		got, err := ask(p, "fetch "+t.id.Stage+"/"+t.id.Partition.String(), over, func() (fetched, error) {
			recs, stable, err := t.source().Fetch(from, limit)
			return fetched{recs, stable}, err
		})
		switch {
		case errors.Is(err, errNoReply):
			continue
		case err != nil:
			return err
		}
		s.deliver(t, got)
	}
}

// endOldTransactions ends what the old owners, and this member's own last
// session, may have left open, and fences them.
func (m *member) endOldTransactions(p *process, g *membership) error {
	if m.engine.sim.setup.noFencing {
		return nil
	}
	unstable, err := insist(p, "unstable offsets of "+m.stage.Name, g.goOn, func() (map[event.Partition]broker.OffsetCommit, error) {
		return g.group.FetchOffsets(g.assigned, false)
	})
	if err != nil {
		return err
	}
	ids, err := m.openTransactions(p, g)
	if err != nil {
		return err
	}
	if m.lastID != "" {
		ids = append(ids, m.lastID)
	}
	for _, n := range g.assigned {
		if o, ok := unstable[n]; ok && o.ID != "" {
			ids = append(ids, o.ID)
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if _, err := insist(p, "fence "+id, g.goOn, func() (broker.Producer, error) {
			return m.engine.sim.broker.InitProducer(id, int64(transactionTimeout))
		}); err != nil {
			return err
		}
	}
	return nil
}

// openTransactions lists the transactional ids of this stage's earlier
// generations that have a transaction open. A broker that does not list them
// costs time only.
func (m *member) openTransactions(p *process, g *membership) ([]string, error) {
	listed, err := ask(p, "list transactions", g.goOn, func() ([]string, error) {
		return m.engine.sim.broker.Ongoing(), nil
	})
	if err != nil && !errors.Is(err, errNoReply) {
		return nil, err
	}
	var ids []string
	for _, id := range listed {
		if of, generation, ok := parseTransactionalID(id); ok && of == m.engine.sim.topology.Group(m.stage) && generation < g.generation {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// stableOffsets reads the committed offsets of the input when no transaction
// may still change them.
func (m *member) stableOffsets(p *process, g *membership) (map[event.Partition]broker.OffsetCommit, error) {
	return insist(p, "stable offsets of "+m.stage.Name, g.goOn, func() (map[event.Partition]broker.OffsetCommit, error) {
		return g.group.FetchOffsets(g.assigned, m.engine.sim.bug != NoStableFetch)
	})
}
