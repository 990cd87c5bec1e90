package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/internal/filelock"
)

// superviseScript runs the server and ends it when our process is gone.
//
// Its standard input is a pipe. Only our process holds the other end, and it
// never writes: the kernel closes that end when we call stop, and also when we
// exit, panic or are killed. The script sees the end of file, stops the server
// and removes the temporary directories. This needs no cooperation from a dying
// process, works alike on Linux and macOS, and has no gap: whoever forks the
// server already watches the pipe. (Linux's Pdeathsig was not taken: it is tied to
// the thread that forked, macOS has no such thing, and it would send SIGKILL or a
// signal once, without anybody left to wait or to remove anything. /bin/sh costs
// nothing in addition, because initdb needs it itself.)
//
// The script is the leader of a session of its own, so that Ctrl-C in a terminal
// reaches our process and not the server. Signals go to the whole process group:
// the script ignores them, initdb and the postmaster install handlers of their
// own, and a number that was used again can never be hit. The signal is sent
// again and again because the first may come before the handler is there.
//
// The script shares the lock of the data directory, so that the next program waits
// for the end of the script, not only of ours.
//
// When the server ends by itself, the script closes the log (that is how we
// notice) and still waits for the end of file before it removes anything.
const superviseScript = `
bin=$1 data=$2 fresh=$3 initargs=$4 ticks=$5 dirs=$6
shift 6
trap '' HUP INT QUIT TERM
umask 077
exec 4<&0 </dev/null
(
	if [ -n "$fresh" ]; then
		rm -rf -- "$fresh"
		"$bin/initdb" -D "$fresh" $initargs || exit
		mv -- "$fresh" "$data" || exit
	fi
	n=0
	while [ "$n" -lt "$dirs" ]; do shift; n=$((n+1)); done
	exec "$bin/postgres" -D "$data" "$@"
) 3<&- 4<&- &
child=$!
(
	exec >/dev/null 2>&1 3<&-
	read -r _ <&4
	n=0
	while [ "$n" -lt "$ticks" ] && kill -s 0 "$child"; do
		kill -s INT -- "-$$"
		sleep 0.1 || sleep 1
		n=$((n+1))
	done
	n=0
	while [ "$n" -lt 100 ] && kill -s 0 "$child"; do
		kill -s QUIT -- "-$$"
		sleep 0.1 || sleep 1
		n=$((n+1))
	done
	kill -s 0 "$$" && kill -s KILL "$child"
) &
watcher=$!
wait "$child"
status=$?
exec >/dev/null 2>&1
kill -s KILL "$watcher"
wait "$watcher"
read -r _ <&4
while [ "$dirs" -gt 0 ]; do rm -rf -- "$1"; shift; dirs=$((dirs-1)); done
exit "$status"
`

const (
	// fastTicks is how long a fast shutdown may take, in tenths of a second,
	// before an immediate one follows (10 seconds more, then SIGKILL).
	fastTicks = 300
	// stopPatience is longer than all that the script does; past it we kill.
	stopPatience = 60 * time.Second
	// tailBytes of the log are kept for error messages.
	tailBytes = 4096

	sharedMemoryInUse = "pre-existing shared memory block"
)

// errEnded says that the server ended before it answered.
var errEnded = errors.New("it ended before it was ready")

// spec says what to supervise.
type spec struct {
	acct     *account       // nil: as we are
	bin      string         // directory of postgres and initdb
	data     string         // the cluster
	fresh    bool           // make the cluster first
	initArgs []string       // for initdb; without spaces
	args     []string       // for postgres
	remove   []string       // directories that go when the server is gone
	lock     *filelock.Lock // of a lasting data directory, or nil
	log      io.Writer
}

// process is a supervised server.
type process struct {
	cmd   *exec.Cmd
	alive *os.File // the end of the pipe that keeps the server running
	log   io.Writer
	done  chan struct{} // closed when all is over; then err is set
	err   error

	stopOnce sync.Once

	mu   sync.Mutex // guards last
	last []byte     // the end of the log
}

func supervise(sp spec) (*process, error) {
	keepR, keepW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer keepR.Close()
	logR, logW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, keepW.Close())
	}
	defer logW.Close()

	// The cluster is made beside its place and moved there whole, so that a kill
	// in the middle of initdb leaves nothing that looks like a cluster.
	fresh := ""
	if sp.fresh {
		fresh = sp.data + ".new"
	}
	args := []string{"-c", superviseScript, "strom-postgres", sp.bin, sp.data, fresh,
		strings.Join(sp.initArgs, " "), strconv.Itoa(fastTicks), strconv.Itoa(len(sp.remove))}
	args = append(args, sp.remove...)
	args = append(args, sp.args...)
	cmd := exec.Command("/bin/sh", args...) //nolint:noctx // it outlives every context; the pipe ends it
	cmd.Dir = "/"                           // ours may be one that the server's user cannot enter
	cmd.Env = serverEnv()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = keepR, logW, logW
	cmd.SysProcAttr = sysProcAttr(sp.acct, true)
	if sp.lock != nil {
		cmd.ExtraFiles = []*os.File{sp.lock.File()} // becomes 3
	}
	if err := cmd.Start(); err != nil {
		_ = keepW.Close()
		_ = logR.Close()
		if sp.acct != nil {
			return nil, &AccessError{User: sp.acct.name, Err: err}
		}
		return nil, &StartError{What: "cannot start PostgreSQL", Err: err}
	}
	p := &process{cmd: cmd, alive: keepW, log: sp.log, done: make(chan struct{})}
	go p.watch(logR)
	return p, nil
}

// watch passes the log on until the server is gone, and then reaps the script.
func (p *process) watch(logR *os.File) {
	defer close(p.done)
	defer logR.Close()
	buf := make([]byte, 8192)
	for {
		n, err := logR.Read(buf)
		if n > 0 {
			p.keep(buf[:n])
			_, _ = p.log.Write(buf[:n]) // a broken log must not stop the server
		}
		if err != nil {
			break
		}
	}
	p.release()
	p.err = p.cmd.Wait()
}

func (p *process) keep(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = append(p.last, b...)
	if extra := len(p.last) - tailBytes; extra > 0 {
		p.last = append(p.last[:0], p.last[extra:]...)
	}
}

// tail is the end of the log, from the beginning of a line.
func (p *process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.last) == tailBytes {
		if i := bytes.IndexByte(p.last, '\n'); i >= 0 {
			return string(p.last[i+1:])
		}
	}
	return string(p.last)
}

// release lets go of the pipe, whereupon the script ends the server.
func (p *process) release() {
	p.stopOnce.Do(func() { _ = p.alive.Close() })
}

// stop ends the server and waits until it is gone. It may be called again.
func (p *process) stop() error {
	p.release()
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		killGroup(p.cmd.Process.Pid)
		return &StartError{What: "PostgreSQL did not stop", Err: fmt.Errorf("killed after %v", stopPatience), Log: p.tail()}
	}
	if p.err != nil {
		return &StartError{What: "PostgreSQL did not stop cleanly", Err: p.err, Log: p.tail()}
	}
	return nil
}

// serverEnv is what the server gets of our environment: what it takes to find
// programs and libraries, and nothing that could be a secret or a setting.
func serverEnv() []string {
	env := []string{"LC_ALL=C", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// waitReady returns when the server answers, has ended, or ctx is done.
func waitReady(ctx context.Context, p *process, url string) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for PostgreSQL to start: %w", ctx.Err())
		case <-p.done:
			return errEnded
		case <-ticker.C:
		}
		if !socketThere(url) {
			continue
		}
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
	}
}

// socketThere spares us connection attempts while initdb still runs.
func socketThere(url string) bool {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return true
	}
	_, err = os.Stat(socketPath(cfg.Host, int(cfg.Port)))
	return err == nil
}

func socketPath(dir string, port int) string {
	return filepath.Join(dir, ".s.PGSQL."+strconv.Itoa(port))
}

// classify turns a failed start into what the caller can act on.
func classify(err error, port int, tail string) error {
	if !errors.Is(err, errEnded) {
		return err
	}
	if port != 0 && strings.Contains(tail, "could not bind") {
		return &PortInUseError{Port: port, Err: errors.New("the server could not bind it")}
	}
	return &StartError{What: "PostgreSQL did not start", Err: err, Log: tail}
}
