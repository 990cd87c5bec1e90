package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forge-platform/strom/internal/filelock"
)

const (
	// departurePatience is how long Start waits for a server that an earlier
	// program left behind: its supervisor is about to stop it.
	departurePatience = 10 * time.Second
	// stoppingPatience is added for a server that says it is stopping.
	stoppingPatience = 50 * time.Second
	pollInterval     = 20 * time.Millisecond
)

// layout is where the parts of one running server are.
type layout struct {
	socket string // directory of the Unix socket
	hba    string // the rules who may connect
	port   int    // TCP port, or what the socket file is named after
}

// hbaRules let in whoever may open the socket (unix_socket_permissions: the
// server's user, and root), and over TCP whoever knows the password.
const hbaRules = `local all all trust
host all all 127.0.0.1/32 scram-sha-256
`

// prepareData returns the directory of the cluster, which need not exist yet.
// It takes the lock that keeps a lasting one for this program.
func (s *Server) prepareData(ctx context.Context, o Options, acct *account) (string, error) {
	if o.DataDir == "" {
		dir, err := s.tempDir(ctx, "strom-pgdata-", acct, func(string) bool { return true })
		return filepath.Join(dir, "data"), err
	}
	if _, err := os.Stat(filepath.Join(o.DataDir, "PG_VERSION")); err == nil {
		return "", fmt.Errorf("%s is itself a PostgreSQL cluster, made by another program: name a directory that is empty or does not exist", o.DataDir)
	}
	if err := os.MkdirAll(o.DataDir, 0o755); err != nil {
		return "", fmt.Errorf("PostgreSQL data directory: %w", err)
	}
	// The server's user will own the directory: do not let a link lead elsewhere.
	dir, err := filepath.EvalSymlinks(o.DataDir)
	if err != nil {
		return "", fmt.Errorf("PostgreSQL data directory: %w", err)
	}
	if s.lock, err = lockDataDir(ctx, dir); err != nil {
		return "", err
	}
	// The server's user must be able to make and to move the cluster in here.
	if err := acct.own(dir); err != nil {
		return "", &AccessError{Path: dir, User: acct.String(), Err: err}
	}
	if err := acct.canUse(ctx, dir); err != nil {
		return "", &AccessError{Path: dir, User: acct.String(), Err: err}
	}
	return filepath.Join(dir, "data"), nil
}

// lockDataDir waits for the supervisor of a program that is gone, and for nobody
// else.
func lockDataDir(ctx context.Context, dir string) (*filelock.Lock, error) {
	start := time.Now()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		lock, err := filelock.Acquire(filepath.Join(dir, "lock"))
		if err == nil {
			return lock, nil
		}
		var held *filelock.HeldError
		if !errors.As(err, &held) {
			return nil, fmt.Errorf("PostgreSQL data directory: %w", err)
		}
		if processRuns(held.PID) || time.Since(start) > stopPatience {
			return nil, &DataDirInUseError{Dir: dir, PID: held.PID}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for an earlier PostgreSQL to leave %s: %w", dir, ctx.Err())
		case <-ticker.C:
		}
	}
}

// prepareRuntime makes the directory of the rules and of the socket.
func (s *Server) prepareRuntime(ctx context.Context, o Options, acct *account) (layout, error) {
	l := layout{port: o.Port}
	if l.port == 0 {
		l.port = socketPort
	}
	fits := func(dir string) bool { return len(socketPath(dir, l.port)) <= socketPathLimit() }
	dir, err := s.tempDir(ctx, "strom-pg-", acct, fits)
	if err != nil {
		return l, err
	}
	l.socket, l.hba = dir, filepath.Join(dir, "pg_hba.conf")
	if err := writeNew(l.hba, hbaRules); err != nil {
		return l, err
	}
	if err := acct.own(l.hba); err != nil {
		return l, &AccessError{Path: l.hba, User: acct.String(), Err: err}
	}
	if o.RuntimeDir == "" {
		return l, nil
	}
	l.socket = o.RuntimeDir
	if !fits(l.socket) {
		return l, &PathTooLongError{Path: socketPath(l.socket, l.port), Limit: socketPathLimit()}
	}
	return l, useRuntimeDir(ctx, l.socket, acct)
}

// useRuntimeDir makes a runtime directory that is not there yet; one that is
// there stays as it is.
func useRuntimeDir(ctx context.Context, dir string, acct *account) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		err := os.MkdirAll(filepath.Dir(dir), 0o755)
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
		if err != nil {
			return fmt.Errorf("PostgreSQL runtime directory: %w", err)
		}
		if err := acct.own(dir); err != nil {
			return &AccessError{Path: dir, User: acct.String(), Err: err}
		}
	}
	if err := acct.canUse(ctx, dir); err != nil {
		return &AccessError{Path: dir, User: acct.String(), Err: err}
	}
	return nil
}

// tempDir makes a directory that goes with the server. The system's temporary
// directory may be one that the server's user cannot write to, or too long a path
// for a socket; then one of the usual places takes its role.
func (s *Server) tempDir(ctx context.Context, prefix string, acct *account, fits func(dir string) bool) (string, error) {
	var why error
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if !fits(filepath.Join(base, prefix+"0123456789")) {
			continue
		}
		if err := acct.canUse(ctx, base); err != nil {
			why = errors.Join(why, &AccessError{Path: base, User: acct.String(), Err: err})
			continue
		}
		dir, err := os.MkdirTemp(base, prefix)
		if err != nil {
			why = errors.Join(why, err)
			continue
		}
		s.temps = append(s.temps, dir)
		if err := acct.own(dir); err != nil {
			return "", &AccessError{Path: dir, User: acct.String(), Err: err}
		}
		return dir, nil
	}
	return "", fmt.Errorf("no temporary directory for PostgreSQL: %w", why)
}

// writeNew writes a file that must not be there yet, not even as a link: the
// directory belongs to the server's user, and we may be root.
func writeNew(path, content string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// socketPathLimit is the longest path of a Unix socket, in bytes.
func socketPathLimit() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103
}

// portFree finds a taken port before anything is started. Somebody may take it
// in between; classify tells that from the server's log.
func portFree(ctx context.Context, port int) error {
	if port == 0 {
		return nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return &PortInUseError{Port: port, Err: err}
	}
	return ln.Close()
}

// clusterMajor is the major version that made the cluster; 0 if there is none.
func clusterMajor(data string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(data)
		if err == nil && len(entries) > 0 {
			return 0, fmt.Errorf("%s is not empty and no PostgreSQL cluster: remove it, or choose another data directory", data)
		}
		// An empty one would make the move of the new cluster go inside it.
		if err == nil {
			return 0, os.Remove(data)
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("PostgreSQL data directory: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION says %q, which is no version: the data directory is damaged, or older than PostgreSQL 10", data, strings.TrimSpace(string(raw)))
	}
	return major, nil
}

// waitForDeparture returns when no server uses the cluster. We hold the lock, so
// one that still runs was left behind by a killed program and is being stopped by
// its supervisor, or it was started by hand.
//
// The server itself checks postmaster.pid too, but it takes any process of its user
// for the old server, and process ids are used again (in a container after every
// restart) and outlive their process until its parent asks. We look closer, and
// remove a file that would mislead it. (That is safe: the server also refuses
// while anybody has the shared memory of this cluster, whatever the file says.)
func waitForDeparture(ctx context.Context, data string, patience time.Duration) error {
	start := time.Now()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		pid, status, err := readPostmasterPID(data)
		if err != nil || pid == 0 || !processExists(pid) {
			return err
		}
		if !processRuns(pid) || !servesCluster(ctx, pid, data) {
			return os.Remove(filepath.Join(data, "postmaster.pid"))
		}
		limit := patience
		if status == "stopping" {
			limit += stoppingPatience
		}
		if time.Since(start) > limit {
			return &DataDirInUseError{Dir: filepath.Dir(data), PID: pid, Server: true}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for an earlier PostgreSQL (process %d) to leave %s: %w", pid, data, ctx.Err())
		case <-ticker.C:
		}
	}
}

// readPostmasterPID reads process id (line 1) and status (line 8) of a lock file
// as PostgreSQL writes it; 0 if there is none or it is not yet complete.
func readPostmasterPID(data string) (pid int, status string, err error) {
	raw, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", fmt.Errorf("PostgreSQL data directory: %w", err)
	}
	lines := strings.Split(string(raw), "\n")
	// What is no number gives 0: a file that is being written is like none.
	pid, _ = strconv.Atoi(strings.TrimSpace(lines[0]))
	if pid <= 0 {
		return 0, "", nil
	}
	if len(lines) >= 8 {
		status = strings.TrimSpace(lines[7])
	}
	return pid, status, nil
}

// servesCluster tells whether a living process is a server of this cluster. The
// working directory of a server is its cluster. Where the system does not show it,
// the name of the program decides.
func servesCluster(ctx context.Context, pid int, data string) bool {
	if runtime.GOOS != "linux" {
		return slices.Contains([]string{"postgres", "postmaster"}, processName(ctx, pid))
	}
	cwd, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false // of another user, so it cannot be a server on these files
	}
	dir, err := os.Stat(data)
	return err == nil && os.SameFile(cwd, dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
