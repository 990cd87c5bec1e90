package processors

import (
	"github.com/lovoo/goka"
)

// Graph is the goka group of a stage: one input, whose messages are slabs, and
// a table, whose changelog goka recovers. deliver is called with what codec
// decodes, by the goroutine that goka runs for the partition.
func (t *Topology) Graph(s *Stage, codec goka.Codec, deliver func(ctx goka.Context, msg any)) *goka.GroupGraph {
	return goka.DefineGroup(goka.Group(t.Group(s)),
		goka.Input(goka.Stream(s.Input), codec, deliver),
		goka.Persist(codec),
	)
}
