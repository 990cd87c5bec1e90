package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

type statusFlags struct {
	connections
	pipeline string
	watch    bool
}

func (a *app) statusCommand() *cobra.Command {
	var f statusFlags
	c := &cobra.Command{
		Use: "status [MAPPING]", Short: "How far a pipeline is, who does what, and what holds it back",
		Long: `Status reads the pipeline's control topic, its consumer groups and the ontology's
progress: the newest epoch and its age, the watermarks, each task with its owner,
its counters and the lag of its inputs, the safe horizon and who holds it back.
It changes nothing.

It needs a mapping file, or --brokers and --pipeline; without --postgres (or
STROM_POSTGRES, or the mapping's) the ontology is left out. Where the database
does not answer, what Kafka says is shown all the same.`,
		Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error { return a.status(c.Context(), args, f) },
	}
	addConnectionFlags(c, &f.connections)
	c.Flags().StringVar(&f.pipeline, "pipeline", "", "name of the pipeline, where no mapping file is given")
	c.Flags().BoolVar(&f.watch, "watch", false, "show it again every second, until Ctrl-C")
	return c
}

func (a *app) status(ctx context.Context, args []string, f statusFlags) error {
	plan, err := a.statusPlan(args, f)
	if err != nil {
		return err
	}
	err = a.statusOnce(ctx, plan, a.stdout)
	if !f.watch || (err != nil && !is[*ontology.ConnectError](err)) {
		return err
	}
	return a.watchStatus(ctx, plan)
}

// statusOnce asks, and writes the answer in one piece.
func (a *app) statusOnce(ctx context.Context, plan *mapping.Plan, to io.Writer) error {
	st, err := kafka.ReadStatus(ctx, plan.Kafka, a.topologyForStatus(ctx, plan), a.log)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	var info *ontology.PipelineInfo
	var missing error
	asked := plan.Ontology.Postgres.Reveal() != ""
	if asked {
		if info, missing = a.readOntology(ctx, plan); missing != nil {
			if cause := interrupted(ctx); cause != nil {
				return cause
			}
		}
	}
	out := newStatusJSON(plan.Pipeline, &st, info)
	switch {
	case missing != nil:
		// What Kafka says is of use, now more than ever.
		out.OntologyError = missing.Error()
	case asked && info == nil:
		out.Ontology = &ontologyStatus{HeldBackBy: []event.Partition{}, Partitions: []sinkJSON{}}
	}
	var b bytes.Buffer
	if a.json() {
		err = printJSON(&b, out)
	} else {
		err = (&statusTable{statusJSON: out, out: &b, style: a.style()}).print()
	}
	if err == nil {
		_, err = to.Write(b.Bytes())
	}
	return errors.Join(err, missing)
}

// topologyForStatus is that of the generation that the pipeline is at: as the
// ontology has it, and where that does not answer, as Kafka has it.
func (a *app) topologyForStatus(ctx context.Context, plan *mapping.Plan) *processors.Topology {
	if plan.Ontology.Postgres.Reveal() != "" {
		if g, err := ontology.CurrentGeneration(ctx, plan.Ontology, plan.Pipeline); err == nil {
			return processors.NewTopology(plan, max(g, pipeline.First))
		}
	}
	g, err := kafka.CurrentGeneration(ctx, plan.Kafka, plan.Pipeline, a.log)
	if err != nil || g == 0 {
		g = pipeline.First // what is wrong with Kafka shows next
	}
	return processors.NewTopology(plan, g)
}

// watchStatus shows the status every second. What goes wrong meanwhile is shown
// too, and may pass.
func (a *app) watchStatus(ctx context.Context, plan *mapping.Plan) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // Ctrl-C is how a watch ends
		case <-tick.C:
		}
		var b bytes.Buffer
		err := a.statusOnce(ctx, plan, &b)
		if ctx.Err() != nil {
			return nil
		}
		if _, err := io.WriteString(a.stdout, a.nextPage()+b.String()); err != nil {
			return err
		}
		if err != nil {
			fmt.Fprintln(a.stderr, errorText(err))
		}
	}
}

// nextPage is what separates one status from the one before: on a terminal it
// takes that one's place; a JSON object is a line anyhow.
func (a *app) nextPage() string {
	switch {
	case a.json():
		return ""
	case ui.IsTerminal(a.stdout):
		return "\x1b[H\x1b[2J"
	}
	return "\n"
}

// readOntology reads how far the ontology is; nil: the pipeline has not written
// to it.
func (a *app) readOntology(ctx context.Context, plan *mapping.Plan) (*ontology.PipelineInfo, error) {
	r, err := ontology.OpenReader(ctx, plan.Ontology, ontology.Options{Logger: a.log})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	all, err := r.Pipelines(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Name == plan.Pipeline {
			return &all[i], nil
		}
	}
	return nil, nil //nolint:nilnil // documented
}

// statusPlan gives a plan with connections; without a mapping file, one with
// nothing but the pipeline's name besides.
func (a *app) statusPlan(args []string, f statusFlags) (*mapping.Plan, error) {
	f.fromEnv(a)
	if len(args) == 0 {
		if f.pipeline == "" || len(f.brokers) == 0 {
			return nil, usagef("status needs a mapping file, or --brokers and --pipeline")
		}
		if !regexp.MustCompile(`^[a-z][a-z0-9-]{0,59}$`).MatchString(f.pipeline) {
			return nil, usagef("--pipeline %q is not the name of a pipeline", f.pipeline)
		}
		return &mapping.Plan{
			Pipeline: f.pipeline, Kafka: mapping.Kafka{Brokers: f.brokers},
			Ontology: mapping.Ontology{Postgres: mapping.NewSecret(f.postgres)},
		}, nil
	}
	if f.pipeline != "" {
		return nil, usagef("give a mapping file or --pipeline, not both")
	}
	plan, err := a.loadMapping(args[0])
	if err != nil {
		return nil, err
	}
	err = f.into(plan)
	if lacking, ok := errors.AsType[*mapping.Error](err); ok {
		// A status without the ontology is of use too.
		rest := lacking.Faults[:0]
		for _, fault := range lacking.Faults {
			if !strings.HasPrefix(fault.Key, "ontology.") {
				rest = append(rest, fault)
			}
		}
		if len(rest) == 0 {
			return plan, nil
		}
		return nil, &mapping.Error{Faults: rest}
	}
	return plan, err
}
