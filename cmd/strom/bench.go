package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forge-platform/strom/bench"
)

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure throughput beside peers",
		Long: `Bench runs the workloads of bench/ and prints what they come to. Broker and
jobs are processes of their own. Every result is compared with a fold of the
input; docs/performance.md says what is measured and how.`,
	}
	c.AddCommand(a.benchAggregateCommand(), a.benchConsumeCommand(), a.benchNexmarkCommand(), a.benchSinkCommand(), a.benchLatencyCommand(),
		a.benchRecoverCommand(), a.benchStallCommand(), a.benchReportCommand(), a.benchPartCommand())
	return c
}

// benchFlags are those of the workloads.
type benchFlags struct {
	config   bench.Config
	eventsOf map[string]string
	out      string
}

// addBenchFlags adds those of a workload that measures several engines.
func (a *app) addBenchFlags(c *cobra.Command, f *benchFlags, engines string) {
	a.addCommonBenchFlags(c, f)
	flags := c.Flags()
	flags.Int64Var(&f.config.Input.Events, "events", 1_000_000, "how many events there are")
	flags.StringToStringVar(&f.eventsOf, "events-of", nil, "fewer events for an engine, ENGINE=N: the first of them")
	flags.Int64Var(&f.config.Input.Keys, "keys", 10_000, "how many keys they have")
	flags.StringSliceVar(&f.config.Engines, "engine", strings.Split(engines, ","), "what is measured, in turn; ratios are of the first to the others")
}

// addCommonBenchFlags adds those of every workload.
func (a *app) addCommonBenchFlags(c *cobra.Command, f *benchFlags) {
	flags := c.Flags()
	in := &f.config.Input
	flags.Int32Var(&in.Partitions, "partitions", 4, "partitions of the input")
	flags.Uint64Var(&in.Seed, "seed", 1, "what amounts and late events are chosen by")
	flags.IntVar(&f.config.Rounds, "rounds", 1, "how often every engine has its turn")
	flags.StringVar(&f.config.Broker, "broker", bench.BrokerEmbedded, "embedded, apache (through Maven), or addresses HOST:PORT,... of one for tests alone")
	flags.DurationVar(&f.config.Timeout, "timeout", 0, "bound of one run (default 30m)")
	flags.StringVar(&f.config.CPUProfile, "cpuprofile", "", "file for the CPU profile of Strom's job; the last run's stays")
	flags.StringVar(&f.out, "out", "", "file for the result as JSON")
}

func (a *app) benchAggregateCommand() *cobra.Command {
	f := benchFlags{config: bench.Config{Workload: bench.Aggregate}}
	c := &cobra.Command{
		Use: "aggregate", Short: "Count and sum events by key in windows of event time, exactly once",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c, &f) },
	}
	a.addBenchFlags(c, &f, bench.EngineStrom)
	flags := c.Flags()
	flags.Float64Var(&f.config.Input.Late, "late", 0, "share of late events, 0 to 1")
	flags.DurationVar(&f.config.Input.Lateness, "lateness", 0, "by how much a late event is late at most (default 10s)")
	flags.DurationVar(&f.config.Commit, "commit", 0, "interval of commits and epochs (default 200ms)")
	flags.IntVar(&f.config.Threads, "threads", 0, "threads of Kafka Streams, parallelism of Flink (default 2)")
	flags.Int64Var(&f.config.CacheBytes, "cache-bytes", 0, "cache of an engine in front of its store (default 256 MiB)")
	flags.StringVar(&f.config.Goka, "goka", "bin/bench-goka", "program of the peer goka")
	flags.StringVar(&f.config.KafkaStreams, "kafka-streams", "bench/peers/kafka-streams/target/aggregate.jar", "jar of the peer Kafka Streams")
	flags.StringVar(&f.config.Flink, "flink", "bench/peers/flink/target/aggregate.jar", "jar of the peer Flink")
	return c
}

func (a *app) benchConsumeCommand() *cobra.Command {
	f := benchFlags{config: bench.Config{Workload: bench.Consume}}
	c := &cobra.Command{
		Use: "consume", Short: "Fetch events, and fetch and decode them: the ceiling",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c, &f) },
	}
	a.addBenchFlags(c, &f, bench.EngineFetch+","+bench.EngineDecode)
	return c
}

func (a *app) benchNexmarkCommand() *cobra.Command {
	f := benchFlags{config: bench.Config{Workload: bench.Nexmark}}
	c := &cobra.Command{
		Use: "nexmark", Short: "Ask a query of Nexmark: q7, the highest bid of each window",
		Long: nexmarkHelp(),
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c, &f) },
	}
	a.addCommonBenchFlags(c, &f)
	flags := c.Flags()
	flags.StringVar((*string)(&f.config.Query), "query", string(bench.Q7), "the query")
	flags.Int64Var(&f.config.Input.Events, "events", 1_000_000, "how many persons, auctions and bids there are; 46 of 50 are bids")
	addCommitBenchFlag(c, &f)
	return c
}

// nexmarkHelp names the queries, those to come as well.
func nexmarkHelp() string {
	var b strings.Builder
	b.WriteString(`Nexmark makes persons, auctions and bids of its own, in the usual proportions,
and runs a query over them:

`)
	fmt.Fprintf(&b, "  %-4s the highest bid of each window of 10 s, and how many bids it has\n\nThese wait for features:\n\n", bench.Q7)
	for _, w := range bench.WaitingQueries() {
		fmt.Fprintf(&b, "  %-4s %s\n", w.Query, w.For)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (a *app) benchSinkCommand() *cobra.Command {
	f := benchFlags{config: bench.Config{Workload: bench.Sink}}
	c := &cobra.Command{
		Use: "sink", Short: "Put results, and a correction of each, into PostgreSQL",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c, &f) },
	}
	a.addCommonBenchFlags(c, &f)
	a.addDatabaseBenchFlags(c, &f)
	c.Flags().Int64Var(&f.config.Input.Events, "events", 400_000, "how many windows there are")
	c.Flags().Int64Var(&f.config.Input.Keys, "keys", 10_000, "how many objects; a window is closed for all of them at once")
	return c
}

func (a *app) benchLatencyCommand() *cobra.Command {
	f := benchFlags{config: bench.Config{Workload: bench.Latency}}
	c := &cobra.Command{
		Use: "latency", Short: "Produce at a constant rate, and ask when each event can be seen in PostgreSQL",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c, &f) },
	}
	a.addCommonBenchFlags(c, &f)
	a.addDatabaseBenchFlags(c, &f)
	flags := c.Flags()
	flags.Int64Var(&f.config.Rate, "rate", 0, "events a second (default: half of what the sink is found to take)")
	flags.DurationVar(&f.config.For, "for", 0, "how long events are produced (default 40s)")
	return c
}

func (a *app) benchRecoverCommand() *cobra.Command {
	f := benchFlags{config: bench.Config{Workload: bench.Recover}}
	c := &cobra.Command{
		Use: "recover", Short: "Stop a pipeline that holds state, and let it go on: with its local stores, and without",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c, &f) },
	}
	a.addCommonBenchFlags(c, &f)
	c.Flags().Int64Var(&f.config.Input.Keys, "keys", 1_000_000, "how many entries its state has")
	addCommitBenchFlag(c, &f)
	return c
}

func (a *app) benchStallCommand() *cobra.Command {
	f := benchFlags{config: bench.Config{Workload: bench.Stall}}
	c := &cobra.Command{
		Use: "stall", Short: "Have PostgreSQL answer nothing for a while under full input: memory, and catching up",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c, &f) },
	}
	a.addCommonBenchFlags(c, &f)
	a.addDatabaseBenchFlags(c, &f)
	flags := c.Flags()
	flags.Int64Var(&f.config.Input.Keys, "keys", 10_000, "how many keys the events have")
	flags.DurationVar(&f.config.For, "for", 0, "how long PostgreSQL answers nothing (default 1m)")
	return c
}

func addCommitBenchFlag(c *cobra.Command, f *benchFlags) {
	c.Flags().DurationVar(&f.config.Commit, "commit", 0, "interval of epochs (default 200ms)")
}

// addDatabaseBenchFlags adds those of a workload that writes to PostgreSQL.
func (a *app) addDatabaseBenchFlags(c *cobra.Command, f *benchFlags) {
	flags := c.Flags()
	// Not from STROM_POSTGRES: that is where somebody's ontology is.
	flags.StringVar(&f.config.Postgres, "postgres", "", "address of a server for tests alone, on which databases may be made (default: a server of its own)")
	addCommitBenchFlag(c, f)
}

// bench runs a workload and prints it.
func (a *app) bench(c *cobra.Command, f *benchFlags) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config := f.config
	config.Self = []string{self, "bench", "part"}
	config.Version = version
	config.EventsOf = map[string]int64{}
	for engine, n := range f.eventsOf {
		if config.EventsOf[engine], err = strconv.ParseInt(n, 10, 64); err != nil {
			return usagef("--events-of %s=%s: not a number", engine, n)
		}
	}
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return &usageError{err: err}
	}
	if !a.quiet {
		config.Progress = a.stderr
	}
	r, err := bench.Measure(c.Context(), config)
	if r == nil {
		return err
	}
	r.Command = commandLine(c)
	if f.out != "" {
		if err := writeResult(f.out, r); err != nil {
			return err
		}
	}
	if printed := a.printBench(r); printed != nil {
		return printed
	}
	return err
}

// commandLine writes the command with the flags that were given, as one would
// type it.
func commandLine(c *cobra.Command) string {
	words := []string{c.CommandPath()}
	c.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if f.Name == "postgres" {
			value = "..." // it may hold a password
		}
		value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		words = append(words, "--"+f.Name+"="+value)
	})
	return strings.Join(words, " ")
}

func writeResult(path string, r *bench.Result) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// printBench prints the summaries; the last number of the last line is the
// ratio of the first engine to the last.
func (a *app) printBench(r *bench.Result) error {
	if a.json() {
		return a.printJSON(r)
	}
	for i := range r.Runs {
		fmt.Fprintln(a.stdout, r.Runs[i].String())
	}
	for i := range r.Summaries {
		fmt.Fprintln(a.stdout, r.Summaries[i].String())
	}
	for _, s := range r.Summaries[min(1, len(r.Summaries)):] {
		if s.Figure != "" {
			break
		}
		fmt.Fprintf(a.stdout, "%s to %s: %.2f\n", r.Summaries[0].Engine, s.Engine, s.Ratio)
	}
	return nil
}

func (a *app) benchReportCommand() *cobra.Command {
	var out, plots string
	c := &cobra.Command{
		Use: "report RESULT...", Short: "Write a report of results that --out has written",
		Args: arguments(1, 1000),
		RunE: func(_ *cobra.Command, args []string) error {
			results := make([]*bench.Result, 0, len(args))
			for _, path := range args {
				r, err := readResult(path)
				if err != nil {
					return err
				}
				results = append(results, r)
			}
			text := bench.Report(results, plots)
			if out == "" {
				_, err := fmt.Fprint(a.stdout, text)
				return err
			}
			return os.WriteFile(out, []byte(text), 0o644)
		},
	}
	c.Flags().StringVar(&plots, "plots", "", "directory of the plots that the report shows, as seen from where it lies")
	c.Flags().StringVar(&out, "out", "", "file for the report, as Markdown")
	return c
}

func readResult(path string) (*bench.Result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &bench.Result{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s is no result of strom bench: %w", path, err)
	}
	return r, nil
}

// benchPartCommand is what the benchmarks start as processes of their own.
func (a *app) benchPartCommand() *cobra.Command {
	return &cobra.Command{
		Use: "part PART ARGUMENT...", Short: "Play a part in a benchmark; for the benchmarks themselves",
		Hidden: true, DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("the part is not named")
			}
			return bench.Play(c.Context(), bench.Part(args[0]), args[1:], os.Stdin, a.stdout)
		},
	}
}
