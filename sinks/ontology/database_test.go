package ontology

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/mapping"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func connection(url string) mapping.Ontology {
	return mapping.Ontology{Postgres: mapping.NewSecret(url)}
}

// sqlConn is a connection of the test's own.
func sqlConn(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func openPostgres(t testing.TB, url string, p Pipeline) *Postgres {
	t.Helper()
	s, err := Open(t.Context(), connection(url), p, Options{RowsPerStatement: 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func openReader(t testing.TB, url string) *Reader {
	t.Helper()
	r, err := OpenReader(t.Context(), connection(url), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}
