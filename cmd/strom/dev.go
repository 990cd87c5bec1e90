package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/datadir"
	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/cmd/strom/internal/local"
	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg"
	"github.com/forge-platform/strom/mapping"
)

type devFlags struct {
	listening
	dataDir                 string
	partitions              int32
	kafkaPort, postgresPort int
	load                    []string
	untilEnd                bool
}

// defaultDevDir is where `strom dev` keeps its data.
const defaultDevDir = ".strom/dev"

func (a *app) devCommand() *cobra.Command {
	var f devFlags
	c := &cobra.Command{
		Use: "dev MAPPING", Short: "Run a pipeline with a Kafka and a PostgreSQL of its own",
		Long: `Dev starts a Kafka and a PostgreSQL on loopback, makes the mapping's topics,
says how to connect, and runs the pipeline until it is stopped. The data stay in
--data-dir and are there at the next start. The mapping's own connections are
not used.

--load produces the records of a file into a stream's topic, each time that it
is given: ` + feed.Form + `.
A line of a file is the value of a record, or an envelope
{"partition":, "timestamp":, "key":, "value":, "headers":}.`,
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			a.talkative()
			return a.dev(c, args[0], f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.dataDir, "data-dir", defaultDevDir, "directory for all data, one for each pipeline")
	flags.Int32Var(&f.partitions, "partitions", 0, "partitions of the input topics (0: as they are, or 1)")
	flags.IntVar(&f.kafkaPort, "kafka-port", 0, "port of Kafka on 127.0.0.1 (0: a free one)")
	flags.IntVar(&f.postgresPort, "postgres-port", 0, "port of PostgreSQL on 127.0.0.1 (0: a Unix socket only)")
	flags.StringArrayVar(&f.load, "load", nil, "produce the records of a file: "+feed.Form)
	addListenFlag(c, &f.listening, "; where nothing is said and the port is taken, a free one")
	flags.BoolVar(&f.untilEnd, "until-end", false, "stop when what the topics hold after --load has been read, and close every window")
	return c
}

// load is one file for one topic.
type load struct {
	spec   feed.Spec
	stream *mapping.Stream
	// highest is the highest partition that a line names, highestLine that line.
	highest     event.Partition
	highestLine int
	// keyless is the first line that has neither key nor partition; 0: none.
	keyless int
}

// check refuses flags that cannot hold.
func (f *devFlags) check() error {
	if f.partitions < 0 {
		return usagef("--partitions %d is negative", f.partitions)
	}
	for _, p := range []struct {
		flag string
		port int
	}{{"--kafka-port", f.kafkaPort}, {"--postgres-port", f.postgresPort}} {
		if p.port < 0 || p.port > math.MaxUint16 {
			return usagef("%s %d is not a port: give 0 to %d", p.flag, p.port, math.MaxUint16)
		}
	}
	return nil
}

// loads reads every --load, and every file of them: nothing is started, and
// nothing produced, where one of them cannot be loaded.
func (f *devFlags) loads(plan *mapping.Plan) ([]*load, error) {
	var out []*load
	for _, text := range f.load {
		spec, err := feed.ParseSpec(text)
		if err != nil {
			return nil, &usageError{err: fmt.Errorf("--load: %w", err)}
		}
		if err := checkStream(plan, spec.Stream); err != nil {
			return nil, err
		}
		for _, s := range plan.Streams {
			if s.Name == spec.Stream {
				out = append(out, &load{spec: spec, stream: s})
			}
		}
	}
	for _, l := range out {
		if err := l.spec.Check(l.see); err != nil {
			return nil, err
		}
		if f.partitions > 0 {
			if err := l.fits(f.partitions); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// see notes what of a record depends on the number of partitions.
func (l *load) see(r feed.Record) error {
	switch {
	case r.Partition != nil:
		if l.highestLine == 0 || *r.Partition > l.highest {
			l.highest, l.highestLine = *r.Partition, r.Line
		}
	case r.Key == nil && l.keyless == 0 && l.spec.Key == "":
		l.keyless = r.Line
	}
	return nil
}

var errNoKey = errors.New("this record has no key, and the stream says that it is partitioned by one")

// fits says whether a topic of so many partitions takes what has been seen.
func (l *load) fits(partitions int32) error {
	if l.highestLine > 0 && int32(l.highest) >= partitions {
		return l.refused(l.highestLine, &local.PartitionError{Topic: l.stream.Topic, Partition: int32(l.highest), Partitions: partitions}, "")
	}
	if l.keyless > 0 && l.stream.PartitionedByKey && partitions > 1 {
		return l.refused(l.keyless, errNoKey, "name its field with ,key=FIELD, or give it in an envelope")
	}
	return nil
}

func (l *load) refused(line int, err error, advice string) error {
	return &feed.Error{File: l.spec.File, Line: line, Err: err, Advice: advice}
}

func (a *app) dev(c *cobra.Command, path string, f devFlags) (err error) {
	ctx := c.Context()
	if err := f.check(); err != nil {
		return err
	}
	plan, err := a.loadMapping(path)
	if err != nil {
		return err
	}
	loads, err := f.loads(plan)
	if err != nil {
		return err
	}
	w, err := a.serveWeb(ctx, plan.Pipeline, c, f.listening, true)
	if err != nil {
		return err
	}
	defer w.close()
	dir, err := datadir.Claim(f.dataDir, plan.Pipeline)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Release()) }()
	o := local.Options{Dir: dir.Path(), KafkaPort: f.kafkaPort, PostgresPort: f.postgresPort, Topics: map[string]int32{}, Log: a.log}
	for _, s := range plan.Streams {
		o.Topics[s.Topic] = f.partitions
	}
	services, err := local.Start(ctx, o)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, services.Stop()) }()
	ctx, unwatch := services.While(ctx)
	defer unwatch()
	a.sayConnections(plan, services, w)
	if err := a.loadAll(ctx, services, loads); err != nil {
		return orInterrupted(ctx, err)
	}
	return a.runPipeline(ctx, pipeline.Run{
		Plan: plan, Kafka: services.Kafka(), Ontology: services.Ontology(), DataDir: dir.Path("state"),
		CheckpointDir: checkpointDirOf(dir.Path()), UntilEnd: f.untilEnd, Log: a.log, Metrics: w.metrics,
	})
}

// databaseEnded gives the error of a database of our own that has ended ctx.
func databaseEnded(ctx context.Context) error {
	if cause := context.Cause(ctx); is[*localpg.StartError](cause) {
		return cause
	}
	return nil
}

// sayConnections says how to connect, on stderr: stdout is for the summary.
func (a *app) sayConnections(plan *mapping.Plan, s *local.Services, w *web) {
	url := s.Ontology().Postgres.Reveal() // a socket's: it holds no password
	fmt.Fprintf(a.stderr, "Kafka       %s\n", s.Kafka().Brokers[0])
	fmt.Fprintf(a.stderr, "PostgreSQL  %s\n", url)
	if tcp := s.PostgresTCP().Reveal(); tcp != "" {
		// Made for this start, on loopback only, and of no use afterwards.
		fmt.Fprintf(a.stderr, "            %s\n", tcp)
	}
	if w.address != "" {
		fmt.Fprintf(a.stderr, "Metrics     %s/metrics\n", w.url())
	}
	fmt.Fprintf(a.stderr, "Ask         export STROM_POSTGRES='%s'; strom ontology list\n", url)
	fmt.Fprintf(a.stderr, "Status      strom status --brokers %s --pipeline %s\n", s.Kafka().Brokers[0], plan.Pipeline)
	fmt.Fprintf(a.stderr, "Ctrl-C stops all of it; the data stay\n\n")
}

// loadAll produces the files. What they need of their topics is looked at
// first, of all of them: a topic that was there has the partitions that it has.
func (a *app) loadAll(ctx context.Context, s *local.Services, loads []*load) error {
	var writers []*local.Writer
	defer func() {
		for _, w := range writers {
			w.Close()
		}
	}()
	for _, l := range loads {
		w, err := local.NewWriter(ctx, s.Kafka().Brokers, l.stream.Topic)
		if err != nil {
			return err
		}
		writers = append(writers, w)
		if err := l.fits(w.Partitions()); err != nil {
			return err
		}
	}
	for i, l := range loads {
		if err := a.loadFile(ctx, writers[i], l); err != nil {
			return err
		}
	}
	return nil
}

// loadFile produces one file.
func (a *app) loadFile(ctx context.Context, w *local.Writer, l *load) error {
	progress := a.progress(5 * time.Second)
	defer progress.Clear()
	n := 0
	sum, err := l.spec.Read(func(r feed.Record) error {
		// A pipe could not be looked at before.
		if err := errors.Join(l.see(r), l.fits(w.Partitions())); err != nil {
			return err
		}
		n++
		progress.Show(func() string { return fmt.Sprintf("loading %s: %s", l.spec.File, ui.Number(n, "record")) })
		return w.Write(ctx, r)
	})
	if err == nil {
		err = w.Flush(ctx)
	}
	if refused, ok := errors.AsType[*local.RefusedError](err); ok {
		return l.refused(refused.Line, refused, "make it smaller, or leave it out")
	}
	if err != nil {
		return err
	}
	a.log.Info("loaded", "file", l.spec.File, "topic", l.stream.Topic, "records", sum.Records, "without_timestamp", sum.Borrowed)
	return nil
}
