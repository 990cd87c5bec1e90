package embedded

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// This file knows the broker's files, as far as repair must. Their formats carry
// formatVersion; the broker's own source (kfake, persist.go) is what defines them.
const formatVersion = 1

func checksum(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// stateLog is an append-only log of JSON entries, each framed by length, CRC-32C
// and version.
type stateLog struct {
	path    string
	entries [][]byte
}

const stateHeader = 10

// openStateLog reads a log and cuts off a torn end.
func openStateLog(path string) (*stateLog, error) {
	log := &stateLog{path: path}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return log, nil
	}
	if err != nil {
		return nil, err
	}
	at := 0
	for at+stateHeader <= len(raw) {
		size := int(binary.LittleEndian.Uint32(raw[at:])) // of version and data
		if size < 2 || size > len(raw)-at-8 {
			break
		}
		body := raw[at+8 : at+8+size]
		if checksum(body) != binary.LittleEndian.Uint32(raw[at+4:]) {
			break
		}
		if v := binary.LittleEndian.Uint16(body); v != formatVersion {
			return nil, fmt.Errorf("%s has format version %d, want %d", path, v, formatVersion)
		}
		log.entries = append(log.entries, body[2:])
		at += 8 + size
	}
	if at < len(raw) {
		return log, os.Truncate(path, int64(at))
	}
	return log, nil
}

func (l *stateLog) append(entry any) error {
	data, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	body := append(binary.LittleEndian.AppendUint16(nil, formatVersion), data...)
	frame := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	frame = binary.LittleEndian.AppendUint32(frame, checksum(body))
	return appendFile(l.path, append(frame, body...))
}

func appendFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// partition is one log: segments of record batches in the wire format, each with
// an index of one entry a batch.
type partition struct {
	dir         string
	segment     string // path of the last one, without its ending; "" if there is none
	next        int64  // offset
	leaderEpoch int32
	open        map[int64]openTransaction // by producer id
}

// openTransaction is one that has records in the partition and no marker.
type openTransaction struct {
	pid   int64
	epoch int16
	first int64 // offset
}

// Where the fields of a record batch are (Kafka's protocol guide, RecordBatch).
const (
	batchLength     = 8
	batchCRC        = 17
	batchAttributes = 21
	batchLastDelta  = 23
	batchPID        = 43
	batchEpoch      = 51
	batchHeader     = 61

	attrTransactional = 0x10
	attrControl       = 0x20
)

// An index entry: version, checksum, leader epoch, a timestamp that the broker
// computes again, flags.
const (
	indexEntry        = 15
	indexChecksum     = 1
	indexLeaderEpoch  = 2
	indexFlags        = 14
	flagTransactional = 1
)

func openPartition(dir string) (*partition, error) {
	p := &partition{dir: dir, open: make(map[int64]openTransaction)}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var bases []int64
	for _, e := range entries {
		name, isData := strings.CutSuffix(e.Name(), ".dat")
		if base, err := strconv.ParseInt(name, 10, 64); isData && err == nil {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	for _, base := range bases {
		p.segment = filepath.Join(dir, strconv.FormatInt(base, 10))
		p.next = max(p.next, base)
		if err := p.readSegment(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// readSegment reads the segment, cuts off a torn end and completes its index.
func (p *partition) readSegment() error {
	data, err := os.ReadFile(p.segment + ".dat")
	if err != nil {
		return err
	}
	index, err := os.ReadFile(p.segment + ".idx")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	had := len(index)
	index = index[:had-had%indexEntry]
	at, n := 0, 0
	for batch := nextBatch(data); batch != nil; batch = nextBatch(data[at:]) {
		if n*indexEntry == len(index) {
			index = append(index, p.indexEntryFor(batch)...)
		}
		p.apply(batch, index[n*indexEntry:(n+1)*indexEntry])
		at += len(batch)
		n++
	}
	if at < len(data) {
		if err := os.Truncate(p.segment+".dat", int64(at)); err != nil {
			return err
		}
	}
	if len(index) != had || n*indexEntry != had {
		return os.WriteFile(p.segment+".idx", index[:n*indexEntry], 0o644)
	}
	return nil
}

// nextBatch is the whole, undamaged batch that data begins with, or nil.
func nextBatch(data []byte) []byte {
	if len(data) < batchHeader {
		return nil
	}
	size := 12 + int64(int32(binary.BigEndian.Uint32(data[batchLength:])))
	if size < batchHeader || size > int64(len(data)) {
		return nil
	}
	batch := data[:size]
	if checksum(batch[batchAttributes:]) != binary.BigEndian.Uint32(batch[batchCRC:]) {
		return nil
	}
	return batch
}

func (p *partition) apply(batch, index []byte) {
	first := int64(binary.BigEndian.Uint64(batch))
	p.next = first + int64(int32(binary.BigEndian.Uint32(batch[batchLastDelta:]))) + 1
	p.leaderEpoch = int32(binary.LittleEndian.Uint32(index[indexLeaderEpoch:]))
	pid := int64(binary.BigEndian.Uint64(batch[batchPID:]))
	if binary.BigEndian.Uint16(batch[batchAttributes:])&attrControl != 0 {
		delete(p.open, pid)
		return
	}
	// The index decides, not the batch: compaction clears its flag when it removes
	// the marker.
	if index[indexFlags]&flagTransactional == 0 {
		return
	}
	t, known := p.open[pid]
	if !known {
		t = openTransaction{pid: pid, first: first}
	}
	t.epoch = int16(binary.BigEndian.Uint16(batch[batchEpoch:]))
	p.open[pid] = t
}

func (p *partition) indexEntryFor(batch []byte) []byte {
	e := make([]byte, indexEntry)
	e[0] = formatVersion
	binary.LittleEndian.PutUint32(e[indexLeaderEpoch:], uint32(p.leaderEpoch))
	attrs := binary.BigEndian.Uint16(batch[batchAttributes:])
	if attrs&attrTransactional != 0 && attrs&attrControl == 0 {
		e[indexFlags] = flagTransactional
	}
	e[indexChecksum] = byte(checksum(e[indexLeaderEpoch:]))
	return e
}

// appendMarker ends a transaction in this partition.
func (p *partition) appendMarker(t openTransaction, commit bool, now time.Time) error {
	batch := marker(t, p.next, commit, now)
	if err := appendFile(p.segment+".dat", batch); err != nil {
		return err
	}
	if err := appendFile(p.segment+".idx", p.indexEntryFor(batch)); err != nil {
		return err
	}
	p.next++
	return nil
}

// marker is a control batch as a transaction coordinator writes it.
func marker(t openTransaction, offset int64, commit bool, now time.Time) []byte {
	key := kmsg.ControlRecordKey{Type: kmsg.ControlRecordKeyTypeAbort}
	if commit {
		key.Type = kmsg.ControlRecordKeyTypeCommit
	}
	value := kmsg.EndTxnMarker{} // coordinator epoch 0, as the broker itself writes it
	rec := kmsg.Record{Key: key.AppendTo(nil), Value: value.AppendTo(nil)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // without the length itself, one byte here
	b := kmsg.RecordBatch{
		FirstOffset:          offset,
		PartitionLeaderEpoch: -1,
		Magic:                2,
		Attributes:           attrTransactional | attrControl,
		FirstTimestamp:       now.UnixMilli(),
		MaxTimestamp:         now.UnixMilli(),
		ProducerID:           t.pid,
		ProducerEpoch:        t.epoch,
		FirstSequence:        -1,
		NumRecords:           1,
		Records:              rec.AppendTo(nil),
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[batchLength:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[batchCRC:], checksum(raw[batchAttributes:]))
	return raw
}
