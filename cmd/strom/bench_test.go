package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/forge-platform/strom/bench"
)

func TestABenchmarkThatCannotBeRunIsRefusedWithEveryFault(t *testing.T) {
	o := strom(t, nil, "bench", "aggregate", "--engine", "strom,sloth", "--events", "0", "--late", "2", "--events-of", "goka=1")
	o.want(t, exitUsage)
	for _, want := range []string{`no engine "sloth"`, "a late share of 2", "events for goka, which is not measured"} {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("it does not say %q:\n%s", want, o.stderr)
		}
	}
}

func TestAQueryOfNexmarkThatIsNotThereIsRefused(t *testing.T) {
	for query, want := range map[string]string{
		"q99": `there is no query "q99": nexmark has q7`,
		"q11": "the query q11 is not there yet, it waits for session windows",
	} {
		o := strom(t, nil, "bench", "nexmark", "--query", query, "--rounds", "-1")
		o.want(t, exitUsage)
		if !strings.Contains(o.stderr, "-1 rounds") || !strings.Contains(o.stderr, want) {
			t.Errorf("it does not say %q:\n%s", want, o.stderr)
		}
	}
	o := strom(t, nil, "bench", "nexmark", "--help")
	o.want(t, exitOK)
	for _, want := range []string{"q7   the highest bid", "q5   ", "q8   ", "q11  session windows", "--query", "--events"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("the help lacks %q:\n%s", want, o.stdout)
		}
	}
}

func TestAReportTellsWhatDoesNotCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results", "one.json")
	err := writeResult(path, &bench.Result{
		Workload: bench.Aggregate, Command: "strom bench aggregate --events=7", Broker: "a broker",
		Runs: []bench.Run{
			{Engine: "strom", Round: 1, Events: 7, Seconds: 40, PerSecond: 1234, Counts: true, Result: "7:aa"},
			{Engine: "goka", Round: 1, Events: 7, Seconds: 20, PerSecond: 432, Result: "7:aa"},
			{Engine: "goka", Round: 2, Events: 7, Wrong: "1 of 7 panes"},
		},
		Summaries: []bench.Summary{{Engine: "strom", Median: 1234, Ratio: 1, Counts: true}, {Engine: "goka", Median: 432, Ratio: 2.857}},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := strom(t, nil, "bench", "report", path)
	o.want(t, exitOK)
	for _, want := range []string{"strom bench aggregate --events=7", "| 1234 |", "| (432) |", "| 2.86 |", "**wrong**: 1 of 7 panes"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("the report lacks %q:\n%s", want, o.stdout)
		}
	}
}
