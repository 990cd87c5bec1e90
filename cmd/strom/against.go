package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// againstRunning is the value of --against that means the pipeline itself.
const againstRunning = "running"

// changesJSON is the JSON of a comparison of two mappings.
type changesJSON struct {
	OK             bool   `json:"ok"`
	Pipeline       string `json:"pipeline"`
	Version        string `json:"version"`
	AgainstVersion string `json:"against_version"`
	// SinceEpoch and Since say behind which barrier the running mapping is in
	// force; absent where it is from the beginning, and for a file.
	SinceEpoch event.Epoch `json:"since_epoch,omitempty"`
	Since      string      `json:"since,omitempty"`
	// Class is the gravest of the changes: none, in_place, by_replay, refused.
	Class   string       `json:"class"`
	Changes []changeJSON `json:"changes"`
}

type changeJSON struct {
	Class string `json:"class"`
	Path  string `json:"path"`
	What  string `json:"what"`
	Why   string `json:"why"`
	Do    string `json:"do"`
}

// classJSON gives a class as JSON has it.
func classJSON(c mapping.Class) string { return strings.ReplaceAll(c.String(), " ", "_") }

// checkAgainst compares a mapping with an older one of the same pipeline, from a
// file or as it runs. What cannot be taken in place ends with exitPipeline, once
// it is printed.
func (a *app) checkAgainst(ctx context.Context, path, against string, conns connections) error {
	after, err := a.loadChecked(path)
	if err != nil {
		return err
	}
	var before *mapping.Plan
	var running kafka.Registered
	title := fmt.Sprintf("%s against %s", path, against)
	switch against {
	case "":
		return usagef("--against needs a mapping file, or running")
	case againstRunning:
		before, running, err = a.runningMapping(ctx, after, conns)
		title = path + " against what runs"
	default:
		before, err = a.loadChecked(against)
	}
	if err != nil {
		return err
	}
	changes := running.Compare(before, after)
	if a.json() {
		out := comparisonJSON(before, after, changes)
		if running.Epoch > 0 {
			out.SinceEpoch, out.Since = running.Epoch, running.Recorded.String()
		}
		err = a.printJSON(out)
	} else {
		if running.Epoch > 0 {
			title += fmt.Sprintf(" (in force since epoch %s, recorded time %s)", running.Epoch, running.Recorded)
		}
		err = a.printChanges(title, changes, before, after)
	}
	if err == nil && mapping.Worst(changes) != mapping.InPlace {
		return reported(exitPipeline)
	}
	return err
}

// runningMapping asks Kafka for the mapping that a pipeline runs under. Its text
// holds no connections, so those of the file are taken for its own.
func (a *app) runningMapping(ctx context.Context, plan *mapping.Plan, conns connections) (*mapping.Plan, kafka.Registered, error) {
	conns.fromEnv(a)
	brokers := plan.Kafka
	if len(conns.brokers) > 0 {
		brokers.Brokers = conns.brokers
	}
	if len(brokers.Brokers) == 0 {
		return nil, kafka.Registered{}, usagef("--against running needs the brokers: in the mapping, by --brokers or by %s", envBrokers)
	}
	g, err := kafka.CurrentGeneration(ctx, brokers, plan.Pipeline, a.log)
	if err != nil {
		return nil, kafka.Registered{}, orInterrupted(ctx, err)
	}
	r, err := kafka.ReadRegistered(ctx, brokers, processors.NewTopology(plan, max(g, 1)), a.log)
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
	old.Kafka, old.Ontology, old.Epoch.Interval = plan.Kafka, plan.Ontology, plan.Epoch.Interval
	return old, r, nil
}

func comparisonJSON(before, after *mapping.Plan, changes []mapping.Change) changesJSON {
	out := changesJSON{
		OK: true, Pipeline: after.Pipeline, Version: after.Version, AgainstVersion: before.Version,
		Class: "none", Changes: []changeJSON{},
	}
	for _, c := range changes {
		out.Changes = append(out.Changes, changeJSON{classJSON(c.Class), c.Path, c.What, c.Why, c.Do})
	}
	if len(changes) > 0 {
		out.Class = out.Changes[0].Class // the gravest stands first
	}
	return out
}

func (a *app) printChanges(title string, changes []mapping.Change, before, after *mapping.Plan) error {
	s := a.style()
	if len(changes) == 0 {
		fmt.Fprintf(a.stdout, "%s: %s, version %s\n", title, s.Good("no change"), after.Version)
		return nil
	}
	class := s.Good(changes[0].Class.String())
	if changes[0].Class != mapping.InPlace {
		class = s.Bad(changes[0].Class.String())
	}
	fmt.Fprintf(a.stdout, "%s: %s, %s\n\n", title, ui.Number(len(changes), "change"), class)
	table := &ui.Table{Heads: []string{"CLASS", "PATH", "WHAT"}, Style: s}
	for _, c := range changes {
		table.Row(c.Class.String(), c.Path, c.What)
	}
	if err := table.Write(a.stdout); err != nil {
		return err
	}
	a.printReasons(changes)
	fmt.Fprintf(a.stdout, "\n%s\n", whatNow(before, after, changes))
	return nil
}

// printReasons gives each reason once, with the paths that it is for.
func (a *app) printReasons(changes []mapping.Change) {
	for i, c := range changes {
		same := func(d mapping.Change) bool { return d.Class == c.Class && d.Why == c.Why }
		if slices.ContainsFunc(changes[:i], same) {
			continue
		}
		fmt.Fprintln(a.stdout)
		for _, d := range changes[i:] {
			if same(d) {
				fmt.Fprintf(a.stdout, "%s: %s\n", a.style().Bold(ui.Printable(d.Path)), d.Class)
			}
		}
		fmt.Fprintf(a.stdout, "  why: %s\n  do:  %s\n", c.Why, c.Do)
	}
}

// whatNow says what to do with the new file.
func whatNow(before, after *mapping.Plan, changes []mapping.Change) string {
	switch {
	case before.Pipeline != after.Pipeline:
		return "The files are of two pipelines; nothing else of them was compared."
	case before.Version == after.Version:
		return "Both have version " + after.Version + ": a running pipeline takes the new file when its replicas restart."
	case mapping.Worst(changes) == mapping.InPlace:
		return `A running pipeline takes all of this at an announced barrier, on all replicas at
once: restart them one after the other with the new file.`
	}
	return `A pipeline that has run under the old mapping cannot take the new file: strom run
refuses it with exit code 9, and changes nothing. Undo what is not in place; or
replay: run the new file under another pipeline name, with an empty database and
another --data-dir. It reads its topics from their start, as far as they still
reach.`
}
