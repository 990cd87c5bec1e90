//go:build unix

package localpg

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childEnv makes the test binary a program that starts a server and waits to be
// killed; its value holds the Options.
const childEnv = "STROM_LOCALPG_TEST_CHILD"

func TestMain(m *testing.M) {
	if raw := os.Getenv(childEnv); raw != "" {
		child(raw)
	}
	os.Exit(m.Run())
}

// child prints the URL and the temporary directories when the server answers.
func child(raw string) {
	var o Options
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		panic(err)
	}
	s, err := Start(context.Background(), o)
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Printf("%s %s\n", s.URL(), strings.Join(s.temps, " "))
	select {}
}

type program struct {
	cmd   *osexec.Cmd
	lines *bufio.Scanner
}

func runProgram(t *testing.T, o Options, env ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command(self)
	cmd.Env = append(append(os.Environ(), childEnv+"="+string(raw)), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

// ready waits for the server and returns its URL and temporary directories.
func (p *program) ready(t *testing.T) (url string, temps []string) {
	t.Helper()
	if !p.lines.Scan() || strings.HasPrefix(p.lines.Text(), "error:") {
		t.Fatalf("the program did not start its server: %s", p.lines.Text())
	}
	fields := strings.Fields(p.lines.Text())
	return fields[0], fields[1:]
}

// kill is SIGKILL: nothing in the program can react to it.
func (p *program) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// processesNaming are the processes whose command line holds a text.
func processesNaming(t *testing.T, text string) (pids []string) {
	t.Helper()
	out, err := osexec.Command("ps", "-A", "-ww", "-o", "pid=,command=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, text) {
			pids = append(pids, strings.TrimSpace(line))
		}
	}
	return pids
}

func TestKilledProgramLeavesNoServerAndNoFiles(t *testing.T) {
	p := runProgram(t, Options{})
	url, temps := p.ready(t)
	pid := (&Server{url: url}).postmaster(t)
	if len(temps) == 0 || gone(temps...) {
		t.Fatalf("temporary directories %v", temps)
	}
	p.kill()
	eventually(t, "the temporary directories are gone", func() bool { return gone(temps...) })
	eventually(t, "no process names them", func() bool { return len(processesNaming(t, temps[0])) == 0 })
	if processRuns(pid) {
		t.Errorf("server process %d is still there", pid)
	}
}

func TestProgramKilledDuringInitdbLeavesNothing(t *testing.T) {
	tmp := filepath.Dir(lastingDir(t))
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	p := runProgram(t, Options{}, "TMPDIR="+tmp)
	eventually(t, "initdb is at work", func() bool {
		found, _ := filepath.Glob(filepath.Join(tmp, "*", "data.new", "PG_VERSION"))
		return len(found) > 0
	})
	p.kill()
	eventually(t, "the temporary directories are gone", func() bool {
		left, err := os.ReadDir(tmp)
		return err == nil && len(left) == 0
	})
	eventually(t, "no process names them", func() bool { return len(processesNaming(t, tmp)) == 0 })
}

func TestDataDirOfAKilledProgramStartsAgainAtOnce(t *testing.T) {
	dir := lastingDir(t)
	p := runProgram(t, Options{DataDir: dir})
	url, _ := p.ready(t)
	execSQL(t, url, "CREATE TABLE t AS SELECT 42 AS n")
	p.kill()
	s := start(t, Options{DataDir: dir}) // the old server may still be stopping
	if got := query(t, s.URL(), "SELECT n::text FROM t"); got != "42" {
		t.Fatalf("got %s", got)
	}
}

func TestDataDirWhoseInitdbWasKilledStartsAgain(t *testing.T) {
	dir := lastingDir(t)
	p := runProgram(t, Options{DataDir: dir})
	eventually(t, "initdb is at work", func() bool { return !gone(filepath.Join(dir, "data.new", "PG_VERSION")) })
	p.kill()
	s := start(t, Options{DataDir: dir})
	if got := query(t, s.URL(), "SELECT 'up'"); got != "up" {
		t.Fatal(got)
	}
}

func TestDataDirStartsAgainAfterProgramSupervisorAndServerWereKilled(t *testing.T) {
	dir := lastingDir(t)
	p := runProgram(t, Options{DataDir: dir})
	url, temps := p.ready(t)
	t.Cleanup(func() {
		for _, d := range temps { // nobody was left to do it
			_ = os.RemoveAll(d)
		}
	})
	execSQL(t, url, "CREATE TABLE t AS SELECT 42 AS n")
	server := (&Server{url: url}).postmaster(t)
	supervisor := parentOf(t, server)
	for _, pid := range []int{supervisor, server} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	p.kill()
	s := start(t, Options{DataDir: dir})
	if got := query(t, s.URL(), "SELECT n::text FROM t"); got != "42" {
		t.Fatalf("got %s", got)
	}
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	out, err := osexec.CommandContext(t.Context(), "ps", "-o", "ppid=", "-p", fmt.Sprint(pid)).Output()
	var ppid int
	if err == nil {
		_, err = fmt.Sscan(string(out), &ppid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

// A program that was stopped (SIGSTOP) is not gone.
func TestStoppedProgramKeepsItsServer(t *testing.T) {
	p := runProgram(t, Options{})
	url, _ := p.ready(t)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(300 * time.Millisecond)
	for time.Now().Before(deadline) {
		query(t, url, "SELECT 'up'")
	}
}
