package kafka_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

const quakesFile = "../examples/earthquakes/quakes.ndjson"

func quakesPlan(t *testing.T) *mapping.Plan {
	t.Helper()
	plan, err := mapping.Load("../examples/earthquakes/mapping.yaml", os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// loadQuakes produces the earthquake catalogue as the demo does.
func loadQuakes(t *testing.T, brokers []string) {
	t.Helper()
	data, err := os.ReadFile(quakesFile)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var records []*kgo.Record
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var q struct {
			ID      string `json:"id"`
			Updated int64  `json:"updated"`
		}
		line := bytes.Clone(lines.Bytes())
		if err := json.Unmarshal(line, &q); err != nil {
			t.Fatal(err)
		}
		records = append(records, &kgo.Record{
			Topic: "earthquakes", Key: []byte(q.ID), Value: line, Timestamp: time.UnixMilli(q.Updated),
		})
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// wantHistory is every version of every region and day as read by hand.
func wantHistory(t *testing.T) string {
	t.Helper()
	f, err := os.Open(quakesFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := oracle.ReadRecords(f)
	if err != nil {
		t.Fatal(err)
	}
	want, err := oracle.QuakeHistory(records, oracle.DemoOptions())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, w := range want.Windows {
		for i, v := range w.Versions {
			to := "never"
			if i+1 < len(w.Versions) {
				to = rfc3339(int64(w.Versions[i+1].R))
			}
			lines = append(lines, fmt.Sprintf("%s %s v%d %s..%s %s n=%d max=%s",
				w.Region, w.Day, v.Number, rfc3339(int64(v.R)), to, v.Cause, v.Count, v.MaxMag))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func rfc3339(micros int64) string { return event.RecordedTime(micros).String() }

// gotHistory is the same from the ontology, and the number of quakes in it.
func gotHistory(t *testing.T, url string) (history string, quakes int) {
	t.Helper()
	reader, err := ontology.OpenReader(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(url)}, ontology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	largest := map[string]string{}
	var counts []ontology.Assertion
	for a, err := range reader.History(t.Context(), "Region", "", "") {
		if err != nil {
			t.Fatal(err)
		}
		if a.Property == "daily.max_magnitude" {
			largest[versionKey(&a)] = a.Value.Text
		} else {
			counts = append(counts, a)
		}
	}
	var lines []string
	for i := range counts {
		a := &counts[i]
		lines = append(lines, fmt.Sprintf("%s %s v%d %s..%s %s n=%s max=%s", a.ID, a.ValidFrom.Time().Format(time.DateOnly),
			a.Version, a.RecordedFrom, a.RecordedTo, a.Cause, a.Value.Text, largest[versionKey(a)]))
	}
	sort.Strings(lines)
	for _, err := range reader.List(t.Context(), "Quake", "", 0) {
		if err != nil {
			t.Fatal(err)
		}
		quakes++
	}
	return strings.Join(lines, "\n"), quakes
}

func versionKey(a *ontology.Assertion) string {
	return fmt.Sprintf("%s %s %d", a.ID, a.ValidFrom, a.Version)
}

// compareQuakes compares the ontology with the reading by hand, version by version.
func compareQuakes(t *testing.T, url string) {
	t.Helper()
	got, quakes := gotHistory(t, url)
	if want := wantHistory(t); got != want {
		t.Errorf("the history differs from the reading by hand:\n%s", firstDifference(got, want))
	}
	if quakes != 1707 {
		t.Errorf("%d quakes, want 1707", quakes)
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		x, y := "(nothing)", "(nothing)"
		if i < len(g) {
			x = g[i]
		}
		if i < len(w) {
			y = w[i]
		}
		if x != y {
			return fmt.Sprintf("line %d of %d and %d\ngot  %s\nwant %s", i+1, len(g), len(w), x, y)
		}
	}
	return ""
}
