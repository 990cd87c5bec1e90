package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/examples"
	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/sinks/ontology"
)

// badQuakes is how many lines lie between two that are no JSON.
const badQuakes = 80

// quakes is the example pipeline, under the clock of the log: two runs over one
// log are equal in every version of every window, whatever happened. lines is
// how many of the file are taken.
func quakes(suffix string, lines int) (*workload, error) {
	pipeline, topic := "quakes-"+suffix, "earthquakes-"+suffix
	mapping, err := examples.Files.ReadFile("earthquakes/mapping.yaml")
	if err != nil {
		return nil, err
	}
	data, err := examples.Files.ReadFile("earthquakes/quakes.ndjson")
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for i, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		if i >= lines {
			break
		}
		fmt.Fprintf(&text, "%s\n", line)
		if i%badQuakes == 0 {
			fmt.Fprintf(&text, `{"id":"bad%d",`+"\n", i)
		}
	}
	records, err := oracle.ReadRecords(&text)
	if err != nil {
		return nil, err
	}
	w := &workload{
		mapping: renamed(string(mapping), pipeline, map[string]string{"earthquakes": topic}),
		// The rows of a repartition topic are spread over what it has.
		topics: map[string]int32{
			topic: 1,
			"strom." + pipeline + ".g1.aggregate.Region.daily-repartition": 2,
			"strom." + pipeline + ".g1.results":                            2,
		},
		inputs: []string{topic}, atOnce: true,
		want: func([]*kgo.Record) (outcome, error) { return quakesWant(records) },
		got:  quakesGot,
	}
	for i := range records {
		r := &records[i]
		var q struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(r.Value, &q) // what is no JSON has no key
		w.records = append(w.records, &kgo.Record{
			Topic: topic, Key: []byte(q.ID), Value: r.Value, Timestamp: time.UnixMicro(int64(r.Timestamp)),
		})
	}
	return w, nil
}

func quakesWant(records []oracle.Record) (outcome, error) {
	h, err := oracle.QuakeHistory(records, oracle.DemoOptions())
	if err != nil {
		return outcome{}, err
	}
	var out outcome
	for _, w := range h.Windows {
		for i, v := range w.Versions {
			to := "never"
			if i+1 < len(w.Versions) {
				to = event.RecordedTime(w.Versions[i+1].R).String()
			}
			out.believed = append(out.believed, fmt.Sprintf("Region %s %s v%d %s..%s %s n=%d max=%s",
				w.Region, w.Day, v.Number, event.RecordedTime(v.R), to, v.Cause, v.Count, v.MaxMag))
		}
	}
	for _, r := range records {
		if !json.Valid(r.Value) {
			out.deadLetters = append(out.deadLetters, "not_json "+string(r.Value))
		}
	}
	for _, q := range foldedQuakes(records) {
		out.believed = append(out.believed, fmt.Sprintf("Quake %s %s", q.ID, q.Mag))
	}
	slices.Sort(out.believed)
	slices.Sort(out.deadLetters)
	return out, nil
}

// foldedQuakes is the final answer for each quake.
func foldedQuakes(records []oracle.Record) []oracle.Quake {
	var text bytes.Buffer
	for _, r := range records {
		fmt.Fprintf(&text, "%s\n", r.Value)
	}
	fold, err := oracle.FoldQuakes(&text, oracle.DemoOptions().MaxAhead)
	if err != nil {
		return nil // a buffer does not fail
	}
	return fold.Quakes
}

// quakesGot is every version of every window, and the newest magnitude of every quake.
func quakesGot(ctx context.Context, r *ontology.Reader) ([]string, error) {
	largest := map[string]string{}
	var counts []ontology.Assertion
	for a, err := range r.History(ctx, "Region", "", "") {
		if err != nil {
			return nil, err
		}
		if a.Property == "daily.max_magnitude" {
			largest[versionOf(&a)] = a.Value.Text
		} else {
			counts = append(counts, a)
		}
	}
	var lines []string
	for i := range counts {
		a := &counts[i]
		lines = append(lines, fmt.Sprintf("Region %s %s v%d %s..%s %s n=%s max=%s", a.ID, a.ValidFrom.Time().Format(time.DateOnly),
			a.Version, a.RecordedFrom, a.RecordedTo, a.Cause, a.Value.Text, largest[versionOf(a)]))
	}
	bounds, err := r.Bounds(ctx, "Quake")
	if err != nil {
		return nil, err
	}
	magnitudes := map[string]string{}
	for f, err := range r.AsOf(ctx, ontology.Question{Type: "Quake", Recorded: bounds.Horizon}) {
		if err != nil {
			return nil, err
		}
		if _, known := magnitudes[f.ID]; !known {
			magnitudes[f.ID] = ""
		}
		if f.Property == "magnitude" && f.ValidTo == event.OpenEnd {
			magnitudes[f.ID] = f.Value.Text
		}
	}
	for id, m := range magnitudes {
		lines = append(lines, fmt.Sprintf("Quake %s %s", id, m))
	}
	slices.Sort(lines)
	return lines, nil
}

func versionOf(a *ontology.Assertion) string {
	return fmt.Sprintf("%s %s %d", a.ID, a.ValidFrom, a.Version)
}
