package ontology

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/forge-platform/strom/event"
)

// view is one view of the schema ontology: an object type's properties as they
// are now, or the windows of one aggregate.
type view struct {
	name      string
	what      string // for errors and the view's comment
	typeID    int32
	aggregate bool
	columns   []viewColumn
}

type viewColumn struct {
	property int32
	name     string
	kind     event.Kind
}

// maxIdentifier is how many bytes of a name PostgreSQL keeps.
const maxIdentifier = 63

// identifier makes a name what PostgreSQL makes of it when it is not quoted:
// lower case, so that people need no quotes. A long one ends in a hash.
func identifier(s string) string {
	s = strings.ToLower(s)
	if len(s) <= maxIdentifier {
		return s
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never fails
	cut := maxIdentifier - 9
	for cut > 0 && s[cut]&0xc0 == 0x80 { // not within a character
		cut--
	}
	return fmt.Sprintf("%s_%08x", s[:cut], h.Sum32())
}

// refreshViews creates the views that are missing or out of date.
func refreshViews(ctx context.Context, tx pgx.Tx) error {
	views, err := declaredViews(ctx, tx)
	if err != nil {
		return err
	}
	byName := make(map[string]*view)
	for _, v := range views {
		if other, ok := byName[v.name]; ok {
			return fmt.Errorf("%w: the views of %s and of %s would both be ontology.%s", ErrNames, other.what, v.what, v.name)
		}
		byName[v.name] = v
		if err := v.nameColumns(); err != nil {
			return err
		}
		if err := v.refresh(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// declaredViews gives one view for each type and each aggregate, with their
// columns in the order in which properties were first declared, so that a new
// one comes last.
func declaredViews(ctx context.Context, tx pgx.Tx) ([]*view, error) {
	rows, err := tx.Query(ctx, `SELECT t.type_id, t.name, coalesce(p.aggregate, ''), p.aggregate IS NOT NULL, p.property_id, p.name, p.kind
		FROM strom.property p JOIN strom.object_type t USING (type_id)
		WHERE NOT p.hidden ORDER BY t.type_id, p.aggregate NULLS FIRST, p.property_id`)
	if err != nil {
		return nil, err
	}
	var views []*view
	var typ, aggregate, name string
	var typeID, property int32
	var windowed bool
	var kind int16
	_, err = pgx.ForEachRow(rows, []any{&typeID, &typ, &aggregate, &windowed, &property, &name, &kind}, func() error {
		v := &view{name: identifier(typ), what: "type " + strconv.Quote(typ), typeID: typeID, aggregate: windowed}
		if windowed {
			v.name = identifier(typ + "_" + aggregate)
			v.what = "aggregate " + strconv.Quote(typ+"."+aggregate)
			name = strings.TrimPrefix(name, aggregate+".")
		}
		if n := len(views); n > 0 && views[n-1].what == v.what {
			v = views[n-1]
		} else {
			views = append(views, v)
		}
		v.columns = append(v.columns, viewColumn{property: property, name: name, kind: event.Kind(kind)})
		return nil
	})
	return views, err
}

// nameColumns makes the properties' names columns. One that is called like a
// column which every view has gets an underscore behind it.
func (v *view) nameColumns() error {
	taken := map[string]string{"id": "", "window_start": "", "window_end": ""}
	if !v.aggregate {
		taken = map[string]string{"id": ""}
	}
	for i := range v.columns {
		c := &v.columns[i]
		name := identifier(c.name)
		if other, ok := taken[name]; ok && other == "" {
			name = identifier(name + "_")
		}
		if other, ok := taken[name]; ok {
			return fmt.Errorf("%w: properties %q and %q of %s would both be column %s", ErrNames, other, c.name, v.what, name)
		}
		taken[name], c.name = c.name, name
	}
	return nil
}

func (c *viewColumn) cast() string {
	switch c.kind {
	case event.KindInteger, event.KindDecimal:
		return "numeric"
	case event.KindBoolean:
		return "boolean"
	case event.KindTimestamp:
		return "timestamptz"
	case event.KindUnknown, event.KindText, event.KindLink:
	}
	return "text"
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// sql gives the query of the view: as of the horizon of its type. Numbers are
// ids of ours; names are quoted.
func (v *view) sql() string {
	var b strings.Builder
	b.WriteString("SELECT o.id")
	group := "o.object_no, o.id"
	if v.aggregate {
		b.WriteString(", b.valid_from AS window_start, b.valid_to AS window_end")
		group += ", b.valid_from, b.valid_to"
	}
	ids := make([]string, len(v.columns))
	for i := range v.columns {
		c := &v.columns[i]
		ids[i] = strconv.Itoa(int(c.property))
		fmt.Fprintf(&b, ",\n       max(b.value) FILTER (WHERE b.property_id = %d)::%s AS %s", c.property, c.cast(), quote(c.name))
	}
	horizon := fmt.Sprintf("(SELECT strom.type_horizon(%d))", v.typeID)
	// A window's value may be null. Of what events put, null is absence, and
	// what holds now is what has no end.
	holds := "b.valid_to = 'infinity' AND b.value IS NOT NULL"
	if v.aggregate {
		holds = fmt.Sprintf("b.cause <> %d", event.CauseRetraction)
	}
	fmt.Fprintf(&b, "\nFROM strom.assertion_row b\nJOIN strom.object o ON o.object_no = b.object_no AND o.type_id = %d", v.typeID)
	fmt.Fprintf(&b, "\nWHERE b.property_id IN (%s) AND %s\n  AND b.recorded_from <= %s AND b.recorded_to > %s\nGROUP BY %s",
		strings.Join(ids, ", "), holds, horizon, horizon, group)
	return b.String()
}

// comment tells people what the view is, and this code whether it is current.
func (v *view) comment(sql string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(sql)) // never fails
	return fmt.Sprintf("%s, as of the horizon [%016x]", v.what, h.Sum64())
}

func (v *view) refresh(ctx context.Context, tx pgx.Tx) error {
	sql := v.sql()
	comment := v.comment(sql)
	full := quote("ontology") + "." + quote(v.name)
	var current string
	err := tx.QueryRow(ctx, "SELECT coalesce(obj_description(to_regclass($1), 'pg_class'), '')", full).Scan(&current)
	if err != nil || current == comment {
		return err
	}
	for _, prefix := range []string{"CREATE OR REPLACE VIEW ", "DROP VIEW " + full + "; CREATE VIEW "} {
		err = savepoint(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, prefix+full+" AS\n"+sql)
			return err
		})
		var pg *pgconn.PgError
		if err == nil || !errors.As(err, &pg) || pg.Code != "42P16" {
			break
		}
		// Columns went away or changed: the view has to be made anew.
	}
	if err != nil {
		return v.explain(err)
	}
	// COMMENT takes no parameters; the server quotes.
	var statement string
	if err := tx.QueryRow(ctx, "SELECT format('COMMENT ON VIEW %s IS %L', $1::text, $2::text)", full, comment).Scan(&statement); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, statement)
	return err
}

func (v *view) explain(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "2BP01" {
		return fmt.Errorf("view ontology.%s has to be made anew, but something depends on it: drop that first (%s): %w",
			v.name, strings.ReplaceAll(pg.Detail, "\n", "; "), err)
	}
	return fmt.Errorf("view ontology.%s: %w", v.name, err)
}

func savepoint(ctx context.Context, tx pgx.Tx, f func(pgx.Tx) error) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if err := f(inner); err != nil {
		return errors.Join(err, inner.Rollback(ctx))
	}
	return inner.Commit(ctx)
}
