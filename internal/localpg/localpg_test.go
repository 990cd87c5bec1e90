//go:build unix

package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// buffer is a log that a test may read while the server writes it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn := connect(t, url)
	defer conn.Close(context.Background())
	var got string
	if err := conn.QueryRow(t.Context(), sql).Scan(&got); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func execSQL(t *testing.T, url, sql string) {
	t.Helper()
	conn := connect(t, url)
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// lastingDir is a directory that the server's user can reach; t.TempDir is not,
// if we are root, because its parent lets nobody through.
func lastingDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "strom-pgtest-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "pg")
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("after 30 s still not: %s", what)
		case <-tick.C:
		}
	}
}

func gone(paths ...string) bool {
	for _, p := range paths {
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			return false
		}
	}
	return true
}

func TestThrowAwayServerAnswersAndLeavesNothing(t *testing.T) {
	s := start(t, Options{Settings: map[string]string{"work_mem": "7MB"}})
	for sql, want := range map[string]string{
		"SHOW server_encoding":         "UTF8",
		"SHOW TimeZone":                "UTC",
		"SHOW listen_addresses":        "",
		"SHOW fsync":                   "off",
		"SHOW work_mem":                "7MB",
		"SELECT current_database()":    "forge",
		"SELECT ('Z' < 'a')::text":     "true", // by bytes
		"SELECT current_user::text":    "postgres",
		"SELECT upper('straße')::text": "STRAßE", // locale C leaves what is not ASCII
	} {
		if got := query(t, s.URL(), sql); got != want {
			t.Errorf("%s = %q, want %q", sql, got, want)
		}
	}
	if s.TCPURL() != "" {
		t.Errorf("TCPURL = %q without a port", s.TCPURL())
	}
	pid := s.postmaster(t)
	stop(t, s)
	stop(t, s)
	if processRuns(pid) {
		t.Errorf("server process %d is still there", pid)
	}
	if !gone(s.temps...) {
		t.Errorf("temporary directories %v are still there", s.temps)
	}
}

// postmaster is the server's process id.
func (s *Server) postmaster(t *testing.T) int {
	t.Helper()
	data := query(t, s.url, "SHOW data_directory")
	pid, _, err := readPostmasterPID(data)
	if err != nil || pid == 0 {
		t.Fatalf("no process id in %s: %v", data, err)
	}
	return pid
}

func TestDataDirKeepsItsDataAcrossRuns(t *testing.T) {
	dir := lastingDir(t)
	first := start(t, Options{DataDir: dir, Database: "kept"})
	execSQL(t, first.URL(), "CREATE TABLE t AS SELECT 42 AS n")
	stop(t, first)

	second := start(t, Options{DataDir: dir, Database: "kept", Durable: true})
	if got := query(t, second.URL(), "SELECT n::text FROM t"); got != "42" {
		t.Fatalf("got %s", got)
	}
	if got := query(t, second.URL(), "SHOW fsync"); got != "on" {
		t.Fatalf("fsync is %s in a durable server", got)
	}
}

func TestDataDirServesOneProgramAtATime(t *testing.T) {
	dir := lastingDir(t)
	s := start(t, Options{DataDir: dir})
	_, err := Start(t.Context(), Options{DataDir: dir})
	var inUse *DataDirInUseError
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Fatalf("got %v, want a DataDirInUseError that names process %d", err, os.Getpid())
	}
	if got := query(t, s.URL(), "SELECT 'still here'"); got != "still here" {
		t.Fatal("the refused start disturbed the running server")
	}
}

func TestServerStartedByHandKeepsItsCluster(t *testing.T) {
	dir := lastingDir(t)
	s := start(t, Options{DataDir: dir})
	pid := s.postmaster(t)
	err := waitForDeparture(t.Context(), filepath.Join(dir, "data"), 50*time.Millisecond)
	var inUse *DataDirInUseError
	if !errors.As(err, &inUse) || inUse.PID != pid || !inUse.Server {
		t.Fatalf("got %v, want a DataDirInUseError that names server %d", err, pid)
	}
	if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), strconv.Itoa(pid)) {
		t.Fatalf("the error names neither place nor process: %v", err)
	}
}

func TestStalePostmasterPIDDoesNotHinderTheStart(t *testing.T) {
	dir := lastingDir(t)
	stop(t, start(t, Options{DataDir: dir}))
	// A process id that lives, but is no server of this cluster: what a restarted
	// container finds.
	pidFile := filepath.Join(dir, "data", "postmaster.pid")
	content := fmt.Sprintf("%d\n%s\n1700000000\n5432\n/tmp\n\n  5432001    123456\nready   \n", os.Getpid(), filepath.Join(dir, "data"))
	if err := os.WriteFile(pidFile, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{DataDir: dir})
	if got := query(t, s.URL(), "SELECT 'up'"); got != "up" {
		t.Fatal(got)
	}
}

func TestClusterOfAnotherVersionIsRefused(t *testing.T) {
	for version, want := range map[string]string{
		"14":  "older than 15",
		"997": "install PostgreSQL 997",
		"x":   "no version",
	} {
		dir := lastingDir(t)
		if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte(version+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if acct, err := serverAccount(""); err != nil || acct.own(filepath.Join(dir, "data")) != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), Options{DataDir: dir})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("version %s: got %v, want an error with %q and the directory", version, err, want)
		}
		if _, ok := errors.AsType[*VersionError](err); !ok && version != "x" {
			t.Errorf("version %s: got %T, want a *VersionError", version, err)
		}
		if gone(filepath.Join(dir, "data", "PG_VERSION")) {
			t.Errorf("version %s: the refused cluster was touched", version)
		}
	}
}

func TestForeignFilesInTheDataDirAreNotTouched(t *testing.T) {
	dir := lastingDir(t)
	precious := filepath.Join(dir, "data", "precious")
	if err := os.MkdirAll(filepath.Dir(precious), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{DataDir: dir}); err == nil || gone(precious) {
		t.Fatalf("got error %v, file gone: %v", err, gone(precious))
	}
}

func TestTCPWantsThePasswordAndNothingLogsIt(t *testing.T) {
	port, err := freePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var log buffer
	s := start(t, Options{Port: int(port), Log: &log, Settings: map[string]string{"log_statement": "all", "log_connections": "on"}})
	if got := query(t, s.TCPURL(), "SELECT inet_server_addr()::text"); !strings.HasPrefix(got, "127.0.0.1") {
		t.Fatalf("server address %s", got)
	}
	u, err := url.Parse(s.TCPURL())
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	u.User = url.UserPassword(u.User.Username(), "wrong")
	if conn, err := pgx.Connect(t.Context(), u.String()); err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("a wrong password was let in")
	}
	if strings.Contains(s.URL(), password) {
		t.Fatal("the socket's URL holds the password")
	}
	stop(t, s)
	if len(password) < 32 || strings.Contains(log.String(), password) {
		t.Fatal("the log holds the password, or there is none")
	}
	if !strings.Contains(log.String(), "ALTER ROLE") {
		t.Fatal("the log lacks the statement that this test is about")
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	_, err = Start(t.Context(), Options{Port: port})
	var inUse *PortInUseError
	if !errors.As(err, &inUse) || inUse.Port != port {
		t.Fatalf("got %v, want a PortInUseError for %d", err, port)
	}
	// And as the server itself would say it, when somebody took the port since.
	err = classify(errEnded, port, `LOG:  could not bind IPv4 address "127.0.0.1": Address already in use`)
	if !errors.As(err, &inUse) {
		t.Fatalf("got %v, want a PortInUseError", err)
	}
}

func TestBadOptionsAreReportedTogether(t *testing.T) {
	_, err := Start(t.Context(), Options{Port: 70000, Settings: map[string]string{"Port": "1", "x y": "1"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"70000", `"Port"`, `"x y"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %s", err, want)
		}
	}
}

func TestRefusedSettingShowsWhatTheServerSaid(t *testing.T) {
	_, err := Start(t.Context(), Options{Settings: map[string]string{"no_such_setting": "1"}})
	if _, ok := errors.AsType[*StartError](err); !ok || !strings.Contains(err.Error(), "no_such_setting") {
		t.Fatalf("got %v, want a StartError with the server's words", err)
	}
}

func TestSocketPathLimit(t *testing.T) {
	long := filepath.Join(lastingDir(t), strings.Repeat("long/", 25))
	_, err := Start(t.Context(), Options{RuntimeDir: long})
	if _, ok := errors.AsType[*PathTooLongError](err); !ok {
		t.Fatalf("got %v, want a PathTooLongError", err)
	}
	// A long temporary directory is not the user's choice for the socket, so a
	// shorter place is found.
	if err := os.MkdirAll(long, 0o777); err != nil {
		t.Fatal(err)
	}
	for p := long; p != os.TempDir(); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", long)
	s := start(t, Options{})
	if got := query(t, s.URL(), "SHOW data_directory"); !strings.HasPrefix(got, long) {
		t.Errorf("the data is in %s, not in the temporary directory", got)
	}
	stop(t, s)
	if !gone(s.temps...) {
		t.Errorf("temporary directories %v are still there", s.temps)
	}
}

func TestNamedRuntimeDirHoldsTheSocket(t *testing.T) {
	dir := filepath.Join(lastingDir(t), "run")
	for range 2 { // a second run finds the directory there
		s := start(t, Options{RuntimeDir: dir})
		if !strings.Contains(s.URL(), url.QueryEscape(dir)) || gone(filepath.Join(dir, ".s.PGSQL.5432")) {
			t.Fatalf("no socket in %s; URL %s", dir, s.URL())
		}
		query(t, s.URL(), "SELECT 'up'")
		stop(t, s)
	}
}

func TestServerThatEndsByItselfIsNoticed(t *testing.T) {
	s := start(t, Options{})
	if err := syscall.Kill(s.postmaster(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("Done is not closed")
	}
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Fatalf("Stop = %v, want that the server ended by itself", err)
	}
	if !gone(s.temps...) {
		t.Errorf("temporary directories %v are still there", s.temps)
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	tmp := filepath.Dir(lastingDir(t))
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := Start(ctx, Options{})
		result <- err
	}()
	// In the middle of initdb.
	eventually(t, "initdb is at work", func() bool {
		found, _ := filepath.Glob(filepath.Join(tmp, "*", "data.new", "PG_VERSION"))
		return len(found) > 0
	})
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestRootsPrivateDirectoryIsExplained(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives the server to another user")
	}
	private := t.TempDir()
	_, err := Start(t.Context(), Options{DataDir: filepath.Join(private, "pg")})
	access, ok := errors.AsType[*AccessError](err)
	if !ok || !strings.Contains(err.Error(), "chmod o+x") || access.User == "root" {
		t.Fatalf("got %v, want an AccessError that names the blocking directory", err)
	}
}
