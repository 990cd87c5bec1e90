package ontology

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

func int32FromField(b []byte) int32 { return int32(binary.BigEndian.Uint32(b)) }

// readHeads reads the heads that the rows can touch: for a put the head that
// contains its valid time, and the first one where it comes before all; for a
// window the head of that window. Objects that are new have none.
func (a *applying) readHeads(ctx context.Context) error {
	topics := make(map[int32]string)
	for name, id := range a.topicIDs() {
		topics[id] = name
	}
	r := &headReader{
		a: a, topics: topics,
		puts:    newArrays(oidInt8, oidInt4, oidInstant, oidInt4),
		windows: newArrays(oidInt8, oidInt4, oidInstant, oidInstant, oidInt4),
		first:   newArrays(oidInt8, oidInt4, oidInt4),
	}
	for n := range a.facts {
		if a.objects[a.facts[n].key.object].known {
			if err := r.ask(ctx, n); err != nil {
				return err
			}
		}
	}
	if err := r.flush(ctx, stmtPutHeads, r.puts); err != nil {
		return err
	}
	if err := r.flush(ctx, stmtWindowHeads, r.windows); err != nil {
		return err
	}
	for n := range a.facts {
		if err := r.askFirst(ctx, n); err != nil {
			return err
		}
	}
	if err := r.flush(ctx, stmtFirstHeads, r.first); err != nil {
		return err
	}
	for n := range a.facts {
		tidy(&a.facts[n])
	}
	return nil
}

// tidy sorts a fact's heads; several puts may have asked for one head.
func tidy(f *storedFact) {
	slices.SortFunc(f.heads, func(x, y timeline.Head) int { return cmp.Compare(x.ValidFrom, y.ValidFrom) })
	f.heads = slices.CompactFunc(f.heads, func(x, y timeline.Head) bool { return x.ValidFrom == y.ValidFrom })
}

type headReader struct {
	a                    *applying
	topics               map[int32]string
	puts, windows, first *arrays
	at                   []event.EventTime
}

func (r *headReader) ask(ctx context.Context, n int) error {
	f := &r.a.facts[n]
	no, property := r.a.objects[f.key.object].no, r.a.s.propertyIDs[f.key.property]
	if r.a.w.catalog.properties[f.key.property].windowed {
		c := r.windows.next()
		c[0].int8(no)
		c[1].int4(property)
		c[2].instant(int64(f.key.from))
		c[3].instant(int64(f.key.to))
		c[4].int4(int32(n))
		return r.full(ctx, stmtWindowHeads, r.windows)
	}
	r.at = r.at[:0]
	for i := range f.items {
		r.at = append(r.at, f.items[i].row.Result.ValidFrom)
	}
	slices.Sort(r.at)
	for _, at := range slices.Compact(r.at) {
		c := r.puts.next()
		c[0].int8(no)
		c[1].int4(property)
		c[2].instant(int64(at))
		c[3].int4(int32(n))
		if err := r.full(ctx, stmtPutHeads, r.puts); err != nil {
			return err
		}
	}
	return nil
}

// askFirst asks for the first head of a fact of puts where one of them comes
// before all heads read.
func (r *headReader) askFirst(ctx context.Context, n int) error {
	f := &r.a.facts[n]
	if !r.a.objects[f.key.object].known || r.a.w.catalog.properties[f.key.property].windowed {
		return nil
	}
	least := event.OpenEnd
	for i := range f.heads {
		least = min(least, f.heads[i].ValidFrom)
	}
	if !slices.ContainsFunc(f.items, func(it item) bool { return it.row.Result.ValidFrom < least }) {
		return nil
	}
	c := r.first.next()
	c[0].int8(r.a.objects[f.key.object].no)
	c[1].int4(r.a.s.propertyIDs[f.key.property])
	c[2].int4(int32(n))
	return r.full(ctx, stmtFirstHeads, r.first)
}

func (r *headReader) full(ctx context.Context, stmt string, asked *arrays) error {
	if asked.len() < r.a.s.options.RowsPerStatement {
		return nil
	}
	return r.flush(ctx, stmt, asked)
}

func (r *headReader) flush(ctx context.Context, stmt string, asked *arrays) error {
	if asked.len() == 0 {
		return nil
	}
	params := asked.params()
	asked.reset()
	_, err := query(ctx, r.a.conn, stmt, params, func(c *columns) error {
		f := &r.a.facts[c.int4()]
		h := readAssertion(c, r.topics)
		if c.err != nil {
			return c.err
		}
		f.heads = append(f.heads, timeline.Head{Assertion: h, Slot: len(r.a.stored)})
		r.a.stored = append(r.a.stored, h)
		return nil
	})
	return err
}

// readAssertion reads readColumns; without topics, it reads askedColumns, where
// the topic's name stands for its id.
func readAssertion(c *columns, topics map[int32]string) timeline.Assertion {
	a := timeline.Assertion{
		ValidFrom: event.EventTime(c.instant()), ValidTo: event.EventTime(c.instant()),
		RecordedFrom: event.RecordedTime(c.instant()), Epoch: event.Epoch(c.int8()), Lateness: c.int8(),
	}
	a.Place.Offset, a.Place.Timestamp = event.Offset(c.int8()), event.EventTime(c.instant())
	a.Generation, a.Version = event.Generation(c.int4()), uint32(c.int4())
	if topics == nil {
		a.Place.Topic = c.text()
	} else {
		var ok bool
		if a.Place.Topic, ok = topics[c.int4()]; !ok && c.err == nil {
			c.err = fmt.Errorf("%w: a place in an unknown topic", errStored)
		}
	}
	a.Place.Partition = event.Partition(c.int4())
	a.Cause, a.Reasserted = event.Cause(c.int2()), c.bool()
	a.Tie = event.Tie{
		Sequence: c.int8(), Offset: event.Offset(c.int8()),
		Rank: c.int4(), Partition: event.Partition(c.int4()), Index: c.int4(),
	}
	key, _ := c.nullInt8()
	a.KeyID = uint32(key)
	a.Value, a.State = c.value(), c.bytes()
	return a
}
