package bench

import (
	"fmt"
	"strings"
)

// Report writes results as a page of Markdown. plots is the directory, as the
// page sees it, in which bench/cmd/plots has drawn them; empty: it shows none.
func Report(results []*Result, plots string) string {
	var b strings.Builder
	b.WriteString(reportHead)
	b.WriteString(goalsTable(results))
	if plots != "" {
		fmt.Fprintf(&b, "\n![Events a second, beside peers](%[1]s/rates.svg)\n\n![Processor time of an event, by keys](%[1]s/cost.svg)\n", plots)
	}
	for _, r := range results {
		r.section(&b)
	}
	return b.String()
}

const reportHead = `# Performance

This page is written by ` + "`strom bench report`" + ` from the files in bench/results. [docs/performance.md](../docs/performance.md) says what is measured, how, and how to run it again; [bench/peers](peers/README.md) how the peers are configured.

- **events/s**: events by the time from the start of processing to the commit of what comes of the last event.
- **ratio**: the median of the first engine by that of the line's.
- **figures** of a workload that Strom runs alone stand beside their goals.
- A run whose result is not equal to a fold of its input has no time. One under 30 s does not count, and is in brackets.
`

func (r *Result) section(b *strings.Builder) {
	in := &r.Input
	if r.Workload == Nexmark {
		fmt.Fprintf(b, "\n## %s, %s", r.Workload, r.Query)
	} else {
		fmt.Fprintf(b, "\n## %s, %d keys", r.Workload, in.Keys)
	}
	if in.Late > 0 {
		fmt.Fprintf(b, ", %g %% late", 100*in.Late)
	}
	fmt.Fprintf(b, "\n\n%s: %s. %s, %s, %d cores, %d MiB, kernel %s, %s. %d partitions, seed %d",
		r.At.Format("2006-01-02"), r.Broker, r.Machine.CPU, r.Machine.OS, r.Machine.Cores, r.Machine.Memory>>20, r.Machine.Kernel, r.Machine.Go, in.Partitions, in.Seed)
	if r.Workload == Aggregate {
		fmt.Fprintf(b, ", windows of %s, events at most %s late, commits every %d ms, caches of %d MiB, %d threads of Kafka Streams and of Flink",
			in.Window, in.Lateness, r.CommitMs, r.Cache>>20, r.Threads)
	}
	if r.Workload == Nexmark {
		fmt.Fprintf(b, ", windows of %s, epochs of %d ms; the bids among %d events", in.Window, r.CommitMs, in.Events)
	}
	if r.Postgres != "" {
		fmt.Fprintf(b, ", %s, epochs of %d ms", r.Postgres, r.CommitMs)
	}
	fmt.Fprintf(b, ".\n\n```\n%s\n```\n\n", r.Command)
	if r.Workload.alone() {
		r.figures(b)
		return
	}
	b.WriteString("| engine | median events/s | from | to | ratio |\n|---|---|---|---|---|\n")
	for i := range r.Summaries {
		s := &r.Summaries[i]
		fmt.Fprintf(b, "| %s | %s | %.0f | %.0f | %.2f |\n", s.Engine, bracketed(s.Counts, "%.0f", s.Median), s.Least, s.Most, s.Ratio)
	}
	b.WriteString("\n| engine | version | round | events | seconds | to start | events/s | CPU s | MiB | load before | result |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range r.Runs {
		r.Runs[i].row(b)
	}
}

// figures writes a workload that Strom runs alone.
func (r *Result) figures(b *strings.Builder) {
	b.WriteString("| figure | median | unit | from | to |\n|---|---|---|---|---|\n")
	for i := range r.Summaries {
		s := &r.Summaries[i]
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", s.Figure, inBrackets(s.Counts, number(s.Median)), s.Unit, number(s.Least), number(s.Most))
	}
	b.WriteString("\n| version | round | figure | value | of | goal | CPU s | MiB | load before | result |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Wrong != "" {
			fmt.Fprintf(b, "| %s | %d | | | | | %.1f | %d | %.1f | **wrong**: %s |\n", run.Version, run.Round, run.CPUSeconds, run.MaxRSS>>20, run.Load, run.Wrong)
		}
		for j := range run.Figures {
			f := &run.Figures[j]
			fmt.Fprintf(b, "| %s | %d | %s | %s %s | %s | %s | %.1f | %d | %.1f | `%s` |\n", run.Version, run.Round, f.Name,
				inBrackets(f.Counts, number(f.Value)), f.Unit, f.Note, f.goal(), run.CPUSeconds, run.MaxRSS>>20, run.Load, run.Result)
		}
	}
}

func (r *Run) row(b *strings.Builder) {
	seconds, rate, result := bracketed(r.Counts, "%.1f", r.Seconds), bracketed(r.Counts, "%.0f", r.PerSecond), "`"+r.Result+"`"
	if r.Wrong != "" {
		seconds, rate, result = "", "", "**wrong**: "+r.Wrong
	}
	fmt.Fprintf(b, "| %s | %s | %d | %d | %s | %.1f | %s | %.1f | %d | %.1f | %s |\n",
		r.Engine, r.Version, r.Round, r.Events, seconds, r.StartSeconds, rate, r.CPUSeconds, r.MaxRSS>>20, r.Load, result)
}

// bracketed puts what does not count in brackets.
func bracketed(counts bool, format string, v float64) string {
	return inBrackets(counts, fmt.Sprintf(format, v))
}

func inBrackets(counts bool, text string) string {
	if !counts {
		return "(" + text + ")"
	}
	return text
}
