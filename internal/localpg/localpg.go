// Package localpg runs a PostgreSQL of our own beside the program, so that a
// demo, a test or a developer needs nothing but the program itself.
//
// Contract:
//
//  1. Start finds a PostgreSQL of at least MinMajor on this machine (see find.go for
//     the places), else downloads one, else returns one *NotFoundError that says
//     what to install. Where the binaries come from makes no other difference:
//     the same code initialises, starts and stops the server.
//  2. The server is reached through a Unix socket that only its own user and root
//     may open. Where Options.Port is set it listens on 127.0.0.1 as well, and
//     there it wants a password that is made at random for each start.
//  3. The server ends with the program, however that ends, SIGKILL included, and
//     then no process and no temporary directory is left (supervise.go says how).
//  4. PostgreSQL refuses to run as root. A program that runs as root therefore has
//     the server run as the user who owns the data, or "postgres", or "nobody".
//  5. One data directory serves one program at a time. What an earlier program
//     left behind when it was killed does not hinder the next one.
//  6. No secret is logged, written to a file or put on a command line, and the
//     server does not inherit the program's environment.
//
// The cluster uses encoding UTF8 and locale C: text compares by its bytes, on
// every operating system, in every version. The superuser is "postgres".
//
// Only this package imports embedded-postgres. It works on Linux, macOS and the
// BSDs; elsewhere Start returns an error that says so.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forge-platform/strom/internal/filelock"
)

// MinMajor is the oldest major version that Start accepts.
const MinMajor = 15

const (
	superuser       = "postgres"
	defaultDatabase = "forge"
	// socketPort names the socket file (.s.PGSQL.5432) where there is no TCP port.
	socketPort = 5432
)

// Options says what server to run. The zero value is a throw-away server behind
// a Unix socket.
type Options struct {
	// DataDir keeps the data across runs; "" means a temporary directory that is
	// removed when the server stops. The directory is Strom's own: the cluster
	// lies in its sub-directory "data", beside a lock file.
	DataDir string

	// RuntimeDir holds the Unix socket; "" means a temporary directory. Name one
	// where the socket must be found again at the same place. Its path must be
	// short: the operating system allows about 100 bytes.
	RuntimeDir string

	// Port is a TCP port on 127.0.0.1 to listen on as well; 0 means socket only.
	Port int

	// Database is made if it is not there; "" means "forge".
	Database string

	// Log receives what initdb and the server write; nil discards it. It is
	// called from one goroutine, until Stop returns.
	Log io.Writer

	// Settings are server settings (as in postgresql.conf) on top of ours.
	Settings map[string]string

	// Durable keeps fsync on, and page checksums in a new cluster. Without it a
	// crash of the machine (not of the program) may lose the data.
	Durable bool

	// BinDir names the directory of postgres and initdb; "" means to search.
	BinDir string

	// NoDownload forbids fetching PostgreSQL where none is installed.
	NoDownload bool

	// CacheDir is where a downloaded PostgreSQL is kept for the next time; ""
	// means the user's cache directory (for root: /var/cache/strom).
	CacheDir string
}

// Server is a running server. Its methods may be called from any goroutine.
type Server struct {
	url    string
	tcpURL string
	proc   *process
	lock   *filelock.Lock
	temps  []string // temporary directories, removed at the end

	stopOnce sync.Once
	stopErr  error
}

// reserved tells of the settings that Start decides by itself.
func reserved(setting string) bool {
	switch strings.ToLower(setting) {
	case "data_directory", "external_pid_file", "hba_file", "listen_addresses", "logging_collector",
		"port", "unix_socket_directories", "unix_socket_permissions":
		return true
	default:
		return false
	}
}

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

func (o Options) withDefaults() (Options, error) {
	var faults []error
	if o.Database == "" {
		o.Database = defaultDatabase
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Port < 0 || o.Port > 65535 {
		faults = append(faults, fmt.Errorf("port %d: must be 0 (no TCP) to 65535", o.Port))
	}
	for _, p := range []*string{&o.DataDir, &o.RuntimeDir, &o.BinDir, &o.CacheDir} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		*p = abs
	}
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		switch {
		case !settingName.MatchString(name):
			faults = append(faults, fmt.Errorf("setting %q: not the name of a setting", name))
		case reserved(name):
			faults = append(faults, fmt.Errorf("setting %q: decided by the program, see its options", name))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return o, fmt.Errorf("local PostgreSQL: %w", err)
	}
	return o, nil
}

// Start finds, initialises and starts a server and returns when it answers. ctx
// bounds the start only. The errors that a caller can act on are *NotFoundError,
// *PortInUseError, *DataDirInUseError, *VersionError, *AccessError,
// *PathTooLongError and *StartError.
func Start(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{}
	if err := s.start(ctx, o); err != nil {
		s.cleanUp()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, o Options) error {
	acct, err := serverAccount(o.DataDir)
	if err != nil {
		return err
	}
	if err := portFree(ctx, o.Port); err != nil {
		return err
	}
	data, err := s.prepareData(ctx, o, acct)
	if err != nil {
		return err
	}
	major, err := clusterMajor(data)
	if err != nil {
		return err
	}
	inst, err := locate(ctx, o, acct, data, major)
	if err != nil {
		return err
	}
	if err := waitForDeparture(ctx, data, departurePatience); err != nil {
		return err
	}
	l, err := s.launch(ctx, o, acct, inst, data, major == 0)
	if err != nil {
		return err
	}
	if err := s.setUp(ctx, o, l); err != nil {
		return err
	}
	if major == 0 && o.Durable && o.DataDir != "" {
		return syncDir(o.DataDir)
	}
	return nil
}

// launch starts the server and waits until it answers.
//
// After a SIGKILL that hit the server too, its children may live for a moment
// longer and keep its shared memory; then the server refuses to start, and the
// only remedy is to try again.
func (s *Server) launch(ctx context.Context, o Options, acct *account, inst installation, data string, fresh bool) (layout, error) {
	deadline := time.Now().Add(departurePatience)
	for {
		l, err := s.prepareRuntime(ctx, o, acct)
		if err != nil {
			return l, err
		}
		s.proc, err = supervise(spec{
			acct:     acct,
			bin:      inst.bin,
			data:     data,
			fresh:    fresh,
			initArgs: initdbArgs(o.Durable),
			args:     serverArgs(o, l),
			remove:   s.temps,
			lock:     s.lock,
			log:      o.Log,
		})
		if err != nil {
			return l, err
		}
		err = waitReady(ctx, s.proc, socketURL(l.socket, l.port, superuser))
		if err == nil {
			return l, nil
		}
		_ = s.proc.stop()
		tail := s.proc.tail()
		if errors.Is(err, errEnded) && strings.Contains(tail, sharedMemoryInUse) && time.Now().Before(deadline) {
			continue
		}
		return l, classify(err, o.Port, tail)
	}
}

// initdbArgs are passed through the shell unquoted: none may hold a space.
func initdbArgs(durable bool) []string {
	args := []string{
		"--username=" + superuser,
		// Our own rules are in the runtime directory. These hold if somebody
		// starts the cluster by hand.
		"--auth-local=peer", "--auth-host=reject",
		"--encoding=UTF8", "--locale=C", "--no-instructions",
	}
	if durable {
		return append(args, "--data-checksums")
	}
	return append(args, "--no-sync")
}

func serverArgs(o Options, l layout) []string {
	settings := map[string]string{
		"TimeZone":                         "UTC",
		"log_timezone":                     "UTC",
		"log_destination":                  "stderr",
		"max_wal_size":                     "2GB",
		"checkpoint_timeout":               "15min",
		"log_checkpoints":                  "off",
		"client_connection_check_interval": "1s", // a killed program's long statement ends with it
	}
	if !o.Durable {
		// Not synchronous_commit: without it a crash of the server alone, or of
		// one of its backends, would lose what it has confirmed.
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, o.Settings)
	settings["logging_collector"] = "off"
	settings["hba_file"] = l.hba
	settings["port"] = strconv.Itoa(l.port)
	settings["unix_socket_directories"] = `"` + strings.ReplaceAll(l.socket, `"`, `""`) + `"`
	settings["unix_socket_permissions"] = "0700"
	settings["listen_addresses"] = ""
	if o.Port != 0 {
		settings["listen_addresses"] = "127.0.0.1"
	}
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// URL is where the database is, through the Unix socket; pgx and libpq both take
// it. It holds no secret.
func (s *Server) URL() string { return s.url }

// TCPURL is where the database is on 127.0.0.1, or "" where Options.Port was 0.
// It holds the password: show it to the user if you must, but do not log it.
func (s *Server) TCPURL() string { return s.tcpURL }

// Done is closed when the server has ended, on Stop or by itself.
func (s *Server) Done() <-chan struct{} { return s.proc.done }

// Stop ends the server and returns when it is gone: a fast shutdown (clients are
// disconnected, nothing is lost), then an immediate one if that takes too long.
// Every call waits and returns the same error; it is not nil if the server had
// ended by itself before.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		select {
		case <-s.proc.done:
			s.stopErr = &StartError{What: "PostgreSQL ended by itself", Err: s.proc.err, Log: s.proc.tail()}
		default:
			s.stopErr = s.proc.stop()
		}
		s.cleanUp()
	})
	return s.stopErr
}

func (s *Server) cleanUp() {
	if s.proc != nil {
		_ = s.proc.stop()
	}
	for _, dir := range s.temps {
		// The supervisor has removed it in most cases; not if it never ran.
		_ = os.RemoveAll(dir)
	}
	_ = s.lock.Release()
}

// socketURL names a database behind a Unix socket. The directory goes into the
// query, where both pgx and libpq look for it.
func socketURL(dir string, port int, database string) string {
	q := url.Values{"host": {dir}, "user": {superuser}}
	if port != socketPort {
		q.Set("port", strconv.Itoa(port))
	}
	u := url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: q.Encode()}
	return "postgres:///" + strings.TrimPrefix(u.EscapedPath(), "/") + "?" + u.RawQuery
}

func tcpURL(port int, password, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, password),
		Host:     "127.0.0.1:" + strconv.Itoa(port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}
