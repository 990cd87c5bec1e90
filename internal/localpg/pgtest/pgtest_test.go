package pgtest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/forge-platform/strom/internal/localpg"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func one(t *testing.T, url, sql string) (got string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), sql).Scan(&got); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func TestEachCallGivesAnotherEmptyDatabaseOfOneServer(t *testing.T) {
	first, second := pgtest.New(t), pgtest.New(t)
	a, b := one(t, first, "SELECT current_database()"), one(t, second, "SELECT current_database()")
	if a == b {
		t.Fatalf("both are %s", a)
	}
	if got := one(t, first, "SELECT count(*)::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"); got != "0" {
		t.Fatalf("%s relations in a fresh database", got)
	}
	const since = "SELECT pg_postmaster_start_time()::text"
	if one(t, first, since) != one(t, second, since) {
		t.Fatal("two servers")
	}
}

func TestDatabaseIsDroppedThoughConnectionsAreOpen(t *testing.T) {
	watcher := pgtest.New(t)
	var name string
	t.Run("inner", func(t *testing.T) {
		url := pgtest.New(t)
		name = one(t, url, "SELECT current_database()")
		if _, err := pgx.Connect(t.Context(), url); err != nil { // left open
			t.Fatal(err)
		}
	})
	if got := one(t, watcher, "SELECT count(*)::text FROM pg_database WHERE datname = '"+name+"'"); got != "0" {
		t.Fatalf("database %s is still there", name)
	}
}

func TestOwnServerKeepsDataInDir(t *testing.T) {
	o := localpg.Options{DataDir: filepath.Join(pgtest.Dir(t), "pg")}
	for range 2 {
		s := pgtest.Server(t, o)
		if got := one(t, s.URL(), "SELECT current_database()"); got != "forge" {
			t.Fatal(got)
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSharedServerIsNoLeak(t *testing.T) {
	pgtest.New(t)
	if err := goleak.Find(pgtest.IgnoreServer(), goleak.IgnoreTopFunction("testing.(*T).Run"), goleak.IgnoreTopFunction("testing.tRunner.func1")); err != nil {
		t.Fatal(err)
	}
}
