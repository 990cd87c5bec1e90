package bench

import (
	"strings"
	"testing"
	"time"
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
	text := Report([]*Result{r})
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
