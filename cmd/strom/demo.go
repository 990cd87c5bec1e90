package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/datadir"
	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/cmd/strom/internal/local"
	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/quakes"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/examples"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

type demoFlags struct {
	keep    bool
	dataDir string
}

func (a *app) demoCommand() *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use: "demo", Short: "Show the whole path on a week of real earthquakes",
		Long: `Demo starts a Kafka and a PostgreSQL of its own, produces a week of real
earthquakes in the order in which the USGS learned of them, runs the pipeline of
examples/earthquakes over them, and shows what comes of it: events on time, late
and very late; a day with its whole history; one question as of three recorded
times; and a comparison with a brute-force reading of the file. It ends by
itself in well under a minute and leaves nothing behind.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.demo(c.Context(), f) },
	}
	c.Flags().BoolVar(&f.keep, "keep", false, "leave broker and database running until Ctrl-C, and say what to try next")
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "keep the data here (default: a temporary directory)")
	return c
}

// The files of the example inside the program.
const (
	demoMapping = "earthquakes/mapping.yaml"
	demoQuakes  = "earthquakes/quakes.ndjson"
)

// demoRun is one run of the demo.
type demoRun struct {
	*app
	plan  *mapping.Plan
	file  []byte // the quakes
	total int64  // records
	local *local.Services
	run   pipeline.Run
}

func (a *app) demo(ctx context.Context, f demoFlags) (err error) {
	d := &demoRun{app: a}
	if err := d.load(); err != nil {
		return err
	}
	dir, err := demoDir(f.dataDir, d.plan.Pipeline)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Release()) }()
	started := time.Now()
	o := local.Options{Topics: map[string]int32{quakes.Topic: 1}, Log: a.log}
	if f.dataDir != "" {
		o.Dir = dir.Path()
	}
	d.local, err = local.Start(ctx, o)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, d.local.Stop()) }()
	ctx, unwatch := d.local.While(ctx)
	defer unwatch()
	d.intro(time.Since(started))
	d.run = pipeline.Run{
		Plan: d.plan, Kafka: d.local.Kafka(), Ontology: d.local.Ontology(), DataDir: dir.Path("state"),
		UntilEnd: true, Log: a.log, Watch: pipeline.NewWatch(),
	}
	if err := d.work(ctx); err != nil {
		return orInterrupted(ctx, err)
	}
	if err := d.report(ctx); err != nil {
		return orInterrupted(ctx, err)
	}
	if f.keep {
		if err := d.keep(ctx); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(a.stdout, "demo: ok")
	return err
}

// orInterrupted gives errInterrupted where a signal is the reason of an error.
func orInterrupted(ctx context.Context, err error) error {
	if cause := interrupted(ctx); cause != nil {
		return cause
	}
	return err
}

func demoDir(path, name string) (*datadir.Dir, error) {
	if path == "" {
		return datadir.Temp()
	}
	return datadir.Claim(path, name)
}

func (d *demoRun) load() error {
	text, err := examples.Files.ReadFile(demoMapping)
	if err != nil {
		return err
	}
	if d.plan, err = mapping.Parse("examples/"+demoMapping, text, d.env); err != nil {
		return err
	}
	if d.file, err = examples.Files.ReadFile(demoQuakes); err != nil {
		return err
	}
	d.total = int64(bytes.Count(d.file, []byte("\n")))
	return nil
}

func (d *demoRun) intro(ready time.Duration) {
	s := d.style()
	fmt.Fprintf(d.stdout, "%s\n\n", s.Bold("Strom: a week of earthquakes, as the USGS learned of them"))
	fmt.Fprintf(d.stdout, "%s real quakes (U.S. Geological Survey, public domain). Each has the time when the earth\n", ui.Count(d.total))
	fmt.Fprintf(d.stdout, "shook and the time when the catalogue had it, minutes to days later. They are read in the\n")
	fmt.Fprintf(d.stdout, "order in which they became known, so many come late.\n\n")
	fmt.Fprintf(d.stdout, "Kafka at %s, PostgreSQL behind a socket, both of this program: ready in %.1f s\n", d.local.Kafka().Brokers[0], ready.Seconds())
}

// work produces the records and runs the pipeline to their end.
func (d *demoRun) work(ctx context.Context) error {
	if err := d.produce(ctx); err != nil {
		return err
	}
	progress := d.progress(5 * time.Second)
	ended := make(chan error, 1)
	started := time.Now()
	go func() { ended <- d.run.Do(ctx) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			progress.Clear()
			if err := errors.Join(err, interrupted(ctx)); err != nil {
				return err
			}
			seen := d.run.Watch.Seen()
			_, err = fmt.Fprintf(d.stdout, "read %s events in %.1f s: %s epochs of recorded time\n\n",
				ui.Count(seen.Counters.Events), time.Since(started).Seconds(), ui.Count(int64(seen.Epoch)))
			return err
		case <-tick.C:
			seen := d.run.Watch.Seen()
			progress.Show(func() string { return d.bar(seen) })
		}
	}
}

func (d *demoRun) bar(s pipeline.Seen) string {
	c := s.Counters
	line := fmt.Sprintf("%s %s of %s quakes", ui.Bar(c.Records, d.total, 24), ui.Count(c.Records), ui.Count(d.total))
	if s.Epoch > 0 {
		line += "  as known at " + s.Recorded.String()
	}
	return line + fmt.Sprintf("  late so far: %s", ui.Count(c.Corrections+c.Late))
}

// produce writes the quakes to their topic, unless a data directory of an
// earlier run has them.
func (d *demoRun) produce(ctx context.Context) error {
	have, err := d.local.Records(ctx, quakes.Topic)
	switch {
	case err != nil:
		return err
	case have == d.total:
		return nil
	case have > 0:
		return fmt.Errorf("topic %s in this data directory holds %d records that are not the demo's: name another directory with --data-dir", quakes.Topic, have)
	}
	spec := feed.Spec{Stream: quakes.Topic, File: "examples/" + demoQuakes, Timestamp: "updated", Unit: "ms", Key: "id"}
	w, err := local.NewWriter(ctx, d.local.Kafka().Brokers, quakes.Topic)
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := spec.Parse(bytes.NewReader(d.file), func(r feed.Record) error { return w.Write(ctx, r) }); err != nil {
		return err
	}
	return w.Flush(ctx)
}

// keep leaves everything running until a signal comes, or the database ends.
func (d *demoRun) keep(ctx context.Context) error {
	url := d.local.Ontology().Postgres.Reveal() // a socket's: it holds no password
	program := "strom"
	if path, err := os.Executable(); err == nil {
		program = path
	}
	fmt.Fprintf(d.stdout, "Broker (%s) and database are left running. In another terminal:\n\n", d.local.Kafka().Brokers[0])
	fmt.Fprintf(d.stdout, "  export STROM_POSTGRES='%s'\n", url)
	for _, c := range []string{
		"ontology list", "ontology history Region Alaska", "ontology as-of 2018-02-02T03:00:00Z Region Alaska",
		"ontology diff 2018-02-02T03:00:00Z 2018-02-03 Region",
	} {
		fmt.Fprintf(d.stdout, "  %s %s\n", program, c)
	}
	fmt.Fprintf(d.stdout, "  %s status --brokers %s --pipeline %s\n", program, d.local.Kafka().Brokers[0], d.plan.Pipeline)
	fmt.Fprintf(d.stdout, "  psql '%s' -c '\\dv ontology.*'\n\n", url)
	fmt.Fprintln(d.stdout, "Ctrl-C ends it.")
	<-ctx.Done()
	return databaseEnded(ctx)
}

// source asks the database; its second result closes the connection.
func (d *demoRun) source(ctx context.Context) (quakes.Source, func(), error) {
	r, err := ontology.OpenReader(ctx, d.local.Ontology(), ontology.Options{Logger: d.log})
	if err != nil {
		return quakes.Source{}, nil, err
	}
	return quakes.FromReader(r), r.Close, nil
}
