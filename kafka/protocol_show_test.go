package kafka_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/cockroachdb/datadriven"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

// taskNames turns partitions into the names of a script.
func (s *protocolScript) taskNames(partitions []event.Partition) string {
	var out []string
	for name, p := range s.tasks {
		if slices.Contains(partitions, p) {
			out = append(out, name)
		}
	}
	sort.Strings(out)
	return strings.Join(out, " and ")
}

func (s *protocolScript) applied(*datadriven.TestData) (string, error) {
	var store ontology.Store = s.memory
	for _, r := range s.replicas {
		if _, dead := r.isKilled(); s.postgres != "" && !dead && r.store != nil {
			store = r.store
		}
	}
	progress, err := store.Progress(s.t.Context())
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for p := range event.Partition(len(progress)) {
		at := progress[p]
		fmt.Fprintf(&out, "up to %s", s.name(at.Epoch))
		if at.Recorded == s.recorded(at.Epoch) {
			fmt.Fprintf(&out, ", at its R")
		}
		if at.UnderWay != 0 {
			fmt.Fprintf(&out, "; of %s, rows and the marker of %s", s.name(at.UnderWay), s.taskNames(at.Seen[s.stage().Name]))
		}
		out.WriteString("\n")
	}
	return out.String(), nil
}

// completed says who has completed n in a results partition, and how often.
func (s *protocolScript) completed(*datadriven.TestData) (string, error) {
	var out strings.Builder
	for _, title := range slices.Sorted(maps.Keys(s.replicas)) {
		if count := s.replicas[title].completions(s.epochs["n"]); count > 0 {
			fmt.Fprintf(&out, "%s, %d times\n", title, count)
		}
	}
	return strings.ReplaceAll(out.String(), "1 times", "once"), nil
}

func (s *protocolScript) recorded(n event.Epoch) event.RecordedTime {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	for _, b := range s.log.announced {
		if b.epoch == n {
			return b.recorded
		}
	}
	return event.RecordedUnknown
}

// offsets compares the group's committed offsets with what was acknowledged.
func (s *protocolScript) offsets(*datadriven.TestData) (string, error) {
	if err := s.log.catchUp(s.t.Context()); err != nil {
		return "", err
	}
	committed, err := kadm.NewClient(s.client).FetchOffsets(s.t.Context(), s.config.Topology.Group(s.stage()))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	for p := range event.Partition(len(s.tasks)) {
		name := s.taskNames([]event.Partition{p})
		o, _ := committed.Lookup("ticks", int32(p))
		at := "none of its barriers"
		for _, a := range s.log.acks {
			if a.task == p && a.epoch == s.epochs["n"] && int64(a.offset) == o.At {
				at = "its barrier n"
			}
		}
		fmt.Fprintf(&out, "%s at %s\n", name, at)
	}
	return sortedLines(out.String()), nil
}

func sortedLines(text string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if n := len(lines); n > 0 {
		lines[n-1] += "\n"
	}
	sort.Strings(lines)
	return strings.Join(lines, "")
}

func (s *protocolScript) epoch(d *datadriven.TestData) (string, error) {
	if err := s.log.catchUp(s.t.Context()); err != nil {
		return "", err
	}
	n := s.epochs[words(d)[0]]
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	var out strings.Builder
	for _, a := range s.log.acks {
		if a.epoch != n {
			continue
		}
		does := "commits"
		if a.takeover {
			does = "takes over"
		}
		fmt.Fprintf(&out, "%s %s %s\n", s.title(a.member.replica), does, s.taskNames([]event.Partition{a.task}))
	}
	said := map[string]bool{}
	for p := range int32(len(s.log.markers)) {
		var text strings.Builder
		for _, m := range s.log.markers[p] {
			if m.Epoch == n {
				fmt.Fprintf(&text, "marker of %s: %s\n", s.title(memberNamed(m.Member).replica), s.taskNames(m.Tasks))
			}
		}
		if !said[text.String()] { // the same in every partition
			out.WriteString(text.String())
		}
		said[text.String()] = true
	}
	return out.String(), nil
}

// end ends the input and compares what is believed with what a calm run believes.
func (s *protocolScript) end(*datadriven.TestData) (string, error) {
	for _, r := range s.replicas {
		if err := r.failure(); err != nil {
			return "", err
		}
		s.release(r)
		if err := s.ended(r); err != nil {
			return "", err
		}
	}
	buryMembers(s.t, s.broker.Brokers())
	if err := s.toTheEnd(s.config, "last"); err != nil {
		return "", err
	}
	got, err := s.believed()
	if err != nil {
		return "", err
	}
	calm := s.config
	if calm.Topology, err = protocolTopology("calm", "log, step: 1h"); err != nil {
		return "", err
	}
	var memory *ontology.Memory
	calm.OpenOntology = func(_ context.Context, p ontology.Pipeline) (ontology.Store, error) {
		memory = ontology.NewMemory(p)
		return memory, nil
	}
	if err := s.toTheEnd(calm, "calm"); err != nil {
		return "", err
	}
	want, err := memoryBelieves(memory)
	if err == nil && got != want {
		err = fmt.Errorf("a calm run believes otherwise: %s", firstDifference(got, want))
	}
	return got, err
}

// release lets a replica go on wherever it is held, and stops it.
func (s *protocolScript) release(r *replica) {
	for _, group := range s.groups() {
		r.wire.setDeaf(group, false)
	}
	if r.loss != nil {
		close(r.loss.resume)
		r.loss = nil
	}
	r.stop()
	r.wake(true)
}

// toTheEnd runs an engine until the end of the input.
func (s *protocolScript) toTheEnd(c kafka.Config, name string) error {
	c.UntilEnd, c.DataDir, c.Replica = true, s.t.TempDir(), name
	ctx, cancel := context.WithTimeout(s.t.Context(), scriptPatience)
	defer cancel()
	if err := kafka.New(c).Run(ctx); err != nil {
		return fmt.Errorf("the %s run: %w", name, err)
	}
	return ctx.Err()
}

func (s *protocolScript) believed() (string, error) {
	if s.postgres == "" {
		return memoryBelieves(s.memory)
	}
	ctx := s.t.Context()
	reader, err := ontology.OpenReader(ctx, mapping.Ontology{Postgres: mapping.NewSecret(s.postgres)}, ontology.Options{})
	if err != nil {
		return "", err
	}
	defer reader.Close()
	bounds, err := reader.Bounds(ctx, "")
	if err != nil {
		return "", err
	}
	var facts []ontology.Fact
	for f, err := range reader.AsOf(ctx, ontology.Question{Recorded: bounds.Horizon}) {
		if err != nil {
			return "", err
		}
		facts = append(facts, f)
	}
	return showFacts(facts), nil
}

func memoryBelieves(m *ontology.Memory) (string, error) {
	facts, err := m.AsOf(ontology.Question{Recorded: m.Horizon()})
	return showFacts(facts), err
}

// showFacts shows the windows, and the values that hold in the end.
func showFacts(facts []ontology.Fact) string {
	windows := map[string]string{}
	for i := range facts {
		f := &facts[i]
		name, _, _ := strings.Cut(f.ID, "~")
		from := f.ValidFrom.Time().Sub(scriptBase())
		property, window := strings.CutPrefix(f.Property, "hours.")
		switch {
		case window:
			windows[fmt.Sprintf("%s from %s:", name, from)] += fmt.Sprintf(" %s=%s", property, f.Value.Text)
		case f.ValidTo == event.OpenEnd:
			windows[fmt.Sprintf("%s now:", name)] += fmt.Sprintf(" %s=%s", property, f.Value.Text)
		}
	}
	var out strings.Builder
	for k, v := range windows {
		fmt.Fprintf(&out, "%s%s\n", k, v)
	}
	return sortedLines(out.String())
}

// close ends what still runs.
func (s *protocolScript) close() {
	for _, r := range s.replicas {
		s.release(r)
	}
	for _, r := range s.replicas {
		if err := s.ended(r); err != nil {
			s.t.Logf("%s ended with %v", r.title, err)
		}
		if s.t.Failed() {
			r.mu.Lock()
			s.t.Logf("the log of %s:\n%s", r.title, strings.Join(r.lines, "\n"))
			r.mu.Unlock()
		}
	}
	if s.log != nil {
		s.log.close()
	}
}
