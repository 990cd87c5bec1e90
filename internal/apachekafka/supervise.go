package apachekafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// superviseScript runs a program and ends it when our process is gone. It is the
// way of internal/localpg, which says why; such a broker may be ended more
// roughly than a database.
//
// Its standard input is a pipe whose other end only our process holds: the kernel
// closes it when we exit, panic or are killed. The script then kills the program
// and removes its directory. Until then each line that it reads names a signal
// for the program. Signals go through the script because it alone knows that
// the process id still belongs to the program.
//
// When the program has ended, the script closes its output (that is how we
// notice) and waits: for the word keep, which leaves the directory, or for the
// end of the pipe.
const superviseScript = `
dir=$1
shift
trap '' HUP INT QUIT TERM
exec 3<&0 </dev/null
(
	trap - HUP INT QUIT TERM
	exec 3<&- >>"$dir/console.log" 2>&1
	exec "$@"
) &
child=$!
(
	exec >/dev/null 2>&1
	while read -r word <&3; do kill -s "$word" "$child"; done
	kill -s KILL "$child"
) &
watcher=$!
wait "$child"
status=$?
kill -s KILL "$watcher"
wait "$watcher"
exec >/dev/null
while read -r word <&3; do
	[ "$word" = keep ] && exit "$status"
done
rm -rf -- "$dir"
exit "$status"
`

// process is a supervised program. Its methods may be called from any goroutine.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the program has ended

	mu    sync.Mutex // guards words
	words *os.File   // what the script reads; nil when we have let go of it
}

// supervise starts a program in dir.
func supervise(dir string, program []string) (*process, error) {
	wordsR, wordsW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wordsR.Close()
	endR, endW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, wordsW.Close())
	}
	defer endW.Close()
	args := append([]string{"-c", superviseScript, "strom-kafka", dir}, program...)
	cmd := exec.Command("/bin/sh", args...) //nolint:noctx // it outlives every context; the pipe ends it
	cmd.Dir = dir
	cmd.Env = environment()
	cmd.Stdin, cmd.Stdout = wordsR, endW
	cmd.SysProcAttr = newSession()
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, wordsW.Close(), endR.Close())
	}
	p := &process{cmd: cmd, words: wordsW, ended: make(chan struct{})}
	go p.watch(endR)
	return p, nil
}

func (p *process) watch(end *os.File) {
	defer close(p.ended)
	defer end.Close()
	_, _ = io.Copy(io.Discard, end)
}

// signal sends a signal to the program. One that has ended does not mind.
func (p *process) signal(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words != nil {
		_, _ = p.words.WriteString(name + "\n")
	}
}

// release waits for the end of the program, which it kills after patience, lets
// go of its directory, and returns how the program ended.
func (p *process) release(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.signal("KILL")
		<-p.ended
	}
	p.signal("keep")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return nil
	}
	err := p.words.Close()
	p.words = nil
	return errors.Join(err, p.cmd.Wait())
}

// environment is what a program gets of ours: what it takes to find programs, and
// no settings of Java or Kafka that somebody has made for other purposes.
func environment() []string {
	env := []string{"LC_ALL=C"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HOME"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, fmt.Sprintf("%s=%s", name, v))
		}
	}
	return env
}
