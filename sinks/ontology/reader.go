package ontology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
)

// Reader asks an ontology. It never writes: its transactions are read-only.
// Methods may be called concurrently; an iterator holds a connection until it
// ends. Errors of the infrastructure are returned, not retried.
type Reader struct {
	conns *connector
	log   *slog.Logger
}

// OpenReader connects to an ontology that some pipeline has created.
func OpenReader(ctx context.Context, conn mapping.Ontology, o Options) (*Reader, error) {
	conns, err := newConnector(conn, "strom ontology")
	if err != nil {
		return nil, err
	}
	// Questions leave conditions open; a plan is made for each.
	conns.setup = append(conns.setup, "SET default_transaction_read_only = on", "SET plan_cache_mode = force_custom_plan")
	r := &Reader{conns: conns, log: o.withDefaults().Logger}
	err = conns.once(ctx, func(conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }() // nothing was written
		version, err := schemaVersion(ctx, tx)
		switch {
		case err != nil:
			return err
		case version == 0:
			return &ConnectError{
				Where: conns.where, Err: errors.New("there is no ontology in this database"),
				Advice: "run a pipeline that writes to it first, or name another database",
			}
		case version != SchemaVersion:
			return &NewerSchemaError{Found: version, Known: SchemaVersion}
		}
		return nil
	})
	if err != nil {
		conns.close()
		return nil, err
	}
	return r, nil
}

// Close ends the connections. It is safe to call twice.
func (r *Reader) Close() { r.conns.close() }

// Types gives the object types by name.
func (r *Reader) Types(ctx context.Context) ([]TypeInfo, error) {
	var types []TypeInfo
	err := r.rows(ctx, `SELECT t.name, p.name, p.kind, coalesce(p.link_to, ''), coalesce(p.aggregate, ''), l.name, p.hidden
		FROM strom.object_type t LEFT JOIN strom.property p ON p.type_id = t.type_id
		LEFT JOIN strom.pipeline l ON l.pipeline_id = p.pipeline_id ORDER BY t.name, p.property_id`, nil,
		func(c *columns) error {
			name := c.text()
			if n := len(types); n == 0 || types[n-1].Name != name {
				types = append(types, TypeInfo{Name: name, Properties: []PropertyInfo{}})
			}
			p := PropertyInfo{
				Name: c.text(), Kind: event.Kind(c.int2()).String(), LinkTo: c.text(),
				Aggregate: c.text(), Pipeline: c.text(), Hidden: c.bool(),
			}
			if p.Name != "" {
				t := &types[len(types)-1]
				t.Properties = append(t.Properties, p)
			}
			return c.err
		})
	return types, err
}

// Pipelines gives the pipelines by name, with their progress.
func (r *Reader) Pipelines(ctx context.Context) ([]PipelineInfo, error) {
	var out []PipelineInfo
	err := r.rows(ctx, `SELECT h.name, h.generation, p.mapping_version, h.retired_at IS NOT NULL, h.floor, h.horizon,
			g.epoch, g.recorded, g.results_offset, g.under_way, g.seen::text
		FROM strom.pipeline_horizon h JOIN strom.pipeline p ON p.pipeline_id = h.pipeline_id
		JOIN strom.progress g ON g.pipeline_id = h.pipeline_id AND g.generation = h.generation
		ORDER BY h.name, g.partition`, nil,
		func(c *columns) error {
			info := PipelineInfo{Name: c.text(), Generation: event.Generation(c.int4()), MappingVersion: c.text(), Retired: c.bool()}
			info.Bounds = Bounds{Floor: event.RecordedTime(c.instant()), Horizon: event.RecordedTime(c.instant())}
			p := Progress{Epoch: event.Epoch(c.int8()), Recorded: event.RecordedTime(c.instant())}
			p.Offset, p.UnderWay = event.Offset(c.int8()), event.Epoch(c.int8())
			if seen := c.bytes(); seen != nil {
				if err := json.Unmarshal(seen, &p.Seen); err != nil {
					return fmt.Errorf("stored progress: %w", err)
				}
			}
			if n := len(out); n == 0 || out[n-1].Name != info.Name {
				out = append(out, info)
			}
			last := &out[len(out)-1]
			last.Partitions = append(last.Partitions, p)
			return c.err
		})
	return out, err
}

// Bounds gives the floor and the horizon of a type, or of everything.
func (r *Reader) Bounds(ctx context.Context, typ string) (Bounds, error) {
	var b Bounds
	err := r.conns.once(ctx, func(conn *pgx.Conn) error {
		var err error
		b, _, err = bounds(ctx, conn, typ)
		return err
	})
	return b, err
}

// bounds also gives the id of the type; nil for every type.
func bounds(ctx context.Context, conn *pgx.Conn, typ string) (Bounds, *int32, error) {
	var id *int32
	if typ != "" {
		err := conn.QueryRow(ctx, "SELECT type_id FROM strom.object_type WHERE name = $1", typ).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return Bounds{}, nil, &UnknownNameError{Type: typ}
		}
		if err != nil {
			return Bounds{}, nil, err
		}
	}
	var floor, horizon pgtype.Timestamptz
	err := conn.QueryRow(ctx, "SELECT b.floor, b.horizon FROM strom.type_bounds($1) b", id).Scan(&floor, &horizon)
	return Bounds{Floor: recorded(floor), Horizon: recorded(horizon)}, id, err
}

func recorded(t pgtype.Timestamptz) event.RecordedTime {
	switch t.InfinityModifier {
	case pgtype.Infinity:
		return event.RecordedNever
	case pgtype.NegativeInfinity:
		return event.RecordedUnknown
	case pgtype.Finite:
	}
	return event.RecordedTime(t.Time.UnixMicro())
}

// instant makes a parameter of an instant in Unix microseconds.
func instant(micros int64) pgtype.Timestamptz {
	switch micros {
	case math.MaxInt64:
		return pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.Infinity}
	case math.MinInt64:
		return pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}
	}
	return pgtype.Timestamptz{Valid: true, Time: time.UnixMicro(micros).UTC()}
}

// WaitHorizon waits until the horizon of a type (empty: of everything) has
// reached the recorded time, asking at the interval given.
func (r *Reader) WaitHorizon(ctx context.Context, typ string, asked event.RecordedTime, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var refused error
	for {
		b, err := r.Bounds(ctx, typ)
		if err != nil {
			return errors.Join(err, refused)
		}
		refused = b.check(asked)
		if refused == nil || errors.Is(refused, ErrBelowFloor) {
			return refused
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), refused)
		case <-ticker.C:
		}
	}
}

// rows runs a query and calls each for every row.
func (r *Reader) rows(ctx context.Context, sql string, args []any, each func(*columns) error) error {
	return r.conns.once(ctx, func(conn *pgx.Conn) error { return scan(ctx, conn, sql, args, each) })
}

// errStop ends a scan without an error.
var errStop = errors.New("stop")

func scan(ctx context.Context, conn *pgx.Conn, sql string, args []any, each func(*columns) error) error {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		c := columns{values: rows.RawValues()}
		if err := each(&c); err != nil {
			rows.Close()
			return err
		}
	}
	rows.Close()
	return rows.Err()
}

// stream makes an iterator of a scan: begin gives the query once the bounds
// are known. Memory stays bounded however long the answer is, and whoever
// reads slowly slows the server down.
func stream[T any](ctx context.Context, r *Reader, typ string,
	begin func(b Bounds, typeID *int32) (sql string, args []any, err error), read func(*columns) (T, error),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := r.conns.once(ctx, func(conn *pgx.Conn) error {
			b, typeID, err := bounds(ctx, conn, typ)
			if err != nil {
				return err
			}
			sql, args, err := begin(b, typeID)
			if err != nil {
				return err
			}
			return scan(ctx, conn, sql, args, func(c *columns) error {
				v, err := read(c)
				if err == nil && !yield(v, nil) {
					return errStop
				}
				return err
			})
		})
		if err != nil && !errors.Is(err, errStop) {
			var zero T
			yield(zero, err)
		}
	}
}
