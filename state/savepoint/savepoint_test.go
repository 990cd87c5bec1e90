package savepoint_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/state/savepoint"
)

var errCrash = errors.New("the process ends here")

func tasks() []savepoint.Task {
	return []savepoint.Task{{Stage: "ingest.x", Partition: 0}, {Stage: "ingest.x", Partition: 1}, {Stage: "aggregate.y", Partition: 0}}
}

func pipelineOf(g event.Generation) savepoint.Pipeline {
	return savepoint.Pipeline{Name: "p", Generation: g, Mapping: "m", Cluster: "c", Formats: state.Formats()}
}

// entries are what the store of a task holds, ids among them.
func entries(t savepoint.Task) []state.Change {
	return []state.Change{
		{Key: []byte("wa"), Value: []byte("one of " + t.String())},
		{Key: []byte("wb"), Value: []byte{}},
		{Key: state.IDBlockKey(7, 3, 0), Value: state.AppendIDBlock(nil, []state.SeenID{{ID: "x", Content: 1}, {ID: "", Content: 2}})},
		{Key: state.IDBlockKey(8, 3, 0), Value: state.AppendIDBlock(nil, []state.SeenID{{ID: "x", Content: 3}})},
	}
}

// checkpoint makes the checkpoint of a task's store.
func checkpoint(t *testing.T, task savepoint.Task) string {
	t.Helper()
	st, err := state.OpenPebble(t.TempDir(), state.Identity{Pipeline: "p", Generation: 1, Stage: task.Stage, Partition: task.Partition}, state.PebbleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := st.Apply(&state.Batch{Changes: entries(task), Position: 5}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if err := st.Checkpoint(dir); err != nil {
		t.Fatal(err)
	}
	// What comes after the barrier is not in it.
	if err := st.Apply(&state.Batch{Changes: []state.Change{{Key: []byte("wz"), Value: []byte("later")}}, Position: 6}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func writePart(t *testing.T, d savepoint.Dir, name string, task savepoint.Task, epoch event.Epoch) {
	t.Helper()
	part := savepoint.Part{
		Savepoint: name, Task: task, Epoch: epoch, Recorded: event.RecordedTime(epoch) * 1000,
		Offsets: map[string]event.Offset{"in": event.Offset(epoch)},
	}
	if err := d.WritePart(t.Context(), checkpoint(t, task), part, nil); err != nil {
		t.Fatal(err)
	}
}

func barrier(epoch event.Epoch) savepoint.Barrier {
	return savepoint.Barrier{Epoch: epoch, Recorded: event.RecordedTime(epoch) * 1000, Watermarks: map[string]event.Watermark{"x": 9}}
}

func write(t *testing.T, d savepoint.Dir, name string, epoch event.Epoch) {
	t.Helper()
	for i, task := range tasks() {
		if whole, err := d.Complete(name, pipelineOf(1), barrier(epoch), tasks(), nil); whole || err != nil {
			t.Fatalf("whole with %d parts of %d: %v, %v", i, len(tasks()), whole, err)
		}
		writePart(t, d, name, task, epoch)
	}
	if whole, err := d.Complete(name, pipelineOf(1), barrier(epoch), tasks(), nil); !whole || err != nil {
		t.Fatalf("whole: %v, %v", whole, err)
	}
}

func names(list []savepoint.Entry) string {
	var out []string
	for i := range list {
		name := list[i].Name
		if !list[i].Whole() {
			name += " (not whole)"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func TestASavepointHoldsTheStoresOfItsBarrier(t *testing.T) {
	d := savepoint.In(t.TempDir(), "p")
	write(t, d, "one", 3)
	m, err := d.Verify(t.Context(), "one", nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Barrier.Epoch != 3 || m.Barrier.Watermarks["x"] != 9 || len(m.Tasks) != 3 || m.Bytes() == 0 || m.Offsets(tasks()[1])["in"] != 3 {
		t.Errorf("manifest: %+v", m)
	}
	for _, task := range tasks() {
		before := tree(t, d.PartDir("one", task))
		st, id, err := state.OpenCheckpoint(d.PartDir("one", task), state.PebbleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if id.Stage != task.Stage || id.Partition != task.Partition {
			t.Errorf("task %s: the checkpoint is of %+v", task, id)
		}
		again := state.NewMemory()
		batch := &state.Batch{Position: 1}
		if err := state.Entries(st, 4, func(k, v []byte) error {
			batch.Changes = append(batch.Changes, state.Change{Key: slices.Clone(k), Value: append([]byte{}, v...)})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := again.Apply(batch); err != nil {
			t.Fatal(err)
		}
		want := state.NewMemory()
		if err := want.Apply(&state.Batch{Changes: entries(task), Position: 1}); err != nil {
			t.Fatal(err)
		}
		if got, want := dump(t, again), dump(t, want); got != want {
			t.Errorf("task %s: the changelog made of the checkpoint gives\n%s\nwant\n%s", task, got, want)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		if after := tree(t, d.PartDir("one", task)); !slices.Equal(before, after) {
			t.Errorf("reading has changed the savepoint: %v, then %v", before, after)
		}
	}
}

// dump shows a store without the keys of blocks, which carry an epoch.
func dump(t *testing.T, r state.Reader) string {
	t.Helper()
	var b strings.Builder
	if err := r.Scan(state.Range{From: []byte{0}, To: []byte{0xff}}, func(k, v []byte) (bool, error) {
		if k[0] != state.KeyIDBlock {
			b.WriteString(string(k) + "=" + string(v) + "\n")
		}
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func tree(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	if err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestABitFlippedInAnyFileIsFoundAndNamed(t *testing.T) {
	d := savepoint.In(t.TempDir(), "p")
	write(t, d, "older", 3)
	write(t, d, "newer", 4)
	root := filepath.Join(d.Path(), "newer")
	files := tree(t, root)
	if len(files) < 3*5 {
		t.Fatalf("only %d files: %v", len(files), files)
	}
	for _, path := range files {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// The first, the middle and the last byte; in the manifest every one.
		places := []int{0, len(good) / 2, len(good) - 1}
		if filepath.Base(path) == "MANIFEST.json" {
			places = places[:0]
			for i := range good {
				places = append(places, i)
			}
		}
		if len(good) == 0 {
			places = nil
		}
		for _, i := range places {
			bad := slices.Clone(good)
			bad[i] ^= 0x20
			refused(t, d, root, path, bad)
		}
		if len(good) > 0 {
			refused(t, d, root, path, good[:len(good)-1])
		}
		refused(t, d, root, path, append(slices.Clone(good), 'x'))
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if name, err := d.NewestWhole(t.Context()); name != "newer" || err != nil {
		t.Errorf("the newest whole one, when all is as it was: %q, %v", name, err)
	}
	if err := os.Remove(files[1]); err != nil {
		t.Fatal(err)
	}
	var damaged *savepoint.DamagedError
	if _, err := d.Verify(t.Context(), "newer", nil); !errors.As(err, &damaged) || damaged.File != files[1] {
		t.Errorf("a missing file: %v", err)
	}
}

func refused(t *testing.T, d savepoint.Dir, root, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := d.Verify(t.Context(), filepath.Base(root), nil)
	var damaged *savepoint.DamagedError
	if errors.Is(err, event.ErrVersion) && filepath.Base(path) == "MANIFEST.json" {
		return // the flipped bit is in the version
	}
	if !errors.As(err, &damaged) || damaged.File != path || !errors.Is(err, state.ErrDamaged) {
		t.Fatalf("%s with %d other bytes: %v", path, len(content), err)
	}
	if filepath.Base(path) != "MANIFEST.json" { // there it would be asked too often
		if name, err := d.NewestWhole(t.Context(), filepath.Base(root)); name != "older" || err != nil {
			t.Fatalf("%s: the one before is not offered: %q, %v", path, name, err)
		}
	}
}

func TestWhatACrashLeavesHalfIsNeverWholeAndCanBeRemoved(t *testing.T) {
	d := savepoint.In(t.TempDir(), "p")
	write(t, d, "whole", 3)
	crash := func(at string, do func()) {
		t.Run(at, func(t *testing.T) {
			defer func() {
				if r := recover(); r != errCrash { //nolint:errorlint // the value itself
					t.Fatalf("no crash at %s: %v", at, r)
				}
				list, err := d.List()
				if err != nil || names(list) != "whole half (not whole)" {
					t.Fatalf("after a crash at %s: %s, %v", at, names(list), err)
				}
				var unknown *savepoint.UnknownError
				if _, err := d.Verify(t.Context(), "half", nil); !errors.As(err, &unknown) || !unknown.Half {
					t.Errorf("what a crash left is offered: %v", err)
				}
			}()
			do()
		})
	}
	die := func() { panic(errCrash) }
	crash("savepoint.files", func() {
		_ = d.WritePart(t.Context(), checkpoint(t, tasks()[0]), savepoint.Part{Savepoint: "half", Task: tasks()[0], Epoch: 4, Recorded: 4000}, die)
	})
	for _, task := range tasks() {
		writePart(t, d, "half", task, 4) // another owner of the task has the barrier too
	}
	crash("savepoint.manifest", func() { _, _ = d.Complete("half", pipelineOf(1), barrier(4), tasks(), die) })
	list, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if got := names(savepoint.Surplus(list, 1, now, now.Add(-time.Minute))); got != "" {
		t.Errorf("what may be under way goes: %s", got)
	}
	gone := savepoint.Surplus(list, 1, now, now.Add(time.Minute))
	if names(gone) != "half (not whole)" {
		t.Fatalf("what goes: %s", names(gone))
	}
	if err := d.Remove("half"); err != nil {
		t.Fatal(err)
	}
	if list, err := d.List(); err != nil || names(list) != "whole" {
		t.Errorf("left: %s, %v", names(list), err)
	}
}

func TestAPartOfAnotherEpochIsRefusedAndOneOfTheSameIsKept(t *testing.T) {
	d := savepoint.In(t.TempDir(), "p")
	task := tasks()[0]
	writePart(t, d, "s", task, 4)
	writePart(t, d, "s", task, 4)
	err := d.WritePart(t.Context(), checkpoint(t, task), savepoint.Part{Savepoint: "s", Task: task, Epoch: 5, Recorded: 5000}, nil)
	if err == nil || !strings.Contains(err.Error(), "its name was used before") {
		t.Errorf("a part of another epoch: %v", err)
	}
	if left := tree(t, d.Path()); slices.ContainsFunc(left, func(p string) bool { return strings.Contains(p, ".under-way-") }) {
		t.Errorf("left behind: %v", left)
	}
}

func TestAnInterruptedCopyLeavesNoPart(t *testing.T) {
	d := savepoint.In(t.TempDir(), "p")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := d.WritePart(ctx, checkpoint(t, tasks()[0]), savepoint.Part{Savepoint: "s", Task: tasks()[0]}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if left := tree(t, d.Path()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTheNewestStayAndTheOldestGo(t *testing.T) {
	d := savepoint.In(t.TempDir(), "p")
	for i, name := range []string{"c", "a", "b"} {
		write(t, d, name, event.Epoch(3+i))
	}
	list, err := d.List()
	if err != nil || names(list) != "b a c" {
		t.Fatalf("list: %s, %v", names(list), err)
	}
	now := time.Now()
	later := now.Add(time.Hour)
	for keep, want := range []string{"b a c", "a c", "c", ""} {
		if got := names(savepoint.Surplus(list, keep, later, now)); got != want {
			t.Errorf("keep %d: %q goes, want %q", keep, got, want)
		}
	}
	if got := names(savepoint.Surplus(list, 1, now.Add(-time.Hour), now)); got != "" {
		t.Errorf("younger than asked for: %q goes", got)
	}
	for _, bad := range []string{"", ".", "..", "a/b", ".hidden", "-x", strings.Repeat("x", 101)} {
		if err := d.Remove(bad); err == nil {
			t.Errorf("%q is taken for a name", bad)
		}
	}
}
