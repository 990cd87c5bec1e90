package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/mapping"
)

// changesJSON is the JSON of a comparison of two mappings.
type changesJSON struct {
	OK             bool   `json:"ok"`
	Pipeline       string `json:"pipeline"`
	Version        string `json:"version"`
	AgainstVersion string `json:"against_version"`
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

// checkAgainst compares a mapping with an older one of the same pipeline. What
// cannot be taken in place ends with exitPipeline, once it is printed.
func (a *app) checkAgainst(path, against string) error {
	after, err := a.loadChecked(path)
	if err != nil {
		return err
	}
	before, err := a.loadChecked(against)
	if err != nil {
		return err
	}
	changes := mapping.Compare(before, after)
	if a.json() {
		err = a.printJSON(comparisonJSON(before, after, changes))
	} else {
		err = a.printChanges(fmt.Sprintf("%s against %s", path, against), changes, before, after)
	}
	if err == nil && len(changes) > 0 && changes[0].Class != mapping.InPlace {
		return reported(exitPipeline)
	}
	return err
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
	fmt.Fprintf(a.stdout, "\n%s\n", whatNow(before, after))
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

// whatNow says what to do with the new file in this version of the program,
// which takes no change of the mapping's version.
func whatNow(before, after *mapping.Plan) string {
	switch {
	case before.Pipeline != after.Pipeline:
		return "The files are of two pipelines; nothing else of them was compared."
	case before.Version == after.Version:
		return "Both files have version " + after.Version + ": a running pipeline takes the new one when its replicas restart."
	}
	return `A pipeline that has run under the old file cannot take any of this yet, not in
place either: strom run refuses the new file with exit code 9. Undo the change;
or replay: run the new file under another pipeline name, with an empty database
and another --data-dir. It reads its topics from their start, as far as they
still reach.`
}
