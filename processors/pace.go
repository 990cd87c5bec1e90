package processors

import "github.com/forge-platform/strom/event"

// pace bounds what one epoch of a source task gathers. An epoch lasts until the
// one before is committed by all stages, so under full load a long commit makes
// a long epoch, which makes a long commit: nothing but a bound ends that. Where
// there is a target, the bound follows from how long the epochs are: it is drawn
// together when one that was well filled was too long, and let out when one that
// was filled to the bound was not.
type pace struct {
	limit, least, most int
	// target is how long an epoch should be at most, in microseconds of
	// recorded time; 0: the bound stays where it is, so that the cuts of an
	// epoch are a function of the log.
	target int64
}

const leastBudget = 1 << 20

func newPace(budget int, target int64) pace {
	p := pace{limit: budget, least: min(budget, leastBudget), most: budget, target: target}
	if target > 0 {
		p.limit = min(budget, 8*leastBudget)
	}
	return p
}

// barrier takes the epoch that has ended: its length, and what it gathered.
func (p *pace) barrier(from, to event.RecordedTime, gathered int) {
	if p.target == 0 || from == event.RecordedUnknown {
		return
	}
	length := int64(to - from)
	switch {
	case length > p.target && gathered > p.limit/2:
		p.limit = max(p.least, p.limit/2, int(int64(p.limit)*p.target/length))
	case length <= p.target && gathered >= p.limit:
		p.limit = min(p.most, p.limit+p.limit/4)
	}
}
