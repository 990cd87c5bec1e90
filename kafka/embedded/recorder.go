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
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commitFile holds the last commit of a transaction that the broker was asked for.
const commitFile = "commit.strom"

// commitRecord is that commit: whose, and the group offsets that go with it.
type commitRecord struct {
	PID     int64          `json:"pid"`
	Epoch   int16          `json:"epoch"`
	Offsets []stagedOffset `json:"offsets,omitempty"`
}

// covers is false for the nil record.
func (c *commitRecord) covers(pid int64, epoch int16) bool {
	return c != nil && c.PID == pid && c.Epoch == epoch
}

type stagedOffset struct {
	Group       string   `json:"group"`
	Topic       string   `json:"topic,omitempty"` // either this or the id, as the client said
	TopicID     [16]byte `json:"topic_id"`
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	LeaderEpoch int32    `json:"leader_epoch"`
	Metadata    *string  `json:"metadata,omitempty"`
}

// recorder watches the requests of transactions and writes each commit down before
// the broker begins it. One record is enough: the broker ends one transaction
// after the other.
//
// Only clients that raise the epoch with every transaction (EndTxn version 5 and
// later) are recorded; for the others an epoch does not name a transaction. What
// the broker refused of a TxnOffsetCommit is recorded as well: a client that then
// commits all the same has asked for it.
type recorder struct {
	sync bool // make each record durable

	mu     sync.Mutex // guards all below
	file   *os.File
	staged map[int64]commitRecord
	failed error
}

const firstVersionWithEpochs = 5

func startRecorder(dir string, cluster *kfake.Cluster, sync bool) (*recorder, error) {
	file, err := os.OpenFile(filepath.Join(dir, commitFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	r := &recorder{sync: sync, file: file, staged: make(map[int64]commitRecord)}
	watch := func(key kmsg.Key, fn func(kmsg.Request)) {
		cluster.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			fn(req)
			return nil, nil, false // and the broker handles it
		})
	}
	watch(kmsg.TxnOffsetCommit, r.stage)
	watch(kmsg.EndTxn, r.end)
	return r, nil
}

func (r *recorder) stage(req kmsg.Request) {
	c, ok := req.(*kmsg.TxnOffsetCommitRequest)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.staged[c.ProducerID]
	if rec.Epoch != c.ProducerEpoch {
		rec.Offsets = nil // of an earlier transaction
	}
	rec.PID, rec.Epoch = c.ProducerID, c.ProducerEpoch
	for _, t := range c.Topics {
		for _, p := range t.Partitions {
			rec.Offsets = append(rec.Offsets, stagedOffset{
				Group: c.Group, Topic: t.Topic, TopicID: t.TopicID, Partition: p.Partition,
				Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata,
			})
		}
	}
	r.staged[c.ProducerID] = rec
}

func (r *recorder) end(req kmsg.Request) {
	e, ok := req.(*kmsg.EndTxnRequest)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.staged[e.ProducerID]
	delete(r.staged, e.ProducerID)
	if !e.Commit || e.Version < firstVersionWithEpochs || r.file == nil {
		return
	}
	if rec.Epoch != e.ProducerEpoch {
		rec.Offsets = nil
	}
	rec.PID, rec.Epoch = e.ProducerID, e.ProducerEpoch
	err := writeCommit(r.file, rec)
	if err == nil && r.sync {
		err = r.file.Sync()
	}
	if err != nil && r.failed == nil {
		r.failed = fmt.Errorf("embedded Kafka: writing down a commit: %w", err)
	}
}

// close returns the first failure.
func (r *recorder) close() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		r.failed = errors.Join(r.failed, r.file.Close())
		r.file = nil
	}
	return r.failed
}

// The file holds length, CRC-32 and JSON, and is overwritten in place: a torn
// write fails the checksum, and then the commit had not begun.
const commitHeader = 8

func writeCommit(f *os.File, rec commitRecord) error {
	body, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	buf := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	buf = binary.LittleEndian.AppendUint32(buf, crc32.ChecksumIEEE(body))
	_, err = f.WriteAt(append(buf, body...), 0)
	return err
}

// readCommit returns nil where there is no whole record.
func readCommit(path string) (*commitRecord, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(raw) < commitHeader {
		return nil, nil
	}
	n, sum := binary.LittleEndian.Uint32(raw), binary.LittleEndian.Uint32(raw[4:])
	body := raw[commitHeader:]
	if uint64(n) > uint64(len(body)) || crc32.ChecksumIEEE(body[:n]) != sum {
		return nil, nil
	}
	var rec commitRecord
	if err := json.Unmarshal(body[:n], &rec); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &rec, nil
}
