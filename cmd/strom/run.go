package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/datadir"
	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/membudget"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// defaultDataDir is where local state lies where --data-dir names no place. It
// lies beside that of dev, so that to remove one leaves the other alone.
const defaultDataDir = ".strom/run"

type runFlags struct {
	connections
	listening
	untilEnd         bool
	dataDir, replica string
	checkpointDir    string
	static           bool
	reinstate        bool
	sessionTimeout   time.Duration
	memory           membudget.Bytes
}

func (a *app) runCommand() *cobra.Command {
	f := runFlags{memory: membudget.Default()}
	c := &cobra.Command{
		Use: "run MAPPING", Short: "Run a pipeline until it is stopped",
		Long: `Run runs a pipeline against a Kafka and a PostgreSQL that are there. SIGINT,
SIGTERM or SIGHUP stops it: the epoch under way is committed first; a second
signal stops at once, which loses nothing either (the epoch is read again).

Several replicas of one pipeline share its partitions: start each with a
--data-dir of its own. One more than there are partitions stands by. When one
dies the others take its tasks after --session-timeout; with
--static-membership one that is started again before that finds its tasks as
they were.

A changed mapping takes effect at an announced barrier, on all replicas at once,
where all that it changes can be made in place; else run refuses it (strom check
--against running says which it is). A replica whose file is older than the
mapping in force goes on under that one.

A flag goes before its environment variable (STROM_BROKERS, STROM_POSTGRES),
and that before the mapping. What a URL on the command line says, other users
of the machine can see: give passwords by STROM_POSTGRES, PGPASSWORD or the
mapping's {env: NAME} or {file: PATH}.`,
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			a.talkative()
			return a.run(c, args[0], f)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&f.untilEnd, "until-end", false, "stop when all that the topics hold at the start has been read, and close every window")
	flags.StringVar(&f.dataDir, "data-dir", defaultDataDir, "directory for local state, one for each pipeline and replica")
	flags.StringVar(&f.checkpointDir, "checkpoint-dir", "", "directory for savepoints, one for all replicas (default: checkpoints in the data directory)")
	flags.StringVar(&f.replica, "replica", "", "name of this process among the replicas of the pipeline; by default one that nobody else has")
	flags.BoolVar(&f.static, "static-membership", false, "keep the replica's tasks for it while it is away for less than the session timeout; needs --replica, the same at every start")
	flags.BoolVar(&f.reinstate, "reinstate-mapping", false, "let the file's mapping take effect again though it was in force before and was replaced")
	flags.DurationVar(&f.sessionTimeout, "session-timeout", 10*time.Second, "how long a replica may be silent before the others take its tasks")
	flags.Var(&f.memory, "memory", memoryUsage)
	flags.Lookup("memory").DefValue = "" // the machine's, see memoryUsage
	addConnectionFlags(c, &f.connections)
	addListenFlag(c, &f.listening, "")
	return c
}

const memoryUsage = "memory that this process may use, as in 2GiB or 500MB (default: half of the cgroup's limit, else of the machine's memory)"

func addConnectionFlags(c *cobra.Command, f *connections) {
	addBrokersFlag(c, &f.brokers)
	addPostgresFlag(c, &f.postgres)
}

func addBrokersFlag(c *cobra.Command, to *[]string) {
	c.Flags().StringSliceVar(to, "brokers", nil, "addresses of Kafka brokers, HOST:PORT,... (or STROM_BROKERS)")
}

func addPostgresFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "postgres", "", "address of the ontology's database, postgres://... (or STROM_POSTGRES)")
}

func (a *app) run(c *cobra.Command, path string, f runFlags) error {
	ctx := c.Context()
	plan, err := a.loadMapping(path)
	if err != nil {
		return err
	}
	if err := f.checkMembership(); err != nil {
		return err
	}
	f.fromEnv(a)
	if err := f.into(plan); err != nil {
		return err
	}
	w, err := a.serveWeb(ctx, plan.Pipeline, c, f.listening, false)
	if err != nil {
		return err
	}
	defer w.close()
	dir, err := datadir.Claim(f.dataDir, plan.Pipeline)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Release() }() // nothing depends on it any more
	if f.checkpointDir == "" {
		f.checkpointDir = checkpointDirOf(dir.Path())
	}
	return a.runPipeline(ctx, pipeline.Run{
		Plan: plan, Kafka: plan.Kafka, Ontology: plan.Ontology, DataDir: dir.Path(), CheckpointDir: f.checkpointDir, Replica: f.replica,
		StaticMembership: f.static, SessionTimeout: f.sessionTimeout, UntilEnd: f.untilEnd, Reinstate: f.reinstate, Log: a.log, Metrics: w.metrics, Memory: f.memory,
	})
}

// Kafka's own bounds for session timeouts, as brokers have them by default.
const (
	minSessionTimeout = time.Second
	maxSessionTimeout = 30 * time.Minute
)

func (f *runFlags) checkMembership() error {
	if f.static && f.replica == "" {
		return usagef("--static-membership needs --replica: a name that is the same at every start and that no other replica has")
	}
	if f.sessionTimeout < minSessionTimeout || f.sessionTimeout > maxSessionTimeout {
		return usagef("--session-timeout %s: it must lie between %s and %s, and within group.min.session.timeout.ms and group.max.session.timeout.ms of the brokers",
			f.sessionTimeout, minSessionTimeout, maxSessionTimeout)
	}
	return nil
}

// runPipeline runs a pipeline in the foreground: a live line while it runs, a
// summary at its end.
func (a *app) runPipeline(ctx context.Context, r pipeline.Run) error {
	watch := pipeline.NewWatch()
	r.Watch = watch
	a.log.Info("the pipeline starts", "pipeline", r.Plan.Pipeline, "brokers", r.Kafka.Brokers, "data_dir", r.DataDir)
	progress := a.progress(10 * time.Second)
	stopped := make(chan struct{})
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		a.showRun(ctx, watch, progress, stopped)
	}()
	err := r.Do(ctx)
	close(stopped)
	<-shown
	if ended := databaseEnded(ctx); ended != nil {
		return ended
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return a.printSummary(summarize(r.Plan, watch.Seen()))
}

// showRun shows how a run goes until it has stopped.
func (a *app) showRun(ctx context.Context, watch *pipeline.Watch, progress *ui.Progress, stopped <-chan struct{}) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	defer progress.Clear()
	interrupted := ctx.Done()
	rate := &rate{}
	for {
		select {
		case <-stopped:
			return
		case <-interrupted:
			interrupted = nil
			progress.Clear()
			if databaseEnded(ctx) != nil {
				fmt.Fprintln(a.stderr, "stopping: the database has ended")
				continue
			}
			fmt.Fprintln(a.stderr, "stopping: the epoch under way is being committed (a second signal stops at once)")
		case <-tick.C:
			seen := watch.Seen()
			rate.add(seen)
			progress.Show(func() string { return liveLine(seen, rate.perSecond()) })
		}
	}
}

// rate is the events per second over the last few seconds.
type rate struct {
	at     []time.Duration
	events []int64
}

func (r *rate) add(s pipeline.Seen) {
	const window = 25 // samples
	r.at, r.events = append(r.at, s.Elapsed), append(r.events, s.Counters.Events)
	if len(r.at) > window {
		r.at, r.events = r.at[1:], r.events[1:]
	}
}

func (r *rate) perSecond() int64 {
	n := len(r.at)
	if n < 2 || r.at[n-1] == r.at[0] {
		return 0
	}
	return int64(float64(r.events[n-1]-r.events[0]) / (r.at[n-1] - r.at[0]).Seconds())
}

func liveLine(s pipeline.Seen, perSecond int64) string {
	if s.Epoch == 0 {
		return "starting: joining the groups, waiting for the first epoch"
	}
	line := fmt.Sprintf("epoch %s  recorded %s  %s events (%s/s)  in windows: %s on time, %s corrected, %s late", s.Epoch, s.Recorded,
		ui.Count(s.Counters.Events), ui.Count(perSecond),
		ui.Count(s.Counters.OnTime), ui.Count(s.Counters.Corrections), ui.Count(s.Counters.Late))
	if n := s.Counters.DeadLetters; n > 0 {
		line += "  " + ui.Number(n, "dead letter")
	}
	if s.Applied > 0 && s.Applied < s.Epoch-1 {
		line += fmt.Sprintf("  ontology %s behind", ui.Number(int64(s.Epoch-s.Applied), "epoch"))
	}
	if len(s.Halted) > 0 {
		line += "  " + ui.Number(len(s.Halted), "task") + " halted"
	}
	return line
}

// summary is what a run tells at its end. The counters count since the
// pipeline began, not since this process did.
type summary struct {
	Pipeline    string            `json:"pipeline"`
	Epoch       event.Epoch       `json:"epoch"`
	Recorded    string            `json:"recorded,omitempty"`
	Records     int64             `json:"records"`
	Events      int64             `json:"events"`
	OnTime      int64             `json:"on_time"`
	Corrections int64             `json:"corrections"`
	Late        int64             `json:"late_corrections"`
	Repeats     int64             `json:"repeats"`
	DeadLetters int64             `json:"dead_letters"`
	Watermarks  map[string]string `json:"watermarks"`
	Halted      []string          `json:"halted,omitempty"`
	Seconds     float64           `json:"seconds"`
}

func summarize(p *mapping.Plan, s pipeline.Seen) summary {
	out := summary{
		Pipeline: p.Pipeline, Epoch: s.Epoch, Records: s.Counters.Records, Events: s.Counters.Events,
		OnTime: s.Counters.OnTime, Corrections: s.Counters.Corrections, Late: s.Counters.Late,
		Repeats: s.Counters.Repeats, DeadLetters: s.Counters.DeadLetters,
		Watermarks: map[string]string{}, Seconds: float64(s.Elapsed.Round(time.Millisecond).Milliseconds()) / 1000,
	}
	if s.Epoch > 0 {
		out.Recorded = s.Recorded.String()
	}
	for stream, w := range s.Watermarks {
		out.Watermarks[stream] = w.String()
	}
	for t, why := range s.Halted {
		out.Halted = append(out.Halted, fmt.Sprintf("%s/%s: %s", t.Stage, t.Partition, why))
	}
	sort.Strings(out.Halted)
	return out
}

// countersText says what became of events. An event contributes to as many
// windows as the mapping makes of it, or to none: the numbers of windows need
// not add up to that of events.
func countersText(c *processors.Counters) string {
	return fmt.Sprintf("in windows: %s on time, %s, %s; %s; %s", ui.Count(c.OnTime), ui.Number(c.Corrections, "correction"),
		ui.Number(c.Late, "late correction"), ui.Number(c.Repeats, "repeat"), ui.Number(c.DeadLetters, "dead letter"))
}

func (a *app) printSummary(s summary) error {
	if a.json() {
		return a.printJSON(s)
	}
	fmt.Fprintf(a.stdout, "pipeline %s stopped at epoch %s after %.1f s\n", s.Pipeline, s.Epoch, s.Seconds)
	fmt.Fprintf(a.stdout, "since it began: %s; %s\n", ui.Number(s.Events, "event"), countersText(&processors.Counters{
		OnTime: s.OnTime, Corrections: s.Corrections, Late: s.Late, Repeats: s.Repeats, DeadLetters: s.DeadLetters,
	}))
	for _, h := range s.Halted {
		fmt.Fprintf(a.stdout, "halted: %s\n", ui.Printable(h))
	}
	return nil
}
