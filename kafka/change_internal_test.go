package kafka

import (
	"errors"
	"strings"
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

func smallEngine(t *testing.T) *Engine {
	t.Helper()
	plan, err := mapping.Parse("m.yaml", []byte("pipeline: p\nstreams: {s: {topic: t, key: a, event_time: at}}\nobjects: {O: {from: s, id: a, properties: {a: a}}}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Topology: processors.NewTopology(plan, 1)})
}

// A build that knows nothing of changes knows version 1 of control records: a
// barrier that brings a mapping must not look to it like any other.
func TestABarrierThatBringsAMappingStopsBuildsThatKnowNothingOfChanges(t *testing.T) {
	at := event.Offset(7)
	for changes, version := range map[bool]string{false: `"v":1`, true: `"v":2`} {
		b, err := encodeAnnouncement(processors.Announcement{Epoch: 3, Mapping: "m"}, "r", &at, changes)
		if err != nil || !strings.Contains(string(b), version) || strings.Contains(string(b), "format") {
			t.Errorf("changes %v: %s, %v", changes, b, err)
		}
		r, err := decodeControl(b)
		if err != nil || r.changes() != changes || *r.MappingAt != at {
			t.Errorf("changes %v: %+v, %v", changes, r, err)
		}
	}
	if _, err := decodeControl([]byte(`{"v":3,"kind":"barrier","epoch":1}`)); !errors.Is(err, event.ErrVersion) {
		t.Errorf("version 3 gives %v", err)
	}
}

// What the engine must not pass to its tasks it does not pass.
func TestABarrierOfAnotherMappingIsPassedOnlyWhereItEndsThisOne(t *testing.T) {
	barrier := func(n event.Epoch, mapping string, v int) *controlRecord {
		return &controlRecord{V: v, Kind: kindBarrier, Epoch: n, Mapping: mapping}
	}
	e := smallEngine(t)
	own := e.topology.Plan.Version
	for _, r := range []*controlRecord{barrier(1, own, 1), barrier(2, "other", controlVersionChange)} {
		if err := e.heard(r); err != nil {
			t.Errorf("barrier %s: %v", r.Epoch, err)
		}
	}
	if err := e.heard(barrier(3, "other", 1)); !errors.Is(err, errSwitch) {
		t.Errorf("a barrier behind the change gives %v", err)
	}
	e = smallEngine(t)
	if err := e.heard(barrier(3, "other", 1)); !errors.Is(err, errSwitch) || e.switching.begun() {
		t.Errorf("a barrier behind a change that was not heard gives %v", err)
	}
	e = smallEngine(t)
	newer := barrier(4, own, 1)
	newer.Format = state.NewestFormat + 1
	if err := e.heard(newer); !errors.Is(err, event.ErrVersion) || !permanent(err) {
		t.Errorf("a format that this build does not read gives %v", err)
	}
}
