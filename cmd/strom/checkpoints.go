package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/pipeline"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state/savepoint"
)

// checkpointDirOf is where savepoints are kept where --checkpoint-dir names no
// place.
func checkpointDirOf(dataDir string) string { return filepath.Join(dataDir, "checkpoints") }

// settled is how long nothing must have been written to a savepoint that is not
// whole before it counts as left behind.
const settled = 10 * time.Minute

type checkpointFlags struct{ dir string }

func (a *app) checkpointsCommand() *cobra.Command {
	f := &checkpointFlags{}
	c := &cobra.Command{
		Use: "checkpoints", Short: "Savepoints: list, create, restore and prune them",
		Long: `Checkpoints keeps savepoints of a pipeline: the state of every task at one
barrier, with the offsets and the recorded time that belong to it, in a
directory. A savepoint is whole when it has its manifest, which is written last;
every byte is covered by a checksum.

The directory is the --checkpoint-dir of the replicas: one for all of them and
for these commands, a shared mount where they run on several machines.`,
		Args: arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return usagef("say what to do: list, create, restore or prune (strom help checkpoints)")
		},
	}
	c.PersistentFlags().StringVar(&f.dir, "checkpoint-dir", checkpointDirOf(defaultDataDir), "directory of the savepoints")
	c.AddCommand(a.checkpointsListCommand(f), a.checkpointsCreateCommand(f), a.checkpointsRestoreCommand(f), a.checkpointsPruneCommand(f))
	return c
}

// savepointJSON is a savepoint as --format json shows it.
type savepointJSON struct {
	Savepoint string `json:"savepoint"`
	// State is whole, incomplete or unreadable.
	State      string           `json:"state"`
	Pipeline   string           `json:"pipeline,omitempty"`
	Generation event.Generation `json:"generation,omitempty"`
	Epoch      event.Epoch      `json:"epoch,omitempty"`
	Recorded   string           `json:"recorded,omitempty"`
	CreatedAt  string           `json:"created_at,omitempty"`
	Mapping    string           `json:"mapping_version,omitempty"`
	Tasks      int              `json:"tasks,omitempty"`
	Bytes      int64            `json:"bytes,omitempty"`
	Why        string           `json:"why,omitempty"`
}

func savepointOf(e *savepoint.Entry) savepointJSON {
	out := savepointJSON{Savepoint: e.Name, State: "whole"}
	switch {
	case e.Err != nil:
		out.State, out.Why = "unreadable", e.Err.Error()
	case !e.Whole():
		out.State = "incomplete"
	default:
		m := e.Manifest
		out.Pipeline, out.Generation, out.Mapping = m.Pipeline.Name, m.Pipeline.Generation, m.Pipeline.Mapping
		out.Epoch, out.Recorded = m.Barrier.Epoch, m.Barrier.Recorded.String()
		out.CreatedAt, out.Tasks, out.Bytes = m.Created.Format(time.RFC3339), len(m.Tasks), m.Bytes()
	}
	return out
}

// savepoints finds the savepoints of the pipeline of a mapping file.
func (a *app) savepoints(path string, f *checkpointFlags) (*mapping.Plan, savepoint.Dir, error) {
	plan, err := a.loadMapping(path)
	if err != nil {
		return nil, savepoint.Dir{}, err
	}
	return plan, savepoint.In(f.dir, plan.Pipeline), nil
}

func (a *app) checkpointsListCommand(f *checkpointFlags) *cobra.Command {
	return &cobra.Command{
		Use: "list MAPPING", Short: "List the savepoints of a pipeline, the newest first",
		Long: `List shows the savepoints of a pipeline, the newest first. One that is incomplete
is being written, or was left by a crash: it is never restored, and prune removes
it. Whether the files of a whole one are as they were written, restore finds out.`,
		Args: arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			_, dir, err := a.savepoints(args[0], f)
			if err != nil {
				return err
			}
			list, err := dir.List()
			if err != nil {
				return err
			}
			return a.printSavepoints(list, dir)
		},
	}
}

func (a *app) printSavepoints(list []savepoint.Entry, dir savepoint.Dir) error {
	if a.json() {
		for i := range list {
			if err := a.printJSON(savepointOf(&list[i])); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		fmt.Fprintf(a.stdout, "no savepoints in %s\n", dir.Path())
		return nil
	}
	return savepointTable(list, a.style()).Write(a.stdout)
}

func savepointTable(list []savepoint.Entry, style ui.Style) *ui.Table {
	t := &ui.Table{Heads: []string{"savepoint", ">generation", ">epoch", "recorded", "created", ">tasks", ">bytes", "state"}, Style: style}
	for i := range list {
		s := savepointOf(&list[i])
		if s.State != "whole" {
			t.Row(s.Savepoint, "", "", "", "", "", "", s.State)
			continue
		}
		t.Row(s.Savepoint, s.Generation.String(), s.Epoch.String(), s.Recorded, s.CreatedAt, ui.Count(s.Tasks), ui.Count(s.Bytes), s.State)
	}
	return t
}

type createFlags struct {
	connections
	name    string
	timeout time.Duration
}

func (a *app) checkpointsCreateCommand(dir *checkpointFlags) *cobra.Command {
	var f createFlags
	c := &cobra.Command{
		Use: "create MAPPING", Short: "Make a savepoint of a running pipeline",
		Long: `Create asks the running replicas for a savepoint: one of the next barriers carries
it, every task keeps a checkpoint of exactly that barrier, and the manifest is
written when all are there. The pipeline goes on meanwhile. It prints the
savepoint's name when it is whole; what is missing when it is not in time.

Under epoch.clock: log a barrier comes only with further records.`,
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return a.createCheckpoint(c.Context(), args[0], dir, f) },
	}
	addConnectionFlags(c, &f.connections)
	c.Flags().StringVar(&f.name, "name", "", "name of the savepoint; by default the time of day")
	c.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait until it is whole")
	return c
}

func (a *app) createCheckpoint(ctx context.Context, path string, dir *checkpointFlags, f createFlags) error {
	plan, saved, err := a.savepoints(path, dir)
	if err != nil {
		return err
	}
	if f.name == "" {
		f.name = fmt.Sprintf("%s-%04x", time.Now().UTC().Format("20060102T150405Z"), rand.Uint32()&0xffff)
	}
	if err := savepoint.ValidName(f.name); err != nil {
		return usagef("--name: %w", err)
	}
	if f.timeout <= 0 {
		return usagef("--timeout %s: give a time to wait, as 5m", f.timeout)
	}
	f.fromEnv(a)
	if err := f.into(plan); err != nil {
		return err
	}
	topology, err := pipeline.Topology(ctx, plan, plan.Kafka, plan.Ontology, a.log)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	progress := a.progress(5 * time.Second)
	m, err := kafka.CreateSavepoint(limited, kafka.SavepointRequest{
		Kafka: plan.Kafka, Topology: topology, CheckpointDir: dir.dir, Name: f.name, Log: a.log,
		Progress: func(p kafka.SavepointProgress) {
			progress.Show(func() string {
				done := p.Tasks - len(p.Missing)
				return fmt.Sprintf("%s barrier %s: %d of %d tasks have written their part", ui.Bar(int64(done), int64(p.Tasks), 20), p.Epoch, done, p.Tasks)
			})
		},
	})
	progress.Clear()
	if err != nil {
		return orInterrupted(ctx, err)
	}
	e := savepoint.Entry{Name: m.Name, Manifest: m}
	if a.json() {
		return a.printJSON(savepointOf(&e))
	}
	fmt.Fprintf(a.stdout, "savepoint %s: epoch %s, recorded %s, %s, %s bytes, in %s\n", m.Name, m.Barrier.Epoch, m.Barrier.Recorded,
		ui.Number(len(m.Tasks), "task"), ui.Count(m.Bytes()), filepath.Join(saved.Path(), m.Name))
	return nil
}

type restoreFlags struct {
	connections
	dryRun bool
}

func (a *app) checkpointsRestoreCommand(dir *checkpointFlags) *cobra.Command {
	var f restoreFlags
	c := &cobra.Command{
		Use: "restore MAPPING NAME", Short: "Go on from a savepoint, as a new generation",
		Long: `Restore reads every byte of a savepoint, and makes a new generation of the
pipeline from it: with topics of its own, the state and the offsets of the
savepoint. The barriers that were announced since are laid down to be repeated,
each with its recorded time and the same records: what is published stays as it
is, and the pipeline goes on behind it as if it had never been restored. All
replicas must be stopped; a run after that is of the new generation, with any
number of replicas. The generation before is fenced: a replica of it that wakes
up stops and says so.

It is refused, before anything is changed, where that would not be exact: another
mapping, other numbers of partitions, an input or a control topic that no longer
holds what followed the savepoint. A damaged savepoint is refused with the file,
and the newest other one that is whole is named.`,
		Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.restoreCheckpoint(c.Context(), args[0], args[1], dir, f)
		},
	}
	addConnectionFlags(c, &f.connections)
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "check everything, and change nothing")
	return c
}

// restoredJSON is what restore has done, as --format json shows it.
type restoredJSON struct {
	Savepoint string           `json:"savepoint"`
	Pipeline  string           `json:"pipeline"`
	From      event.Generation `json:"from_generation"`
	To        event.Generation `json:"to_generation"`
	Epoch     event.Epoch      `json:"epoch"`
	Recorded  string           `json:"recorded"`
	// Applied is the last epoch that the ontology has, Repeats the number of
	// those that are repeated.
	Applied event.Epoch `json:"applied"`
	Repeats int64       `json:"repeats"`
	DryRun  bool        `json:"dry_run,omitempty"`
}

func (a *app) restoreCheckpoint(ctx context.Context, path, name string, dir *checkpointFlags, f restoreFlags) error {
	plan, _, err := a.savepoints(path, dir)
	if err != nil {
		return err
	}
	if err := savepoint.ValidName(name); err != nil {
		return usagef("%w", err)
	}
	f.fromEnv(a)
	if err := f.into(plan); err != nil {
		return err
	}
	topology, err := pipeline.Topology(ctx, plan, plan.Kafka, plan.Ontology, a.log)
	if err != nil {
		return err
	}
	progress := a.progress(5 * time.Second)
	done, err := kafka.RestoreSavepoint(ctx, kafka.RestoreRequest{
		Kafka: plan.Kafka, Topology: topology, CheckpointDir: dir.dir, Name: name, DryRun: f.dryRun, Log: a.log,
		OpenOntology: pipeline.OpenOntology(plan.Ontology, ontology.Options{Logger: a.log}),
		Succeed: func(ctx context.Context, s ontology.Succession) error {
			return ontology.Succeed(ctx, plan.Ontology, s)
		},
		Progress: func(doing string, done, of int64) {
			progress.Show(func() string { return ui.Bar(done, of, 20) + " " + doing })
		},
	})
	progress.Clear()
	if err != nil {
		return orInterrupted(ctx, err)
	}
	return a.printRestored(newRestoredJSON(plan.Pipeline, done, f.dryRun))
}

func newRestoredJSON(name string, r *kafka.Restored, dryRun bool) restoredJSON {
	b := &r.Manifest.Barrier
	return restoredJSON{
		Savepoint: r.Manifest.Name, Pipeline: name, From: r.From, To: r.To, Epoch: b.Epoch, Recorded: b.Recorded.String(),
		Applied: r.Applied, Repeats: int64(r.Repeated - b.Epoch), DryRun: dryRun,
	}
}

func (a *app) printRestored(r restoredJSON) error {
	if a.json() {
		return a.printJSON(r)
	}
	verb := "is restored"
	if r.DryRun {
		verb = "can be restored"
	}
	fmt.Fprintf(a.stdout, "savepoint %s (epoch %s, recorded %s) %s as generation %s of pipeline %s\n", r.Savepoint, r.Epoch, r.Recorded, verb, r.To, r.Pipeline)
	fmt.Fprintf(a.stdout, "the ontology has epoch %s of generation %s, and keeps it; %s repeated by the next run\n", r.Applied, r.From, ui.Number(r.Repeats, "epoch"))
	return nil
}

type pruneFlags struct {
	keep      int
	olderThan time.Duration
	dryRun    bool
}

func (a *app) checkpointsPruneCommand(dir *checkpointFlags) *cobra.Command {
	var f pruneFlags
	c := &cobra.Command{
		Use: "prune MAPPING --keep N", Short: "Remove the oldest savepoints",
		Long: `Prune removes all but the newest N whole savepoints; with --older-than only those
of the others that are older. It also removes what crashes have left: savepoints
that are not whole and to which nothing was written for ten minutes. One that
this build cannot read stays.`,
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if !c.Flags().Changed("keep") || f.keep < 1 {
				return usagef("say how many to keep, at least one: --keep N")
			}
			if f.olderThan < 0 {
				return usagef("--older-than %s: give an age, as 168h", f.olderThan)
			}
			return a.pruneCheckpoints(args[0], dir, f)
		},
	}
	c.Flags().IntVar(&f.keep, "keep", 0, "how many of the newest stay")
	c.Flags().DurationVar(&f.olderThan, "older-than", 0, "remove only what is older")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be removed, and remove nothing")
	return c
}

// prunedJSON is a savepoint that prune removes, as --format json shows it.
type prunedJSON struct {
	savepointJSON
	Removed bool `json:"removed"`
}

func (a *app) pruneCheckpoints(path string, f *checkpointFlags, p pruneFlags) error {
	_, dir, err := a.savepoints(path, f)
	if err != nil {
		return err
	}
	list, err := dir.List()
	if err != nil {
		return err
	}
	now := time.Now()
	gone := savepoint.Surplus(list, p.keep, now.Add(-p.olderThan), now.Add(-settled))
	for i := range gone {
		e := &gone[i]
		if !p.dryRun {
			if err := dir.Remove(e.Name); err != nil {
				return err
			}
		}
		if a.json() {
			if err := a.printJSON(prunedJSON{savepointOf(e), !p.dryRun}); err != nil {
				return err
			}
			continue
		}
		verb := "removed"
		if p.dryRun {
			verb = "would remove"
		}
		fmt.Fprintf(a.stdout, "%s %s (%s)\n", verb, e.Name, savepointOf(e).State)
	}
	if !a.json() {
		fmt.Fprintf(a.stdout, "%s of %s in %s\n", ui.Number(len(list)-len(gone), "savepoint")+" left", ui.Count(len(list)), dir.Path())
	}
	return nil
}
