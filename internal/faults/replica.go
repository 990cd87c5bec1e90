package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// replica is a child as the harness sees it.
type replica struct {
	spec  childSpec
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu      sync.Mutex // guards all below
	log     bytes.Buffer
	reached string
	holding string
	unknown []string
	adopted int
	epoch   int64
	ended   bool
	err     error         // how it ended
	changed chan struct{} // closed and replaced when something above changes
}

// startReplica starts a child of this program. ctx kills it.
func startReplica(ctx context.Context, spec childSpec) (*replica, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &replica{spec: spec, cmd: exec.CommandContext(ctx, self), changed: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	r.cmd.Stderr = writerFunc(func(p []byte) (int, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.log.Write(p)
	})
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start replica %s: %w", spec.Replica, err)
	}
	go r.follow(stdout)
	return r, nil
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// follow reads what the child says until it has ended.
func (r *replica) follow(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		r.change(func() { r.heard(lines.Text()) })
	}
	err := r.cmd.Wait()
	r.change(func() { r.ended, r.err = true, err })
}

func (r *replica) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *replica) heard(line string) {
	if point, ok := strings.CutPrefix(line, sayReached); ok {
		r.reached = point
	}
	if point, ok := strings.CutPrefix(line, sayHolding); ok {
		r.holding = point
	}
	if point, ok := strings.CutPrefix(line, sayUnknown); ok {
		r.unknown = append(r.unknown, point)
	}
	if n, ok := strings.CutPrefix(line, sayEpoch); ok {
		if epoch, err := strconv.ParseInt(n, 10, 64); err == nil {
			r.epoch = max(r.epoch, epoch)
		}
	}
	if line == sayAdopted {
		r.adopted++
	}
}

// await waits until holds, which is called with the lock held, or until the
// child has ended, or for so long; what is missing then is an error.
func (r *replica) await(ctx context.Context, what string, patience time.Duration, holds func() bool) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		r.mu.Lock()
		done, ended, changed := holds(), r.ended, r.changed
		r.mu.Unlock()
		switch {
		case done:
			return nil
		case ended:
			return fmt.Errorf("replica %s ended before this was so: %s; %w", r.spec.Replica, what, r.story())
		}
		select {
		case <-changed:
		case <-timer.C:
			return fmt.Errorf("not so within %s: %s; %w", patience, what, r.story())
		case <-ctx.Done():
			return fmt.Errorf("%w: waiting for this: %s", ctx.Err(), what)
		}
	}
}

// awaitEnd waits until the child has ended.
func (r *replica) awaitEnd(ctx context.Context, patience time.Duration) error {
	return r.await(ctx, "replica "+r.spec.Replica+" has ended", patience, func() bool { return r.ended })
}

// wake lets a child that was frozen go on.
func (r *replica) wake() error {
	if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("wake replica %s: %w; %w", r.spec.Replica, err, r.story())
	}
	return nil
}

// arm makes the child count from now on.
func (r *replica) arm() error {
	if _, err := io.WriteString(r.stdin, lineArm+"\n"); err != nil {
		return fmt.Errorf("arm replica %s: %w; %w", r.spec.Replica, err, r.story())
	}
	return nil
}

// died makes sure that the child has reached its point and was killed there.
func (r *replica) died() error {
	r.mu.Lock()
	reached, err := r.reached, r.err
	r.mu.Unlock()
	status, killed := syscall.WaitStatus(0), false
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status, killed = exit.Sys().(syscall.WaitStatus)
	}
	switch {
	case reached != r.spec.Crash.Point:
		return fmt.Errorf("the point %s was not reached for the %d. time; %w", r.spec.Crash.Point, r.spec.Crash.N, r.story())
	case !killed || !status.Signaled() || status.Signal() != syscall.SIGKILL:
		return fmt.Errorf("replica %s was not killed: %w; %w", r.spec.Replica, err, r.story())
	}
	return nil
}

// succeeded makes sure that the child has ended well, and knew all its points.
func (r *replica) succeeded() error {
	r.mu.Lock()
	err, unknown := r.err, r.unknown
	r.mu.Unlock()
	if len(unknown) > 0 {
		return fmt.Errorf("points that kafka.Points does not name: %q", unknown)
	}
	if err != nil {
		return fmt.Errorf("replica %s ended with %w; %w", r.spec.Replica, err, r.story())
	}
	return nil
}

// stop ends the child as an operator does.
func (r *replica) stop(ctx context.Context, patience time.Duration) error {
	if !r.alive() {
		return r.succeeded()
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop replica %s: %w", r.spec.Replica, err)
	}
	if err := r.awaitEnd(ctx, patience); err != nil {
		return err
	}
	return r.succeeded()
}

func (r *replica) newest() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

func (r *replica) alive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.ended
}

// end ends the child however it stands.
func (r *replica) end() {
	if r.alive() {
		_ = r.cmd.Process.Kill()
	}
	_ = r.awaitEnd(context.Background(), time.Minute)
}

// storyLength is how much of a log is shown with an error.
const storyLength = 6000

// story is what the child has logged last, as an error to be wrapped.
func (r *replica) story() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.log.String()
	return fmt.Errorf("replica %s said:\n%s", r.spec.Replica, text[max(0, len(text)-storyLength):])
}
