package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forge-platform/strom/bench"
)

func result(t *testing.T, dir string, keys int64, engines ...string) string {
	t.Helper()
	r := bench.Result{Workload: bench.Aggregate, Input: bench.Input{Keys: keys}.WithDefaults()}
	for i, e := range engines {
		r.Summaries = append(r.Summaries, bench.Summary{Engine: e, Median: 1e6 / float64(i+1)})
		r.Runs = append(r.Runs, bench.Run{Engine: e, Events: 1e6, CPUSeconds: float64(i + 1)})
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, thousands(keys)+".json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPlotsShowEveryEngineAndEveryNumberOfKeys(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "plots")
	paths := []string{
		result(t, dir, 100_000, bench.EngineStrom, bench.EngineGoka), result(t, dir, 10_000, bench.EngineStrom, bench.EngineFlink),
		result(t, dir, 1_000_000, bench.EngineStrom),
	}
	if err := run(out, paths); err != nil {
		t.Fatal(err)
	}
	for name, words := range map[string][]string{
		"rates.svg": {"10 k keys", "100 k keys", "strom", "goka", "flink"},
		"cost.svg":  {"strom", "goka", "CPU seconds"},
	} {
		svg, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if !strings.Contains(string(svg), w) {
				t.Errorf("%s does not show %q", name, w)
			}
		}
	}
}

func TestWhatIsNoResultIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(path, []byte("not JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.TempDir(), []string{path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	out := filepath.Join(t.TempDir(), "none")
	if err := run(out, nil); err != nil {
		t.Error(err)
	}
	if drawn, _ := filepath.Glob(filepath.Join(out, "*.svg")); len(drawn) > 0 {
		t.Errorf("drawn of nothing: %v", drawn)
	}
}
