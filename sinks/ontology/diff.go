package ontology

import (
	"context"
	"iter"
	"slices"

	"github.com/forge-platform/strom/event"
)

// diffSQL gives what is believed at one of two recorded times only: gone are
// assertions of the first, the others are of the second. What both believe
// has not changed.
const diffSQL = `SELECT t.name, o.id, p.name, l.name, ` + askedColumns + `, h.gone
	FROM (SELECT *, recorded_from <= $1::timestamptz AS gone FROM strom.assertion_row
		WHERE recorded_from > $1 AND recorded_from <= $2::timestamptz AND recorded_to > $2
			OR recorded_from <= $1 AND recorded_to > $1 AND recorded_to <= $2) h` + joins + `
	WHERE h.cause <> 5 AND (h.version > 0 OR h.value IS NOT NULL) AND ($3::int4 IS NULL OR o.type_id = $3)
	ORDER BY t.name, o.id, p.name, h.valid_from, h.valid_to, h.gone DESC`

// diffRow is an assertion that is believed at one of the two times.
type diffRow struct {
	Fact
	gone bool
}

// Diff gives what changed of the belief about a type, or about everything,
// from the first recorded time to the second: over which valid interval which
// value took the place of which. It is ordered as an as-of answer. An
// assertion that was replaced by an equal value is no change.
func (r *Reader) Diff(ctx context.Context, typ string, from, to event.RecordedTime) iter.Seq2[Change, error] {
	rows := stream(ctx, r, typ, func(b Bounds, typeID *int32) (string, []any, error) {
		for _, asked := range []event.RecordedTime{from, to} {
			if err := b.check(asked); err != nil {
				return "", nil, err
			}
		}
		return diffSQL, []any{instant(int64(from)), instant(int64(to)), typeID}, nil
	}, func(c *columns) (diffRow, error) {
		f, _ := readFact(c)
		return diffRow{Fact: f, gone: c.bool()}, c.err
	})
	return func(yield func(Change, error) bool) {
		var group []diffRow
		flush := func() bool {
			for _, ch := range changes(group) {
				if !yield(ch, nil) {
					return false
				}
			}
			group = group[:0]
			return true
		}
		for row, err := range rows {
			if err != nil {
				yield(Change{}, err)
				return
			}
			if len(group) > 0 && !sameFact(&group[0].Fact, &row.Fact) && !flush() {
				return
			}
			group = append(group, row)
		}
		flush()
	}
}

// sameFact says whether two assertions are of one fact; every window is one.
func sameFact(a, b *Fact) bool {
	return a.Type == b.Type && a.ID == b.ID && a.Property == b.Property &&
		(a.Version == 0 && b.Version == 0 || a.ValidFrom == b.ValidFrom && a.ValidTo == b.ValidTo)
}

// changes cuts the valid time of one fact at every border of its rows, takes
// what stands on either side, and joins neighbours that changed alike.
func changes(rows []diffRow) []Change {
	var borders []event.EventTime
	for i := range rows {
		borders = append(borders, rows[i].ValidFrom, rows[i].ValidTo)
	}
	slices.Sort(borders)
	borders = slices.Compact(borders)
	var out []Change
	var lastBefore, lastAfter *Fact
	then, now := newSweep(rows, true), newSweep(rows, false)
	for i := 1; i < len(borders); i++ {
		from, to := borders[i-1], borders[i]
		before, after := then.at(from), now.at(from)
		if equalFacts(before, after) {
			lastBefore, lastAfter = nil, nil
			continue
		}
		end := endText(to)
		if len(out) > 0 && (lastBefore != nil || lastAfter != nil) && equalFacts(lastBefore, before) && equalFacts(lastAfter, after) {
			out[len(out)-1].ValidTo = end
		} else {
			out = append(out, Change{
				Type: rows[0].Type, ID: rows[0].ID, Property: rows[0].Property,
				ValidFrom: from.String(), ValidTo: end, Before: side(before), After: side(after),
			})
		}
		lastBefore, lastAfter = before, after
	}
	return out
}

// sweep walks along the valid time of one side. The rows of a side are sorted
// and do not overlap.
type sweep struct{ rows []*Fact }

func newSweep(rows []diffRow, gone bool) *sweep {
	s := &sweep{}
	for i := range rows {
		if rows[i].gone == gone {
			s.rows = append(s.rows, &rows[i].Fact)
		}
	}
	return s
}

// at gives the row that contains t, which never falls from call to call.
func (s *sweep) at(t event.EventTime) *Fact {
	for len(s.rows) > 0 && s.rows[0].ValidTo <= t {
		s.rows = s.rows[1:]
	}
	if len(s.rows) > 0 && s.rows[0].ValidFrom <= t {
		return s.rows[0]
	}
	return nil
}

// equalFacts says whether two sides believe the same.
func equalFacts(a, b *Fact) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Value == b.Value
}

func side(f *Fact) *Side {
	if f == nil {
		return nil
	}
	s := &Side{Cause: f.Cause.String(), Version: f.Version, RecordedFrom: f.RecordedFrom.String(), Place: f.Place.String()}
	if !f.Value.Null {
		text := f.Value.Text
		s.Value = &text
	}
	return s
}

func endText(t event.EventTime) *string {
	if t == event.OpenEnd {
		return nil
	}
	s := t.String()
	return &s
}
