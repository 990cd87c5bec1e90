package ontology

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/mapping"
)

// database gives the URL of an empty database.
func database(t testing.TB) string {
	t.Helper()
	base := os.Getenv("STROM_ONTOLOGY_TEST_URL")
	if base == "" {
		t.Skip("no PostgreSQL for tests")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	name := "t_" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(ctx, base)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return strings.Replace(base, "/postgres?", "/"+name+"?", 1)
}

func connection(url string) mapping.Ontology {
	return mapping.Ontology{Postgres: mapping.NewSecret(url)}
}
