package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/forge-platform/strom/event"
)

// live is a pipeline that runs as a process of its own until it is stopped.
// What it has said can be waited for, from one goroutine.
type live struct {
	cmd      *exec.Cmd
	in       io.Closer
	said     tail
	launched time.Time
	ended    chan struct{} // closed when it says nothing more

	mu      sync.Mutex // guards said so far
	so      soFar
	bad     error         // a line that cannot be read
	changed chan struct{} // holds one when so has changed
}

// soFar is what a pipeline has said.
type soFar struct {
	started time.Time
	took    time.Duration
	// counted events are in committed epochs, the newest of them since countedAt.
	counted   int64
	countedAt time.Time
	// rows are in the ontology, of epochs up to newest. complete is the newest
	// epoch that is complete there, of the recorded time; all since appliedAt.
	rows             int64
	newest, complete event.Epoch
	recorded         event.RecordedTime
	appliedAt        time.Time
}

// startLive starts a pipeline, into the database where its address is given.
func (h *harness) startLive(ctx context.Context, s *spec, database string) (*live, error) {
	args := slices.Concat(h.config.Self[1:], []string{string(PartLive), "--shape=" + s.Shape}, s.args())
	if h.config.CPUProfile != "" {
		args = append(args, "--cpuprofile="+h.config.CPUProfile)
	}
	l := &live{
		cmd: exec.CommandContext(ctx, h.config.Self[0], args...), ended: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	l.cmd.Env = append(os.Environ(), postgresVariable+"="+database)
	l.cmd.Stderr = &l.said
	l.cmd.Cancel = func() error { return l.cmd.Process.Signal(syscall.SIGTERM) }
	l.cmd.WaitDelay = stopPatience
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.launched = time.Now()
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go l.follow(out)
	return l, nil
}

func (l *live) follow(out io.Reader) {
	defer close(l.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		l.mu.Lock()
		if err := l.so.take(lines.Text()); err != nil && l.bad == nil {
			l.bad = err
		}
		l.mu.Unlock()
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

// take reads one line.
func (s *soFar) take(line string) error {
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	n := make([]int64, len(words)-1)
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(words[i+1], 10, 64); err != nil {
			return fmt.Errorf("the pipeline says %q", line)
		}
	}
	switch {
	case words[0] == "started" && len(n) == 1:
		s.started = time.UnixMicro(n[0])
	case words[0] == "took" && len(n) == 1:
		s.took = time.Duration(n[0]) * time.Microsecond
	case words[0] == "counted" && len(n) == 2:
		s.counted, s.countedAt = n[0], time.UnixMicro(n[1])
	case words[0] == "applied" && len(n) == 5:
		s.rows, s.newest, s.complete = n[0], event.Epoch(n[1]), event.Epoch(n[2])
		s.recorded, s.appliedAt = event.RecordedTime(n[3]), time.UnixMicro(n[4])
	default:
		return fmt.Errorf("the pipeline says %q", line)
	}
	return nil
}

// seen is what the pipeline has said.
func (l *live) seen() (soFar, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.so, l.bad
}

// await waits until what the pipeline has said fulfils the condition.
func (l *live) await(ctx context.Context, what string, ok func(*soFar) bool) (soFar, error) {
	for {
		ended := false
		select {
		case <-l.ended:
			ended = true
		default:
		}
		so, err := l.seen()
		switch {
		case err != nil:
			return so, err
		case ok(&so):
			return so, nil
		case ended:
			return so, fmt.Errorf("the pipeline ended before %s", what)
		}
		select {
		case <-l.changed:
		case <-l.ended:
		case <-ctx.Done():
			return so, fmt.Errorf("waiting until %s: %w", what, context.Cause(ctx))
		}
	}
}

// awaitRows waits until so many rows are in the ontology, and the epochs that
// they belong to complete.
func (l *live) awaitRows(ctx context.Context, rows int64) (soFar, error) {
	var newest event.Epoch
	return l.await(ctx, fmt.Sprintf("%d rows were in the ontology", rows), func(s *soFar) bool {
		if s.rows < rows {
			return false
		}
		if newest == 0 {
			newest = max(1, s.newest) // the tables are there with the first epoch
		}
		return s.complete >= newest
	})
}

// awaitCounted waits until so many events are in committed epochs, those of
// earlier lives of the pipeline among them.
func (l *live) awaitCounted(ctx context.Context, events int64) (soFar, error) {
	return l.await(ctx, fmt.Sprintf("%d events were counted", events), func(s *soFar) bool { return s.counted >= events })
}

// stop stops the pipeline as planned and adds what it took to the run. An error
// of the run (why) is told together with what the process said at last. Only
// the first call does anything.
func (l *live) stop(run *Run, why error) error {
	if l.in == nil {
		return why
	}
	_ = l.in.Close() // it ends with its input
	l.in = nil
	<-l.ended
	ended := l.cmd.Wait()
	run.MaxRSS = max(run.MaxRSS, maxRSS(l.cmd.ProcessState))
	run.CPUSeconds += (l.cmd.ProcessState.UserTime() + l.cmd.ProcessState.SystemTime()).Seconds()
	if err := errors.Join(why, ended); err != nil {
		return fmt.Errorf("%w (the process: %s); it said at last:\n%s", err, l.cmd.ProcessState, l.said.String())
	}
	return nil
}
