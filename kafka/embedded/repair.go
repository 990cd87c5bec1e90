package embedded

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The broker was made for tests and does not expect to be killed between two of
// its writes. It has no log of transactions, but several files for each; so after
// a SIGKILL, and before it opens its directory again, repair makes them agree:
//
//   - A transaction that the broker was committing (recorder.go has written down
//     which) is committed: the missing markers, then its group offsets, then its
//     end in pids.log.
//   - Every other transaction without a marker is aborted by one. The broker
//     itself would only remember the abort. Then a reader that waits for a log's
//     last offset would never see it, and a later marker of the same producer,
//     after a second kill, would commit the old records with the new.
//   - The producers of aborted transactions are fenced. The broker itself would
//     answer their EndTxn(commit) with success.
//   - An index that lacks the entry of the last batch gets it. The broker would
//     take that batch for one without a transaction.
//
// repair may itself be killed at any point and be run again: it appends only what
// is missing, and pids.log, which decides, comes last for what is committed and
// first for what is aborted.

// fencingStep is how far the epoch of a fenced producer moves. One is not enough:
// the broker takes an EndTxn with the epoch before for a retry of the last one.
const fencingStep = 2

func repair(dir string, now time.Time) error {
	parts, err := openPartitions(filepath.Join(dir, "partitions"))
	if err != nil {
		return err
	}
	pids, err := openStateLog(filepath.Join(dir, "pids.log"))
	if err != nil {
		return err
	}
	producers, err := replayProducers(pids)
	if err != nil {
		return err
	}
	commit, err := readCommit(filepath.Join(dir, commitFile))
	if err != nil {
		return err
	}
	if commit != nil && !producers.undecided(commit) {
		commit = nil
	}
	if err := fence(pids, producers, parts, commit); err != nil {
		return err
	}
	for _, p := range parts {
		for _, open := range p.openTransactions() {
			if err := p.appendMarker(open, commit.covers(open.pid, open.epoch), now); err != nil {
				return err
			}
		}
	}
	if commit != nil {
		if err := finish(dir, pids, producers, commit, now); err != nil {
			return err
		}
	}
	// What these say was true at the last clean stop only.
	for _, name := range []string{"session_state.json", "seq_windows.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// fence moves the epochs of the producers whose transaction is about to be aborted.
func fence(pids *stateLog, producers producers, parts []*partition, commit *commitRecord) error {
	done := make(map[int64]bool)
	for _, p := range parts {
		for _, open := range p.openTransactions() {
			state, known := producers[open.pid]
			if !known || done[open.pid] || commit.covers(open.pid, open.epoch) {
				continue
			}
			done[open.pid] = true
			state.Type, state.Epoch = "init", state.Epoch+fencingStep
			if err := pids.append(state); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish does what remains of a commit when the markers are there.
func finish(dir string, pids *stateLog, producers producers, commit *commitRecord, now time.Time) error {
	groups, err := openStateLog(filepath.Join(dir, "groups.log"))
	if err != nil {
		return err
	}
	names, err := topicNames(filepath.Join(dir, "topics.json"))
	if err != nil {
		return err
	}
	millis := now.UnixMilli()
	for _, o := range commit.Offsets {
		topic := o.Topic
		if topic == "" {
			topic = names[o.TopicID]
		}
		if topic == "" {
			continue // deleted since
		}
		entry := groupEntry{
			Type: "commit", Group: o.Group, Topic: topic, Partition: o.Partition,
			Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata, At: &millis,
		}
		if err := groups.append(entry); err != nil {
			return err
		}
	}
	committed := true
	state := producers[commit.PID]
	end := producerEntry{Type: "endtx", PID: commit.PID, Epoch: commit.Epoch, Commit: &committed}
	if err := pids.append(end); err != nil {
		return err
	}
	// The client never saw the answer. It will ask for its epoch, or retry with the
	// old one and be told of the success.
	state.Type, state.Epoch, state.Commit = "init", commit.Epoch+1, &committed
	return pids.append(state)
}

// producerEntry is a line of the broker's pids.log.
type producerEntry struct {
	Type    string `json:"type"` // init, endtx or timeout
	PID     int64  `json:"pid"`
	Epoch   int16  `json:"epoch"`
	TxID    string `json:"txid,omitempty"`
	Timeout int32  `json:"timeout,omitempty"`
	Commit  *bool  `json:"commit,omitempty"`
}

// groupEntry is a line of the broker's groups.log, as far as it is about offsets.
type groupEntry struct {
	Type        string  `json:"type"`
	Group       string  `json:"g"`
	Topic       string  `json:"t,omitempty"`
	Partition   int32   `json:"p,omitempty"`
	Offset      int64   `json:"o,omitempty"`
	LeaderEpoch int32   `json:"e,omitempty"`
	Metadata    *string `json:"m,omitempty"`
	At          *int64  `json:"lc,omitempty"` // milliseconds since 1970
}

// producers is the last state of each; Type is that of the last entry.
type producers map[int64]producerEntry

func replayProducers(log *stateLog) (producers, error) {
	states := make(producers)
	for _, raw := range log.entries {
		var e producerEntry
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, fmt.Errorf("%s: %w", log.path, err)
		}
		state := states[e.PID]
		if e.Type == "init" {
			state = e
		}
		state.Type, state.Epoch = e.Type, e.Epoch
		if e.Commit != nil {
			state.Commit = e.Commit
		}
		states[e.PID] = state
	}
	return states, nil
}

// undecided tells whether the commit was asked for and not finished. Since every
// end of a transaction raises the epoch, an epoch that still is the producer's
// names this transaction and no other.
func (p producers) undecided(c *commitRecord) bool {
	state, known := p[c.PID]
	return known && state.Epoch == c.Epoch && state.Type != "endtx"
}

func topicNames(path string) (map[[16]byte]string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var file struct {
		Topics []struct {
			Name string `json:"name"`
			ID   string `json:"id"`
		} `json:"topics"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	names := make(map[[16]byte]string, len(file.Topics))
	for _, t := range file.Topics {
		var id [16]byte
		raw, err := base64.StdEncoding.DecodeString(t.ID)
		if err != nil || len(raw) != len(id) {
			return nil, fmt.Errorf("%s: %q is no topic id", path, t.ID)
		}
		copy(id[:], raw)
		names[id] = t.Name
	}
	return names, nil
}

func openPartitions(dir string) ([]*partition, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var parts []*partition
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		p, err := openPartition(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// openTransactions of a partition, in log order.
func (p *partition) openTransactions() []openTransaction {
	list := make([]openTransaction, 0, len(p.open))
	for _, t := range p.open {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b openTransaction) int { return cmp.Compare(a.first, b.first) })
	return list
}
