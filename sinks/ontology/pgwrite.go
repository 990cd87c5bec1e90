package ontology

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

// copier gathers rows for a COPY in the binary format.
type copier struct {
	sql  string
	rows fields
	n    int
}

const copyHeader = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// row begins a row of n fields.
func (c *copier) row(n int) *fields {
	if c.n == 0 {
		c.rows = append(c.rows[:0], copyHeader...)
	}
	c.n++
	c.rows = binary.BigEndian.AppendUint16(c.rows, uint16(n))
	return &c.rows
}

func (c *copier) flush(ctx context.Context, a *applying) error {
	if c.n == 0 {
		return nil
	}
	c.rows = binary.BigEndian.AppendUint16(c.rows, 0xffff)
	n := c.n
	c.n = 0
	tag, err := a.conn.PgConn().CopyFrom(ctx, bytes.NewReader(c.rows), c.sql)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if tag.RowsAffected() != int64(n) {
		return fmt.Errorf("%w: copied %d of %d rows", errStored, tag.RowsAffected(), n)
	}
	return nil
}

func (c *copier) full(ctx context.Context, a *applying) error {
	if c.n < a.s.options.RowsPerStatement {
		return nil
	}
	return c.flush(ctx, a)
}

const headFields = 24

// factWriter turns what the core decided into statements.
type factWriter struct {
	a       *applying
	topics  map[string]int32
	history copier
	heads   copier
	moves   *arrays
	changes *arrays
	row     fields // one assertion, before its fields go to the columns of changes
}

// assertionRow appends the fields of headColumns.
func (wr *factWriter) assertionRow(f *fields, no int64, property int32, h *timeline.Assertion) {
	f.int8(no)
	f.int4(property)
	f.instant(int64(h.ValidFrom))
	f.instant(int64(h.ValidTo))
	f.instant(int64(h.RecordedFrom))
	f.int8(int64(h.Epoch))
	f.int8(h.Lateness)
	f.int8(int64(h.Place.Offset))
	f.instant(int64(h.Place.Timestamp))
	f.int4(wr.a.s.pipelineID)
	f.int4(int32(h.Generation))
	f.int4(int32(h.Version))
	f.int4(wr.topics[h.Place.Topic])
	f.int4(int32(h.Place.Partition))
	f.int2(int16(h.Cause))
	f.bool(h.Reasserted)
	if h.Version == 0 {
		f.int8(h.Tie.Sequence)
		f.int8(int64(h.Tie.Offset))
		f.int4(h.Tie.Rank)
		f.int4(int32(h.Tie.Partition))
		f.int4(h.Tie.Index)
	} else {
		for range 5 {
			f.null()
		}
	}
	if h.KeyID == 0 {
		f.null()
	} else {
		f.int8(int64(h.KeyID))
	}
	f.value(h.Value)
	f.bytes(h.State)
}

// writeFacts runs the core over every fact and writes what changed.
func (a *applying) writeFacts(ctx context.Context) error {
	wr := &factWriter{
		a: a, topics: a.topicIDs(),
		history: copier{sql: copyHistory}, heads: copier{sql: copyHeads},
		moves: newArrays(oidInt8, oidInt4, oidInstant, oidInstant, oidInstant, oidInstant, oidInt8, oidInt4, oidInt2, oidBool),
		changes: newArrays(oidInt8, oidInt4, oidInstant, oidInstant, oidInstant, oidInt8, oidInt8,
			oidInt8, oidInstant, oidInt4, oidInt4, oidInt4, oidInt4, oidInt4, oidInt2, oidBool,
			oidInt8, oidInt8, oidInt4, oidInt4, oidInt4, oidInt8, oidText, oidBytea, oidInstant),
	}
	for n := range a.facts {
		f := &a.facts[n]
		line := timeline.Line{Heads: f.heads}
		if err := a.w.apply(&line, f.items); err != nil {
			return err
		}
		if err := wr.line(ctx, f.key, &line); err != nil {
			return err
		}
	}
	// The heads that are there move aside before new ones come in.
	if err := wr.history.flush(ctx, a); err != nil {
		return err
	}
	if err := wr.update(ctx, stmtMoveHeads, wr.moves); err != nil {
		return err
	}
	if err := wr.update(ctx, stmtReplaceHeads, wr.changes); err != nil {
		return err
	}
	return wr.heads.flush(ctx, a)
}

func (wr *factWriter) line(ctx context.Context, key factKey, l *timeline.Line) error {
	no, property := wr.a.objects[key.object].no, wr.a.s.propertyIDs[key.property]
	for i := range l.Closed {
		c := &l.Closed[i]
		f := wr.history.row(headFields + 1)
		wr.assertionRow(f, no, property, &c.Assertion)
		f.instant(int64(c.RecordedTo))
		if err := wr.history.full(ctx, wr.a); err != nil {
			return err
		}
	}
	for i := range l.Heads {
		h := &l.Heads[i]
		if !h.Dirty {
			continue
		}
		if err := wr.head(ctx, no, property, h); err != nil {
			return err
		}
	}
	return nil
}

func (wr *factWriter) head(ctx context.Context, no int64, property int32, h *timeline.Head) error {
	if h.Slot == timeline.NoSlot {
		wr.assertionRow(wr.heads.row(headFields), no, property, &h.Assertion)
		if wr.heads.n < wr.a.s.options.RowsPerStatement {
			return nil
		}
		if err := wr.update(ctx, stmtMoveHeads, wr.moves); err != nil {
			return err
		}
		if err := wr.update(ctx, stmtReplaceHeads, wr.changes); err != nil {
			return err
		}
		return wr.heads.flush(ctx, wr.a)
	}
	was := &wr.a.stored[h.Slot]
	if onlyMoved(was, &h.Assertion) {
		c := wr.moves.next()
		c[0].int8(no)
		c[1].int4(property)
		c[2].instant(int64(h.ValidFrom))
		c[3].instant(int64(was.ValidTo))
		c[4].instant(int64(h.ValidTo))
		c[5].instant(int64(h.RecordedFrom))
		c[6].int8(int64(h.Epoch))
		c[7].int4(int32(h.Generation))
		c[8].int2(int16(h.Cause))
		c[9].bool(h.Reasserted)
		return wr.fullUpdate(ctx, stmtMoveHeads, wr.moves)
	}
	wr.row = wr.row[:0]
	wr.assertionRow(&wr.row, no, property, &h.Assertion)
	wr.row.instant(int64(was.ValidTo))
	spread(wr.changes.next(), wr.row)
	return wr.fullUpdate(ctx, stmtReplaceHeads, wr.changes)
}

// spread gives each column its field of a row.
func spread(cols []array, row fields) {
	for i := range cols {
		size := 4
		if n := int32(binary.BigEndian.Uint32(row)); n > 0 {
			size += int(n)
		}
		cols[i].fields = append(cols[i].fields, row[:size]...)
		row = row[size:]
	}
}

// onlyMoved says whether a head is the rest of what is stored in its slot, so
// that its own event's columns stay.
func onlyMoved(was, is *timeline.Assertion) bool {
	return is.Version == 0 && was.Tie == is.Tie && was.Value == is.Value && was.Place == is.Place &&
		was.ValidFrom == is.ValidFrom && was.Lateness == is.Lateness && was.KeyID == is.KeyID &&
		bytes.Equal(was.State, is.State)
}

func (wr *factWriter) fullUpdate(ctx context.Context, stmt string, cols *arrays) error {
	if cols.len() < wr.a.s.options.RowsPerStatement {
		return nil
	}
	return wr.update(ctx, stmt, cols)
}

func (wr *factWriter) update(ctx context.Context, stmt string, cols *arrays) error {
	want := cols.len()
	if want == 0 {
		return nil
	}
	params := cols.params()
	cols.reset()
	n, err := query(ctx, wr.a.conn, stmt, params, nil)
	if err == nil && n != int64(want) {
		err = fmt.Errorf("%w: %s found %d of %d heads", errStored, stmt, n, want)
	}
	return err
}

// writeApplied stores the newest number of each object.
func (a *applying) writeApplied(ctx context.Context) error {
	insert := copier{sql: copyApplied}
	update := newArrays(oidInt8, oidInt8)
	flush := func() error {
		if update.len() == 0 {
			return nil
		}
		want := update.len()
		params := append([][]byte{int4Param(a.s.pipelineID), int4Param(int32(a.s.pipeline.Generation))}, update.params()...)
		update.reset()
		n, err := query(ctx, a.conn, stmtSetApplied, params, nil)
		if err == nil && n != int64(want) {
			err = fmt.Errorf("%w: %d of %d applied numbers", errStored, n, want)
		}
		return err
	}
	for i := range a.objects {
		o, last := &a.objects[i], a.w.last[i]
		switch {
		case !o.applied.before(last):
			continue
		case o.applied.offset == event.OffsetNone:
			f := insert.row(4)
			f.int8(o.no)
			f.int4(a.s.pipelineID)
			f.int4(int32(last.generation))
			f.int8(int64(last.offset))
			if err := insert.full(ctx, a); err != nil {
				return err
			}
		default:
			c := update.next()
			c[0].int8(o.no)
			c[1].int8(int64(last.offset))
			if update.len() >= a.s.options.RowsPerStatement {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if err := insert.flush(ctx, a); err != nil {
		return err
	}
	return flush()
}

// writeEpochs notes the epochs that wrote something. It comes last: another
// member that notes the same epoch waits for our commit here.
func (a *applying) writeEpochs(ctx context.Context) error {
	if len(a.w.epochs) == 0 {
		return nil
	}
	cols := newArrays(oidInt8, oidInstant)
	for _, e := range a.w.epochs {
		c := cols.next()
		c[0].int8(int64(e.epoch))
		c[1].instant(int64(e.recorded))
	}
	params := append([][]byte{int4Param(a.s.pipelineID), int4Param(int32(a.s.pipeline.Generation))}, cols.params()...)
	_, err := query(ctx, a.conn, stmtAddEpochs, params, nil)
	return err
}
