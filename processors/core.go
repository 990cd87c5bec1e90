package processors

import (
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
)

// core is what every kind of task has: aggregates, parked windows, counters.
type core struct {
	config   TaskConfig
	aggs     []*aggregator
	parking  *parking
	counters Counters
}

func (k *core) init(c TaskConfig, aggs []*mapping.Aggregate) error {
	k.config = c
	k.parking = newParking()
	var err error
	if k.counters, err = DecodeCounters(c.Progress.Counters); err != nil {
		return err
	}
	for _, a := range aggs {
		g := newAggregator(a, &k.config, &k.counters, k.parking)
		g.watermark, g.epoch = c.Progress.Announced, c.Progress.Epoch+1
		k.aggs = append(k.aggs, g)
	}
	return k.parking.restore(c.State, c.Progress.Parked, k.find)
}

func (k *core) find(name string) *aggregator {
	for _, a := range k.aggs {
		if a.agg.StageName() == name {
			return a
		}
	}
	return nil
}

// Halted implements Task: an aggregate never halts, its rows are Strom's own.
func (k *core) Halted() *event.Reject { return nil }

// Answer implements Task.
func (k *core) Answer(answers []Answer) error {
	return k.parking.answer(answers)
}

// Answered implements Task.
func (k *core) Answered() event.Epoch { return k.parking.answered() }

// Waiting implements Task.
func (k *core) Waiting() []ReadBack { return k.parking.ask() }

// partialHandOver is a HandOver before its layer has been put together.
type partialHandOver struct {
	HandOver
	changes []state.Change
}

// barrier ends the epoch for the aggregates.
func (k *core) barrier(b *Barrier) (*partialHandOver, []*closing, error) {
	h := &partialHandOver{HandOver: HandOver{Barrier: *b, Watermark: event.WatermarkUnknown}}
	closings := make([]*closing, 0, len(k.aggs))
	closes := false
	for _, a := range k.aggs {
		c, err := a.barrier(b)
		if err != nil {
			return nil, nil, err
		}
		closings = append(closings, c)
		h.changes = append(h.changes, c.changes...)
		h.Expired = append(h.Expired, c.expired...)
		closes = closes || c.closes
	}
	h.ReadBacks = k.parking.takeFresh()
	h.Parked, h.Waiting = k.parking.last, k.parking.waiting
	h.Quiet = !closes && len(h.changes) == 0 && h.Waiting == 0
	return h, closings, nil
}

// stream passes on what the aggregates publish, then the tombstones of what expired.
func (k *core) stream(closings []*closing, b *Barrier, expired []state.Range, at state.Reader,
	out func(Output) error, tombstone func([]byte) error,
) error {
	var rows arena
	emit := func(r *event.Result) error {
		return out(Output{
			Key:   rows.keep(event.AppendObjectKey(rows.room(), r.Type, r.ID)),
			Value: rows.keep(event.AppendResult(rows.room(), r)),
		})
	}
	for i, a := range k.aggs {
		if err := a.stream(closings[i], b, at, emit); err != nil {
			return err
		}
	}
	for _, r := range expired {
		if r.From[0] == state.KeyID {
			continue // ids are in the changelog as blocks
		}
		err := at.Scan(r, func(key, _ []byte) (bool, error) { return true, tombstone(key) })
		if err != nil {
			return err
		}
	}
	return nil
}

// aggregateTask aggregates the rows of a repartition topic.
type aggregateTask struct{ core }

func newAggregateTask(c TaskConfig) (*aggregateTask, error) {
	t := &aggregateTask{}
	return t, t.core.init(c, []*mapping.Aggregate{c.Stage.Aggregate})
}

// Feed implements Task. The rows are Strom's own: one that cannot be decoded is
// corruption, not a bad record.
func (t *aggregateTask) Feed(_ int, records []Record, _ Clock) (int, error) {
	for i := range records {
		c, err := event.DecodeContribution(records[i].Key, records[i].Value)
		if err != nil {
			return i, err
		}
		if err := t.aggs[0].add(&c); err != nil {
			return i, err
		}
	}
	return len(records), nil
}

// Barrier implements Task.
func (t *aggregateTask) Barrier(b Barrier) (*HandOver, error) {
	h, closings, err := t.core.barrier(&b)
	if err != nil {
		return nil, err
	}
	h.Layer = state.NewLayer(h.changes)
	h.Counters = t.counters
	h.Stream = func(at state.Reader, out func(Output) error, tombstone func([]byte) error) error {
		return t.core.stream(closings, &b, h.Expired, at, out, tombstone)
	}
	return &h.HandOver, nil
}
