package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

// ontologyFlags say where the ontology is, and how much of it to show.
type ontologyFlags struct {
	postgres, mapping string
	limit             rowLimit
}

// rowLimit is the value of --limit.
type rowLimit struct {
	most  int
	given bool
}

var _ pflag.Value = (*rowLimit)(nil)

// String implements pflag.Value; it is empty where there is no limit.
func (l *rowLimit) String() string {
	if !l.given {
		return ""
	}
	return strconv.Itoa(l.most)
}

// Set implements pflag.Value.
func (l *rowLimit) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return errors.New("give a number of rows, or 0 for all")
	}
	*l = rowLimit{most: n, given: true}
	return nil
}

// Type implements pflag.Value.
func (l *rowLimit) Type() string { return "int" }

// tableLimit is how many rows a table shows where --limit is not given.
const tableLimit = 200

func (a *app) ontologyCommand() *cobra.Command {
	f := &ontologyFlags{}
	c := &cobra.Command{
		Use: "ontology", Short: "Ask what is believed, what was believed, and what changed",
		Long: `Ontology asks the database that a pipeline writes to: --postgres, or
STROM_POSTGRES, or the one of a mapping file (--mapping).

Times are RFC 3339, as 2018-02-01T03:00:00Z; a date alone is its midnight in
UTC. A recorded time may also be "now": the safe horizon, up to which every
answer is complete and stays the same for ever.

With --format json every answer is one JSON object a line.`,
		Args: arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return usagef("name a question: get, history, as-of, diff or list (strom help ontology)")
		},
	}
	addPostgresFlag(c, &f.postgres)
	flags := c.PersistentFlags()
	flags.AddFlag(c.Flags().Lookup("postgres"))
	flags.StringVar(&f.mapping, "mapping", "", "mapping file that says where the database is")
	flags.Var(&f.limit, "limit", fmt.Sprintf("most rows to print, 0 for all (default: %d in tables, all in JSON)", tableLimit))
	c.AddCommand(a.getCommand(f), a.historyCommand(f), a.asOfCommand(f), a.diffCommand(f), a.listCommand(f))
	return c
}

// reader opens the ontology.
func (a *app) reader(ctx context.Context, f *ontologyFlags) (*ontology.Reader, error) {
	conn, err := a.database(f)
	if err != nil {
		return nil, err
	}
	return ontology.OpenReader(ctx, conn, ontology.Options{Logger: a.log})
}

func (a *app) database(f *ontologyFlags) (mapping.Ontology, error) {
	conn := connections{postgres: f.postgres}
	conn.fromEnv(a)
	switch {
	case conn.postgres != "":
		return mapping.Ontology{Postgres: mapping.NewSecret(conn.postgres)}, nil
	case f.mapping != "":
		plan, err := a.loadMapping(f.mapping)
		if err != nil {
			return mapping.Ontology{}, err
		}
		// Only the database is needed here.
		conn.brokers = []string{"-"}
		return plan.Ontology, conn.into(plan)
	}
	return mapping.Ontology{}, usagef("say where the ontology is: --postgres URL, or %s, or --mapping FILE", envPostgres)
}

func (f *ontologyFlags) most(a *app) int {
	switch {
	case f.limit.given:
		return f.limit.most
	case a.json():
		return 0
	}
	return tableLimit
}

// answer prints what a question gives: JSON as it comes, or a table. It gives
// the number of rows printed.
func answer[T any](a *app, f *ontologyFlags, rows iter.Seq2[T, error], t *ui.Table, cells func(*T) []string) (int, error) {
	most, n := f.most(a), 0
	cut := false
	for row, err := range rows {
		if err != nil {
			return n, err
		}
		if cut = most > 0 && n == most; cut {
			break
		}
		n++
		if !a.json() {
			t.Row(cells(&row)...)
			continue
		}
		if err := a.printJSON(row); err != nil {
			return n, err
		}
	}
	if !a.json() && n > 0 {
		if err := t.Write(a.stdout); err != nil {
			return n, err
		}
	}
	if cut {
		fmt.Fprintf(a.stderr, "cut after %s; more with --limit N, all with --limit 0\n", ui.Number(n, "row"))
	}
	return n, nil
}

func (a *app) getCommand(f *ontologyFlags) *cobra.Command {
	return &cobra.Command{
		Use: "get TYPE ID", Short: "What is believed now of one object",
		Long: `Get gives what is believed of one object as of the safe horizon: the properties
that hold until further notice, and every window of its aggregates.`,
		Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.reader(c.Context(), f)
			if err != nil {
				return err
			}
			defer r.Close()
			n, err := answer(a, f, r.Get(c.Context(), args[0], args[1]), a.factTable(false), factCells(false))
			if err == nil && n == 0 {
				return notFound(args)
			}
			return err
		},
	}
}

func notFound(args []string) error {
	return &nothingError{fmt.Sprintf("nothing is known of %s %q; strom ontology list %s gives the ids", args[0], args[1], args[0])}
}

// factTable is for facts; whose says that they are of several objects.
func (a *app) factTable(whose bool) *ui.Table {
	heads := []string{"PROPERTY", "VALUE", "VALID FROM", "VALID TO", "RECORDED FROM", "CAUSE", ">VERSION"}
	if whose {
		heads = append([]string{"TYPE", "ID"}, heads...)
	}
	return &ui.Table{Heads: heads, Style: a.style()}
}

func factCells(whose bool) func(*ontology.Fact) []string {
	return func(f *ontology.Fact) []string {
		cells := []string{f.Property, valueText(f.Value), f.ValidFrom.String(), validTo(f.ValidTo), f.RecordedFrom.String(), causeText(f), versionText(f.Version)}
		if whose {
			cells = append([]string{f.Type, f.ID}, cells...)
		}
		return cells
	}
}

func valueText(v event.Value) string {
	if v.Null {
		return "(none)"
	}
	return v.Text
}

func validTo(t event.EventTime) string {
	if t == event.OpenEnd {
		return "(open)"
	}
	return t.String()
}

func causeText(f *ontology.Fact) string {
	if f.Reasserted {
		return f.Cause.String() + ", trimmed"
	}
	return f.Cause.String()
}

// versionText leaves out the version of what is no window.
func versionText(v uint32) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(v), 10)
}

func (a *app) historyCommand(f *ontologyFlags) *cobra.Command {
	var property string
	c := &cobra.Command{
		Use: "history TYPE ID", Short: "Every version of everything ever believed of one object",
		Long: `History gives every assertion of one object in the order in which they were
recorded, superseded versions and deletions included.`,
		Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.reader(c.Context(), f)
			if err != nil {
				return err
			}
			defer r.Close()
			if err := checkProperty(c.Context(), r, args[0], property); err != nil {
				return err
			}
			n, err := answer(a, f, r.History(c.Context(), args[0], args[1], property), a.historyHeads(), historyCells)
			if err == nil && n == 0 {
				return notFound(args)
			}
			return err
		},
	}
	c.Flags().StringVar(&property, "property", "", "only this property (of an aggregate: AGGREGATE.VALUE)")
	return c
}

// checkProperty refuses a property that nobody has declared: its history would
// be empty, and look as if there were none.
func checkProperty(ctx context.Context, r *ontology.Reader, typ, property string) error {
	if property == "" {
		return nil
	}
	types, err := r.Types(ctx)
	if err != nil {
		return err
	}
	for _, t := range types {
		for _, p := range t.Properties {
			if t.Name == typ && p.Name == property {
				return nil
			}
		}
	}
	return &ontology.UnknownNameError{Type: typ, Property: property}
}

func (a *app) historyHeads() *ui.Table {
	return &ui.Table{Style: a.style(), Heads: []string{
		"RECORDED FROM", "RECORDED TO", "PROPERTY", "VALID FROM", "VALID TO", "VALUE", "CAUSE", ">VERSION", ">LATE BY", "EVENT",
	}}
}

func historyCells(v *ontology.Assertion) []string {
	until := "(believed)"
	if v.RecordedTo != event.RecordedNever {
		until = v.RecordedTo.String()
	}
	return []string{
		v.RecordedFrom.String(), until, v.Property, v.ValidFrom.String(), validTo(v.ValidTo), valueText(v.Value),
		causeText(&v.Fact), versionText(v.Version), lateness(v.Lateness), v.Place.String(),
	}
}

// historyTable is a history of several objects.
func (a *app) historyTable(versions []ontology.Assertion) *ui.Table {
	t := a.historyHeads()
	t.Heads = append([]string{"TYPE", "ID"}, t.Heads...)
	for i := range versions {
		v := &versions[i]
		t.Row(append([]string{v.Type, v.ID}, historyCells(v)...)...)
	}
	return t
}

// parseTime reads RFC 3339, or a date alone: its midnight in UTC.
func parseTime(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("%q is not a time: write 2018-02-01T03:00:00Z, or a date", text)
}

// recordedTime also reads "now", the horizon.
func recordedTime(ctx context.Context, r *ontology.Reader, text, typ string) (event.RecordedTime, error) {
	if text == "now" {
		b, err := r.Bounds(ctx, typ)
		return b.Horizon, err
	}
	t, err := parseTime(text)
	return event.RecordedTime(event.FromTime(t)), err
}

// await waits for the horizon, where that is wanted.
func await(ctx context.Context, r *ontology.Reader, typ string, asked event.RecordedTime, patience time.Duration) error {
	if patience <= 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const every = 100 * time.Millisecond
	err := r.WaitHorizon(limited, typ, asked, every)
	if ctx.Err() != nil {
		return interrupted(ctx)
	}
	if beyond, ok := errors.AsType[*ontology.HorizonError](err); ok {
		return beyond // the patience has ended
	}
	return err
}

func addWaitFlag(c *cobra.Command, to *time.Duration) {
	c.Flags().DurationVar(to, "wait", 0, "wait so long for the safe horizon to reach the recorded time, as in 10s")
}
