package main

import (
	"context"
	"fmt"

	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// againstRunning is the value of --against that means the pipeline itself.
const againstRunning = "running"

// comparedJSON is the JSON of a comparison.
type comparedJSON struct {
	OK       bool   `json:"ok"` // run would take it
	Pipeline string `json:"pipeline"`
	Version  string `json:"version"`
	Against  string `json:"against"` // the version compared with
	// SinceEpoch and Since say since which barrier the running mapping is in
	// force; absent where it is from the beginning, and for a file.
	SinceEpoch event.Epoch  `json:"since_epoch,omitempty"`
	Since      string       `json:"since,omitempty"`
	Class      string       `json:"class"` // the least mild of the changes
	Changes    []changeJSON `json:"changes"`
}

type changeJSON struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Key    string `json:"key"`
	Change string `json:"change"`
	Class  string `json:"class"`
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`
	Why    string `json:"why"`
	Do     string `json:"do,omitempty"`
}

// compare shows what differs from another file, or from what runs.
func (a *app) compare(ctx context.Context, path string, plan *mapping.Plan, against string, c connections) error {
	old, since, err := a.comparedWith(ctx, plan, against, c)
	if err != nil {
		return err
	}
	changes := mapping.Compare(old, plan)
	worst := mapping.Worst(changes)
	out := comparedJSON{
		OK: worst == mapping.InPlace, Pipeline: plan.Pipeline, Version: plan.Version, Against: old.Version,
		Class: worst.String(), Changes: []changeJSON{},
	}
	if since.Epoch > 0 {
		out.SinceEpoch, out.Since = since.Epoch, since.Recorded.String()
	}
	for i := range changes {
		c := &changes[i]
		out.Changes = append(out.Changes, changeJSON{
			File: c.File, Line: c.Line, Column: c.Column, Key: c.Key, Change: c.Rule.Act, Class: c.Rule.Class.String(),
			Old: c.Old, New: c.New, Why: c.Rule.Why, Do: c.Rule.Do,
		})
	}
	if a.json() {
		err = a.printJSON(out)
	} else {
		err = a.printComparison(path, against, &out)
	}
	if err == nil && !out.OK {
		return reported(exitChange)
	}
	return err
}

// comparedWith is the mapping that a file is compared with: of another file, or
// of the pipeline.
func (a *app) comparedWith(ctx context.Context, plan *mapping.Plan, against string, c connections) (*mapping.Plan, kafka.Registered, error) {
	if against != againstRunning {
		old, err := a.loadMapping(against)
		return old, kafka.Registered{}, err
	}
	c.fromEnv(a)
	if len(c.brokers) > 0 {
		plan.Kafka.Brokers = c.brokers
	}
	if len(plan.Kafka.Brokers) == 0 {
		return nil, kafka.Registered{}, usagef("--against running needs the brokers: in the mapping, by --brokers or by %s", envBrokers)
	}
	r, err := kafka.ReadRegistered(ctx, plan.Kafka, processors.NewTopology(plan, pipeline.Generation), a.log)
	switch {
	case err != nil:
		return nil, r, orInterrupted(ctx, err)
	case r.Version == plan.Version:
		return plan, r, nil
	case r.Text == "":
		return nil, r, &kafka.MappingError{Pipeline: plan.Pipeline, Have: r.Version, Want: plan.Version}
	}
	old, err := mapping.Parse("the mapping in force, version "+r.Version, []byte(r.Text), nil)
	if err != nil {
		return nil, r, fmt.Errorf("this build cannot read the mapping that the pipeline runs under; a newer one has written it: %w", err)
	}
	return old, r, nil
}

func (a *app) printComparison(path, against string, c *comparedJSON) error {
	s := a.style()
	what := against
	if against == againstRunning {
		what = "what runs"
	}
	if c.Since != "" {
		what += fmt.Sprintf(" (in force since epoch %s, recorded time %s)", c.SinceEpoch, c.Since)
	}
	fmt.Fprintf(a.stdout, "pipeline %s: %s is version %s, %s is version %s\n", s.Bold(c.Pipeline), path, c.Version, what, c.Against)
	if len(c.Changes) == 0 {
		fmt.Fprintf(a.stdout, "%s\n", s.Good("nothing that counts differs"))
		return nil
	}
	fmt.Fprintln(a.stdout)
	t := &ui.Table{Heads: []string{"PLACE", "KEY", "CHANGE", "CLASS"}, Style: s}
	for i := range c.Changes {
		ch := &c.Changes[i]
		place := ""
		if ch.Line > 0 {
			place = fmt.Sprintf("%d:%d", ch.Line, ch.Column)
		}
		change := ch.Change
		if ch.Old != "" && ch.New != "" {
			change += fmt.Sprintf(" from %s to %s", ch.Old, ch.New)
		}
		t.Row(place, ch.Key, ui.Printable(change), ch.Class)
	}
	if err := t.Write(a.stdout); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	for i := range c.Changes {
		ch := &c.Changes[i]
		fmt.Fprintf(a.stdout, "%s: %s\n", ch.Key, ch.Why)
		if ch.Do != "" {
			fmt.Fprintf(a.stdout, "  to do: %s\n", ch.Do)
		}
	}
	if c.OK {
		fmt.Fprintf(a.stdout, "\n%s\n", s.Good("run takes all of it up in place"))
		return nil
	}
	fmt.Fprintf(a.stdout, "\n%s\n", s.Bad("run refuses this file"))
	return nil
}
