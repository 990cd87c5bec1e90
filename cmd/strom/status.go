package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

type statusFlags struct {
	connections
	pipeline string
}

func (a *app) statusCommand() *cobra.Command {
	var f statusFlags
	c := &cobra.Command{
		Use: "status [MAPPING]", Short: "How far a pipeline is, and what holds it back",
		Long: `Status reads the pipeline's control topic and the ontology's progress: the newest
epoch, the watermarks, each task with its counters and the lag of its inputs,
the safe horizon and which partition holds it back. It changes nothing.

It needs a mapping file, or --brokers and --pipeline; without --postgres (or
STROM_POSTGRES, or the mapping's) the ontology is left out. Where the database
does not answer, what Kafka says is shown all the same.`,
		Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error { return a.status(c.Context(), args, f) },
	}
	addConnectionFlags(c, &f.connections)
	c.Flags().StringVar(&f.pipeline, "pipeline", "", "name of the pipeline, where no mapping file is given")
	return c
}

func (a *app) status(ctx context.Context, args []string, f statusFlags) error {
	plan, err := a.statusPlan(args, f)
	if err != nil {
		return err
	}
	topology := processors.NewTopology(plan, pipeline.Generation)
	st, err := kafka.ReadStatus(ctx, plan.Kafka, topology, a.log)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	out := newStatusJSON(plan.Pipeline, &st)
	var missing error
	if plan.Ontology.Postgres.Reveal() != "" {
		if out.Ontology, missing = a.ontologyStatus(ctx, plan, st.Newest.Epoch); missing != nil {
			if cause := interrupted(ctx); cause != nil {
				return cause
			}
			// What Kafka says is of use, now more than ever.
			out.OntologyError = missing.Error()
		}
	}
	if a.json() {
		return errors.Join(a.printJSON(out), missing)
	}
	return errors.Join(a.printStatus(out), missing)
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

// statusJSON is the status for programs; it is documented in docs/cli.md.
type statusJSON struct {
	Pipeline string      `json:"pipeline"`
	Epoch    event.Epoch `json:"epoch"`
	// Recorded is R of that epoch; null before the first.
	Recorded   *string           `json:"recorded"`
	Ended      bool              `json:"ended"`   // the last epoch ended the input
	Holding    bool              `json:"holding"` // sources wait: too many late events are parked
	Mapping    string            `json:"mapping_version"`
	Watermarks map[string]string `json:"watermarks"`
	Totals     totalsJSON        `json:"totals"`
	total      *processors.Counters
	Lag        int64            `json:"lag"` // of the topics that the mapping reads
	Tasks      []taskStatusJSON `json:"tasks"`
	Ontology   *ontologyStatus  `json:"ontology"` // null: not asked, or no answer
	// OntologyError says why the ontology gave no answer.
	OntologyError string `json:"ontology_error,omitempty"`
}

// totalsJSON sums the counters; they count since the pipeline began.
type totalsJSON struct {
	Records     int64 `json:"records"`
	Events      int64 `json:"events"`
	OnTime      int64 `json:"on_time"`
	Corrections int64 `json:"corrections"`
	Late        int64 `json:"late_corrections"`
	Repeats     int64 `json:"repeats"`
	DeadLetters int64 `json:"dead_letters"`
	Filtered    int64 `json:"filtered"`
}

type taskStatusJSON struct {
	Stage     string          `json:"stage"`
	Partition event.Partition `json:"partition"`
	Epoch     event.Epoch     `json:"epoch"`
	// Watermark is the task's own; null where it has none.
	Watermark *string     `json:"watermark"`
	Source    bool        `json:"source"` // reads a topic of the mapping
	Idle      bool        `json:"idle"`
	AtEnd     bool        `json:"at_end"`
	Halted    string      `json:"halted,omitempty"`
	Parked    int         `json:"parked"` // late windows that wait for their read-back
	Counters  totalsJSON  `json:"counters"`
	Inputs    []inputJSON `json:"inputs"`
}

type inputJSON struct {
	Topic  string       `json:"topic"`
	Offset event.Offset `json:"offset"` // acknowledged
	End    event.Offset `json:"end"`
	Lag    int64        `json:"lag"`
}

func newStatusJSON(name string, st *kafka.Status) *statusJSON {
	out := &statusJSON{
		Pipeline: name, Epoch: st.Newest.Epoch, Ended: st.Newest.End, Holding: st.Newest.Hold,
		Mapping: st.Newest.Mapping, Watermarks: map[string]string{}, Tasks: []taskStatusJSON{},
	}
	if st.Newest.Epoch > 0 {
		out.Recorded = new(st.Newest.Recorded.String())
	}
	for stream, w := range st.Newest.Watermarks {
		out.Watermarks[stream] = w.String()
	}
	// What stages hand to each other is not counted as the stream's again.
	own := "strom." + name + ".g"
	var total processors.Counters
	for i := range st.Tasks {
		t := &st.Tasks[i]
		j := taskStatusJSON{
			Stage: t.Task.Stage, Partition: t.Task.Partition, Epoch: t.Epoch, Idle: t.Idle, AtEnd: t.AtEnd,
			Halted: t.Halted, Parked: t.Waiting, Counters: totals(t.Counters), Inputs: []inputJSON{},
		}
		if t.Watermark != event.WatermarkUnknown {
			j.Watermark = new(t.Watermark.String())
		}
		counted := t.Counters
		for _, in := range t.Inputs {
			j.Inputs = append(j.Inputs, inputJSON{in.Topic, in.Offset, in.End, in.Lag()})
			if strings.HasPrefix(in.Topic, own) {
				counted.Records = 0
			} else {
				j.Source = true
				out.Lag += in.Lag()
			}
		}
		total.Add(counted)
		out.Tasks = append(out.Tasks, j)
	}
	out.Totals, out.total = totals(total), &total
	return out
}

func totals(c processors.Counters) totalsJSON {
	return totalsJSON{
		Records: c.Records, Events: c.Events, OnTime: c.OnTime, Corrections: c.Corrections, Late: c.Late,
		Repeats: c.Repeats, DeadLetters: c.DeadLetters, Filtered: c.Filtered,
	}
}

// ontologyStatus is how far the ontology is.
type ontologyStatus struct {
	Registered bool             `json:"registered"` // the pipeline has written to this ontology
	Generation event.Generation `json:"generation,omitempty"`
	Mapping    string           `json:"mapping_version,omitempty"`
	Floor      *string          `json:"floor"`   // null: history goes back to the beginning
	Horizon    *string          `json:"horizon"` // null: no epoch is complete
	Behind     int64            `json:"behind"`  // epochs between the newest one and the horizon's
	// HeldBackBy are the results partitions that have applied the least.
	HeldBackBy []event.Partition `json:"held_back_by"`
	Partitions []sinkJSON        `json:"partitions"`
}

type sinkJSON struct {
	Partition event.Partition `json:"partition"`
	Epoch     event.Epoch     `json:"epoch"`
	Recorded  *string         `json:"recorded"`
	Offset    event.Offset    `json:"offset"`
	UnderWay  event.Epoch     `json:"under_way,omitempty"`
}

func (a *app) ontologyStatus(ctx context.Context, plan *mapping.Plan, newest event.Epoch) (*ontologyStatus, error) {
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
			return newOntologyStatus(&all[i], newest), nil
		}
	}
	return &ontologyStatus{HeldBackBy: []event.Partition{}, Partitions: []sinkJSON{}}, nil
}

func newOntologyStatus(p *ontology.PipelineInfo, newest event.Epoch) *ontologyStatus {
	out := &ontologyStatus{
		Registered: true, Generation: p.Generation, Mapping: p.MappingVersion,
		HeldBackBy: []event.Partition{}, Partitions: []sinkJSON{},
	}
	if p.Bounds.Floor != event.RecordedUnknown {
		out.Floor = new(p.Bounds.Floor.String())
	}
	if p.Bounds.Horizon != event.RecordedUnknown {
		out.Horizon = new(p.Bounds.Horizon.String())
	}
	least := newest
	for i, g := range p.Partitions {
		s := sinkJSON{Partition: event.Partition(i), Epoch: g.Epoch, Offset: g.Offset, UnderWay: g.UnderWay}
		if g.Epoch > 0 {
			s.Recorded = new(g.Recorded.String())
		}
		out.Partitions = append(out.Partitions, s)
		least = min(least, g.Epoch)
	}
	out.Behind = int64(newest - least)
	for _, s := range out.Partitions {
		if out.Behind > 0 && s.Epoch == least {
			out.HeldBackBy = append(out.HeldBackBy, s.Partition)
		}
	}
	return out
}

func inputsText(inputs []inputJSON) string {
	parts := make([]string, len(inputs))
	for i, in := range inputs {
		parts[i] = fmt.Sprintf("%s %s of %s", in.Topic, in.Offset, in.End)
	}
	return strings.Join(parts, ", ")
}
