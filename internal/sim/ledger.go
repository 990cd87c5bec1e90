package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// stored is what a store must hold by the task's committed changes: ids are
// unpacked in a store, and only the key of their block is kept.
func (h *taskHistory) stored() map[string]string {
	out := map[string]string{}
	for k, v := range h.state {
		if k[0] != state.KeyIDBlock {
			out[k] = string(v)
			continue
		}
		out[k] = ""
		bucket := state.BucketOf([]byte(k))
		rd := wire.NewReader(v[1:])
		for n := rd.Count(); n > 0; n-- {
			id := rd.String()
			content := make([]byte, 8)
			for i := range content {
				content[i] = rd.Byte()
			}
			out[string(state.IDKey(nil, bucket, id))] = string(append([]byte{v[0]}, content...))
		}
	}
	return out
}

// differ says how two maps differ, or nothing.
func differ(got, want map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		v, ok := got[k]
		if !ok {
			return fmt.Sprintf("no entry %q", k)
		}
		if v != want[k] {
			return fmt.Sprintf("entry %q is %q, want %q", k, v, want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			return fmt.Sprintf("entry %q, %q, which should not be", k, got[k])
		}
	}
	return ""
}

// firstDifference shows where two texts part.
func firstDifference(got, want string) string {
	if got == want {
		return "no difference"
	}
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	from := max(0, n-200)
	return fmt.Sprintf("got …%s, want …%s", got[from:min(len(got), n+200)], want[from:min(len(want), n+200)])
}

func sortedPartitions[V any](m map[event.Partition]V) []event.Partition {
	return slices.Sorted(maps.Keys(m))
}

// stageOf gives the stage whose group it is, nil for others.
func (s *simulation) stageOf(g *broker.Group) *processors.Stage {
	for _, x := range s.topology.Stages {
		if s.topology.Group(x) == g.Name {
			return x
		}
	}
	return nil
}

func (s *simulation) stageReading(topic string) *processors.Stage {
	for _, x := range s.topology.Stages {
		if x.Input == topic {
			return x
		}
	}
	return nil
}

func (s *simulation) stageOfChangelog(topic string) *processors.Stage {
	for _, x := range s.topology.Stages {
		if s.topology.Changelog(x) == topic {
			return x
		}
	}
	return nil
}

// windowName names a window of an object for people.
func windowName(r *event.Result) string {
	return strings.Join([]string{r.Type, r.ID, r.Aggregate, r.ValidFrom.String(), r.ValidTo.String()}, " ")
}
