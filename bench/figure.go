package bench

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"time"
)

// Figure is one figure of a run of a workload that Strom runs alone.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Note says what it is made of, for people.
	Note string `json:"note,omitempty"`
	// Goal is the bound, from below where AtLeast says so, else from above; 0: none.
	Goal    float64 `json:"goal,omitempty"`
	AtLeast bool    `json:"at_least,omitempty"`
	// Counts: what was measured took at least MinTime or, where a short time is
	// what is asked for, was as large as the goal means; and it is right.
	Counts bool `json:"counts"`
}

// assertionRate is a rate of n assertions over a time.
func assertionRate(name string, n int64, took time.Duration, goal float64) Figure {
	return Figure{
		Name: name, Value: float64(n) / took.Seconds(), Unit: "assertions/s", Note: fmt.Sprintf("%d in %.2f s", n, took.Seconds()),
		Goal: goal, AtLeast: true, Counts: took >= MinTime,
	}
}

// met says whether the goal is met.
func (f *Figure) met() bool {
	if f.AtLeast {
		return f.Value >= f.Goal
	}
	return f.Value <= f.Goal
}

// goal is the goal and whether it is met, for people; empty where there is none.
func (f *Figure) goal() string {
	if f.Goal == 0 {
		return ""
	}
	sign, met := "<=", "met"
	if f.AtLeast {
		sign = ">="
	}
	if !f.met() {
		met = "missed"
	}
	return fmt.Sprintf("goal %s %s %s: %s", sign, strconv.FormatFloat(math.Round(f.Goal), 'f', -1, 64), f.Unit, met)
}

// number writes a value: large ones without decimals.
func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// String is one line for people.
func (f *Figure) String() string {
	line := fmt.Sprintf("%-14s %9s %s", f.Name, number(f.Value), f.Unit)
	if f.Note != "" {
		line += ": " + f.Note
	}
	if goal := f.goal(); goal != "" {
		line += "; " + goal
	}
	if !f.Counts {
		line += "  (too short or too small: does not count)"
	}
	return line
}

// summarizeFigures gives medians and spreads of the figures, in the order of the
// first run.
func summarizeFigures(runs []Run) []Summary {
	var names []string
	values := map[string][]float64{}
	of := map[string]*Summary{}
	for _, run := range runs {
		for _, f := range run.Figures {
			if of[f.Name] == nil {
				names = append(names, f.Name)
				of[f.Name] = &Summary{Engine: run.Engine, Figure: f.Name, Unit: f.Unit, Counts: true}
			}
			values[f.Name] = append(values[f.Name], f.Value)
			of[f.Name].Counts = of[f.Name].Counts && f.Counts
		}
	}
	out := make([]Summary, 0, len(names))
	for _, name := range names {
		of[name].spread(values[name])
		out = append(out, *of[name])
	}
	return out
}

// spread sets median, least and most; there is at least one value.
func (s *Summary) spread(values []float64) {
	sort.Float64s(values)
	n := len(values)
	s.Median, s.Least, s.Most = (values[(n-1)/2]+values[n/2])/2, values[0], values[n-1]
}
