package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
)

// shop is a pipeline that is run, saved and restored by command lines.
type shop struct {
	t       *testing.T
	env     map[string]string
	mapping string
	saved   string // the checkpoint directory
	client  *kgo.Client
	orders  int
}

func newShop(t *testing.T) *shop {
	t.Helper()
	broker := kafkatest.New(t, kafkatest.Topic("orders", 2))
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &shop{
		t: t, env: map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)},
		mapping: writeMapping(t), saved: t.TempDir(), client: client,
	}
}

// order places so many orders.
func (s *shop) order(n int) {
	s.t.Helper()
	for range n {
		s.orders++
		r := &kgo.Record{Topic: "orders", Key: fmt.Appendf(nil, "o%d", s.orders),
			Value: fmt.Appendf(nil, `{"order":"o%d","at":"2026-01-01T00:00:00Z","status":"new"}`, s.orders)}
		if err := s.client.ProduceSync(s.t.Context(), r).FirstErr(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// replica starts a replica, and waits until it has read all orders.
func (s *shop) replica(more ...string) *process {
	s.t.Helper()
	var env []string
	for k, v := range s.env {
		env = append(env, k+"="+v)
	}
	args := []string{"run", s.mapping, "--data-dir", s.t.TempDir(), "--checkpoint-dir", s.saved}
	p := start(s.t, env, append(args, more...)...)
	s.awaitOrders()
	return p
}

func (s *shop) awaitOrders() {
	s.t.Helper()
	var o outcome
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		o = strom(s.t, s.env, "ontology", "list", "Order", "--format", "json")
		if strings.Count(o.stdout, "\n") == s.orders && s.orders > 0 {
			return
		}
	}
	s.t.Fatalf("the ontology has not got %d orders:\n%s", s.orders, o)
}

func (s *shop) checkpoints(args ...string) outcome {
	s.t.Helper()
	return strom(s.t, s.env, append([]string{"checkpoints", args[0], s.mapping, "--checkpoint-dir", s.saved}, args[1:]...)...)
}

// create makes a savepoint.
func (s *shop) create(name string) {
	s.t.Helper()
	s.checkpoints("create", "--name", name, "--timeout", "1m").want(s.t, exitOK, "savepoint "+name+": epoch", "2 tasks")
}

func TestSavepointsByCommandLine(t *testing.T) {
	s := newShop(t)
	s.order(3)
	p := s.replica()
	s.create("older")
	s.order(3)
	s.awaitOrders()
	s.create("newer")
	list := s.checkpoints("list", "--format", "json")
	list.want(t, exitOK)
	var first savepointJSON
	if err := json.Unmarshal([]byte(strings.SplitAfter(list.stdout, "\n")[0]), &first); err != nil {
		t.Fatal(err)
	}
	if first.Savepoint != "newer" || first.State != "whole" || first.Generation != 1 || first.Tasks != 2 || first.Bytes == 0 {
		t.Errorf("the first of the list: %+v", first)
	}
	s.checkpoints("restore", "newer").want(t, exitSavepoint, "the pipeline is running", "stop all of them first")
	s.order(3)
	s.awaitOrders()
	p.signal(t, os.Interrupt).want(t, exitOK)

	// A bit flips: the one before is offered.
	file := someFile(t, filepath.Join(s.saved, "shop", "newer"), ".sst", ".log")
	flip(t, file)
	s.checkpoints("restore", "newer").want(t, exitSavepoint, file+" is damaged: its content does not match its checksum",
		"the newest other one, older, is whole: restore that")
	flip(t, file)

	// Another mapping cannot take the state up.
	right := s.mapping
	s.mapping = writeMapping(t, "properties: {status: status}", "properties: {status: order}")
	s.checkpoints("restore", "newer").want(t, exitSavepoint, "restore it with the mapping that it was made with")
	s.mapping = right

	s.checkpoints("restore", "newer", "--dry-run").want(t, exitOK, "can be restored as generation 2 of pipeline shop")
	s.checkpoints("restore", "newer").want(t, exitOK, "is restored as generation 2 of pipeline shop", "epochs repeated by the next run")
	s.order(3)
	one, two := s.replica(), s.replica()
	strom(t, s.env, "status", s.mapping).want(t, exitOK, "pipeline shop, generation 2: epoch")
	strom(t, map[string]string{envBrokers: s.env[envBrokers]}, "status", "--pipeline", "shop").want(t, exitOK, "ingest.orders")
	s.create("next")
	s.checkpoints("list").want(t, exitOK, "next")
	one.signal(t, os.Interrupt).want(t, exitOK)
	two.signal(t, os.Interrupt).want(t, exitOK)
	// Each order was published once: no version but the first.
	o := strom(t, s.env, "ontology", "history", "Order", "o1", "--format", "json")
	o.want(t, exitOK)
	if n := strings.Count(o.stdout, "\n"); n != 1 {
		t.Errorf("o1 has %d versions:\n%s", n, o)
	}
}

// A replica that was frozen while its pipeline was restored, and wakes, has the
// memory of a generation that is over: it writes nothing, and says so.
func TestAReplicaThatWakesAfterARestoreStopsAndSaysSo(t *testing.T) {
	s := newShop(t)
	s.order(3)
	p := s.replica("--session-timeout", "1s")
	s.create("one")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.restoreWhenGone("one")
	s.order(2)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.wait(t).want(t, exitPipeline, "generation 1 of pipeline \"shop\" has ended: savepoint one was restored as generation 2")
	next := s.replica()
	next.signal(t, os.Interrupt).want(t, exitOK)
	o := strom(t, s.env, "ontology", "history", "Order", "o1", "--format", "json")
	if n := strings.Count(o.stdout, "\n"); n != 1 {
		t.Errorf("o1 has %d versions:\n%s", n, o)
	}
}

// restoreWhenGone restores as soon as the groups have no members any more.
func (s *shop) restoreWhenGone(name string) {
	s.t.Helper()
	var o outcome
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-tick.C {
		if o = s.checkpoints("restore", name); o.code == exitOK {
			return
		}
		o.want(s.t, exitSavepoint, "the pipeline is running")
	}
	s.t.Fatalf("the members of a frozen replica stay:\n%s", o)
}

func TestPruningKeepsTheNewestAndRemovesWhatCrashesLeft(t *testing.T) {
	s := newShop(t)
	s.order(1)
	p := s.replica()
	for _, name := range []string{"a", "b", "c"} {
		s.create(name)
	}
	p.signal(t, os.Interrupt).want(t, exitOK)
	half := filepath.Join(s.saved, "shop", "b", "MANIFEST.json")
	if err := os.Remove(half); err != nil {
		t.Fatal(err)
	}
	s.checkpoints("list").want(t, exitOK, "b", "incomplete")
	s.checkpoints("restore", "b").want(t, exitSavepoint, "never became whole")
	s.checkpoints("restore", "d").want(t, exitSavepoint, "there is no savepoint d")
	s.checkpoints("prune", "--keep", "1", "--older-than", "24h").want(t, exitOK, "3 savepoints left of 3")
	s.checkpoints("prune", "--keep", "1", "--dry-run").want(t, exitOK, "would remove a (whole)")
	// b may be under way, until nothing has been written to it for long.
	old := time.Now().Add(-time.Hour)
	if err := filepath.WalkDir(filepath.Dir(half), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, old, old)
	}); err != nil {
		t.Fatal(err)
	}
	s.checkpoints("prune", "--keep", "1").want(t, exitOK, "removed a (whole)", "removed b (incomplete)", "1 savepoint left of 3")
	s.checkpoints("list").want(t, exitOK, "c", "whole")
	s.checkpoints("create", "--timeout", "1s").want(t, exitSavepoint, "is the pipeline running?")
}

// someFile finds a file of a savepoint.
func someFile(t *testing.T, root string, suffixes ...string) string {
	t.Helper()
	found := ""
	if err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		for _, s := range suffixes {
			if strings.HasSuffix(path, s) && info.Size() > 0 {
				found = path
			}
		}
		return err
	}); err != nil || found == "" {
		t.Fatalf("no file %v in %s: %v", suffixes, root, err)
	}
	return found
}

// flip flips a bit in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
