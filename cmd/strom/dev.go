package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/datadir"
	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/cmd/strom/internal/local"
	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/mapping"
)

type devFlags struct {
	dataDir                 string
	partitions              int32
	kafkaPort, postgresPort int
	load                    []string
	untilEnd                bool
}

// defaultDevDir is where `strom dev` keeps its data.
const defaultDevDir = defaultDataDir + "/dev"

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
			return a.dev(c.Context(), args[0], f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.dataDir, "data-dir", defaultDevDir, "directory for all data, one for each pipeline")
	flags.Int32Var(&f.partitions, "partitions", 0, "partitions of the input topics (0: as they are, or 1)")
	flags.IntVar(&f.kafkaPort, "kafka-port", 0, "port of Kafka on 127.0.0.1 (0: a free one)")
	flags.IntVar(&f.postgresPort, "postgres-port", 0, "port of PostgreSQL on 127.0.0.1 (0: a Unix socket only)")
	flags.StringArrayVar(&f.load, "load", nil, "produce the records of a file: "+feed.Form)
	flags.BoolVar(&f.untilEnd, "until-end", false, "stop when what the topics hold after --load has been read, and close every window")
	return c
}

// load is one file for one topic.
type load struct {
	spec   feed.Spec
	stream *mapping.Stream
}

func (f *devFlags) loads(plan *mapping.Plan) ([]load, error) {
	if f.partitions < 0 {
		return nil, usagef("--partitions %d is negative", f.partitions)
	}
	var out []load
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
				out = append(out, load{spec, s})
			}
		}
	}
	return out, nil
}

func (a *app) dev(ctx context.Context, path string, f devFlags) (err error) {
	plan, err := a.loadMapping(path)
	if err != nil {
		return err
	}
	loads, err := f.loads(plan)
	if err != nil {
		return err
	}
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
	a.sayConnections(plan, services)
	if err := a.loadAll(ctx, services, loads); err != nil {
		return orInterrupted(ctx, err)
	}
	return a.runPipeline(ctx, pipeline.Run{
		Plan: plan, Kafka: services.Kafka(), Ontology: services.Ontology(), DataDir: dir.Path("state"),
		UntilEnd: f.untilEnd, Log: a.log,
	})
}

// sayConnections says how to connect, on stderr: stdout is for the summary.
func (a *app) sayConnections(plan *mapping.Plan, s *local.Services) {
	url := s.Ontology().Postgres.Reveal() // a socket's: it holds no password
	fmt.Fprintf(a.stderr, "Kafka       %s\n", s.Kafka().Brokers[0])
	fmt.Fprintf(a.stderr, "PostgreSQL  %s\n", url)
	if tcp := s.PostgresTCP().Reveal(); tcp != "" {
		// Made for this start, on loopback only, and of no use afterwards.
		fmt.Fprintf(a.stderr, "            %s\n", tcp)
	}
	fmt.Fprintf(a.stderr, "Ask         export STROM_POSTGRES='%s'; strom ontology list\n", url)
	fmt.Fprintf(a.stderr, "Status      strom status --brokers %s --pipeline %s\n", s.Kafka().Brokers[0], plan.Pipeline)
	fmt.Fprintf(a.stderr, "Ctrl-C stops all of it; the data stay\n\n")
}

func (a *app) loadAll(ctx context.Context, s *local.Services, loads []load) error {
	for _, l := range loads {
		if err := a.loadFile(ctx, s, l); err != nil {
			return err
		}
	}
	return nil
}

var errNoKey = errors.New("this record has no key, and the stream says that it is partitioned by one")

// loadFile produces one file.
func (a *app) loadFile(ctx context.Context, s *local.Services, l load) error {
	w, err := local.NewWriter(ctx, s.Kafka().Brokers, l.stream.Topic)
	if err != nil {
		return err
	}
	defer w.Close()
	progress := a.progress(5 * time.Second)
	defer progress.Clear()
	n := 0
	sum, err := l.spec.Read(func(r feed.Record) error {
		if r.Key == nil && r.Partition == nil && l.spec.Key == "" && l.stream.PartitionedByKey && w.Partitions() > 1 {
			return &feed.Error{File: l.spec.File, Line: r.Line, Err: errNoKey, Advice: "name its field with ,key=FIELD, or give it in an envelope"}
		}
		n++
		progress.Show(func() string { return fmt.Sprintf("loading %s: %s", l.spec.File, ui.Number(n, "record")) })
		err := w.Write(ctx, r)
		if is[*local.PartitionError](err) {
			return &feed.Error{File: l.spec.File, Line: r.Line, Err: err}
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	a.log.Info("loaded", "file", l.spec.File, "topic", l.stream.Topic, "records", sum.Records, "without_timestamp", sum.Borrowed)
	return nil
}
