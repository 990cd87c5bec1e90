package state

import (
	"encoding/binary"
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
)

// Event ids are many and small. In the changelog they travel as blocks of
// bounded size for each epoch and time bucket, key
// KeyIDBlock·bucket·epoch·part; when the bucket expires, a tombstone for each
// block lets compaction drop it. A store keeps one
// entry for each id, key KeyID·bucket·id, so that one lookup finds it.

const idBlockVersion = 1

// SeenID is an event id with the hash of the content that it came with.
type SeenID struct {
	ID      string
	Content uint64
}

// idBlockBytes bounds a block: a record that no broker refuses.
const idBlockBytes = 256 << 10

// idBlockKeyLen is the length of a block's key.
const idBlockKeyLen = 1 + 8 + 8 + 4

// IDBlockKey is the changelog key of a part of the ids that epoch added to bucket.
func IDBlockKey(bucket int64, epoch event.Epoch, part uint32) []byte {
	k := wire.AppendOrdered64([]byte{KeyIDBlock}, bucket)
	k = wire.AppendOrdered64(k, int64(epoch))
	return binary.BigEndian.AppendUint32(k, part)
}

// IDBlockFit is how many of the ids fit into one block; at least one.
func IDBlockFit(ids []SeenID) int {
	size := 0
	for i := range ids {
		size += len(ids[i].ID) + 8 + binary.MaxVarintLen32
		if size > idBlockBytes && i > 0 {
			return i
		}
	}
	return len(ids)
}

// IDKey is the store key of an id in a bucket.
func IDKey(dst []byte, bucket int64, id string) []byte {
	dst = wire.AppendOrdered64(append(dst, KeyID), bucket)
	return append(dst, id...)
}

// IDBucketRange is the range of all ids of a bucket, IDBlockRange of all its blocks.
func IDBucketRange(bucket int64) Range { return bucketRange(KeyID, bucket) }

// IDBlockRange is the range of the blocks of all buckets up to and including last.
func IDBlockRange(last int64) Range {
	return Range{From: []byte{KeyIDBlock}, To: bucketRange(KeyIDBlock, last).To}
}

func bucketRange(kind byte, bucket int64) Range {
	return PrefixRange(wire.AppendOrdered64([]byte{kind}, bucket))
}

// BucketOf returns the bucket that a KeyID or KeyIDBlock key belongs to.
func BucketOf(key []byte) int64 { return wire.Ordered64(key[1:9]) }

// AppendIDBlock encodes a block.
func AppendIDBlock(dst []byte, ids []SeenID) []byte {
	dst = append(dst, idBlockVersion)
	dst = wire.AppendUint(dst, uint64(len(ids)))
	for _, s := range ids {
		dst = wire.AppendString(dst, s.ID)
		dst = binary.BigEndian.AppendUint64(dst, s.Content)
	}
	return dst
}

// AppendIDValue encodes the value of a KeyID entry.
func AppendIDValue(dst []byte, content uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, idBlockVersion), content)
}

// DecodeIDValue decodes the value of a KeyID entry.
func DecodeIDValue(b []byte) (uint64, error) {
	if len(b) != 9 {
		return 0, fmt.Errorf("%w: id entry of %d bytes", event.ErrCorrupt, len(b))
	}
	if b[0] != idBlockVersion {
		return 0, fmt.Errorf("%w: id entry version %d", event.ErrVersion, b[0])
	}
	return binary.BigEndian.Uint64(b[1:]), nil
}

func decodeIDBlock(b []byte, each func(id []byte, content uint64) error) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: empty id block", event.ErrCorrupt)
	}
	if b[0] != idBlockVersion {
		return fmt.Errorf("%w: id block version %d", event.ErrVersion, b[0])
	}
	rd := wire.NewReader(b[1:])
	for n := rd.Count(); n > 0; n-- {
		id := rd.Bytes()
		var content uint64
		for range 8 {
			content = content<<8 | uint64(rd.Byte())
		}
		if rd.Err() != nil {
			break
		}
		if err := each(id, content); err != nil {
			return err
		}
	}
	if err := rd.Close(); err != nil {
		return fmt.Errorf("%w: id block: %w", event.ErrCorrupt, err)
	}
	return nil
}

// writer is what both kinds of store can do with one entry.
type writer interface {
	set(key, value []byte) error
	remove(key []byte) error
	removeRange(r Range) error
}

// applyBatch writes a batch through w: it is the one place that knows how a
// changelog record becomes store entries.
func applyBatch(w writer, b *Batch) error {
	for _, c := range b.Changes {
		if err := applyChange(w, c); err != nil {
			return err
		}
	}
	for _, r := range b.Expired {
		if err := w.removeRange(r); err != nil {
			return err
		}
	}
	if b.Mark != nil {
		if err := w.set(markKey(), b.Mark.encode()); err != nil {
			return err
		}
	}
	if b.Position == event.OffsetNone {
		return nil
	}
	return w.set(positionKey(), wire.AppendInt(nil, int64(b.Position)))
}

func applyChange(w writer, c Change) error {
	if len(c.Key) == 0 {
		return fmt.Errorf("%w: a state key without bytes", event.ErrCorrupt)
	}
	if c.Key[0] == KeyIDBlock {
		return applyIDBlock(w, c)
	}
	if c.Value == nil {
		return w.remove(c.Key)
	}
	return w.set(c.Key, c.Value)
}

// applyIDBlock keeps the block's key (without its content) so that expiry
// finds the blocks to tombstone, and unpacks the ids.
func applyIDBlock(w writer, c Change) error {
	if len(c.Key) != idBlockKeyLen {
		return fmt.Errorf("%w: id block key of %d bytes", event.ErrCorrupt, len(c.Key))
	}
	bucket := BucketOf(c.Key)
	if c.Value == nil {
		if err := w.removeRange(IDBucketRange(bucket)); err != nil {
			return err
		}
		return w.remove(c.Key)
	}
	if err := w.set(c.Key, []byte{idBlockVersion}); err != nil {
		return err
	}
	return decodeIDBlock(c.Value, func(id []byte, content uint64) error {
		return w.set(IDKey(nil, bucket, string(id)), AppendIDValue(nil, content))
	})
}

func decodePosition(b []byte, ok bool) (event.Offset, error) {
	if !ok {
		return event.OffsetNone, nil
	}
	rd := wire.NewReader(b)
	v := rd.Int()
	if err := rd.Close(); err != nil {
		return event.OffsetNone, fmt.Errorf("%w: changelog position: %w", event.ErrCorrupt, err)
	}
	return event.Offset(v), nil
}
