// Package pgtest gives tests a PostgreSQL.
//
// One server serves all tests of a test binary: starting one takes about a
// second, making a database a few hundredths. It starts when the first test asks
// for it and ends with the test binary, however that ends (see localpg); a
// package that wants it gone before it exits calls Main.
//
// Tests never skip: where no PostgreSQL is to be had they fail, with an error
// that says what to install.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/forge-platform/strom/internal/localpg"
)

const startTimeout = 2 * time.Minute

// shared is the server of this test binary. It is mutable state of the package
// because Go gives a test no other way to share with tests that it does not know.
type shared struct {
	mu     sync.Mutex // guards all below; held while the server starts and while a database is made
	server *localpg.Server
	err    error // why the server did not start; it is not tried again
	made   int   // databases
}

var instance shared //nolint:gochecknoglobals // see its type

// New returns the URL of a fresh, empty database. It is dropped when the test
// ends, also if connections to it are still open.
func New(t testing.TB) string {
	t.Helper()
	server, name, err := instance.newDatabase(t.Context())
	if err != nil {
		t.Fatalf("no database for the test: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := exec(ctx, server.URL(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("dropping the test's database: %v", err)
		}
	})
	return databaseURL(server.URL(), name)
}

// Server starts a server for one test alone, for tests that stop or kill it.
func Server(t testing.TB, o localpg.Options) *localpg.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	server, err := localpg.Start(ctx, o)
	if err != nil {
		t.Fatalf("no PostgreSQL for the test: %v", err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	return server
}

// Dir returns a directory for localpg.Options.DataDir. The one of t.TempDir does
// not serve there, if root runs the tests: the server's user cannot enter it.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "strom-pgtest-") //nolint:usetesting // see above
	if err == nil {
		err = os.Chmod(dir, 0o755) //nolint:gosec // the server's user must get in
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing the test's data directory: %v", err)
		}
	})
	return dir
}

// Main runs the tests and stops the server. Use it as
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	instance.mu.Lock()
	defer instance.mu.Unlock()
	if instance.server == nil {
		return code
	}
	if err := instance.server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err) //nolint:forbidigo // a test binary has no logger
		return max(code, 1)
	}
	return code
}

// IgnoreServer tells goleak that the server's goroutine is meant to stay.
func IgnoreServer() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/forge-platform/strom/internal/localpg.(*process).watch")
}

func (s *shared) newDatabase(ctx context.Context) (*localpg.Server, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.err == nil {
		startCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		s.server, s.err = localpg.Start(startCtx, localpg.Options{
			Settings: map[string]string{"max_connections": "200"}, // parallel tests, each with pools
		})
	}
	if s.err != nil {
		return nil, "", s.err
	}
	s.made++
	name := fmt.Sprintf("test_%d", s.made)
	if err := exec(ctx, s.server.URL(), "CREATE DATABASE "+name); err != nil {
		return nil, "", fmt.Errorf("creating a database: %w", err)
	}
	return s.server, name, nil
}

func exec(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

// databaseURL is the server's URL with another database: postgres:///forge?host=…
func databaseURL(server, name string) string {
	_, query, _ := strings.Cut(server, "?")
	return "postgres:///" + name + "?" + query
}
