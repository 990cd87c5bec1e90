package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/forge-platform/strom/event"
)

// Identity names the task that a state directory belongs to. It is written
// when the directory is made and compared at every opening.
type Identity struct {
	V          int              `json:"v"`
	Pipeline   string           `json:"pipeline"`
	Generation event.Generation `json:"generation"`
	Stage      string           `json:"stage"`
	Partition  event.Partition  `json:"partition"`
	// Cluster is the Kafka cluster's id: a directory is of no use elsewhere.
	Cluster string `json:"cluster"`
}

const (
	identityVersion = 1
	identityFile    = "STROM-TASK.json"
	dataDir         = "db"
)

// ForeignError says that a state directory belongs to somebody else.
type ForeignError struct {
	Dir        string
	Want, Have Identity
}

// Error says what to do as well.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("state directory %s belongs to %s, not to %s; name another directory with --data-dir, or remove this one if that pipeline is gone",
		e.Dir, e.Have.describe(), e.Want.describe())
}

func (i Identity) describe() string {
	return fmt.Sprintf("pipeline %q generation %s, stage %q, partition %s, cluster %q", i.Pipeline, i.Generation, i.Stage, i.Partition, i.Cluster)
}

// PebbleOptions are the settings of a Pebble store; the zero value is the default.
type PebbleOptions struct {
	// FS is where the files live; nil: the machine's file system.
	FS vfs.FS
	// CacheBytes bounds the block cache; 0: 64 MiB. Ignored when Cache is set.
	CacheBytes int64
	// Cache is shared by the stores of one process.
	Cache *pebble.Cache
	// TableBytes is what is gathered in memory before a file is written; 0: 16 MiB.
	TableBytes uint64
}

// Pebble is a Store on disk.
type Pebble struct {
	db   *pebble.DB
	dir  string
	fs   vfs.FS
	last uint64 // number of the last batch; the writer's
}

// OpenPebble opens the store in dir, creating it if need be. A directory of
// another task gives a *ForeignError, damaged files ErrDamaged: the caller
// removes the directory and rebuilds.
func OpenPebble(dir string, id Identity, o PebbleOptions) (*Pebble, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	id.V = identityVersion
	if err := o.FS.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make state directory %s: %w", dir, err)
	}
	if err := checkIdentity(o.FS, dir, id); err != nil {
		return nil, err
	}
	return openDB(dir, o, false)
}

// openDB opens the files of a store.
func openDB(dir string, o PebbleOptions, readOnly bool) (*Pebble, error) {
	cache := o.Cache
	if cache == nil {
		size := o.CacheBytes
		if size == 0 {
			size = 64 << 20
		}
		cache = pebble.NewCache(size)
		defer cache.Unref()
	}
	if o.TableBytes == 0 {
		o.TableBytes = 16 << 20
	}
	opts := &pebble.Options{
		FS: o.FS, Cache: cache, Logger: quiet{}, MemTableSize: o.TableBytes, Merger: merger(), ReadOnly: readOnly,
		// Without this Pebble ends the process; damage comes back as the error
		// of whoever reads it, and the store is rebuilt.
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(o.FS.PathJoin(dir, dataDir), opts)
	if err != nil {
		if passing(err) {
			return nil, fmt.Errorf("open state %s: %w", dir, err)
		}
		// Torn and missing files have many texts and no class of their own.
		return nil, fmt.Errorf("open state %s: %w: %w", dir, ErrDamaged, err)
	}
	p := &Pebble{db: db, dir: dir, fs: o.FS}
	if err := p.checkUnbroken(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return p, nil
}

// ErrDamaged says that the files of a local store are damaged. Nothing is lost:
// the store is thrown away and rebuilt from the changelog. It is an
// event.ErrCorrupt.
var ErrDamaged = fmt.Errorf("damaged local state: %w", event.ErrCorrupt)

// passing reports whether an error of opening says nothing of the files' content.
func passing(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EIO) ||
		errors.Is(err, syscall.EROFS)
}

// damage classes an error of a read or a write.
func (p *Pebble) damage(doing string, err error) error {
	if pebble.IsCorruptionError(err) {
		return fmt.Errorf("%s state %s: %w: %w", doing, p.dir, ErrDamaged, err)
	}
	return fmt.Errorf("%s state %s: %w", doing, p.dir, err)
}

func checkIdentity(fsys vfs.FS, dir string, want Identity) error {
	path := fsys.PathJoin(dir, identityFile)
	raw, err := readAll(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := fsys.Stat(fsys.PathJoin(dir, dataDir)); err == nil {
			return fmt.Errorf("%w: %s has data but no %s", ErrDamaged, dir, identityFile)
		}
		return writeIdentity(fsys, path, want)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	var have Identity
	if err := json.Unmarshal(raw, &have); err != nil {
		return fmt.Errorf("%w: %s is not readable: %w", ErrDamaged, path, err)
	}
	if have != want {
		return &ForeignError{Dir: dir, Want: want, Have: have}
	}
	return nil
}

func writeIdentity(fsys vfs.FS, path string, id Identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	f, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if _, err = f.Write(raw); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func readAll(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var buf bytes.Buffer
	_, err = buf.ReadFrom(f)
	return buf.Bytes(), err
}

// RemoveDir removes what OpenPebble made in a directory, and nothing else, so
// that the next opening begins anew.
func RemoveDir(dir string) error {
	err := os.RemoveAll(filepath.Join(dir, dataDir))
	if rm := os.Remove(filepath.Join(dir, identityFile)); !errors.Is(rm, fs.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}

// Get implements Reader.
func (p *Pebble) Get(key []byte) ([]byte, bool, error) {
	v, closer, err := p.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, p.damage("read", err)
	}
	out := bytes.Clone(v)
	if out == nil {
		out = []byte{}
	}
	return out, true, closer.Close()
}

// Scan implements Reader.
func (p *Pebble) Scan(r Range, fn func(key, value []byte) (bool, error)) (err error) {
	bounds := &pebble.IterOptions{UpperBound: r.To}
	if len(r.From) > 0 {
		bounds.LowerBound = r.From
	}
	it, err := p.db.NewIter(bounds)
	if err != nil {
		return p.damage("scan", err)
	}
	defer func() {
		// Close repeats the error that ended the iteration.
		if closeErr := it.Close(); err == nil && closeErr != nil {
			err = p.damage("scan", closeErr)
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		if more, err := fn(it.Key(), it.Value()); err != nil || !more {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return p.damage("scan", err)
	}
	return nil
}

// Apply implements Store. It does not sync: Kafka is the truth, and the write
// ahead log keeps batches in order, so that a power loss leaves an earlier
// barrier to catch up from.
func (p *Pebble) Apply(b *Batch) error {
	batch := p.db.NewBatch()
	defer batch.Close()
	if err := applyBatch(pebbleWriter{batch}, b); err != nil {
		return err
	}
	if err := p.numbered(batch); err != nil {
		return err
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return p.damage("write", err)
	}
	p.last++
	return nil
}

// Sync makes what has been applied durable. Nothing needs it to be right; it is
// for whoever copies the files, or is about to lose the machine.
func (p *Pebble) Sync() error {
	if err := p.db.LogData(nil, pebble.Sync); err != nil {
		return p.damage("sync", err)
	}
	return nil
}

// Position implements Store.
func (p *Pebble) Position() (event.Offset, error) {
	v, ok, err := p.Get(positionKey())
	if err != nil {
		return event.OffsetNone, err
	}
	return decodePosition(v, ok)
}

// DiskBytes is about the size of the store's files, in bytes.
func (p *Pebble) DiskBytes() uint64 { return p.db.Metrics().DiskSpaceUsage() }

// Wipe implements Store.
func (p *Pebble) Wipe() error {
	if err := p.db.DeleteRange([]byte{0}, []byte{0xff}, pebble.Sync); err != nil {
		return fmt.Errorf("wipe state %s: %w", p.dir, err)
	}
	p.last = 0
	return nil
}

// Close implements Store.
func (p *Pebble) Close() error { return p.db.Close() }

type pebbleWriter struct{ b *pebble.Batch }

func (w pebbleWriter) set(key, value []byte) error { return w.b.Set(key, value, nil) }
func (w pebbleWriter) remove(key []byte) error     { return w.b.Delete(key, nil) }
func (w pebbleWriter) removeRange(r Range) error   { return w.b.DeleteRange(r.From, r.To, nil) }

// quiet keeps Pebble's own chatter out of the log; its errors come back from
// the calls that meet them.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("pebble: "+format, args...)) //nolint:forbidigo // Pebble calls this where it cannot go on, and must not return
}
