package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forge-platform/strom/cmd/strom/internal/quakes"
	"github.com/forge-platform/strom/cmd/strom/internal/trial"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"

	"github.com/forge-platform/strom/cmd/strom/internal/feed"
)

// temp gives the process a temporary directory of its own, so that what it
// leaves behind shows.
func temp(t *testing.T) (dir string, env []string) {
	t.Helper()
	dir = pgtest.Dir(t)
	if err := os.Chmod(dir, 0o777); err != nil { // PostgreSQL may run as another user
		t.Fatal(err)
	}
	return dir, []string{"TMPDIR=" + dir}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left)
		}
	}
}

func wantDemo(t *testing.T, o outcome) {
	t.Helper()
	o.want(t, exitOK,
		"1,244  on time", "126  corrections", "337  late corrections",
		"2018-02-02T03:00:00Z      34", "2018-02-02T07:00:00Z      35", "2018-02-03T00:00:00Z      38",
		"193 of 193 region-days equal", "365 of 365 versions equal", "1,707 of 1,707 quakes equal")
	if !strings.HasSuffix(o.stdout, "\ndemo: ok\n") {
		t.Fatalf("the last line is not demo: ok\n%s", o)
	}
	if steady(o.stderr) != "" {
		t.Fatalf("stderr:\n%s", o.stderr)
	}
}

func TestTheDemoRunsTwiceAtOnceAndLeavesNothingBehind(t *testing.T) {
	dir, env := temp(t)
	var wg sync.WaitGroup
	outcomes := make([]outcome, 2)
	for i := range outcomes {
		p := start(t, env, "demo")
		wg.Go(func() {
			_ = p.cmd.Wait()
			outcomes[i] = outcome{p.stdout.String(), p.stderr.String(), exitCode(p.cmd.ProcessState.ExitCode())}
		})
	}
	wg.Wait()
	for _, o := range outcomes {
		wantDemo(t, o)
	}
	wantEmpty(t, dir)
}

func TestTheDemoEndsOnSignals(t *testing.T) {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		dir, env := temp(t)
		p := start(t, env, "demo")
		p.await(t, "ready in")
		o := p.signal(t, s)
		if o.code == exitOK && strings.HasSuffix(o.stdout, "demo: ok\n") {
			t.Log("the demo was faster than the signal")
		} else {
			o.want(t, exitInterrupted, "strom: interrupted")
		}
		wantEmpty(t, dir)
	}
}

func TestTheDemoEndsWithItsDatabase(t *testing.T) {
	dir, env := temp(t)
	p := start(t, env, "demo", "--keep")
	p.await(t, "Ctrl-C ends it")
	killPostgres(t, dir)
	p.wait(t).want(t, exitPostgres, "PostgreSQL ended by itself")
	wantEmpty(t, dir)
}

// killPostgres kills the server whose data lie below dir.
func killPostgres(t *testing.T, dir string) {
	t.Helper()
	var file string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == "postmaster.pid" {
			file = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	server, err := os.FindProcess(pid)
	if err == nil {
		err = server.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheDemoPutsAllAwayWhenNobodyReadsIt(t *testing.T) {
	dir, env := temp(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := prepare(t, env, "demo")
	p.cmd.Stdout = write
	if err := errors.Join(p.cmd.Start(), write.Close(), read.Close()); err != nil {
		t.Fatal(err)
	}
	if o := p.wait(t); o.code != exitInterrupted || steady(o.stderr) != "" {
		t.Errorf("%s", o)
	}
	wantEmpty(t, dir)
}

func TestTheDemoRunsAfterOneThatWasKilled(t *testing.T) {
	dir, env := temp(t)
	killed := start(t, env, "demo", "--keep")
	killed.await(t, "Ctrl-C ends it")
	killed.signal(t, syscall.SIGKILL)
	p := start(t, env, "demo")
	wantDemo(t, p.wait(t))
	wantEmpty(t, dir)
}

func TestTheDemoKeepsRunningForQuestions(t *testing.T) {
	dir, env := temp(t)
	p := start(t, env, "demo", "--keep")
	p.await(t, "Ctrl-C ends it")
	out := p.stdout.String()
	_, url, ok := strings.Cut(out, "STROM_POSTGRES='")
	if !ok {
		t.Fatalf("no database is named in\n%s", out)
	}
	url, _, _ = strings.Cut(url, "'")
	_, broker, _ := strings.Cut(out, "--brokers ")
	broker, _, _ = strings.Cut(broker, " ")
	asked := map[string]string{envPostgres: url, envBrokers: broker}
	strom(t, asked, "ontology", "as-of", "2018-02-02T03:00:00Z", "Region", "Alaska").want(t, exitOK, "34")
	strom(t, asked, "status", "--pipeline", "earthquakes").want(t, exitOK,
		"which ended its input", "1,707 events; in windows: 1,244 on time, 126 corrections, 337 late corrections",
		"lag of the input topics: 0 offsets", "safe horizon: 2018-02-07T03:00:00Z", "the ontology has every epoch")
	o := p.signal(t, os.Interrupt)
	o.want(t, exitOK)
	if !strings.HasSuffix(o.stdout, "\ndemo: ok\n") {
		t.Fatalf("the last line is not demo: ok\n%s", o)
	}
	wantEmpty(t, dir)
}

func TestTheDemoKeepsItsDataWhereItIsTold(t *testing.T) {
	dir := filepath.Join(pgtest.Dir(t), "demo")
	wantDemo(t, strom(t, nil, "demo", "--data-dir", dir))
	// Again: what is there is not loaded twice.
	o := strom(t, nil, "demo", "--data-dir", dir)
	o.want(t, exitOK, "193 of 193 region-days equal", "demo: ok")
}

// One ontology of the earthquakes serves all tests that only ask.
func TestTheEarthquakes(t *testing.T) {
	w := newWorld(t)
	t.Run("try prints the assertions of the demo", func(t *testing.T) { testTryEqualsRun(t, w) })
	t.Run("the comparison sees a difference", func(t *testing.T) { testComparison(t, w) })
	t.Run("scripts", func(t *testing.T) { testScripts(t, w) })
	t.Run("documents", func(t *testing.T) { testDocuments(t, w) })
}

// What `strom try` prints is what the demo's ontology holds: both are equal to
// the reading by hand, in every version.
func testTryEqualsRun(t *testing.T, w *world) {
	t.Helper()
	root := repo(t)
	plan, err := mapping.Load(filepath.Join(root, "examples/earthquakes/mapping.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "examples/earthquakes/quakes.ndjson")
	in := trial.NewInput(plan)
	if err := in.Add(feed.Spec{Stream: "quakes", File: file, Timestamp: "updated"}); err != nil {
		t.Fatal(err)
	}
	memory, _, err := in.Run(processors.NewTopology(plan, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, quakes.FromMemory(memory), text)

	// And line by line the same as the history that a run leaves in PostgreSQL.
	tried := strom(t, nil, "try", filepath.Join(root, "examples/earthquakes/mapping.yaml"), "--input", "quakes="+file+",timestamp=updated")
	tried.want(t, exitOK, "1,707 events in 166 epochs; in windows: 1,244 on time, 126 corrections, 337 late corrections; 0 repeats; 0 dead letters")
	var want strings.Builder
	for line := range strings.Lines(tried.stdout) {
		if strings.Contains(line, `"id":"Alaska"`) {
			want.WriteString(line)
		}
	}
	asked := strom(t, w.env(), "ontology", "history", "Region", "Alaska", "--format", "json")
	if asked.stdout != want.String() {
		t.Errorf("the history of Alaska in PostgreSQL differs from what try prints:\n%s\n%s", asked.stdout, want.String())
	}
}

func wantEqual(t *testing.T, s quakes.Source, file []byte) {
	t.Helper()
	comparisons, err := s.Compare(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range comparisons {
		t.Logf("%d of %d %s equal", c.Equal, c.Total, c.What)
		if !c.OK() || c.Total == 0 {
			t.Errorf("%s differ:\n%s", c.What, strings.Join(c.Different, "\n"))
		}
	}
}

// A comparison that finds nothing wrong proves nothing unless it can.
func testComparison(t *testing.T, w *world) {
	t.Helper()
	r, err := (&app{env: func(string) (string, bool) { return "", false }}).reader(t.Context(), &ontologyFlags{postgres: w.postgres})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := os.ReadFile(filepath.Join(repo(t), "examples/earthquakes/quakes.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(text, []byte(`"mag":4.7,"place":"232km ENE of Raoul Island, New Zealand"`),
		[]byte(`"mag":9.7,"place":"232km ENE of Raoul Island, New Zealand"`), 1)
	comparisons, err := quakes.FromReader(r).Compare(context.Background(), changed)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range comparisons {
		if c.OK() || len(c.Different) == 0 {
			t.Errorf("%s: the changed file is said to be equal", c.What)
		}
	}
}
