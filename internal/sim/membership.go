package sim

import (
	"errors"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
)

const (
	sessionTimeout = 10 * second
	heartbeatEvery = sessionTimeout / 4
)

var (
	errRejoin = errors.New("the group rebalances")
	errLost   = errors.New("no longer a member of the group's current generation")
)

// membership is a client's part in a consumer group.
type membership struct {
	engine     *engine
	group      *broker.Group
	client     endpoint
	id         string
	generation int32
	assigned   []event.Partition
	// rejoin and lost are what a heartbeat has told.
	rejoin, lost bool
	closed       bool
	// early are high watermarks taken too early (HighWatermarkEarly).
	early map[*broker.Partition]event.Offset
}

func (e *engine) newMembership(p *process, group string) *membership {
	return &membership{engine: e, group: e.sim.broker.Group(group), client: endpoint{
		world: p.world, name: p.name, host: p.host, life: p.life,
	}}
}

// goOn is nil as long as the member may go on with what it was given.
func (g *membership) goOn() error {
	switch {
	case g.lost:
		return errLost
	case g.rejoin:
		return errRejoin
	}
	return g.engine.goOn()
}

// join joins the group, and waits for the member's part.
func (g *membership) join(p *process) error {
	begin := g.id == ""
	for {
		id, claim := g.id, g.assigned
		m, err := insist(p, "join "+g.group.Name, g.engine.goOn, func() (*broker.Member, error) {
			return g.group.Join(id, claim, int64(sessionTimeout))
		})
		if errors.Is(err, broker.ErrUnknownMember) {
			g.id, begin = "", true
			continue
		}
		if err != nil {
			return err
		}
		g.id = m.ID
		_, err = p.await(func() bool {
			return m.Generation > g.generation || !g.group.Has(m) || g.engine.goOn() != nil
		}, forever)
		if err != nil {
			return err
		}
		if err := g.engine.goOn(); err != nil {
			return err
		}
		if !g.group.Has(m) {
			g.id, begin = "", true
			continue
		}
		g.rejoin, g.lost = false, false
		g.generation, g.assigned = m.Generation, slices.Clone(m.Assigned)
		p.world.tracef("%s: member %s of generation %d has %v", p.name, g.id, g.generation, g.assigned)
		if begin {
			g.beat(g.id)
		}
		return nil
	}
}

// beat sends heartbeats for as long as the client lives as this member.
func (g *membership) beat(id string) {
	w, host := g.client.world, g.client.host
	w.after(heartbeatEvery, "", func() {
		switch {
		case g.closed || g.id != id || host.life != g.client.life:
			return
		case host.paused:
			host.held = append(host.held, func() { g.beatNow(id) })
			return
		}
		g.beatNow(id)
	})
}

func (g *membership) beatNow(id string) {
	if g.closed || g.id != id {
		return
	}
	generation := g.generation
	g.client.post("heartbeat "+g.group.Name, func() error {
		return g.group.Heartbeat(id, generation)
	}, func(err error) {
		if g.id != id || g.generation != generation {
			return
		}
		switch {
		case errors.Is(err, broker.ErrRebalancing):
			g.rejoin = true
		case errors.Is(err, broker.ErrUnknownMember), errors.Is(err, broker.ErrIllegalGeneration):
			g.lost = true
		}
	})
	g.beat(id)
}

// leave closes the client: a dynamic member leaves its group with that.
func (g *membership) leave(p *process) error {
	g.closed = true
	if g.id == "" {
		return nil
	}
	id := g.id
	err := p.call("leave "+g.group.Name, always, func() error {
		g.group.Leave(id)
		return nil
	})
	if errors.Is(err, errKilled) {
		return err
	}
	return nil // it notices by itself
}
