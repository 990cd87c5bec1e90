package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// disk is a replica's disk. It outlives the replica's processes; what was not
// synced does not outlive a crash, or only in part.
//
// What survives must be a function of the seed, and Pebble writes with threads
// of its own. So at a crash everything is first written, though not synced
// (logFile); what is synced is cloned; and chance then gives back a part of what
// each log had beyond that.
type disk struct {
	fs    *vfs.MemFS
	cache *pebble.Cache
	// stores are those that are open now.
	stores map[processors.TaskID]*store
}

// store is an open store.
type store struct {
	*state.Pebble
	logs *logFS
}

func newDisk(cache *pebble.Cache) *disk {
	return &disk{fs: vfs.NewCrashableMem(), cache: cache, stores: map[processors.TaskID]*store{}}
}

func (d *disk) dir(t processors.TaskID) string {
	return fmt.Sprintf("state/%s/%s", t.Stage, t.Partition)
}

// open opens the store of a task.
func (d *disk) open(t processors.TaskID, pipeline string) (st *store, err error) {
	if st := d.stores[t]; st != nil {
		return st, nil
	}
	id := state.Identity{Pipeline: pipeline, Generation: 1, Stage: t.Stage, Partition: t.Partition, Cluster: "sim"}
	st = &store{logs: &logFS{FS: d.fs}}
	if st.Pebble, err = state.OpenPebble(d.dir(t), id, state.PebbleOptions{FS: st.logs, Cache: d.cache}); err != nil {
		return nil, err
	}
	d.stores[t] = st
	return st, nil
}

func (d *disk) remove(t processors.TaskID) error { return d.fs.RemoveAll(d.dir(t)) }

// discard closes a damaged store and removes its files.
func (d *disk) discard(t processors.TaskID) error {
	st := d.stores[t]
	if st == nil {
		return nil
	}
	delete(d.stores, t)
	return errors.Join(st.Close(), d.remove(t))
}

// close closes the stores, as a process does that ends by itself.
func (d *disk) close() error {
	var all error
	for _, st := range d.inOrder() {
		all = errors.Join(all, st.Close())
	}
	clear(d.stores)
	return all
}

func (d *disk) inOrder() []*store {
	var out []*store
	for _, t := range sortedTasks(d.stores) {
		out = append(out, d.stores[t])
	}
	return out
}

// sync lets the machine write out what a store has handed it so far, and the
// directories that lead to it.
func (d *disk) sync(t processors.TaskID) error {
	st := d.stores[t]
	if st == nil {
		return nil
	}
	err := st.Sync()
	for _, dir := range []string{"", "state", d.fs.PathDir(d.dir(t)), d.dir(t)} {
		f, failed := d.fs.OpenDir(dir)
		if failed != nil {
			return errors.Join(err, failed)
		}
		err = errors.Join(err, f.Sync(), f.Close())
	}
	return err
}

// crash is a power loss: the stores are gone, and of what was written to their
// logs since the last sync a part is gone as well.
func (d *disk) crash(rng *rand.Rand) error {
	logs := map[string][]byte{}
	for _, st := range d.inOrder() {
		st.logs.lies.Store(true)
		if err := st.Sync(); err != nil {
			return err
		}
		name := st.logs.name()
		written, err := readFile(d.fs, name)
		if err != nil {
			return err
		}
		logs[name] = written
	}
	clone := d.fs.CrashClone(vfs.CrashCloneCfg{})
	for _, t := range sortedTasks(d.stores) {
		name := d.stores[t].logs.name()
		if err := giveBack(clone, name, logs[name], rng); err != nil {
			return err
		}
	}
	for _, st := range d.inOrder() {
		_ = st.Close() // into the files that nobody will see again
	}
	d.fs = clone
	clear(d.stores)
	return nil
}

// block is what a disk writes at once.
const block = 4096

// giveBack puts a part of what was written to a file, and not synced, into its
// clone: nothing, all, a piece that may end within a record, or some blocks of
// it with zeros between.
func giveBack(clone *vfs.MemFS, name string, written []byte, rng *rand.Rand) error {
	if name == "" {
		return nil
	}
	kept, err := readFile(clone, name)
	if err != nil || len(written) <= len(kept) {
		return nil //nolint:nilerr // the file itself was not synced, and is gone
	}
	synced := len(kept)
	switch rng.IntN(4) {
	case 0:
		return nil
	case 1:
		kept = written
	case 2:
		kept = written[:synced+rng.IntN(len(written)-synced+1)]
	default:
		kept = bytes.Clone(kept)
		for at := 0; at < len(written); at += block {
			end := min(at+block, len(written))
			if rng.IntN(2) == 0 {
				continue
			}
			if end > len(kept) {
				kept = append(kept, make([]byte, end-len(kept))...)
			}
			copy(kept[at:end], written[at:end])
		}
	}
	f, err := clone.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(kept)
	return errors.Join(err, f.Sync(), f.Close())
}

// wipe loses the disk.
func (d *disk) wipe() { d.fs = vfs.NewCrashableMem() }

func readFile(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// logFS is the file system of one store.
type logFS struct {
	vfs.FS
	lies   atomic.Bool            // a sync of the log does nothing
	newest atomic.Pointer[string] // the log that is written now
}

func (l *logFS) name() string {
	if n := l.newest.Load(); n != nil {
		return *n
	}
	return ""
}

// Create implements vfs.FS.
func (l *logFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.Create(name, c)
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	l.newest.Store(&name)
	return &logFile{File: f, fs: l}, nil
}

// logFile is the log of a store.
type logFile struct {
	vfs.File
	fs *logFS
}

// Sync implements vfs.File.
func (f *logFile) Sync() error {
	if f.fs.lies.Load() {
		return nil
	}
	return f.File.Sync()
}

// SyncData implements vfs.File.
func (f *logFile) SyncData() error { return f.Sync() }
