package sim

import (
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
)

// controlRecord is what one record of the control topic says: exactly one of
// its parts. The engine writes it as JSON.
type controlRecord struct {
	announcement *processors.Announcement
	acks         *acks
	next         *notice
}

// acks acknowledge an epoch, in its transaction.
type acks struct {
	epoch  event.Epoch
	member string // transactional id
	acks   []processors.Ack
}

// notice tells, outside of transactions, which record a source task reads next.
type notice struct {
	task  processors.TaskID
	epoch event.Epoch
	next  processors.Next
}

func controlOf(r *broker.Record) *controlRecord {
	c, ok := r.Payload.(*controlRecord)
	if !ok {
		return nil
	}
	return c
}

// controlLog reads the control topic in order, committed records only.
type controlLog struct {
	engine  *engine
	part    *broker.Partition
	next    event.Offset
	pending []*controlRecord
}

// controlBack is how far before the end somebody begins who looks for the
// newest announcement; farther and farther where it is not there.
const controlBack = 16

// openControlLog opens the log at or before its newest announcement, and reads
// what is committed; a coordinator reads up to the high watermark at the call,
// and waits until the last stable offset has reached it.
func (e *engine) openControlLog(p *process, goOn func() error, whole bool) (*controlLog, error) {
	part := e.sim.control()
	for back := event.Offset(controlBack); ; back *= 4 {
		b, err := p.bounds(part, goOn)
		if err != nil {
			return nil, err
		}
		l := &controlLog{engine: e, part: part, next: max(b.start, b.high-back)}
		to := b.stable
		if whole {
			to = b.high
		}
		found := false
		for l.next < to {
			recs, err := l.poll(p, goOn)
			if err != nil {
				return nil, err
			}
			for _, r := range recs {
				found = found || r.announcement != nil
			}
			l.pending = append(l.pending, recs...)
		}
		if found || back >= b.high-b.start {
			return l, nil
		}
	}
}

// read gives the next records, and waits until there are some.
func (l *controlLog) read(p *process, goOn func() error) ([]*controlRecord, error) {
	if len(l.pending) > 0 {
		out := l.pending
		l.pending = nil
		return out, nil
	}
	for {
		if recs, err := l.poll(p, goOn); err != nil || len(recs) > 0 {
			return recs, err
		}
	}
}

func (l *controlLog) poll(p *process, goOn func() error) ([]*controlRecord, error) {
	got, err := p.fetch(l.part, l.next, 50, goOn)
	if err != nil {
		return nil, err
	}
	var out []*controlRecord
	for i := range got.records {
		l.next = got.records[i].Offset + 1
		if c := controlOf(&got.records[i]); c != nil {
			out = append(out, c)
		}
	}
	return out, nil
}
