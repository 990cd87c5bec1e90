package bench

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
)

// aloneRun measures a workload that Strom runs alone, and gives its only run.
func aloneRun(t *testing.T, c Config) (*Result, *Run) {
	t.Helper()
	c.Self, c.Timeout = self(t), 2*time.Minute
	r, err := Measure(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 1 {
		t.Fatalf("%d runs", len(r.Runs))
	}
	run := &r.Runs[0]
	if run.Wrong != "" || run.Counts || run.CPUSeconds <= 0 || run.MaxRSS <= 0 {
		t.Errorf("the run: %+v", run)
	}
	text := Report([]*Result{r}, "")
	for _, f := range run.Figures {
		if f.Value <= 0 {
			t.Errorf("%s was not measured: %+v", f.Name, f)
		}
		if !strings.Contains(text, "| "+f.Name+" |") {
			t.Errorf("the report does not tell %s:\n%s", f.Name, text)
		}
	}
	if len(r.Summaries) != len(run.Figures) {
		t.Errorf("summaries: %+v", r.Summaries)
	}
	return r, run
}

func figureNames(r *Run) string {
	names := make([]string, 0, len(r.Figures))
	for i := range r.Figures {
		names = append(names, r.Figures[i].Name)
	}
	return strings.Join(names, " ")
}

func TestTheSinkIsMeasuredOnResultsAndTheirCorrections(t *testing.T) {
	r, run := aloneRun(t, Config{Workload: Sink, Input: Input{Events: 3000, Keys: 200, Partitions: 2}})
	if got := figureNames(run); got != "plain corrections" {
		t.Errorf("figures: %s", got)
	}
	before := sinkInput(r.Input)
	after := Fold(&before)
	again := before
	again.Seed++
	after.add(&again)
	if want := Fold(&before).Hash() + "," + after.Hash(); run.Result != want {
		t.Errorf("result %s, want %s", run.Result, want)
	}
	if len(after) != 3000 {
		t.Errorf("%d windows of 3000 events: corrections would coalesce", len(after))
	}
}

func TestTheLatencyOfEveryEventIsMeasured(t *testing.T) {
	_, run := aloneRun(t, Config{Workload: Latency, Rate: 300, For: 2 * time.Second, Input: Input{Partitions: 2}})
	if got := figureNames(run); got != "rate p50 p99 p99.9 max" {
		t.Fatalf("figures: %s", got)
	}
	if run.Events != 600 || !strings.HasPrefix(run.Result, "600:") {
		t.Errorf("%d events, result %s", run.Events, run.Result)
	}
	for i := 2; i < len(run.Figures); i++ {
		if run.Figures[i].Value < run.Figures[i-1].Value {
			t.Errorf("%s of %v ms below %s", run.Figures[i].Name, run.Figures[i].Value, run.Figures[i-1].Name)
		}
	}
	if p99 := run.Figures[2]; p99.Goal != 500 || p99.AtLeast {
		t.Errorf("the goal: %+v", p99)
	}
}

func TestGoingOnIsMeasuredWithLocalStoresAndWithout(t *testing.T) {
	r, run := aloneRun(t, Config{Workload: Recover, Input: Input{Keys: 2000, Partitions: 2}})
	if got := figureNames(run); got != "local local-start changelog changelog-start" {
		t.Errorf("figures: %s", got)
	}
	if note := run.Figures[2].Note; !strings.HasPrefix(note, "4000 in ") {
		t.Errorf("two lives of 2000 keys are in the changelog, which was read as %s", note)
	}
	right := Panes{}
	for life := range uint64(3) {
		in := recoverInput(r.Input)
		in.Seed += life + 1
		right.add(&in)
	}
	if want := right.Hash(); run.Result != want || len(right) != 2000 {
		t.Errorf("result %s, want %s", run.Result, want)
	}
}

func TestAStallOfTheDatabaseIsMeasuredAndCaughtUpWith(t *testing.T) {
	if resident(os.Getpid()) == 0 {
		t.Skip("no /proc to read a process's memory from")
	}
	r, run := aloneRun(t, Config{Workload: Stall, For: time.Second, Input: Input{Keys: 100, Partitions: 2, Window: 2 * time.Second}})
	if got := figureNames(run); got != "before during input catch-up" {
		t.Errorf("figures: %s", got)
	}
	in := r.Input
	in.Events = run.Events
	if want := Fold(&in).Hash(); run.Result != want {
		t.Errorf("result %s of %d events, want %s", run.Result, run.Events, want)
	}
}

// An event that was due while the producer was held up has waited since then.
func TestLatencyCountsFromWhenAnEventWasDue(t *testing.T) {
	began := time.Unix(1000, 0)
	m := latencies{rate: 100, began: began, events: 200}
	if got := m.due(150).Sub(began); got != 1500*time.Millisecond {
		t.Errorf("event 150 of 100 a second is due after %s", got)
	}
	m.visible.add(10, began.Add(time.Second))
	m.visible.add(10, began.Add(2*time.Second)) // no step
	m.visible.add(20, began.Add(3*time.Second))
	for recorded, want := range map[event.RecordedTime]time.Duration{9: time.Second, 10: time.Second, 11: 3 * time.Second, 20: 3 * time.Second} {
		if at, ok := m.visible.since(recorded); !ok || at.Sub(began) != want {
			t.Errorf("recorded %s is seen after %s, want %s", recorded, at.Sub(began), want)
		}
	}
	if at, ok := m.visible.since(21); ok {
		t.Errorf("what lies above the horizon is seen at %s", at)
	}
}

func TestAnEventThatIsMissingOrTwiceIsFound(t *testing.T) {
	in := Input{Keys: maxKeys}.WithDefaults()
	for name, spoil := range map[string]func(p *puts){
		"missing": func(p *puts) { p.values[2] = 0 },
		"twice":   func(p *puts) { p.values[1] = 2 * valuesOfRow },
		"other":   func(p *puts) { p.amounts[0]++ },
		"strange": func(p *puts) { p.strange = "a fact" },
	} {
		p := puts{values: []int{valuesOfRow, valuesOfRow, valuesOfRow}}
		for i := range int64(3) {
			p.amounts = append(p.amounts, in.Event(i).Amount)
		}
		if diff := p.diff(&in); diff != "" {
			t.Fatal(diff)
		}
		spoil(&p)
		if p.diff(&in) == "" {
			t.Errorf("%s: not found", name)
		}
	}
}

func TestAPercentileIsTheLeastThatCoversItsShare(t *testing.T) {
	var sorted []time.Duration
	for i := range 1000 {
		sorted = append(sorted, time.Duration(i+1))
	}
	for share, want := range map[float64]time.Duration{0.5: 500, 0.99: 990, 0.999: 999, 1: 1000} {
		if got := percentile(sorted, share); got != want {
			t.Errorf("%v: %d, want %d", share, got, want)
		}
	}
	if got := percentile(sorted[:1], 0.5); got != 1 {
		t.Errorf("of one value: %d", got)
	}
}

func TestAWrongResultHasNoFigures(t *testing.T) {
	r := liveRun{run: &Run{Engine: EngineStrom, Seconds: 60, Figures: []Figure{{Name: "plain", Value: 50_000, Counts: true}}}}
	in := Input{Events: 100, Keys: 100}.WithDefaults()
	some := Fold(&in)
	for at := range some {
		delete(some, at)
		break
	}
	r.wrongIf(some.Diff(Fold(&in)), "now")
	r.wrongIf("", "later")
	r.settle()
	if r.run.Figures != nil || r.run.Seconds != 0 || r.run.Counts || !strings.Contains(r.run.String(), "now: 1 of 100 panes are wrong") {
		t.Errorf("a wrong result: %+v, %s", r.run, r.run)
	}
	if s := summarizeFigures([]Run{*r.run}); len(s) != 0 {
		t.Errorf("a wrong result is summarized: %+v", s)
	}
}

func TestAFigureTellsItsGoal(t *testing.T) {
	long := assertionRate("plain", 3_000_000, time.Minute, goalPlain)
	if got := long.String(); !strings.Contains(got, "50000 assertions/s") || !strings.Contains(got, "goal >= 40000 assertions/s: met") || strings.Contains(got, "does not count") {
		t.Errorf("%s", got)
	}
	short := assertionRate("plain", 30_000, time.Second, goalPlain)
	if got := short.String(); !strings.Contains(got, "missed") || !strings.Contains(got, "does not count") {
		t.Errorf("%s", got)
	}
}

// BenchmarkSink measures the way into PostgreSQL.
//
//	go test ./bench -run '^$' -bench Sink -benchtime 1x
func BenchmarkSink(b *testing.B) { benchmarkAlone(b, Config{Workload: Sink}) }

// BenchmarkLatency measures from when an event is due until it can be seen.
func BenchmarkLatency(b *testing.B) { benchmarkAlone(b, Config{Workload: Latency}) }

// BenchmarkRecover measures going on after a stop.
func BenchmarkRecover(b *testing.B) { benchmarkAlone(b, Config{Workload: Recover}) }

// BenchmarkStall measures what a database that answers nothing does.
func BenchmarkStall(b *testing.B) { benchmarkAlone(b, Config{Workload: Stall}) }

// benchmarkAlone reports the figures of a workload that Strom runs alone.
func benchmarkAlone(b *testing.B, c Config) {
	b.Helper()
	c.Self = self(b)
	for b.Loop() {
		r, err := Measure(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range r.Runs[0].Figures {
			b.ReportMetric(f.Value, strings.ReplaceAll(f.Name+"-"+f.Unit, " ", "-"))
		}
	}
}
