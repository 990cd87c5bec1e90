package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/cmd/strom/internal/local"
	"github.com/forge-platform/strom/cmd/strom/internal/quakes"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
)

// asProgram makes the test binary behave as the program itself: tests of
// signals start it as a process.
const asProgram = "STROM_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	if os.Getenv(asBroker) != "" {
		os.Exit(serveBroker())
	}
	// What the tests say of connections is all that holds.
	for _, name := range []string{envBrokers, envPostgres, envListen, "NO_COLOR"} {
		_ = os.Unsetenv(name)
	}
	os.Exit(pgtest.Main(m))
}

// repo is the root of the repository, from which documents name files.
func repo(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// outcome is how a command line went.
type outcome struct {
	stdout, stderr string
	code           exitCode
}

func (o outcome) String() string {
	return fmt.Sprintf("exit %d\nstdout:\n%s\nstderr:\n%s", o.code, o.stdout, o.stderr)
}

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex // guards b
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

// strom runs a command line in this process.
func strom(t *testing.T, env map[string]string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return stromUntil(ctx, env, args...)
}

// newTestApp prints everything into one buffer.
func newTestApp(b *buffer) *app {
	return &app{stdout: b, stderr: ui.NewConsole(b), env: environment(nil)}
}

// anyPort is where the program listens in tests unless they say otherwise: the
// port that it takes by default may be another's.
const anyPort = "127.0.0.1:0"

// environment gives the variables of a command line.
func environment(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		if !ok && name == envListen {
			return anyPort, true
		}
		return v, ok
	}
}

func stromUntil(ctx context.Context, env map[string]string, args ...string) outcome {
	var stdout, stderr buffer
	a := &app{stdout: &stdout, stderr: ui.NewConsole(&stderr), env: environment(env)}
	code := a.main(ctx, args)
	return outcome{stdout.String(), stderr.String(), code}
}

// want fails the test unless the command line ended so, and printed each of
// the texts somewhere.
func (o outcome) want(t *testing.T, code exitCode, texts ...string) {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit %d, want %d\n%s", o.code, code, o)
	}
	for _, text := range texts {
		if !strings.Contains(o.stdout+o.stderr, text) {
			t.Fatalf("no %q in\n%s", text, o)
		}
	}
	if strings.Contains(o.stderr, "goroutine ") || strings.Contains(o.stderr, "Usage:") {
		t.Fatalf("a stack trace or a usage dump in\n%s", o)
	}
}

// process is the program in a process of its own.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr buffer
}

// start starts the program; the test's end kills it.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return startBinary(t, "", env, args...)
}

// startBinary starts another build of the program; "" is this one.
func startBinary(t *testing.T, binary string, env []string, args ...string) *process {
	t.Helper()
	p := prepare(t, env, args...)
	if binary != "" {
		p.cmd.Path = binary
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

func prepare(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Env = append(append(os.Environ(), asProgram+"=1", envListen+"="+anyPort), env...)
	p.cmd.Dir = repo(t)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	return p
}

// await waits until the process has printed a text.
func (p *process) await(t *testing.T, text string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		if strings.Contains(p.stdout.String()+p.stderr.String(), text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %q after a minute in\n%s\n%s", text, p.stdout.String(), p.stderr.String())
		}
	}
}

// signal sends a signal and gives how the process ended.
func (p *process) signal(t *testing.T, s os.Signal) outcome {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	return p.wait(t)
}

func (p *process) wait(t *testing.T) outcome {
	t.Helper()
	late := time.AfterFunc(2*time.Minute, func() {
		t.Errorf("the process did not end within two minutes:\n%s", p.stderr.String())
		_ = p.cmd.Process.Kill()
	})
	defer late.Stop()
	_ = p.cmd.Wait() // the exit code says it
	return outcome{p.stdout.String(), p.stderr.String(), exitCode(p.cmd.ProcessState.ExitCode())}
}

// world is a broker with the quakes and a database that the pipeline of the
// example has filled.
type world struct {
	brokers  []string
	postgres string
	dataDir  string
}

func (w *world) env() map[string]string {
	return map[string]string{envBrokers: strings.Join(w.brokers, ","), envPostgres: w.postgres}
}

// newWorld fills a broker and a database, through `strom run`.
func newWorld(t *testing.T) *world {
	t.Helper()
	broker := kafkatest.New(t, kafkatest.Topic(quakes.Topic, 1))
	w := &world{brokers: broker.Brokers(), postgres: pgtest.New(t), dataDir: t.TempDir()}
	produce(t, broker, filepath.Join(repo(t), "examples/earthquakes/quakes.ndjson"))
	strom(t, w.env(), "run", filepath.Join(repo(t), "examples/earthquakes/mapping.yaml"), "--until-end",
		"--data-dir", w.dataDir).want(t, exitOK, "1,244 on time, 126 corrections, 337 late corrections")
	return w
}

// produce writes a file of quakes into their topic, as the demo does.
func produce(t *testing.T, broker *embedded.Broker, file string) {
	t.Helper()
	w, err := local.NewWriter(t.Context(), broker.Brokers(), quakes.Topic)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	spec := feed.Spec{Stream: "quakes", File: file, Timestamp: "updated", Key: "id"}
	if _, err := spec.Read(func(r feed.Record) error { return w.Write(t.Context(), r) }); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}
