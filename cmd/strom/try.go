package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/trial"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

type tryFlags struct {
	inputs     []string
	epochEvery int
}

func (a *app) tryCommand() *cobra.Command {
	var f tryFlags
	c := &cobra.Command{
		Use: "try MAPPING --input STREAM=FILE...", Short: "Run a mapping over files, with no broker and no database",
		Long: `Try runs the very tasks of a pipeline over files, in process and deterministic:
the unit test of a mapping. Every version of every assertion is printed to
stdout, one JSON object a line, in the order in which they were recorded; dead
letters and a summary go to stderr. (--format table prints a table instead.)

Each --input is ` + feed.Form + `.
A line of a file is the value of a record, or an envelope
{"partition":, "timestamp":, "key":, "value":, "headers":}.

Under the mapping's epoch.clock: log the records' timestamps give the recorded
time. Under the wall clock it counts up from 2000-01-01T00:00:00Z by the second,
an epoch every --epoch-every records.`,
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			table := c.Flags().Changed("format") && !a.json()
			return a.try(c.Context(), args[0], f, table)
		},
	}
	c.Flags().StringArrayVarP(&f.inputs, "input", "i", nil, "records of a stream: "+feed.Form)
	c.Flags().IntVar(&f.epochEvery, "epoch-every", 0, "end an epoch after so many records (0: one epoch holds all; not under clock: log)")
	return c
}

func (a *app) try(ctx context.Context, path string, f tryFlags, table bool) error {
	if len(f.inputs) == 0 {
		return usagef("try needs records: --input %s", feed.Form)
	}
	if f.epochEvery < 0 {
		return usagef("--epoch-every %d is negative", f.epochEvery)
	}
	plan, err := a.loadMapping(path)
	if err != nil {
		return err
	}
	// Every specification is looked at before a file is read.
	var specs []feed.Spec
	for _, text := range f.inputs {
		spec, err := feed.ParseSpec(text)
		if err != nil {
			return &usageError{err: fmt.Errorf("--input: %w", err)}
		}
		if err := checkStream(plan, spec.Stream); err != nil {
			return err
		}
		specs = append(specs, spec)
	}
	in := trial.NewInput(plan)
	for _, spec := range specs {
		if err := in.Add(spec); err != nil {
			return err
		}
	}
	memory, outcome, err := in.Run(processors.NewTopology(plan, pipeline.First), f.epochEvery)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	if err := a.printVersions(memory, table); err != nil {
		return err
	}
	a.printOutcome(in, &outcome)
	return interrupted(ctx)
}

func checkStream(plan *mapping.Plan, name string) error {
	var names []string
	for _, s := range plan.Streams {
		if s.Name == name {
			return nil
		}
		names = append(names, s.Name)
	}
	return usagef("the mapping has no stream %q; its streams: %s", name, strings.Join(names, ", "))
}

func (a *app) printVersions(memory *ontology.Memory, table bool) error {
	if table {
		return a.historyTable(memory.Versions()).Write(a.stdout)
	}
	out := bufio.NewWriter(a.stdout)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for _, v := range memory.Versions() {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return out.Flush()
}

// printOutcome tells on stderr what does not stand in the ontology.
func (a *app) printOutcome(in *trial.Input, o *processors.LocalOutcome) {
	for i := range o.DeadLetters {
		d := &o.DeadLetters[i]
		fmt.Fprintf(a.stderr, "dead letter: %s (%s): %s: %s: %s\n",
			in.Line(d.Place), d.Place, d.Reject.Reason, ui.Printable(d.Reject.Message), ui.Printable(string(d.Record.Value)))
	}
	if in.Borrowed > 0 {
		fmt.Fprintf(a.stderr, "%s without a readable timestamp: it took that of the record before\n", ui.Number(in.Borrowed, "line"))
	}
	if a.quiet {
		return
	}
	fmt.Fprintf(a.stderr, "%s in %s; %s\n", ui.Number(o.Counters.Events, "event"), ui.Number(int64(o.Epochs), "epoch"), countersText(&o.Counters))
}
