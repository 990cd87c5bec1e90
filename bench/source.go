package bench

import (
	"fmt"
	"iter"

	"github.com/twmb/franz-go/pkg/kgo"
)

// source is the topic that an engine reads, and what must come of it.
type source interface {
	// topic names it: sources that differ have other names.
	topic() string
	partitions() int32
	// count is how many records it has.
	count() int64
	// all gives them, in the order in which they are produced.
	all() iter.Seq[*kgo.Record]
	// fold is the right result, by definition.
	fold() Panes
	// String says what it is, for people.
	String() string
}

// sourceOf is what an engine reads.
func (c *Config) sourceOf(engine string) source {
	in := c.inputOf(engine)
	if c.Workload == Nexmark {
		return &nexmark{Input: in, kind: bids} // all that q7 reads
	}
	return &in
}

var (
	_ source = (*Input)(nil)
	_ source = (*nexmark)(nil)
)

func (in *Input) partitions() int32 { return in.Partitions }

func (in *Input) count() int64 { return in.Events }

func (in *Input) all() iter.Seq[*kgo.Record] { return in.records(in.topic(), in.Events) }

func (in *Input) fold() Panes { return Fold(in) }

// String implements source.
func (in *Input) String() string { return fmt.Sprintf("%d events of %d keys", in.Events, in.Keys) }
