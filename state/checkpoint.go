package state

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/forge-platform/strom/event"
)

// Checkpoint writes the store as it is now, one barrier and nothing of the
// next, to a directory that does not exist: durable when it returns. On the
// file system of the store it costs a sync and links, elsewhere a copy. The
// goroutine that calls Apply calls it.
func (p *Pebble) Checkpoint(dir string) error {
	if err := p.fs.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the directory of a checkpoint: %w", err)
	}
	if err := p.db.Checkpoint(p.fs.PathJoin(dir, dataDir), pebble.WithFlushedWAL()); err != nil {
		return p.damage("checkpoint", err)
	}
	raw, err := readAll(p.fs, p.fs.PathJoin(p.dir, identityFile))
	if err != nil {
		return fmt.Errorf("checkpoint state %s: %w", p.dir, err)
	}
	var id Identity
	if err := json.Unmarshal(raw, &id); err != nil {
		return fmt.Errorf("checkpoint state %s: %w: %s: %w", p.dir, ErrDamaged, identityFile, err)
	}
	return writeIdentity(p.fs, p.fs.PathJoin(dir, identityFile), id)
}

// OpenCheckpoint opens what Checkpoint has written, to be read only: nothing in
// the directory is changed. Damaged files give ErrDamaged.
func OpenCheckpoint(dir string, o PebbleOptions) (*Pebble, Identity, error) {
	var id Identity
	if o.FS == nil {
		o.FS = vfs.Default
	}
	raw, err := readAll(o.FS, o.FS.PathJoin(dir, identityFile))
	if err != nil {
		return nil, id, fmt.Errorf("open checkpoint %s: %w: %w", dir, ErrDamaged, err)
	}
	if err := json.Unmarshal(raw, &id); err != nil {
		return nil, id, fmt.Errorf("open checkpoint %s: %w: %s: %w", dir, ErrDamaged, identityFile, err)
	}
	if id.V != identityVersion {
		return nil, id, fmt.Errorf("open checkpoint %s: %w: identity version %d", dir, event.ErrVersion, id.V)
	}
	o.FS = unlocked{o.FS}
	p, err := openDB(dir, o, true)
	return p, id, err
}

// unlocked makes no lock files: whoever reads a checkpoint may not be allowed to
// write there, and leaves nothing.
type unlocked struct{ vfs.FS }

// Lock implements vfs.FS.
func (unlocked) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Formats gives the format versions of everything that a store holds.
func Formats() map[string]int {
	return map[string]int{
		"identity": identityVersion, "id_block": idBlockVersion, "mark": markVersion, "origin": originVersion,
		"numbers": spanVersion, "progress": ProgressVersion,
	}
}

// Entries calls fn for every record that a changelog would hold of a store, but
// for its progress: event ids are packed into blocks again, as of an epoch. Key
// and value are valid only during the call.
func Entries(r Reader, epoch event.Epoch, fn func(key, value []byte) error) error {
	err := r.Scan(Range{From: []byte{0}, To: []byte{0xff}}, func(k, v []byte) (bool, error) {
		switch k[0] {
		case KeyProgress, KeyOrigin, KeyIDBlock, KeyID, keyMeta:
			return true, nil
		}
		return true, fn(k, v)
	})
	if err != nil {
		return err
	}
	return idBlocks(r, epoch, fn)
}

// idBlocks packs the ids of a store.
func idBlocks(r Reader, epoch event.Epoch, fn func(key, value []byte) error) error {
	p := idPacker{epoch: epoch, fn: fn}
	err := r.Scan(PrefixRange([]byte{KeyID}), func(k, v []byte) (bool, error) {
		return true, p.add(k, v)
	})
	if err != nil {
		return err
	}
	return p.flush()
}

type idPacker struct {
	epoch  event.Epoch
	fn     func(key, value []byte) error
	bucket int64
	part   uint32
	bytes  int
	ids    []SeenID
}

func (p *idPacker) add(key, value []byte) error {
	content, err := DecodeIDValue(value)
	if err != nil {
		return err
	}
	if bucket := BucketOf(key); bucket != p.bucket {
		if err := p.flush(); err != nil {
			return err
		}
		p.bucket, p.part = bucket, 0
	}
	p.ids = append(p.ids, SeenID{ID: string(key[9:]), Content: content})
	if p.bytes += len(key) + len(value); p.bytes >= idBlockBytes/2 {
		return p.flush()
	}
	return nil
}

func (p *idPacker) flush() error {
	for len(p.ids) > 0 {
		n := IDBlockFit(p.ids)
		if err := p.fn(IDBlockKey(p.bucket, p.epoch, p.part), AppendIDBlock(nil, p.ids[:n])); err != nil {
			return err
		}
		p.part++
		p.ids = p.ids[n:]
	}
	p.ids, p.bytes = p.ids[:0], 0
	return nil
}
