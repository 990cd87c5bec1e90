// Package datadir keeps a data directory for one pipeline, and for one process
// at a time.
//
// A directory that a pipeline has claimed holds STROM.json, which names it, and
// a lock file. A directory that another pipeline has claimed, or that holds
// files of somebody else's, is refused before anything is written into it.
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forge-platform/strom/internal/filelock"
)

const (
	claimFile = "STROM.json"
	lockFile  = "lock"
	version   = 1
	// tempPrefix begins the names of temporary directories.
	tempPrefix = "strom-demo-"
)

// claim is the content of STROM.json.
type claim struct {
	V        int    `json:"v"`
	Pipeline string `json:"pipeline"`
}

// ForeignError says that a directory is not this pipeline's.
type ForeignError struct {
	Dir string
	// Owner is the pipeline that has claimed it; empty where it is not one of
	// Strom's directories.
	Owner, Pipeline string
	// Files are some of what it holds, where it is not one of Strom's.
	Files []string
}

// Error says what to do as well.
func (e *ForeignError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("data directory %s holds files that are not Strom's (%s): name another with --data-dir, one that is empty or does not exist",
			e.Dir, strings.Join(e.Files, ", "))
	}
	return fmt.Sprintf("data directory %s belongs to pipeline %q, not to %q: name another with --data-dir, or, if pipeline %q is gone for good, remove this directory and nothing above it: %s",
		e.Dir, e.Owner, e.Pipeline, e.Owner, e.Dir)
}

// InUseError says that another process uses the directory.
type InUseError struct {
	Dir string
	PID int // 0 if it is not known
}

// Error says what to do as well.
func (e *InUseError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("data directory %s is in use by %s: stop that one first, or name another directory with --data-dir", e.Dir, who)
}

// UnusableError says that the directory cannot be used.
type UnusableError struct {
	Dir string
	Err error
}

// Error says what to do as well.
func (e *UnusableError) Error() string {
	return fmt.Sprintf("data directory %s cannot be used: %v; name another with --data-dir", e.Dir, e.Err)
}

// Unwrap gives the cause.
func (e *UnusableError) Unwrap() error { return e.Err }

// Dir is a directory that this process holds.
type Dir struct {
	path string
	lock *filelock.Lock
	temp bool
}

// Claim makes the directory if need be and takes it for the pipeline. Its
// errors are *ForeignError, *InUseError and *UnusableError.
func Claim(path, pipeline string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &UnusableError{Dir: path, Err: err}
	}
	have, err := readClaim(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := refuseStrange(path, pipeline); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case have.Pipeline != pipeline:
		return nil, &ForeignError{Dir: path, Owner: have.Pipeline, Pipeline: pipeline}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, &UnusableError{Dir: path, Err: err}
	}
	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}
	if err := writeClaim(path, pipeline); err != nil {
		_ = lock.Release()
		return nil, &UnusableError{Dir: path, Err: err}
	}
	return &Dir{path: path, lock: lock}, nil
}

// Temp makes a temporary directory that Release removes. It also removes those
// that processes have left behind which were killed.
func Temp() (*Dir, error) {
	sweep(os.TempDir())
	path, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return nil, &UnusableError{Dir: os.TempDir(), Err: err}
	}
	lock, err := acquire(path)
	if err != nil {
		_ = os.RemoveAll(path)
		return nil, err
	}
	return &Dir{path: path, lock: lock, temp: true}, nil
}

// sweep removes what killed processes have left. A directory is young while
// its maker may not have locked it yet.
func sweep(parent string) {
	const young = time.Minute
	left, err := filepath.Glob(filepath.Join(parent, tempPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, lockFile)); err != nil && time.Since(info.ModTime()) < young {
			continue
		}
		lock, err := filelock.Acquire(filepath.Join(dir, lockFile))
		if err != nil {
			continue // in use, or somebody else's
		}
		_ = os.RemoveAll(dir) // the next one tries again
		_ = lock.Release()
	}
}

// Path gives a path inside the directory.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Release gives the directory back; a temporary one is removed. It is safe to
// call twice.
func (d *Dir) Release() error {
	var err error
	if d.temp {
		err = os.RemoveAll(d.path)
	}
	return errors.Join(err, d.lock.Release())
}

func acquire(path string) (*filelock.Lock, error) {
	lock, err := filelock.Acquire(filepath.Join(path, lockFile))
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		return nil, &InUseError{Dir: path, PID: held.PID}
	}
	if err != nil {
		return nil, &UnusableError{Dir: path, Err: err}
	}
	return lock, nil
}

func readClaim(path string) (claim, error) {
	var c claim
	name := filepath.Join(path, claimFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return c, &UnusableError{Dir: path, Err: err}
	}
	if err := json.Unmarshal(text, &c); err != nil || c.V != version {
		return c, &UnusableError{Dir: path, Err: fmt.Errorf("%s was not written by this version of Strom (where the pipeline's Kafka is elsewhere, the directory may be removed: it is rebuilt from there)", claimFile)}
	}
	return c, nil
}

func writeClaim(path, pipeline string) error {
	text, err := json.Marshal(claim{V: version, Pipeline: pipeline})
	if err != nil {
		return err
	}
	// Whole or not at all: a torn file would make the directory unreadable.
	name := filepath.Join(path, claimFile)
	if err := os.WriteFile(name+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// refuseStrange refuses a directory that nobody has claimed and that holds
// what is not Strom's. What Strom makes before a claim is written is its own.
func refuseStrange(path, pipeline string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &UnusableError{Dir: path, Err: err}
	}
	const most = 3
	var strange []string
	for _, e := range entries {
		if slices.Contains([]string{lockFile, claimFile + ".new"}, e.Name()) {
			continue
		}
		if len(strange) == most {
			strange[most-1] = "…"
			break
		}
		strange = append(strange, e.Name())
	}
	if len(strange) > 0 {
		return &ForeignError{Dir: path, Pipeline: pipeline, Files: strange}
	}
	return nil
}
