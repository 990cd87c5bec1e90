package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// goal is one line of the report's first table: a bound, and what was measured.
type goal struct {
	what string
	// bound is from below where atLeast says so, else from above.
	bound    float64
	atLeast  bool
	unit     string
	measured float64
	found    bool
	// counts: every run that it rests on counts.
	counts bool
}

// verdict says whether the goal is met, and by how much it is missed.
func (g *goal) verdict() string {
	missed := g.measured < g.bound
	share := g.measured / g.bound
	if !g.atLeast {
		missed = g.measured > g.bound
	}
	switch {
	case !g.found:
		return "not measured"
	case !g.counts:
		return "too short to count"
	case missed:
		return fmt.Sprintf("missed: %.2f of it", share)
	}
	return "met"
}

func (g *goal) row() string {
	sign, measured := "≤", ""
	if g.atLeast {
		sign = "≥"
	}
	if g.found {
		measured = inBrackets(g.counts, strings.TrimSpace(number(g.measured)+" "+g.unit))
	}
	return fmt.Sprintf("| %s | %s | %s | %s |\n", g.what, strings.TrimSpace(sign+" "+boundText(g.bound)+" "+g.unit), measured, g.verdict())
}

func boundText(v float64) string {
	if v >= 1000 {
		v = math.Round(v)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// ratioGoal is a goal for our rate in one result by that of an engine in another,
// or the same.
func ratioGoal(results []*Result, what string, bound float64, ours, theirs func(*Result) bool, engine string) goal {
	g := goal{what: what, bound: bound, atLeast: true}
	a, b := summaryOf(results, ours, EngineStrom), summaryOf(results, theirs, engine)
	if a != nil && b != nil && b.Median > 0 {
		g.found, g.measured, g.counts = true, a.Median/b.Median, a.Counts && b.Counts
	}
	return g
}

func summaryOf(results []*Result, is func(*Result) bool, engine string) *Summary {
	for _, r := range results {
		i := slices.IndexFunc(r.Summaries, func(s Summary) bool { return s.Engine == engine })
		if is(r) && i >= 0 {
			return &r.Summaries[i]
		}
	}
	return nil
}

// Usual says that the input is of the usual shape but for its keys: no late
// events, and as many partitions as by default.
func (r *Result) Usual() bool {
	return r.Input.Late == 0 && r.Input.Partitions == Input{}.WithDefaults().Partitions
}

// aggregateOf is the workload with so many keys on the usual input.
func aggregateOf(keys int64) func(*Result) bool {
	return func(r *Result) bool { return r.Workload == Aggregate && r.Input.Keys == keys && r.Usual() }
}

func consumes(r *Result) bool { return r.Workload == Consume }

// The numbers of keys that goals speak of.
const (
	keys10K  = 10_000
	keys100K = 100_000
	keys1M   = 1_000_000
	keys10M  = 10_000_000
)

// goals gives what Strom is to reach beside its peers, and how far results are
// from it; the figures of workloads that it runs alone name theirs.
func goals(results []*Result) []goal {
	out := make([]goal, 0, 16)
	beside := func(name, engine string, keys int64, bound float64) {
		is := aggregateOf(keys)
		out = append(out, ratioGoal(results, fmt.Sprintf("windowed aggregate, %d keys, against %s", keys, name), bound, is, is, engine))
	}
	beside("Kafka Streams", EngineKafkaStreams, keys10K, 4)
	beside("Kafka Streams", EngineKafkaStreams, keys100K, 4)
	beside("Flink", EngineFlink, keys10K, 3)
	beside("Flink", EngineFlink, keys100K, 3)
	beside("stock goka", EngineGoka, keys10K, 40)
	beside("stock goka", EngineGoka, keys100K, 20)
	out = append(out,
		ratioGoal(results, "10,000 keys against fetching and decoding alone", 0.8, aggregateOf(keys10K), consumes, EngineDecode),
		ratioGoal(results, "100,000 keys against fetching and decoding alone", 0.5, aggregateOf(keys100K), consumes, EngineDecode),
		ratioGoal(results, "1,000,000 keys against 10,000", 0.3, aggregateOf(keys1M), aggregateOf(keys10K), EngineStrom),
		ratioGoal(results, "10,000,000 keys against 1,000,000", 0.8, aggregateOf(keys10M), aggregateOf(keys1M), EngineStrom))
	return append(out, figureGoals(results)...)
}

// figureGoals gives the goals of workloads that Strom runs alone.
func figureGoals(results []*Result) []goal {
	var out []goal
	for _, r := range results {
		for i := range r.Summaries {
			s := &r.Summaries[i]
			if f := r.figureOf(s.Figure); f != nil && f.Goal > 0 {
				out = append(out, goal{
					what: fmt.Sprintf("%s: %s", r.Workload, s.Figure), bound: f.Goal, atLeast: f.AtLeast, unit: f.Unit,
					measured: s.Median, found: true, counts: s.Counts,
				})
			}
		}
	}
	return out
}

// figureOf gives one of the runs' figures by its name, nil for none.
func (r *Result) figureOf(name string) *Figure {
	for i := range r.Runs {
		for j := range r.Runs[i].Figures {
			if f := &r.Runs[i].Figures[j]; f.Name == name {
				return f
			}
		}
	}
	return nil
}

func goalsTable(results []*Result) string {
	var b strings.Builder
	b.WriteString("\n## Goals\n\n| figure | goal | measured | |\n|---|---|---|---|\n")
	for _, g := range goals(results) {
		b.WriteString(g.row())
	}
	return b.String()
}
