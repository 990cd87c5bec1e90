package main

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology"
)

func (a *app) asOfCommand(f *ontologyFlags) *cobra.Command {
	var valid string
	var patience time.Duration
	c := &cobra.Command{
		Use: "as-of RECORDED [TYPE [ID]]", Short: "What was believed at a recorded time",
		Long: `As-of gives what was believed at a recorded time: of everything, of a type, or
of one object; at one instant in the world with --valid. The answer is the same
for ever. Above the safe horizon, or below the floor, it is refused.`,
		Args: arguments(1, 3),
		RunE: func(c *cobra.Command, args []string) error {
			return a.asOf(c.Context(), f, args, valid, patience)
		},
	}
	c.Flags().StringVar(&valid, "valid", "", "only what was believed to hold at this instant")
	addWaitFlag(c, &patience)
	return c
}

func (a *app) asOf(ctx context.Context, f *ontologyFlags, args []string, valid string, patience time.Duration) error {
	q := ontology.Question{}
	if len(args) > 1 {
		q.Type = args[1]
	}
	if len(args) > 2 {
		q.ID = args[2]
	}
	if valid != "" {
		t, err := parseTime(valid)
		if err != nil {
			return err
		}
		at := event.FromTime(t)
		q.Valid = &at
	}
	// A malformed time is told before a connection is made.
	if args[0] != "now" {
		if _, err := parseTime(args[0]); err != nil {
			return err
		}
	}
	r, err := a.reader(ctx, f)
	if err != nil {
		return err
	}
	defer r.Close()
	if q.Recorded, err = recordedTime(ctx, r, args[0], q.Type); err != nil {
		return err
	}
	if err := await(ctx, r, q.Type, q.Recorded, patience); err != nil {
		return err
	}
	if most := f.most(a); most > 0 {
		q.Limit = most + 1 // one more shows that there is more
	}
	n, err := answer(a, f, r.AsOf(ctx, q), a.factTable(q.ID == ""), factCells(q.ID == ""))
	if err == nil && n == 0 {
		fmt.Fprintf(a.stderr, "nothing was believed as of %s%s\n", q.Recorded, about(args[1:]))
	}
	return err
}

func about(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return " of " + ui.Printable(strings.Join(args, " "))
}

func (a *app) diffCommand(f *ontologyFlags) *cobra.Command {
	var patience time.Duration
	c := &cobra.Command{
		Use: "diff RECORDED RECORDED [TYPE]", Short: "What changed of the belief between two recorded times",
		Long: `Diff gives what changed from the first recorded time to the second: over which
valid interval which value took the place of which, and why. What was replaced
by an equal value has not changed.`,
		Args: arguments(2, 3),
		RunE: func(c *cobra.Command, args []string) error { return a.diff(c.Context(), f, args, patience) },
	}
	addWaitFlag(c, &patience)
	return c
}

func (a *app) diff(ctx context.Context, f *ontologyFlags, args []string, patience time.Duration) error {
	typ := ""
	if len(args) > 2 {
		typ = args[2]
	}
	for _, text := range args[:2] {
		if text == "now" {
			continue
		}
		if _, err := parseTime(text); err != nil {
			return err
		}
	}
	r, err := a.reader(ctx, f)
	if err != nil {
		return err
	}
	defer r.Close()
	var asked [2]event.RecordedTime
	for i := range asked {
		if asked[i], err = recordedTime(ctx, r, args[i], typ); err != nil {
			return err
		}
		if err := await(ctx, r, typ, asked[i], patience); err != nil {
			return err
		}
	}
	if asked[0] > asked[1] {
		return usagef("diff goes forward: %s is after %s", asked[0], asked[1])
	}
	t := &ui.Table{Style: a.style(), Heads: []string{"TYPE", "ID", "PROPERTY", "VALID FROM", "VALID TO", "BEFORE", "AFTER", "CAUSE", "RECORDED FROM"}}
	n, err := answer(a, f, r.Diff(ctx, typ, asked[0], asked[1]), t, changeCells)
	if err == nil && n == 0 {
		fmt.Fprintf(a.stderr, "nothing changed between %s and %s%s\n", asked[0], asked[1], about(args[2:]))
	}
	return err
}

func changeCells(c *ontology.Change) []string {
	to := "(open)"
	if c.ValidTo != nil {
		to = *c.ValidTo
	}
	cells := []string{c.Type, c.ID, c.Property, c.ValidFrom, to, sideText(c.Before), sideText(c.After)}
	if c.After != nil {
		return append(cells, c.After.Cause, c.After.RecordedFrom)
	}
	return cells
}

func sideText(s *ontology.Side) string {
	switch {
	case s == nil:
		return "(nothing)"
	case s.Value == nil:
		return "(none)"
	}
	return *s.Value
}

func (a *app) listCommand(f *ontologyFlags) *cobra.Command {
	var after string
	c := &cobra.Command{
		Use: "list [TYPE]", Short: "The types of objects, or the ids of one type",
		Long: `List gives the types with their properties and the pipelines that write them; or
the ids of a type's objects of which something is believed now, in order.
--after continues behind the last id of a list that was cut.`,
		Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.reader(c.Context(), f)
			if err != nil {
				return err
			}
			defer r.Close()
			if len(args) == 0 {
				return a.listTypes(c.Context(), r)
			}
			return a.listObjects(c.Context(), f, r, args[0], after)
		},
	}
	c.Flags().StringVar(&after, "after", "", "only ids behind this one")
	return c
}

// objectRef names an object, in JSON.
type objectRef struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

func (a *app) listObjects(ctx context.Context, f *ontologyFlags, r *ontology.Reader, typ, after string) error {
	most := f.most(a)
	if most > 0 {
		most++ // one more shows that there is more
	}
	ids := r.List(ctx, typ, after, most)
	refs := iter.Seq2[objectRef, error](func(yield func(objectRef, error) bool) {
		for id, err := range ids {
			if !yield(objectRef{typ, id}, err) {
				return
			}
		}
	})
	_, err := answer(a, f, refs, &ui.Table{Heads: []string{"ID"}, Style: a.style()}, func(o *objectRef) []string { return []string{o.ID} })
	return err
}

func (a *app) listTypes(ctx context.Context, r *ontology.Reader) error {
	types, err := r.Types(ctx)
	if err != nil {
		return err
	}
	if a.json() {
		for _, t := range types {
			if err := a.printJSON(t); err != nil {
				return err
			}
		}
		return nil
	}
	t := &ui.Table{Heads: []string{"TYPE", "PROPERTY", "KIND", "WRITTEN BY"}, Style: a.style()}
	for _, typ := range types {
		for _, p := range typ.Properties {
			kind := p.Kind
			if p.LinkTo != "" {
				kind += " to " + p.LinkTo
			}
			if p.Hidden {
				kind += " (no longer declared)"
			}
			t.Row(typ.Name, p.Name, kind, "pipeline "+p.Pipeline)
		}
	}
	return t.Write(a.stdout)
}
