package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

func (a *app) checkCommand() *cobra.Command {
	var against string
	var conns connections
	c := &cobra.Command{
		Use: "check MAPPING", Short: "Check a mapping file and show what it makes, or what it changes",
		Long: `Check reads a mapping file and reports every fault at once, each with its line
and column, what is wrong and what to do. A file without faults is explained:
which streams it reads, which stages and topics it makes, which objects and
aggregates come of it. Nothing is connected to.

With --against OLD it says what the file changes in a pipeline that has run
under OLD, and with --against running in the pipeline as it runs (which asks
Kafka). Every change is classed: in place (strom run takes it at an announced
barrier), by replay (the topics have to be read again), or refused. The exit
code is 0 where nothing is changed, or all of it in place, and 9 else, where
strom run refuses the file.`,
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("against") {
				return a.checkAgainst(c.Context(), args[0], against, conns)
			}
			return a.check(args[0])
		},
	}
	c.Flags().StringVar(&against, "against", "", "compare with this older mapping `FILE` of the same pipeline, or with what runs (running), and class the changes")
	addBrokersFlag(c, &conns.brokers)
	return c
}

func (a *app) check(path string) error {
	plan, err := a.loadChecked(path)
	if err != nil {
		return err
	}
	e := explain(plan)
	if a.json() {
		return a.printJSON(e)
	}
	return a.printExplanation(path, e)
}

// loadChecked loads a mapping; where it has faults, they have been printed.
func (a *app) loadChecked(path string) (*mapping.Plan, error) {
	plan, err := a.loadMapping(path)
	var faults *mapping.Error
	switch {
	case !errors.As(err, &faults):
		return plan, err
	case a.json():
		if err := a.printJSON(faultsJSON(faults.Faults)); err != nil {
			return nil, err
		}
	default:
		fmt.Fprintln(a.stderr, faults.Error())
		fmt.Fprintf(a.stderr, "strom: %s in %s\n", ui.Number(len(faults.Faults), "fault"), path)
	}
	return nil, reported(exitMapping)
}

// checkFaults is the JSON of a mapping that has faults.
type checkFaults struct {
	OK     bool        `json:"ok"`
	Faults []faultJSON `json:"faults"`
}

type faultJSON struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
	Advice  string `json:"advice,omitempty"`
}

func faultsJSON(faults []mapping.Fault) checkFaults {
	out := checkFaults{}
	for _, f := range faults {
		out.Faults = append(out.Faults, faultJSON(f))
	}
	return out
}

// explanation is the JSON of a mapping without faults.
type explanation struct {
	OK       bool            `json:"ok"`
	Pipeline string          `json:"pipeline"`
	Version  string          `json:"version"`
	Clock    string          `json:"clock"`
	Epoch    string          `json:"epoch"` // the interval, or under clock: log the step
	Streams  []streamJSON    `json:"streams"`
	Stages   []stageJSON     `json:"stages"`
	Objects  []objectJSON    `json:"objects"`
	Aggs     []aggregateJSON `json:"aggregates"`
	Topics   []string        `json:"topics"` // Strom's own
	// Missing says what a run still lacks of its connections.
	Missing []faultJSON `json:"missing_connections"`
}

type streamJSON struct {
	Name  string `json:"name"`
	Topic string `json:"topic"`
}

type stageJSON struct {
	Name  string `json:"name"`
	Reads string `json:"reads"`
}

type objectJSON struct {
	Type       string   `json:"type"`
	Properties []string `json:"properties"`
}

type aggregateJSON struct {
	Type   string   `json:"type"`
	Name   string   `json:"name"`
	Stream string   `json:"stream"`
	Values []string `json:"values"`
	// Fused aggregates are counted where their stream is read; others behind a
	// repartition topic.
	Fused bool   `json:"fused"`
	Topic string `json:"repartition_topic,omitempty"`
}

func explain(p *mapping.Plan) explanation {
	t := processors.NewTopology(p, pipeline.First)
	e := explanation{
		OK: true, Pipeline: p.Pipeline, Version: p.Version, Clock: p.Epoch.Clock.String(), Epoch: mapping.DurationText(p.Epoch.Interval),
		Aggs: []aggregateJSON{}, Missing: faultsJSON(p.CheckConnections()).Faults,
	}
	if p.Epoch.Clock == mapping.ClockLog {
		e.Epoch = mapping.DurationText(p.Epoch.Step)
	}
	if e.Missing == nil {
		e.Missing = []faultJSON{}
	}
	for _, s := range p.Streams {
		e.Streams = append(e.Streams, streamJSON{s.Name, s.Topic})
	}
	repartition := map[*mapping.Aggregate]string{}
	e.Topics = []string{t.ControlTopic(), t.ResultsTopic(), t.DeadLetterTopic()}
	for _, s := range t.Stages {
		e.Stages = append(e.Stages, stageJSON{s.Name, s.Input})
		if !s.Source() {
			repartition[s.Aggregate] = s.Input
			e.Topics = append(e.Topics, s.Input)
		}
		e.Topics = append(e.Topics, t.Changelog(s))
	}
	for _, typ := range p.Types {
		o := objectJSON{Type: typ.Name, Properties: []string{}}
		for _, d := range typ.Properties {
			o.Properties = append(o.Properties, d.Name+" "+kindText(&d))
		}
		e.Objects = append(e.Objects, o)
	}
	for _, g := range p.Aggregates {
		j := aggregateJSON{Type: g.Type, Name: g.Name, Stream: g.Stream.Name, Fused: g.Fused, Topic: repartition[g]}
		for _, v := range g.Values {
			j.Values = append(j.Values, v.Name)
		}
		e.Aggs = append(e.Aggs, j)
	}
	return e
}

func kindText(d *mapping.PropertyDef) string {
	if d.LinkTo != "" {
		return d.Kind.String() + " to " + d.LinkTo
	}
	return d.Kind.String()
}

func (a *app) printExplanation(path string, e explanation) error {
	s := a.style()
	fmt.Fprintf(a.stdout, "%s: %s\n\n", path, s.Good("ok"))
	clock := "wall clock, an epoch about every " + e.Epoch
	if e.Clock == "log" {
		clock = "the log's clock, in steps of " + e.Epoch
	}
	fmt.Fprintf(a.stdout, "pipeline %s, version %s\nrecorded time: %s\n\n", s.Bold(e.Pipeline), e.Version, clock)
	streams := &ui.Table{Heads: []string{"STREAM", "TOPIC"}, Style: s}
	for _, r := range e.Streams {
		streams.Row(r.Name, r.Topic)
	}
	stages := &ui.Table{Heads: []string{"STAGE", "READS"}, Style: s}
	for _, r := range e.Stages {
		stages.Row(r.Name, r.Reads)
	}
	objects := &ui.Table{Heads: []string{"OBJECT", "PROPERTIES"}, Style: s}
	for _, r := range e.Objects {
		objects.Row(r.Type, strings.Join(r.Properties, ", "))
	}
	aggregates := &ui.Table{Heads: []string{"AGGREGATE", "OF STREAM", "VALUES", "HOW"}, Style: s}
	for _, r := range e.Aggs {
		how := "repartitioned by its id"
		if r.Fused {
			how = "fused: its id is the stream's key"
		}
		aggregates.Row(r.Type+"."+r.Name, r.Stream, strings.Join(r.Values, ", "), how)
	}
	topics := &ui.Table{Heads: []string{"TOPICS OF ITS OWN"}, Style: s}
	for _, r := range e.Topics {
		topics.Row(r)
	}
	for _, t := range []*ui.Table{streams, stages, objects, aggregates, topics} {
		if t.Len() == 0 {
			continue
		}
		if err := t.Write(a.stdout); err != nil {
			return err
		}
		fmt.Fprintln(a.stdout)
	}
	if len(e.Missing) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout, "To run it, it still needs:")
	for _, f := range e.Missing {
		fmt.Fprintf(a.stdout, "  %s: %s (%s)\n", f.Key, f.Message, f.Advice)
	}
	return nil
}
