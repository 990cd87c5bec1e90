package savepoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	manifestFile = "MANIFEST.json"
	partFile     = "PART.json"
	tasksDir     = "tasks"
	// underWay begins the names of what is being written.
	underWay = ".under-way-"
)

// Dir holds the savepoints of one pipeline.
type Dir struct{ path string }

// In gives the savepoints of a pipeline in a checkpoint directory, which need
// not be there.
func In(directory, pipeline string) Dir { return Dir{filepath.Join(directory, pipeline)} }

// Path is the directory.
func (d Dir) Path() string { return d.path }

// ValidName says why a name is not one of a savepoint, or nil.
func ValidName(name string) error {
	ok := name != "" && len(name) <= 100 && name[0] != '.' && name[0] != '-'
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}
	if !ok {
		return fmt.Errorf("%q is not the name of a savepoint: up to 100 letters, digits, dots, underscores and hyphens, the first a letter or a digit", name)
	}
	return nil
}

func (d Dir) savepoint(name string) string { return filepath.Join(d.path, name) }

func (d Dir) part(name string, t Task) string {
	return filepath.Join(d.path, name, tasksDir, t.Stage, t.Partition.String())
}

// WritePart copies a checkpoint (see state.Pebble.Checkpoint) into a savepoint
// as the part of its task, durably. Where the part is there already, of the same
// epoch, it does nothing: two owners of a task may both have the barrier. at is
// called when the files are there and the part is not; it may be nil.
func (d Dir) WritePart(ctx context.Context, checkpoint string, p Part, at func()) error {
	if err := ValidName(p.Savepoint); err != nil {
		return err
	}
	if at == nil {
		at = func() {}
	}
	p.V = version
	if there, err := d.hasPart(&p); there || err != nil {
		return err
	}
	final := d.part(p.Savepoint, p.Task)
	above := filepath.Dir(final)
	if err := os.MkdirAll(above, 0o750); err != nil {
		return fmt.Errorf("make the directory of a savepoint: %w", err)
	}
	temp := filepath.Join(above, fmt.Sprintf("%s%s-%08x", underWay, p.Partition, rand.Uint32()))
	defer func() { _ = os.RemoveAll(temp) }() // it is not there when it has been renamed
	if err := os.Mkdir(temp, 0o750); err != nil {
		return fmt.Errorf("make the directory of a savepoint: %w", err)
	}
	files, err := copyFiles(ctx, checkpoint, temp)
	if err != nil {
		return fmt.Errorf("copy a checkpoint to %s: %w", above, err)
	}
	p.Files = files
	raw, err := encode(&p)
	if err != nil {
		return fmt.Errorf("encode the part of %s: %w", p.Task, err)
	}
	if err := writeSynced(filepath.Join(temp, partFile), raw); err != nil {
		return err
	}
	if err := syncTree(temp); err != nil {
		return err
	}
	at()
	if err := os.Rename(temp, final); err != nil {
		if there, hasErr := d.hasPart(&p); there || hasErr != nil {
			return hasErr
		}
		return fmt.Errorf("name the part of %s: %w", p.Task, err)
	}
	return syncUp(above, filepath.Dir(d.path))
}

// hasPart reports whether the part is there; one of another epoch is an error.
func (d Dir) hasPart(p *Part) (bool, error) {
	have, _, err := d.readPart(p.Savepoint, p.Task)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if have.Epoch != p.Epoch || have.Recorded != p.Recorded {
		return false, fmt.Errorf("savepoint %s has epoch %s of task %s already, and is to get epoch %s: its name was used before; choose another",
			p.Savepoint, have.Epoch, p.Task, p.Epoch)
	}
	return true, nil
}

func (d Dir) readPart(name string, t Task) (*Part, string, error) {
	path := filepath.Join(d.part(name, t), partFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	p := &Part{}
	if err := json.Unmarshal(raw, p); err != nil {
		return nil, "", &DamagedError{File: path, Why: fmt.Sprintf("it is no part: %v", err)}
	}
	return p, sum(raw), nil
}

// Missing lists the tasks of which a savepoint has no part.
func (d Dir) Missing(name string, tasks []Task) []Task {
	var out []Task
	for _, t := range tasks {
		if _, err := os.Stat(filepath.Join(d.part(name, t), partFile)); err != nil {
			out = append(out, t)
		}
	}
	return out
}

// Complete writes the manifest if every task has its part, and reports whether
// the savepoint is whole. at is called when the manifest is about to appear; it
// may be nil.
func (d Dir) Complete(name string, p Pipeline, b Barrier, tasks []Task, at func()) (bool, error) {
	if len(d.Missing(name, tasks)) > 0 {
		return false, nil
	}
	path := filepath.Join(d.savepoint(name), manifestFile)
	if _, err := os.Stat(path); err == nil {
		return true, nil
	}
	m := Manifest{Name: name, Pipeline: p, Barrier: b, Created: time.Now().UTC().Truncate(time.Millisecond)}
	tasks = slices.Clone(tasks)
	slices.SortFunc(tasks, compareTasks)
	for _, t := range tasks {
		part, digest, err := d.readPart(name, t)
		if err != nil {
			return false, err
		}
		if part.Epoch != b.Epoch || part.Recorded != b.Recorded {
			return false, fmt.Errorf("savepoint %s: the part of task %s is of epoch %s, not of %s", name, t, part.Epoch, b.Epoch)
		}
		m.Tasks = append(m.Tasks, PartRef{Task: t, Offsets: part.Offsets, Bytes: part.bytes(), SHA256: digest})
	}
	raw, err := m.encode()
	if err != nil {
		return false, err
	}
	temp := filepath.Join(d.savepoint(name), fmt.Sprintf("%smanifest-%08x", underWay, rand.Uint32()))
	if err := writeSynced(temp, raw); err != nil {
		return false, err
	}
	defer func() { _ = os.Remove(temp) }() // it is not there when it has been renamed
	if at != nil {
		at()
	}
	if err := os.Rename(temp, path); err != nil {
		return false, fmt.Errorf("name the manifest: %w", err)
	}
	return true, syncDir(d.savepoint(name))
}

// copyFiles copies a tree of files, each synced, and gives their checksums.
func copyFiles(ctx context.Context, from, to string) ([]File, error) {
	var out []File
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || rel == "." {
			return err
		}
		if e.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o750)
		}
		f, err := copyFile(ctx, path, filepath.Join(to, rel))
		f.Path = filepath.ToSlash(rel)
		out = append(out, f)
		return err
	})
	return out, err
}

func copyFile(ctx context.Context, from, to string) (f File, err error) {
	in, err := os.Open(from)
	if err != nil {
		return f, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return f, err
	}
	h := sha256.New()
	f.Bytes, err = io.Copy(io.MultiWriter(out, h), &interruptible{ctx, in})
	if err == nil {
		err = out.Sync()
	}
	f.SHA256 = hex.EncodeToString(h.Sum(nil))
	return f, errors.Join(err, out.Close())
}

// interruptible ends with its context: a file may be large.
type interruptible struct {
	ctx context.Context //nolint:containedctx // io.Reader hands none in
	r   io.Reader
}

// Read implements io.Reader.
func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}

func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// syncTree syncs the directories of a tree: the names in them.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return syncDir(path)
	})
}

// syncUp syncs a directory and those above it, up to top.
func syncUp(dir, top string) error {
	for {
		if err := syncDir(dir); err != nil {
			return err
		}
		if dir == top || dir == filepath.Dir(dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	// Some network file systems cannot sync a directory; they order by themselves.
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
