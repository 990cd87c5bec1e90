package broker

import (
	"sort"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
)

// Record is one record of a partition.
type Record struct {
	processors.Record
	// Payload is what the record says where that is not spelled out in bytes.
	Payload any
	// Control says that the record ends a transaction in this partition; no
	// reader sees more of it than its offset.
	Control bool

	outcome *outcome // nil: written outside of transactions
	horizon int64    // when compaction may drop a tombstone or a control record; 0: not yet cleaned
}

// outcome is how a transaction ended in one partition.
type outcome struct {
	first event.Offset
	state outcomeState
}

type outcomeState uint8

const (
	open outcomeState = iota
	committed
	aborted
)

func (r *Record) visible() bool {
	return r.Control || r.outcome == nil || r.outcome.state == committed
}

// Committed reports whether the record is data that a reader of committed
// records sees, or will see.
func (r *Record) Committed() bool { return !r.Control && r.visible() }

// Partition is one partition of a topic.
type Partition struct {
	Topic  string
	Number event.Partition

	start     event.Offset
	high      event.Offset
	records   []Record // by offset; compaction leaves gaps
	deleted   []Record // what DeleteTo has taken away
	open      []*outcome
	producers map[int64]*producerState
}

// producerState is what a partition knows of a producer.
type producerState struct {
	epoch int16
	// next is the sequence number of the next batch, bases the first offset of
	// each that came.
	next  int
	bases []event.Offset
}

// Start is the first offset that the log still has.
func (p *Partition) Start() event.Offset { return p.start }

// High is the high watermark: the offset behind the last record.
func (p *Partition) High() event.Offset { return p.high }

// Stable is the last stable offset: what lies before it is decided.
func (p *Partition) Stable() event.Offset {
	stable := p.high
	for _, o := range p.open {
		stable = min(stable, o.first)
	}
	return stable
}

// All gives every record that is still there, decided or not.
func (p *Partition) All() []Record { return p.records }

// History gives the committed data that the log has and had, but for what
// compaction removed: for those who look from outside.
func (p *Partition) History() []Record {
	var out []Record
	for _, part := range [][]Record{p.deleted, p.records} {
		for i := range part {
			if part[i].Committed() {
				out = append(out, part[i])
			}
		}
	}
	return out
}

func (p *Partition) index(from event.Offset) int {
	return sort.Search(len(p.records), func(i int) bool { return p.records[i].Offset >= from })
}

// Has reports whether a reader at from would be given something.
func (p *Partition) Has(from event.Offset) bool {
	stable := p.Stable()
	for i := p.index(from); i < len(p.records) && p.records[i].Offset < stable; i++ {
		if p.records[i].visible() {
			return true
		}
	}
	return false
}

// Fetch gives up to limit records from an offset on as a reader of committed
// records sees them, control records among them, and the last stable offset.
func (p *Partition) Fetch(from event.Offset, limit int) ([]Record, event.Offset, error) {
	if from < p.start || from > p.high {
		return nil, 0, ErrOutOfRange
	}
	stable := p.Stable()
	var out []Record
	for i := p.index(from); i < len(p.records) && len(out) < limit; i++ {
		r := &p.records[i]
		if r.Offset >= stable {
			break
		}
		if r.visible() {
			out = append(out, *r)
		}
	}
	return out, stable, nil
}

// Append writes records outside of transactions.
func (p *Partition) Append(records ...Record) event.Offset {
	base := p.high
	for i := range records {
		records[i].Offset = p.high
		p.high++
		p.records = append(p.records, records[i])
	}
	return base
}

// DeleteTo deletes what lies before an offset.
func (p *Partition) DeleteTo(offset event.Offset) {
	if offset = min(offset, p.Stable()); offset <= p.start {
		return
	}
	p.start = offset
	i := p.index(offset)
	p.deleted = append(p.deleted, p.records[:i]...)
	p.records = append([]Record(nil), p.records[i:]...)
}

// Compact cleans what lies before upTo, and before the last stable offset: of
// the committed records of a key the last one stays. Tombstones and control
// records stay for retention after they were first cleaned.
func (p *Partition) Compact(upTo event.Offset, now, retention int64) (removed int) {
	upTo = min(upTo, p.Stable())
	last := map[string]event.Offset{}
	for i := range p.records {
		if r := &p.records[i]; r.Offset < upTo && r.Committed() {
			last[string(r.Key)] = r.Offset
		}
	}
	kept := make([]Record, 0, len(p.records))
	for _, r := range p.records {
		if r.Offset < upTo {
			passing := r.Control || r.Value == nil
			switch {
			case !r.visible(), !r.Control && last[string(r.Key)] != r.Offset:
				removed++
				continue
			case passing && r.horizon == 0:
				r.horizon = now + retention
			case passing && r.horizon <= now:
				removed++
				continue
			}
		}
		kept = append(kept, r)
	}
	p.records = kept
	return removed
}

// Topic is the partitions of one name.
type Topic []*Partition

// Hooks connect a cluster to the world around it.
type Hooks struct {
	// Now is the time in microseconds.
	Now func() int64
	// Later lets the cluster do something by itself, soon.
	Later func(what string, do func())
	// RaiseEpochs: EndTxn raises the producer's epoch (transaction.version 2, of
	// KIP-890), so that a request which comes late cannot reach into the
	// producer's next transaction.
	RaiseEpochs bool
	// Decided is told of every transaction whose outcome has been decided.
	Decided func(Decision)
	// Shuffle decides whether a group gives its partitions out anew, and how.
	Shuffle func(n int, swap func(i, j int)) bool
}

// Cluster is the whole model.
type Cluster struct {
	hooks  Hooks
	topics map[string]Topic
	groups map[string]*Group
	// transactions stand in the order in which their ids were first used.
	transactions []*transaction
	byID         map[string]*transaction
	nextProducer int64
	nextMember   int
}

// New returns an empty cluster.
func New(h Hooks) *Cluster {
	return &Cluster{hooks: h, topics: map[string]Topic{}, groups: map[string]*Group{}, byID: map[string]*transaction{}}
}

// CreateTopic makes a topic.
func (c *Cluster) CreateTopic(name string, partitions int32) Topic {
	t := make(Topic, partitions)
	for i := range t {
		t[i] = &Partition{Topic: name, Number: event.Partition(i), producers: map[int64]*producerState{}}
	}
	c.topics[name] = t
	return t
}

// Topic gives a topic, nil where there is none.
func (c *Cluster) Topic(name string) Topic { return c.topics[name] }
