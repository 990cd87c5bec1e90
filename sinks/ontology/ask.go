package ontology

import (
	"context"
	"iter"

	"github.com/forge-platform/strom/event"
)

// The questions. Their SQL is constant; what is asked for are parameters, and
// a null parameter leaves its condition out.

const askedColumns = `h.valid_from, h.valid_to, h.recorded_from, h.epoch, h.lateness,
	h.place_offset, h.place_timestamp, h.generation, h.version, coalesce(k.name, ''), h.place_partition, h.cause, h.reasserted,
	h.tie_sequence, h.tie_offset, h.tie_rank, h.tie_partition, h.tie_index, h.key_id, h.value, h.state`

const joins = `
	JOIN strom.object o ON o.object_no = h.object_no
	JOIN strom.object_type t ON t.type_id = o.type_id
	JOIN strom.property p ON p.property_id = h.property_id
	JOIN strom.pipeline l ON l.pipeline_id = h.pipeline_id
	LEFT JOIN strom.topic k ON k.topic_id = h.place_topic`

const asOfSQL = `SELECT t.name, o.id, p.name, l.name, ` + askedColumns + `
	FROM strom.assertion_row h` + joins + `
	WHERE h.recorded_from <= $1::timestamptz AND h.recorded_to > $1
		AND h.cause <> 5 AND (h.version > 0 OR h.value IS NOT NULL)
		AND ($2::int4 IS NULL OR o.type_id = $2) AND ($3::text IS NULL OR o.id = $3)
		AND ($4::timestamptz IS NULL OR h.valid_from <= $4 AND h.valid_to > $4)
		AND (NOT $5::bool OR h.version > 0 OR h.valid_to = 'infinity')
	ORDER BY t.name, o.id, p.name, h.valid_from, h.valid_to LIMIT $6::int8`

// AsOf gives what was believed, ordered by type, id, property and valid time;
// deletions and retractions are left out. The answer of a recorded time has
// the same bytes for ever. Above the horizon or below the floor it is a
// *HorizonError.
func (r *Reader) AsOf(ctx context.Context, q Question) iter.Seq2[Fact, error] {
	return stream(ctx, r, q.Type, func(b Bounds, typeID *int32) (string, []any, error) {
		return asOfSQL, q.args(typeID, q.Recorded), b.check(q.Recorded)
	}, readFact)
}

// Get gives what is believed now, that is as of the horizon, of one object:
// the properties that hold until further notice, and every window.
func (r *Reader) Get(ctx context.Context, typ, id string) iter.Seq2[Fact, error] {
	q := Question{Type: typ, ID: id, Current: true}
	return stream(ctx, r, typ, func(b Bounds, typeID *int32) (string, []any, error) {
		return asOfSQL, q.args(typeID, b.Horizon), nil
	}, readFact)
}

func (q *Question) args(typeID *int32, recorded event.RecordedTime) []any {
	args := []any{instant(int64(recorded)), typeID, nil, nil, q.Current, nil}
	if q.ID != "" {
		args[2] = q.ID
	}
	if q.Valid != nil {
		args[3] = instant(int64(*q.Valid))
	}
	if q.Limit > 0 {
		args[5] = int64(q.Limit)
	}
	return args
}

func readFact(c *columns) (Fact, error) {
	a, err := readAsked(c)
	return a.Fact, err
}

// readAsked reads the names and askedColumns.
func readAsked(c *columns) (Assertion, error) {
	typ, id, property, pipeline := c.text(), c.text(), c.text(), c.text()
	a := readAssertion(c, nil)
	return Assertion{Fact: newFact(typ, id, property, pipeline, &a), RecordedTo: event.RecordedNever, State: a.State}, c.err
}

const historySQL = `SELECT t.name, o.id, p.name, l.name, ` + askedColumns + `,
		CASE WHEN h.recorded_to <= $1 THEN h.recorded_to ELSE 'infinity' END
	FROM strom.assertion_row h` + joins + `
	WHERE h.recorded_from <= $1::timestamptz AND ($2::int4 IS NULL OR o.type_id = $2)
		AND ($3::text IS NULL OR o.id = $3) AND ($4::text IS NULL OR p.name = $4)
	ORDER BY h.recorded_from, t.name, o.id, p.name, h.valid_from, h.version,
		coalesce(h.tie_sequence, 0), coalesce(h.tie_rank, 0), coalesce(h.tie_partition, 0), coalesce(h.tie_offset, 0), coalesce(h.tie_index, 0),
		CASE WHEN h.recorded_to <= $1 THEN h.recorded_to ELSE 'infinity' END, h.valid_to DESC`

// History gives every assertion version recorded up to the horizon of one
// object (typ and id), of one type, or of everything, and of one property
// where it is named: in the order of recording, superseded versions and
// deletions included.
func (r *Reader) History(ctx context.Context, typ, id, property string) iter.Seq2[Assertion, error] {
	return stream(ctx, r, typ, func(b Bounds, typeID *int32) (string, []any, error) {
		args := []any{instant(int64(b.Horizon)), typeID, nil, nil}
		if id != "" {
			args[2] = id
		}
		if property != "" {
			args[3] = property
		}
		return historySQL, args, nil
	}, func(c *columns) (Assertion, error) {
		a, _ := readAsked(c)
		a.RecordedTo = event.RecordedTime(c.instant())
		return a, c.err
	})
}

const listSQL = `SELECT o.id FROM strom.object o
	WHERE o.type_id = $2::int4 AND o.id > $3::text
		AND EXISTS (SELECT FROM strom.assertion_row h WHERE h.object_no = o.object_no
			AND h.recorded_from <= $1::timestamptz AND h.recorded_to > $1
			AND h.cause <> 5 AND (h.version > 0 OR h.value IS NOT NULL AND h.valid_to = 'infinity'))
	ORDER BY o.id LIMIT $4::int8`

// List gives the ids of a type's objects of which something is believed now,
// in order, from the first one after the given id; limit 0: all.
func (r *Reader) List(ctx context.Context, typ, after string, limit int) iter.Seq2[string, error] {
	return stream(ctx, r, typ, func(b Bounds, typeID *int32) (string, []any, error) {
		args := []any{instant(int64(b.Horizon)), typeID, after, nil}
		if limit > 0 {
			args[3] = int64(limit)
		}
		return listSQL, args, nil
	}, func(c *columns) (string, error) { return c.text(), c.err })
}

const statsSQL = `SELECT a.windowed, a.cause, a.reasserted, a.counted, a.closed, count(*)
	FROM (SELECT p.aggregate IS NOT NULL AS windowed, h.cause, h.reasserted, h.recorded_to <= t.horizon AS closed,
			p.aggregate IS NULL OR p.property_id = (SELECT min(q.property_id) FROM strom.property q
				WHERE q.type_id = p.type_id AND q.aggregate = p.aggregate) AS counted
		FROM strom.assertion_row h
		JOIN strom.property p ON p.property_id = h.property_id
		JOIN (SELECT t.type_id, strom.type_horizon(t.type_id) AS horizon FROM strom.object_type t OFFSET 0) t ON t.type_id = p.type_id
		WHERE h.recorded_from <= t.horizon AND ($1::int4 IS NULL OR p.type_id = $1)) a
	GROUP BY 1, 2, 3, 4, 5`

// Stats counts the assertions of a type, or of everything, up to the horizon.
// It reads the whole tables.
func (r *Reader) Stats(ctx context.Context, typ string) (Stats, error) {
	s := newStats()
	for row, err := range stream(ctx, r, typ, func(_ Bounds, typeID *int32) (string, []any, error) {
		return statsSQL, []any{typeID}, nil
	}, func(c *columns) (statsRow, error) {
		row := statsRow{windowed: c.bool(), cause: event.Cause(c.int2()), reasserted: c.bool(), counted: c.bool(), closed: c.bool()}
		row.n = c.int8()
		return row, c.err
	}) {
		if err != nil {
			return s, err
		}
		s.add(row)
	}
	for n, err := range stream(ctx, r, typ, func(_ Bounds, typeID *int32) (string, []any, error) {
		return "SELECT count(*) FROM strom.object o WHERE $1::int4 IS NULL OR o.type_id = $1", []any{typeID}, nil
	}, func(c *columns) (int64, error) { return c.int8(), c.err }) {
		if err != nil {
			return s, err
		}
		s.Objects = n
	}
	return s, nil
}

func newStats() Stats {
	return Stats{WindowResults: make(map[string]int64), Puts: make(map[string]int64)}
}

type statsRow struct {
	windowed, reasserted, counted, closed bool
	cause                                 event.Cause
	n                                     int64
}

func (s *Stats) add(row statsRow) {
	if row.closed {
		s.Closed += row.n
	} else {
		s.Believed += row.n
	}
	switch {
	case !row.counted:
	case row.windowed:
		s.WindowResults[row.cause.String()] += row.n
	case row.reasserted:
		s.Reasserted += row.n
	default:
		s.Puts[row.cause.String()] += row.n
	}
}
