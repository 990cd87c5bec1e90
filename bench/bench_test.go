package bench

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestARunOfOursIsRightLateEventsIncluded(t *testing.T) {
	r, err := Measure(t.Context(), Config{
		Engines: []string{EngineStrom}, Self: self(t), Timeout: time.Minute,
		Input: Input{Events: 20_000, Keys: 500, Partitions: 2, Late: 0.2, Window: 100 * time.Millisecond, Lateness: 100 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	run := r.Runs[0]
	in := r.Input
	if want := Fold(&in).Hash(); run.Result != want || run.Wrong != "" {
		t.Errorf("result %s, want %s; %s", run.Result, want, run.Wrong)
	}
	if run.Seconds <= 0 || run.PerSecond <= 0 || run.StartSeconds <= 0 || run.CPUSeconds <= 0 {
		t.Errorf("it was not measured: %+v", run)
	}
	if run.Counts {
		t.Errorf("a run of %.1f s counts", run.Seconds)
	}
	if s := r.Summaries; len(s) != 1 || s[0].Median != run.PerSecond || s[0].Counts {
		t.Errorf("summaries: %+v", s)
	}
	if text := Report([]*Result{r}, ""); !strings.Contains(text, run.Result) || !strings.Contains(text, "(") {
		t.Errorf("the report does not tell it:\n%s", text)
	}
}

func TestTheCeilingIsMeasuredOnAllEvents(t *testing.T) {
	r, err := Measure(t.Context(), Config{
		Workload: Consume, Engines: []string{EngineFetch, EngineDecode}, Self: self(t), Timeout: time.Minute,
		Input: Input{Events: 10_000, Partitions: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 2 || r.Runs[0].Result == r.Runs[1].Result {
		t.Errorf("runs: %+v", r.Runs)
	}
}

// lossy is an engine that has lost one pane.
type lossy struct {
	engine

	in *Input
}

func (l lossy) results(context.Context, []string, *spec) (Panes, error) {
	p := Fold(l.in)
	for at := range p {
		delete(p, at)
		break
	}
	return p, nil
}

// Late events too: goka's table keeps windows for as long as any can come.
func TestStockGokaIsRight(t *testing.T) {
	goka := filepath.Join(t.TempDir(), "goka")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", goka, "./peers/goka").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r, err := Measure(t.Context(), Config{
		Engines: []string{EngineGoka}, Self: self(t), Goka: goka, Timeout: time.Minute,
		Input: Input{Events: 4000, Keys: 50, Partitions: 2, Late: 0.2, Window: 20 * time.Millisecond, Lateness: 50 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	if run := r.Runs[0]; run.Wrong != "" || run.Seconds <= 0 {
		t.Errorf("%+v", run)
	}
}

func TestPeersInJavaAskForAnApacheKafka(t *testing.T) {
	for _, name := range []string{EngineKafkaStreams, EngineFlink} {
		c := Config{Engines: []string{name}, Self: []string{"strom"}}.WithDefaults()
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "take an Apache Kafka") {
			t.Errorf("%s on the embedded broker: %v", name, err)
		}
		c.Broker = BrokerApache
		if err := c.Validate(); err != nil {
			t.Errorf("%s on an Apache Kafka: %v", name, err)
		}
	}
}

func TestTheVersionOfAPeerInJavaIsThatOfItsLibrary(t *testing.T) {
	dir := t.TempDir()
	c := Config{Flink: filepath.Join(dir, "aggregate.jar")}
	h := &harness{config: &c}
	if _, err := h.engine(EngineFlink).version(); err == nil || !strings.Contains(err.Error(), "mvn -f bench/peers/flink") {
		t.Errorf("it is not built: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "lib"), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, jar := range []string{"flink-runtime-2.3.0.jar", "flink-core-2.3.0.jar"} {
		if err := os.WriteFile(filepath.Join(dir, "lib", jar), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if version, err := h.engine(EngineFlink).version(); err != nil || version != "Flink 2.3.0" {
		t.Errorf("%q, %v", version, err)
	}
}

func TestAWrongResultHasNoTime(t *testing.T) {
	c := Config{Engines: []string{EngineGoka}, Input: Input{Events: 2000, Keys: 100}}.WithDefaults()
	h := &harness{config: &c, broker: &broker{}, right: map[string]string{}}
	h.expect(EngineGoka, &c.Input)
	run := Run{Engine: EngineGoka, Events: 2000}
	now := time.Now()
	if err := h.judge(t.Context(), lossy{in: &c.Input}, &spec{}, &c.Input, &run, times{launched: now, started: now, ended: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if run.Seconds != 0 || run.PerSecond != 0 || run.Counts || !strings.Contains(run.Wrong, "1 of 100 panes are wrong") {
		t.Errorf("a wrong result: %+v", run)
	}
	if s := summarize(c.Engines, []Run{run}); len(s) != 0 {
		t.Errorf("a wrong result is summarized: %+v", s)
	}
}

// Where the harness is killed, nobody asks a job to end.
func TestAJobEndsWithTheHarness(t *testing.T) {
	self := self(t)
	b, err := startEmbedded(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	}()
	in := Input{Events: 10, Partitions: 1}.WithDefaults()
	if err := load(t.Context(), b.addrs, &in); err != nil {
		t.Fatal(err)
	}
	// It waits for an event that does not come.
	args := (&spec{Brokers: b.addrs[0], Input: in.topic(), Partitions: 1}).args()
	cmd := exec.CommandContext(t.Context(), self[0], append([]string{string(PartFetch), "--events=11"}, args...)...)
	harness, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "started") {
		t.Fatalf("it says %q", lines.Text())
	}
	if err := harness.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it claims to be done")
		}
	case <-time.After(20 * time.Second):
		t.Error("it goes on")
		_ = cmd.Process.Kill()
		<-ended
	}
}

// BenchmarkAggregate measures our job on the embedded broker.
//
//	go test ./bench -run '^$' -bench Aggregate -benchtime 1x
func BenchmarkAggregate(b *testing.B) {
	for b.Loop() {
		r, err := Measure(b.Context(), Config{Engines: []string{EngineStrom}, Self: self(b)})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.Runs[0].PerSecond, "events/s")
	}
}
