package savepoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Entry is one savepoint of a directory.
type Entry struct {
	Name string
	// Manifest is nil where the savepoint is not whole.
	Manifest *Manifest
	// Err says why a manifest that is there cannot be used.
	Err error
	// Written is when something was last written to one that is not whole.
	Written time.Time
}

// Whole reports whether there is a manifest that can be used; the files may be
// damaged all the same, see Verify.
func (e *Entry) Whole() bool { return e.Manifest != nil }

// UnknownError says that there is no whole savepoint of that name.
type UnknownError struct {
	Name, Dir string
	// Half: there is one that never became whole.
	Half bool
}

// Error says what to do as well.
func (e *UnknownError) Error() string {
	if e.Half {
		return fmt.Sprintf("savepoint %s in %s never became whole: it has no manifest; choose another, and remove this one by strom checkpoints prune", e.Name, e.Dir)
	}
	return fmt.Sprintf("there is no savepoint %s in %s; strom checkpoints list shows what there is", e.Name, e.Dir)
}

// List gives the savepoints, the newest first: by generation and epoch; those
// that are not whole stand at the end. A directory that is not there holds none.
func (d Dir) List() ([]Entry, error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list savepoints: %w", err)
	}
	var out []Entry
	for _, e := range entries {
		if !e.IsDir() || ValidName(e.Name()) != nil {
			continue
		}
		s := Entry{Name: e.Name()}
		s.Manifest, err = d.Manifest(e.Name())
		if unknown := (*UnknownError)(nil); err != nil && !errors.As(err, &unknown) {
			s.Err = err
		}
		if s.Manifest == nil {
			s.Written = newest(d.savepoint(e.Name()))
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, newestFirst)
	return out, nil
}

func newestFirst(a, b Entry) int {
	switch {
	case a.Whole() && b.Whole():
		return cmp.Or(cmp.Compare(b.Manifest.Pipeline.Generation, a.Manifest.Pipeline.Generation),
			cmp.Compare(b.Manifest.Barrier.Epoch, a.Manifest.Barrier.Epoch), cmp.Compare(a.Name, b.Name))
	case a.Whole():
		return -1
	case b.Whole():
		return 1
	}
	return cmp.Or(b.Written.Compare(a.Written), cmp.Compare(a.Name, b.Name))
}

// newest is the time of the newest thing in a tree.
func newest(root string) (at time.Time) {
	// What vanishes meanwhile is not the newest.
	_ = filepath.WalkDir(root, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		if info, err := e.Info(); err == nil && info.ModTime().After(at) {
			at = info.ModTime()
		}
		return nil
	})
	return at
}

// Manifest reads the manifest of a savepoint. Its errors are *UnknownError,
// *DamagedError, event.ErrVersion, and those of the file system.
func (d Dir) Manifest(name string) (*Manifest, error) {
	if err := ValidName(name); err != nil {
		return nil, err
	}
	path := filepath.Join(d.savepoint(name), manifestFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Stat(d.savepoint(name))
		return nil, &UnknownError{Name: name, Dir: d.path, Half: err == nil}
	}
	if err != nil {
		return nil, fmt.Errorf("read a savepoint: %w", err)
	}
	m, err := decode(path, raw)
	if err == nil && m.Name != name {
		return nil, &DamagedError{File: path, Why: fmt.Sprintf("it is of savepoint %s", m.Name)}
	}
	return m, err
}

// Verify reads every byte of a savepoint and compares it with its checksums.
// read, where not nil, is told of the bytes as they are read. Beyond the errors
// of Manifest, a *DamagedError says which file is damaged.
func (d Dir) Verify(ctx context.Context, name string, read func(bytes int64)) (*Manifest, error) {
	m, err := d.Manifest(name)
	if err != nil {
		return nil, err
	}
	for i := range m.Tasks {
		if err := d.verifyPart(ctx, m, &m.Tasks[i], read); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (d Dir) verifyPart(ctx context.Context, m *Manifest, ref *PartRef, read func(int64)) error {
	dir := d.part(m.Name, ref.Task)
	path := filepath.Join(dir, partFile)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &DamagedError{File: path, Why: "it is missing"}
	case err != nil:
		return fmt.Errorf("read a savepoint: %w", err)
	case sum(raw) != ref.SHA256:
		return &DamagedError{File: path, Why: "its content does not match the manifest"}
	}
	var p Part
	if err := json.Unmarshal(raw, &p); err != nil || p.V != version {
		return &DamagedError{File: path, Why: fmt.Sprintf("it is no part of version %d", version)}
	}
	for i := range p.Files {
		if err := verifyFile(ctx, dir, &p.Files[i], read); err != nil {
			return err
		}
	}
	return nil
}

func verifyFile(ctx context.Context, dir string, f *File, read func(int64)) error {
	path := filepath.Join(dir, filepath.FromSlash(f.Path))
	if !filepath.IsLocal(filepath.FromSlash(f.Path)) {
		return &DamagedError{File: path, Why: "its name leads out of the savepoint"}
	}
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &DamagedError{File: path, Why: "it is missing"}
	}
	if err != nil {
		return fmt.Errorf("read a savepoint: %w", err)
	}
	defer in.Close()
	h := sha256.New()
	n, err := io.Copy(h, &interruptible{ctx, in})
	if err != nil {
		return fmt.Errorf("read a savepoint: %s: %w", path, err)
	}
	if read != nil {
		read(n)
	}
	switch {
	case n != f.Bytes:
		return &DamagedError{File: path, Why: fmt.Sprintf("it has %d bytes, and had %d", n, f.Bytes)}
	case hex.EncodeToString(h.Sum(nil)) != f.SHA256:
		return &DamagedError{File: path, Why: "its content does not match its checksum"}
	}
	return nil
}

// PartDir is where the checkpoint of a task lies, for state.OpenCheckpoint.
func (d Dir) PartDir(name string, t Task) string { return d.part(name, t) }

// NewestWhole gives the newest savepoint, but for those of the given names, of
// which every byte is as it was written; "" where there is none.
func (d Dir) NewestWhole(ctx context.Context, but ...string) (string, error) {
	list, err := d.List()
	if err != nil {
		return "", err
	}
	for i := range list {
		if !list[i].Whole() || slices.Contains(but, list[i].Name) {
			continue
		}
		if _, err := d.Verify(ctx, list[i].Name, nil); err == nil {
			return list[i].Name, nil
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
	}
	return "", nil
}

// Remove removes a savepoint: the manifest first, so that what a crash leaves
// is not whole.
func (d Dir) Remove(name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	dir := d.savepoint(name)
	err := os.Remove(filepath.Join(dir, manifestFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove savepoint %s: %w", name, err)
	}
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("remove savepoint %s: %w", name, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove savepoint %s: %w", name, err)
	}
	return nil
}

// Surplus are the savepoints that go where the newest keep are to stay. Of the
// others those go that are taken before olderThan; and those that never became
// whole, unless something has been written to them since settled: they may
// become whole yet. What this build cannot read stays.
func Surplus(list []Entry, keep int, olderThan, settled time.Time) []Entry {
	var out []Entry
	whole := 0
	for i := range list {
		e := &list[i]
		switch {
		case e.Whole():
			whole++
			if whole > keep && e.Manifest.Created.Before(olderThan) {
				out = append(out, *e)
			}
		case e.Err == nil && e.Written.Before(settled):
			out = append(out, *e)
		}
	}
	return out
}

// Names joins the names of tasks.
func Names(tasks []Task) string {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = t.String()
	}
	return strings.Join(names, ", ")
}
