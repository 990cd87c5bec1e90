package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// times are those of one run, and the result where the job says it itself.
type times struct {
	launched, started, ended time.Time
	result                   string
}

// stopPatience is how long a peer has to end after SIGTERM.
const stopPatience = 30 * time.Second

// execute runs a job as a process and gives its times.
func (h *harness) execute(ctx context.Context, e engine, s *spec, from source, run *Run) (times, error) {
	var t times
	cmd, err := e.command(ctx, s)
	if err != nil {
		return t, err
	}
	var said tail
	cmd.Stderr = &said
	// Ended by the context it is asked first: a peer has files to close.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopPatience
	// A job ends when its input does: with this process, however that ends.
	if _, err := cmd.StdinPipe(); err != nil {
		return t, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	t.launched = time.Now()
	if err := cmd.Start(); err != nil {
		return t, err
	}
	err = h.follow(ctx, e, s, from, out, &t, cmd)
	ended := cmd.Wait()
	if cause := context.Cause(ctx); cause != nil && err == nil {
		err = cause
	}
	if err == nil && e.ends() {
		err = ended // how a peer ends that was asked to is its own business
	}
	if err == nil && (t.started.IsZero() || t.ended.IsZero()) {
		err = errors.New("it ended before it had done all")
	}
	if err != nil {
		return t, fmt.Errorf("%w (the process: %s); it said at last:\n%s", err, cmd.ProcessState, said.String())
	}
	run.MaxRSS = maxRSS(cmd.ProcessState)
	run.CPUSeconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return t, nil
}

// follow reads what a job says until it ends. A peer is asked to end once it
// has committed all of the input.
func (h *harness) follow(ctx context.Context, e engine, s *spec, from source, out io.Reader, t *times, cmd *exec.Cmd) error {
	waited := make(chan error, 1)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	if e.ends() {
		waited <- nil
	} else {
		go func() {
			ended, err := awaitCommitted(waiting, h.broker.addrs, s.Group, from)
			if err == nil {
				t.ended = ended // read after the channel
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			waited <- err
		}()
	}
	lines := bufio.NewScanner(out)
	var bad error
	for lines.Scan() {
		if err := t.take(lines.Text()); err != nil && bad == nil {
			bad = err
		}
	}
	cancel() // it has ended
	err := <-waited
	if errors.Is(err, context.Canceled) {
		err = nil // by itself: execute says so
	}
	return errors.Join(bad, err, lines.Err())
}

// take reads one line of a job.
func (t *times) take(line string) error {
	what, rest, _ := strings.Cut(line, " ")
	switch what {
	case "result":
		t.result = rest
		return nil
	case "started", "ended":
		n, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return fmt.Errorf("it says %q", line)
		}
		if what == "started" {
			t.started = time.UnixMicro(n)
		} else {
			t.ended = time.UnixMicro(n)
		}
	}
	return nil // whatever else a peer has to say
}

// tail keeps the end of what is written.
type tail struct{ buf bytes.Buffer }

const tailBytes = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if extra := t.buf.Len() - tailBytes; extra > tailBytes {
		t.buf.Next(extra)
	}
	return len(p), nil
}

func (t *tail) String() string {
	b := t.buf.Bytes()
	return strings.TrimSpace(string(b[max(0, len(b)-tailBytes):]))
}
