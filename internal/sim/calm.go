package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// compareWithCalm runs the same input through one machine to which nothing
// happens. Under the log clock all that is published is a function of the log.
func (s *simulation) compareWithCalm(o Options) {
	setup := s.setup
	setup.calm, setup.replicas, setup.noFencing = true, 1, false
	calm := newSimulation(setup, Options{Seed: o.Seed})
	defer calm.close()
	calm.run()
	if f := calm.world.failure; f != nil {
		s.world.fail(ByteEqual, "the run without faults fails: %s: %s", f.Invariant, f.Detail)
		return
	}
	got, want := s.published(), calm.published()
	if got != want {
		s.world.fail(ByteEqual, "%q", firstDifference(got, want))
	}
}

// published is everything that anybody can see of a run.
func (s *simulation) published() string {
	var b strings.Builder
	line := func(what string, x any) {
		text, err := json.Marshal(x)
		fmt.Fprintf(&b, "%s %s %v\n", what, text, err)
	}
	for i := range s.checks.announced {
		line("barrier", s.checks.announced[i])
	}
	versions := s.database.store.Versions()
	for i := range versions {
		// What was superseded within its own epoch depends on how the sink cut it.
		if versions[i].RecordedFrom < versions[i].RecordedTo {
			line("assertion", versions[i])
		}
	}
	var letters []string
	for i := range s.checks.letters {
		letters = append(letters, showLetter(s.checks.letters[i].Payload)+" "+string(s.checks.letters[i].Value))
	}
	slices.Sort(letters)
	line("dead letters", letters)
	for _, t := range s.checks.order {
		h := s.checks.tasks[t]
		fmt.Fprintf(&b, "%v %s\n", t, h.progress[len(h.progress)-1].Counters)
	}
	return b.String()
}
