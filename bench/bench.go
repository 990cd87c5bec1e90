package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// MinTime is how long a run takes at least that counts for the report.
const MinTime = 30 * time.Second

// Workload is what is measured.
type Workload string

// The workloads.
const (
	// Aggregate counts and sums events by key in windows of event time, and
	// publishes what comes of it to a topic; state is durable.
	Aggregate Workload = "aggregate"
	// Consume fetches events, and decodes them: the ceiling.
	Consume Workload = "consume"
	// Sink puts results and corrections of them into PostgreSQL.
	Sink Workload = "sink"
	// Latency produces at a constant rate and asks when what comes of each event
	// can be seen in PostgreSQL.
	Latency Workload = "latency"
	// Recover stops a pipeline that holds state, and lets it go on.
	Recover Workload = "recover"
	// Stall has PostgreSQL answer nothing for a while under full input.
	Stall Workload = "stall"
	// Nexmark is a query over the bids of an auction house.
	Nexmark Workload = "nexmark"
)

// Config says what to run. Self must be set, and Engines; the rest has defaults.
type Config struct {
	Workload Workload
	// Query is that of Nexmark; empty: Q7.
	Query Query
	// Input of Nexmark has as many Events of all kinds, of which a query reads some;
	// it has no Keys and no Late ones.
	Input Input
	// Engines to measure, in the order of their turns; of Aggregate: strom, goka,
	// kafka-streams, flink; of Consume: fetch, decode. The other workloads have strom
	// alone, which need not be named.
	Engines []string
	// EventsOf gives an engine fewer events than Input has: the first so many.
	EventsOf map[string]int64
	// Rounds is how often every engine has its turn; 0: 1.
	Rounds int
	// Broker is BrokerApache, BrokerEmbedded or addresses, separated by commas;
	// empty: BrokerEmbedded.
	Broker string
	// Postgres is the address of a database on a server for tests alone, on which
	// databases may be made; empty: a server of our own. Workloads that write to
	// PostgreSQL use it.
	Postgres string
	// Rate is how many events a second Latency produces; 0: half of what the sink
	// is found to take.
	Rate int64
	// For is how long Latency produces, 0: 40 s; and how long PostgreSQL stalls,
	// 0: 1 min.
	For time.Duration
	// Commit is the interval of commits, and of our epochs; 0: 200 ms.
	Commit time.Duration
	// Threads of an engine that has such a number; 0: 2.
	Threads int
	// CacheBytes is for an engine's cache in front of its store; 0: 256 MiB.
	CacheBytes int64
	// Timeout bounds one run; 0: 30 min.
	Timeout time.Duration
	// Self runs this program as Play, with a part and its arguments behind.
	Self []string
	// Version is that of this program, for the report.
	Version string
	// Goka is the program of bench/peers/goka, KafkaStreams and Flink are the
	// jars of bench/peers/kafka-streams and bench/peers/flink.
	Goka, KafkaStreams, Flink string
	// CPUProfile is where our job's profile goes; the last run's stays.
	CPUProfile string
	// Progress is told what happens, in lines; nil: nobody is.
	Progress io.Writer
}

// WithDefaults gives the configuration with every zero replaced by its default.
func (c Config) WithDefaults() Config {
	orElse(&c.Workload, Aggregate)
	if known := enginesOf(c.Workload); len(known) == 1 && len(c.Engines) == 0 {
		c.Engines = known
	}
	switch c.Workload {
	case Sink:
		orElse(&c.Input.Events, 400_000)
	case Recover:
		orElse(&c.Input.Keys, recoverEntries)
	case Stall:
		// Few results of many events: what piles up has to be worked off.
		orElse(&c.Input.Window, time.Minute)
		orElse(&c.For, time.Minute)
	case Nexmark:
		orElse(&c.Query, Q7)
		orElse(&c.Input.Keys, 1) // it is of everything
		orElse(&c.Input.Rate, nexmarkRate)
	case Aggregate, Consume, Latency:
	}
	c.Input = c.Input.WithDefaults()
	orElse(&c.For, 40*time.Second)
	orElse(&c.Rounds, 1)
	orElse(&c.Broker, BrokerEmbedded)
	orElse(&c.Commit, 200*time.Millisecond)
	orElse(&c.Threads, 2)
	orElse(&c.CacheBytes, 256<<20)
	orElse(&c.Timeout, 30*time.Minute)
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	return c
}

// Validate reports every fault.
func (c *Config) Validate() error {
	all := []error{c.Input.Validate()}
	fault := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	known := enginesOf(c.Workload)
	fault(known == nil, "there is no workload %q", c.Workload)
	fault(len(c.Engines) == 0, "no engine is named")
	for _, e := range c.Engines {
		fault(!slices.Contains(known, e), "the workload %s has no engine %q: it has %s", c.Workload, e, strings.Join(known, ", "))
	}
	for e, n := range c.EventsOf {
		fault(!slices.Contains(c.Engines, e), "events for %s, which is not measured", e)
		fault(n < 1 || n > c.Input.Events, "%d events for %s: from 1 to %d", n, e, c.Input.Events)
	}
	fault(c.Broker == BrokerEmbedded && slices.Contains(c.Engines, EngineKafkaStreams),
		"Kafka Streams does not run on the embedded broker (its admin client refuses that broker's DescribeConfigs): take an Apache Kafka")
	fault(c.Broker == BrokerEmbedded && slices.Contains(c.Engines, EngineFlink),
		"Flink does not run on the embedded broker (its admin client refuses that broker's DescribeTopicPartitions): take an Apache Kafka")
	all = append(all, c.queryFault())
	fault(c.Rounds < 1, "%d rounds: at least 1", c.Rounds)
	fault(c.Commit < time.Millisecond || c.Commit%time.Millisecond != 0, "a commit interval of %s: whole milliseconds", c.Commit)
	fault(c.Threads < 1, "%d threads: at least 1", c.Threads)
	fault(c.Workload == Sink && (c.Input.Keys%c.Input.Rate != 0 || c.Input.Keys < c.Input.Rate), "%d keys: a multiple of %d", c.Input.Keys, c.Input.Rate)
	fault(c.Rate < 0, "%d events a second: at least 1", c.Rate)
	fault(c.For < time.Second, "for %s: at least 1s", c.For)
	fault(len(c.Self) == 0, "the program that plays the parts is not named")
	return errors.Join(all...)
}

// queryFault says what is wrong with the query or its input.
func (c *Config) queryFault() error {
	switch {
	case c.Workload != Nexmark && c.Query != "":
		return fmt.Errorf("the workload %s has no query: %q is one of nexmark", c.Workload, c.Query)
	case c.Workload != Nexmark:
		return nil
	case c.Input.Keys != 1 || c.Input.Late != 0:
		return fmt.Errorf("%d keys and a late share of %v: nexmark has neither, its events are those of its own auctions", c.Input.Keys, c.Input.Late)
	}
	return c.Query.fault()
}

// Run is one run of one engine.
//
// Seconds is the time from the start of processing to the commit of what comes
// of the last event, windows that the end of the input closes included where
// the engine closes them. Processing starts, for Strom, when its tasks have been
// taken over and before anything is fetched; for a peer, with the first event
// that it decodes. StartSeconds is from the start of the process until then.
type Run struct {
	Engine       string  `json:"engine"`
	Version      string  `json:"version"`
	Round        int     `json:"round"`
	Events       int64   `json:"events"`
	Seconds      float64 `json:"seconds,omitempty"`
	StartSeconds float64 `json:"start_seconds"`
	PerSecond    float64 `json:"events_per_second,omitempty"`
	// Figures are those of a workload that Strom runs alone.
	Figures []Figure `json:"figures,omitempty"`
	// CPUSeconds and MaxRSS (bytes) are those of the job's process, from its
	// start to its end.
	CPUSeconds float64 `json:"cpu_seconds"`
	MaxRSS     int64   `json:"max_rss_bytes"`
	// Result is the hash of the result; Wrong says how it differs from the fold
	// of the input: then there is no time.
	Result string `json:"result"`
	Wrong  string `json:"wrong,omitempty"`
	// Counts: the run took at least MinTime, and is right.
	Counts bool    `json:"counts"`
	Load   float64 `json:"load_average_before"`
}

// String is one line for people.
func (r *Run) String() string {
	if r.Wrong != "" {
		return fmt.Sprintf("%-14s round %d  WRONG: %s", r.Engine, r.Round, r.Wrong)
	}
	if len(r.Figures) > 0 {
		return r.figures()
	}
	note := ""
	if !r.Counts {
		note = fmt.Sprintf("  (under %.0f s: does not count)", MinTime.Seconds())
	}
	return fmt.Sprintf("%-14s round %d  %9d events in %7.2f s + %.2f s to start: %8.0f events/s, %.1f s of CPU, %d MiB, result %s%s",
		r.Engine, r.Round, r.Events, r.Seconds, r.StartSeconds, r.PerSecond, r.CPUSeconds, r.MaxRSS>>20, r.Result, note)
}

// figures is a line for each figure, and one for the whole.
func (r *Run) figures() string {
	var b strings.Builder
	for i := range r.Figures {
		fmt.Fprintf(&b, "%-14s round %d  %s\n", r.Engine, r.Round, r.Figures[i].String())
	}
	fmt.Fprintf(&b, "%-14s round %d  %d events, %.1f s of CPU, %d MiB, result %s", r.Engine, r.Round, r.Events, r.CPUSeconds, r.MaxRSS>>20, r.Result)
	return b.String()
}

// Result is what Measure found.
type Result struct {
	Workload  Workload  `json:"workload"`
	Query     Query     `json:"query,omitempty"`
	At        time.Time `json:"at"`
	Command   string    `json:"command"`
	Broker    string    `json:"broker"`
	Postgres  string    `json:"postgres,omitempty"`
	Machine   Machine   `json:"machine"`
	Input     Input     `json:"input"`
	CommitMs  int64     `json:"commit_ms"`
	Threads   int       `json:"threads"`
	Cache     int64     `json:"cache_bytes"`
	Runs      []Run     `json:"runs"`
	Summaries []Summary `json:"summaries"`
}

// Summary is what the rounds of one engine come to, in events per second, or in
// the unit of a figure.
type Summary struct {
	Engine string `json:"engine"`
	// Figure and Unit are those of a workload that Strom runs alone.
	Figure string  `json:"figure,omitempty"`
	Unit   string  `json:"unit,omitempty"`
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	// Ratio of the first engine's median to this one's; of a figure there is none.
	Ratio float64 `json:"ratio,omitempty"`
	// Counts: every run of it counts for the report.
	Counts bool `json:"counts"`
}

// String is one line for people.
func (s *Summary) String() string {
	if s.Figure != "" {
		return fmt.Sprintf("%-14s %-14s median %s %s, from %s to %s", s.Engine, s.Figure, number(s.Median), s.Unit, number(s.Least), number(s.Most))
	}
	return fmt.Sprintf("%-14s median %.0f events/s, from %.0f to %.0f", s.Engine, s.Median, s.Least, s.Most)
}

// errWrong is behind the error of a run whose result is wrong.
var errWrong = errors.New("wrong result")

// Measure runs the workload: every engine in turn, round by round, on one broker.
// When a result is wrong it goes on to the end, and the error says so.
func Measure(ctx context.Context, c Config) (*Result, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	// A peer that is not built is found before minutes have gone into its input.
	for _, name := range c.Engines {
		if _, err := (&harness{config: &c}).engine(name).version(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	b, err := startBroker(ctx, &c)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "strom-bench-")
	if err != nil {
		return nil, errors.Join(err, b.stop())
	}
	h := &harness{config: &c, broker: b, dir: dir, right: map[string]string{}}
	if c.Workload.needsDatabase() {
		h.databases, err = startDatabases(ctx, c.Postgres)
	}
	var r *Result
	if err == nil {
		r, err = h.measure(ctx)
	}
	return r, errors.Join(err, h.databases.stop(), b.stop(), os.RemoveAll(dir))
}

// harness is one call of Measure.
type harness struct {
	config *Config
	broker *broker
	// databases is nil where the workload needs none.
	databases *databases
	dir       string
	// right holds the hashes of right results, by the input's topic and the engine's kind.
	right map[string]string
	runs  int
}

func (h *harness) measure(ctx context.Context) (*Result, error) {
	c := h.config
	r := &Result{
		Workload: c.Workload, Query: c.Query, At: time.Now().UTC(), Broker: h.broker.name, Machine: thisMachine(), Input: c.Input,
		CommitMs: c.Commit.Milliseconds(), Threads: c.Threads, Cache: c.CacheBytes,
	}
	if h.databases != nil {
		r.Postgres = h.databases.name
	}
	for _, name := range c.Engines {
		if c.Workload.alone() {
			break // it makes its input itself
		}
		from := c.sourceOf(name)
		h.say("loading %s for %s", from, name)
		if err := load(ctx, h.broker.addrs, from); err != nil {
			return nil, err
		}
		h.expect(name, from)
	}
	err := h.rounds(ctx, r)
	if err != nil && !errors.Is(err, errWrong) {
		return nil, err
	}
	return r, err
}

// rounds gives every engine its turns.
func (h *harness) rounds(ctx context.Context, r *Result) error {
	c := h.config
	var wrong error
	for round := range c.Rounds {
		for _, name := range c.Engines {
			run, err := h.turn(ctx, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			run.Round = round + 1
			if !c.Workload.alone() {
				h.say("%s, round %d of %d: %.0f events/s", name, run.Round, c.Rounds, run.PerSecond)
			}
			if run.Wrong != "" {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w: %s", name, errWrong, run.Wrong))
			}
			r.Runs = append(r.Runs, *run)
		}
	}
	if c.Workload.alone() {
		r.Summaries = summarizeFigures(r.Runs)
	} else {
		r.Summaries = summarize(c.Engines, r.Runs)
	}
	return wrong
}

func (h *harness) turn(ctx context.Context, name string) (*Run, error) {
	if h.config.Workload.alone() {
		return h.runAlone(ctx)
	}
	return h.run(ctx, name)
}

func (h *harness) say(format string, args ...any) {
	fmt.Fprintf(h.config.Progress, format+"\n", args...)
}

// inputOf is what an engine reads.
func (c *Config) inputOf(engine string) Input {
	in := c.Input
	if n, ok := c.EventsOf[engine]; ok {
		in.Events = n
	}
	return in
}

// expect computes the hash of the right result.
func (h *harness) expect(engine string, from source) {
	key := h.rightKey(engine, from)
	if h.right[key] != "" {
		return
	}
	if h.config.Workload == Consume {
		in := h.config.inputOf(engine)
		h.right[key] = tallyOf(&in, engine == EngineDecode)
		return
	}
	h.right[key] = from.fold().Hash()
}

func (h *harness) rightKey(engine string, from source) string {
	if h.config.Workload == Consume {
		return engine + from.topic()
	}
	return from.topic()
}

// run is one run of one engine.
func (h *harness) run(ctx context.Context, name string) (*Run, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.config.Timeout, fmt.Errorf("it was not done after %s", h.config.Timeout))
	defer cancel()
	h.runs++
	in, from := h.config.inputOf(name), h.config.sourceOf(name)
	id := fmt.Sprintf("bench-run-%d-%d", os.Getpid(), h.runs)
	s := &spec{
		Brokers: strings.Join(h.broker.addrs, ","), Input: from.topic(), Output: id + "-output", Group: id,
		StateDir: filepath.Join(h.dir, id), WindowMs: in.Window.Milliseconds(), LatenessMs: in.Lateness.Milliseconds(),
		CommitMs: h.config.Commit.Milliseconds(), Partitions: int(in.Partitions), Threads: h.config.Threads,
		CacheBytes: h.config.CacheBytes, Events: from.count(),
	}
	if h.config.Workload == Nexmark {
		s.Shape = shapeQ7
	}
	e := h.engine(name)
	run := &Run{Engine: name, Events: from.count(), Load: loadAverage()}
	var err error
	if run.Version, err = e.version(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.StateDir, 0o750); err != nil {
		return nil, err
	}
	defer func() {
		forget(context.WithoutCancel(ctx), h.broker.addrs, id)
		_ = os.RemoveAll(s.StateDir) // with the whole directory in the end
	}()
	started, err := h.execute(ctx, e, s, from, run)
	if err != nil {
		return nil, err
	}
	return run, h.judge(ctx, e, s, from, run, started)
}

// judge compares the result, and takes the time away where it is wrong.
func (h *harness) judge(ctx context.Context, e engine, s *spec, from source, run *Run, t times) error {
	run.Seconds = t.ended.Sub(t.started).Seconds()
	run.StartSeconds = t.started.Sub(t.launched).Seconds()
	right := h.right[h.rightKey(run.Engine, from)]
	if h.config.Workload == Consume {
		run.Result = t.result
	} else {
		panes, err := e.results(ctx, h.broker.addrs, s)
		if err != nil {
			return fmt.Errorf("read its results: %w", err)
		}
		if run.Result = panes.Hash(); run.Result != right {
			run.Wrong = panes.Diff(from.fold())
		}
	}
	if run.Result != right && run.Wrong == "" {
		run.Wrong = fmt.Sprintf("%s, want %s", run.Result, right)
	}
	if run.Wrong != "" {
		run.Seconds = 0
		return nil
	}
	run.PerSecond = float64(run.Events) / run.Seconds
	run.Counts = run.Seconds >= MinTime.Seconds()
	return nil
}

// summarize gives medians and spreads of those engines that were right.
func summarize(engines []string, runs []Run) []Summary {
	var out []Summary
	for _, name := range engines {
		s := Summary{Engine: name, Counts: true}
		var rates []float64
		for i := range runs {
			if r := &runs[i]; r.Engine == name && r.Wrong == "" {
				rates = append(rates, r.PerSecond)
				s.Counts = s.Counts && r.Counts
			}
		}
		if len(rates) == 0 {
			continue
		}
		s.spread(rates)
		s.Ratio = s.Median
		out = append(out, s)
	}
	for i := len(out) - 1; i >= 0; i-- {
		out[i].Ratio = out[0].Median / out[i].Median
	}
	return out
}
