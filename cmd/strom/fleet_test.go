package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
)

// fleet is a pipeline run by several processes of the program.
type fleet struct {
	t        *testing.T
	brokers  []string
	postgres string
	mapping  string
	session  time.Duration
	members  []*replica
}

// replica is one of them. It keeps its name and its directory while it is
// stopped and started again.
type replica struct {
	fleet  *fleet
	name   string
	dir    string
	flags  []string
	p      *process
	frozen bool
	// binary is the program that it runs; empty: this one.
	binary string
}

func newFleet(t *testing.T, brokers []string, mapping string, session time.Duration) *fleet {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mapping.yaml")
	if err := os.WriteFile(path, []byte(mapping), 0o600); err != nil {
		t.Fatal(err)
	}
	return &fleet{t: t, brokers: brokers, postgres: pgtest.New(t), mapping: path, session: session}
}

func (f *fleet) env() map[string]string {
	return map[string]string{envBrokers: strings.Join(f.brokers, ","), envPostgres: f.postgres}
}

// add makes a replica that is not started yet.
func (f *fleet) add(flags ...string) *replica {
	r := &replica{fleet: f, name: "r" + strconv.Itoa(len(f.members)), dir: f.t.TempDir(), flags: flags}
	f.members = append(f.members, r)
	return r
}

func (r *replica) start() {
	f := r.fleet
	f.t.Helper()
	args := append([]string{
		"run", f.mapping, "--replica", r.name, "--data-dir", r.dir, "--session-timeout", f.session.String(), "--log-format", "text",
	}, r.flags...)
	var env []string
	for k, v := range f.env() {
		env = append(env, k+"="+v)
	}
	r.p, r.frozen = startBinary(f.t, r.binary, env, args...), false
}

func (r *replica) running() bool { return r.p != nil }

// kill ends the process as nothing can catch it.
func (r *replica) kill() {
	r.fleet.t.Helper()
	o := r.p.signal(r.fleet.t, syscall.SIGKILL)
	if s := r.p.cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		r.fleet.t.Fatalf("replica %s ended by itself:\n%s", r.name, o)
	}
	r.p = nil
}

// stop ends the process as an operator does.
func (r *replica) stop() {
	r.fleet.t.Helper()
	r.p.signal(r.fleet.t, syscall.SIGTERM).want(r.fleet.t, exitOK, "stopping")
	r.p = nil
}

// freeze stops the process without its knowledge, thaw wakes it.
func (r *replica) freeze() { r.sendSignal(syscall.SIGSTOP); r.frozen = true }

func (r *replica) thaw() { r.sendSignal(syscall.SIGCONT); r.frozen = false }

func (r *replica) sendSignal(s syscall.Signal) {
	r.fleet.t.Helper()
	if err := r.p.cmd.Process.Signal(s); err != nil {
		r.fleet.t.Fatalf("replica %s: %v\n%s", r.name, err, r.p.stderr.String())
	}
}

// logs gives the ends of what the replicas have printed, for whoever looks
// into a failure.
func (f *fleet) logs() string {
	var b strings.Builder
	for _, r := range f.members {
		if r.p == nil {
			continue
		}
		text := r.p.stderr.String()
		fmt.Fprintf(&b, "--- replica %s\n%s\n", r.name, text[max(0, len(text)-4000):])
	}
	return b.String()
}

// status asks for the status, which must answer at any time.
func (f *fleet) status() *statusJSON {
	f.t.Helper()
	o := strom(f.t, f.env(), "status", f.mapping, "--format", "json")
	if o.code != exitOK {
		f.t.Fatalf("strom status: %s\n%s", o, f.logs())
	}
	var s statusJSON
	if err := json.Unmarshal([]byte(o.stdout), &s); err != nil {
		f.t.Fatal(err)
	}
	return &s
}

// await waits until the status holds.
func (f *fleet) await(what string, patience time.Duration, holds func(*statusJSON) bool) *statusJSON {
	f.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		s := f.status()
		if holds(s) {
			return s
		}
		if time.Now().After(deadline) {
			text, _ := json.Marshal(s)
			f.t.Fatalf("not so after %s: %s\n%s\n%s", patience, what, text, f.logs())
		}
	}
}

// begin starts the replicas and waits until barriers are announced.
func (f *fleet) begin() {
	f.t.Helper()
	for _, r := range f.members {
		r.start()
	}
	f.members[0].p.await(f.t, "took over")
	f.await("the fleet has begun", time.Minute, func(s *statusJSON) bool { return s.Epoch > 2 })
}

// end stops all of them and runs the pipeline to the end of its input.
func (f *fleet) end() {
	f.t.Helper()
	for _, r := range f.members {
		if r.running() {
			r.stop()
		}
	}
	strom(f.t, f.env(), "run", f.mapping, "--data-dir", f.t.TempDir(), "--until-end").want(f.t, exitOK, "stopped at epoch")
}

// bankLoad produces transfers at an even pace until all are there.
type bankLoad struct {
	all  []transfer
	over time.Duration
	done chan error
}

func (l *bankLoad) start(ctx context.Context, brokers []string) {
	l.done = make(chan error, 1)
	go func() { l.done <- l.produce(ctx, brokers) }()
}

func (l *bankLoad) produce(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	sent := 0
	for sent < len(l.all) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		due := len(l.all)
		if elapsed := time.Since(began); elapsed < l.over {
			due = int(float64(due) * float64(elapsed) / float64(l.over))
		}
		for ; sent < due; sent++ {
			record, err := l.all[sent].record()
			if err != nil {
				return err
			}
			client.Produce(ctx, record, nil)
		}
	}
	return client.Flush(ctx)
}

// chaosTime is how long the fleet is tormented; longer where asked for.
func chaosTime(t *testing.T) time.Duration {
	t.Helper()
	return durationFromEnv(t, "STROM_TEST_CHAOS", 20*time.Second)
}

func durationFromEnv(t *testing.T, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

func chaosSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("STROM_TEST_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("STROM_TEST_SEED: %v", err)
	}
	return seed
}

// Three replicas, two stages, killed, stopped, frozen and started again at
// random under load: no transfer is lost, doubled, or ever seen by half.
func TestAFleetEndsExactThroughKillsStopsAndFreezes(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) { tormentFleet(t, kind) })
	}
}

func tormentFleet(t *testing.T, kind kafkatest.Kind) {
	t.Helper()
	seed, torment := chaosSeed(t), chaosTime(t)
	t.Logf("repeat with: STROM_TEST_SEED=%d STROM_TEST_CHAOS=%s go test ./cmd/strom -run %s", seed, torment, t.Name())
	rng := rand.New(rand.NewPCG(seed, 3))
	broker := kind.New(t, kafkatest.Topics{"transfers": 3})
	f := newFleet(t, broker.Brokers(), bankMapping, time.Second)
	for i := range 3 {
		if i == 0 {
			f.add("--static-membership")
		} else {
			f.add()
		}
	}
	f.begin()
	l := &bankLoad{all: transfers(42, max(10_000, int(torment.Seconds()*500))), over: torment}
	l.start(t.Context(), f.brokers)
	did := map[string]int{}
	for deadline := time.Now().Add(torment); time.Now().Before(deadline); {
		did[f.torment(rng)]++
		did["scraped"] += f.checkVisible()
	}
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	for _, r := range f.members {
		switch {
		case !r.running():
			r.start()
		case r.frozen:
			r.thaw()
		}
	}
	f.await("all is read", time.Minute, func(s *statusJSON) bool { return s.Lag == 0 })
	f.end()
	t.Logf("%d transfers, %v", len(l.all), did)
	if did["scraped"] == 0 {
		t.Error("nobody has told metrics")
	}
	f.checkBank(l.all)
}

// checkVisible makes sure that the status tells of every task who has it, how
// far the horizon is, and that whoever serves metrics tells the same; it gives
// the number of replicas that did.
func (f *fleet) checkVisible() int {
	t := f.t
	t.Helper()
	s := f.status()
	const tasks = bankStages * 3
	if len(s.Tasks) != tasks || s.Ontology == nil || s.Ontology.Horizon == nil || s.Age == nil {
		t.Errorf("the status is not whole: %+v", s)
	}
	for i := range s.Tasks {
		if o := s.Tasks[i].Owner; o.State == "" || (o.State == "owned") != (o.Replica != "") {
			t.Errorf("who has %s %s? %+v", s.Tasks[i].Stage, s.Tasks[i].Partition, o)
		}
	}
	scraped := 0
	for _, r := range f.members {
		url := regexp.MustCompile(`url=(http://\S+)`).FindStringSubmatch(r.log())
		if r.frozen || url == nil {
			continue
		}
		client := http.Client{Timeout: 5 * time.Second}
		resp, err := client.Get(url[1] + "/metrics")
		if err != nil {
			continue // it has begun a moment ago
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "strom_coordinator{") {
			t.Errorf("metrics of %s: %d, %v\n%.2000s", r.name, resp.StatusCode, err, text)
		}
		scraped++
	}
	return scraped
}

// log is what a replica has printed since it was started.
func (r *replica) log() string {
	if r.p == nil {
		return ""
	}
	return r.p.stderr.String()
}

// torment does something to one replica.
func (f *fleet) torment(rng *rand.Rand) string {
	r := f.members[rng.IntN(len(f.members))]
	<-time.After(time.Duration(200+rng.IntN(1500)) * time.Millisecond)
	switch {
	case r.frozen:
		r.thaw()
		return "thawed"
	case !r.running():
		if rng.IntN(4) == 0 { // its disk is lost
			r.dir = f.t.TempDir()
		}
		r.start()
		return "started"
	}
	switch rng.IntN(4) {
	case 0:
		r.stop()
		return "stopped"
	case 1:
		r.freeze()
		return "frozen"
	default:
		r.kill()
		return "killed"
	}
}

// checkBank holds what is published against the transfers.
func (f *fleet) checkBank(all []transfer) {
	t := f.t
	t.Helper()
	var want ledger
	for i := range all {
		want.book(&all[i])
	}
	announced := barriers(t, f.brokers, "strom.bank.g1.control")
	checkBarriers(t, announced)
	reader := openBank(t, f.postgres)
	got, err := believed(t.Context(), reader, announced[len(announced)-1].Recorded)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("the books say\n%+v, want\n%+v", got, want)
	}
	checkEveryRecordedTime(t, reader, announced)
	longest, at := time.Duration(0), event.Epoch(0)
	for i := 1; i < len(announced); i++ {
		if d := announced[i].at.Sub(announced[i-1].at); d > longest {
			longest, at = d, announced[i].Epoch
		}
	}
	t.Logf("%d barriers, the longest pause %s before %s", len(announced), longest.Round(time.Millisecond), at)
}
