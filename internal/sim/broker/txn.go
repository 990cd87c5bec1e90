package broker

import (
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
)

// Producer is what InitProducerId gives.
type Producer struct {
	ID    int64
	Epoch int16
}

// Decision is a transaction whose outcome has been decided.
type Decision struct {
	ID     string // transactional id
	Commit bool
	// Written holds the records in the order in which they came.
	Written []Written
	Offsets []GroupCommit
}

// GroupCommit is a committed offset with its group.
type GroupCommit struct {
	Group *Group
	OffsetCommit
}

// Written is a record with its partition.
type Written struct {
	Partition *Partition
	Record    Record
}

type transactionState uint8

const (
	empty transactionState = iota
	ongoing
	ending
	ended
)

// transaction is what the coordinator knows of a transactional id.
type transaction struct {
	id       string
	producer Producer
	// before is the producer whose EndTxn has raised the epoch, so that it may
	// ask again.
	before  Producer
	state   transactionState
	commit  bool // of ending and ended
	began   int64
	timeout int64
	parts   []*part
	groups  []*Group
	written []Written
	markers int // still to be written
}

// part is a partition of a transaction.
type part struct {
	partition *Partition
	outcome   *outcome // nil before the first record
}

func (t *transaction) part(p *Partition) *part {
	for _, x := range t.parts {
		if x.partition == p {
			return x
		}
	}
	return nil
}

// InitProducer is InitProducerId: it ends what the id has left open, and fences
// whoever used it before.
func (c *Cluster) InitProducer(id string, timeout int64) (Producer, error) {
	t := c.byID[id]
	if t == nil {
		c.nextProducer++
		t = &transaction{id: id, producer: Producer{ID: c.nextProducer, Epoch: -1}}
		c.byID[id] = t
		c.transactions = append(c.transactions, t)
	}
	switch t.state {
	case ongoing:
		t.producer.Epoch++
		c.decide(t, false)
		return Producer{}, ErrConcurrent
	case ending:
		return Producer{}, ErrConcurrent
	default:
	}
	t.timeout = timeout
	t.before = Producer{}
	t.producer.Epoch++
	t.state = empty
	return t.producer, nil
}

// Known reports whether a transactional id was ever used.
func (c *Cluster) Known(id string) bool { return c.byID[id] != nil }

// find gives the transaction of a producer that is not fenced.
func (c *Cluster) find(id string, p Producer) (*transaction, error) {
	t := c.byID[id]
	switch {
	case t == nil || t.producer.ID != p.ID:
		return nil, fmt.Errorf("%w: %s is not known", ErrInvalidState, id)
	case t.producer.Epoch != p.Epoch:
		return nil, ErrFenced
	}
	return t, nil
}

// enter finds a transaction to which something is to be added.
func (c *Cluster) enter(id string, p Producer) (*transaction, error) {
	t, err := c.find(id, p)
	if err != nil {
		return nil, err
	}
	if t.state == ending {
		return nil, ErrConcurrent
	}
	if t.state != ongoing {
		t.state, t.began = ongoing, c.hooks.Now()
	}
	return t, nil
}

// AddPartitions is AddPartitionsToTxn.
func (c *Cluster) AddPartitions(id string, p Producer, partitions []*Partition) error {
	t, err := c.enter(id, p)
	if err != nil {
		return err
	}
	for _, x := range partitions {
		if t.part(x) == nil {
			t.parts = append(t.parts, &part{partition: x})
		}
	}
	return nil
}

// AddOffsets is AddOffsetsToTxn.
func (c *Cluster) AddOffsets(id string, p Producer, g *Group) error {
	t, err := c.enter(id, p)
	if err != nil {
		return err
	}
	if !slices.Contains(t.groups, g) {
		t.groups = append(t.groups, g)
	}
	return nil
}

// Produce writes a batch in a transaction. The batches of a producer count up
// in each partition from 0; one that comes again is taken for what it is.
func (c *Cluster) Produce(id string, p Producer, to *Partition, sequence int, records []Record) (event.Offset, error) {
	known := to.producers[p.ID]
	if known != nil && p.Epoch < known.epoch {
		return 0, ErrInvalidEpoch
	}
	if known == nil || p.Epoch > known.epoch {
		known = &producerState{epoch: p.Epoch}
		to.producers[p.ID] = known
	}
	if sequence < known.next {
		return known.bases[sequence], nil
	}
	// Since KIP-890 a partition asks whether the transaction is under way.
	t, err := c.find(id, p)
	if err != nil {
		return 0, err
	}
	x := t.part(to)
	switch {
	case t.state != ongoing || x == nil:
		return 0, ErrInvalidState
	case sequence > known.next:
		return 0, ErrOutOfOrder
	}
	if x.outcome == nil {
		x.outcome = &outcome{first: to.high}
		to.open = append(to.open, x.outcome)
	}
	base := to.high
	for i := range records {
		records[i].outcome = x.outcome
		to.Append(records[i])
		t.written = append(t.written, Written{to, to.records[len(to.records)-1]})
	}
	known.next++
	known.bases = append(known.bases, base)
	return base, nil
}

// CommitOffsets is TxnOffsetCommit. A negative generation is not checked, as
// that of a consumer without a group.
func (c *Cluster) CommitOffsets(id string, p Producer, g *Group, generation int32, member string, offsets []OffsetCommit) error {
	if generation >= 0 {
		if err := g.check(generation, member); err != nil {
			return err
		}
	}
	t, err := c.find(id, p)
	if err != nil {
		return err
	}
	if t.state != ongoing || !slices.Contains(t.groups, g) {
		return ErrInvalidState
	}
	for _, o := range offsets {
		g.pend(p.ID, o)
	}
	return nil
}

// EndTransaction is EndTxn. It answers when the outcome is decided, with the
// producer of the next transaction.
func (c *Cluster) EndTransaction(id string, p Producer, commit bool) (Producer, error) {
	t := c.byID[id]
	if t == nil || t.before != p || t.state == ongoing { // else it asks again
		var err error
		if t, err = c.find(id, p); err != nil {
			return p, err
		}
	}
	switch {
	case t.state == ongoing:
		if c.hooks.RaiseEpochs {
			t.before = t.producer
			t.producer.Epoch++
		}
		c.decide(t, commit)
		return t.producer, nil
	case t.state == ending && t.commit == commit:
		return p, ErrConcurrent
	case t.state == ended && t.commit == commit:
		return t.producer, nil
	}
	return p, ErrInvalidState
}

// decide decides a transaction. The markers are written afterwards, each by
// itself.
func (c *Cluster) decide(t *transaction, commit bool) {
	t.state, t.commit = ending, commit
	d := Decision{ID: t.id, Commit: commit, Written: t.written}
	for _, g := range t.groups {
		d.Offsets = append(d.Offsets, g.pendingOf(t.producer.ID)...)
	}
	t.written = nil
	t.markers = len(t.parts) + len(t.groups)
	if c.hooks.Decided != nil {
		c.hooks.Decided(d)
	}
	by := t.producer
	for _, x := range t.parts {
		c.hooks.Later("marker "+x.partition.Topic, func() {
			x.partition.end(x.outcome, by, commit)
			c.marked(t)
		})
	}
	for _, g := range t.groups {
		c.hooks.Later("marker of group "+g.Name, func() {
			g.settle(by.ID, commit)
			c.marked(t)
		})
	}
	if t.markers == 0 {
		t.state = ended
	}
}

func (c *Cluster) marked(t *transaction) {
	t.markers--
	if t.markers == 0 {
		t.state, t.parts, t.groups = ended, nil, nil
	}
}

// end writes the control record.
func (p *Partition) end(o *outcome, by Producer, commit bool) {
	if known := p.producers[by.ID]; known == nil || known.epoch < by.Epoch {
		p.producers[by.ID] = &producerState{epoch: by.Epoch}
	}
	if o != nil {
		o.state = aborted
		if commit {
			o.state = committed
		}
		for i, x := range p.open {
			if x == o {
				p.open = append(p.open[:i:i], p.open[i+1:]...)
				break
			}
		}
	}
	p.Append(Record{Control: true})
}

// Ongoing lists the transactional ids that have a transaction open.
func (c *Cluster) Ongoing() []string {
	var out []string
	for _, t := range c.transactions {
		if t.state == ongoing {
			out = append(out, t.id)
		}
	}
	return out
}

// Expire ends the transactions that have been open for longer than their
// timeout, and takes the members out whose session has run out.
func (c *Cluster) Expire() {
	now := c.hooks.Now()
	for _, t := range c.transactions {
		if t.state == ongoing && now-t.began > t.timeout {
			t.producer.Epoch++
			c.decide(t, false)
		}
	}
	for _, g := range c.groupsInOrder() {
		g.expire(now)
	}
}
