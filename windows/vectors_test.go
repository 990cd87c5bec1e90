package windows

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
)

// vectorFile reads a file of NDJSON rows from the verification vectors, which
// lie beside the repository.
func vectorFile[T any](t *testing.T, path string) []T {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "shared", "vectors", path))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the verification vectors are not here: ../shared/vectors/%s", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []T
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row T
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

type carRow struct {
	Timestamp time.Time `json:"timestamp"`
	EventType string    `json:"event_type"`
}

type hourRow struct {
	EventType string `json:"event_type"`
	Hour      string `json:"hour"`
	Count     int64  `json:"count"`
}

// One pane for each hour and type, whatever the order of the input: those that
// come in order, those that do not, and those that are merged from parts.
func TestHourlyCountsEqualTheVectorsInAnyOrder(t *testing.T) {
	cars := vectorFile[carRow](t, "arroyo/inputs/cars.json")
	want := map[hourRow]bool{}
	for _, r := range vectorFile[hourRow](t, "arroyo/goldens/hourly_by_event_type.json") {
		want[r] = true
	}
	hour, l := tumblingOf(t, time.Hour, 0), NewLayout([]Func{Count})
	type pane struct {
		eventType string
		w         Window
	}
	for seed := range uint64(3) {
		panes := map[pane]*[2]*Acc{}
		for i, c := range cars {
			key := pane{c.EventType, only(t, hour, event.FromTime(c.Timestamp))}
			if panes[key] == nil {
				panes[key] = &[2]*Acc{l.New(), l.New()}
			}
			l.Add(panes[key][i%2], nil)
		}
		got := map[hourRow]bool{}
		for key, parts := range panes {
			l.Merge(parts[0], parts[1])
			n, err := strconv.ParseInt(l.Results(parts[0])[0].Value.Text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			got[hourRow{key.eventType, key.w.Start.Time().Format("2006-01-02T15:04:05"), n}] = true
		}
		if len(got) != len(want) || len(want) == 0 {
			t.Fatalf("shuffle %d: %d rows, want %d", seed, len(got), len(want))
		}
		for r := range want {
			if !got[r] {
				t.Errorf("shuffle %d: %v is missing", seed, r)
			}
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		rnd.Shuffle(len(cars), func(i, j int) { cars[i], cars[j] = cars[j], cars[i] })
	}
}

type impulseRow struct {
	Timestamp time.Time `json:"timestamp"`
	Counter   int64     `json:"counter"`
}

type slidingRow struct {
	Count int64  `json:"count"`
	Min   int64  `json:"min"`
	Max   int64  `json:"max"`
	Start string `json:"start"`
	End   string `json:"end"`
}

func TestSlidingWindowsEqualTheVectors(t *testing.T) {
	impulses := vectorFile[impulseRow](t, "arroyo/inputs/impulse.json")
	want := map[slidingRow]bool{}
	for _, r := range vectorFile[slidingRow](t, "arroyo/goldens/sliding_window_end.json") {
		want[r] = true
	}
	hop, err := Hopping(10e6, 2e6, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := NewLayout([]Func{Count, Min, Max})
	panes := map[Window]*Acc{}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(impulses)) {
		r := &impulses[i]
		for _, w := range hop.Assign(event.FromTime(r.Timestamp), nil) {
			if panes[w] == nil {
				panes[w] = l.New()
			}
			n := event.Scalar{Type: event.ScalarNumber, Num: event.FromInt64(r.Counter)}
			l.Add(panes[w], []event.Scalar{n, n})
		}
	}
	if len(panes) != len(want) {
		t.Errorf("%d windows, want %d", len(panes), len(want))
	}
	for w, a := range panes {
		var n [3]int64
		for i, o := range l.Results(a) {
			n[i], _ = strconv.ParseInt(o.Value.Text, 10, 64)
		}
		const layout = "2006-01-02T15:04:05"
		row := slidingRow{n[0], n[1], n[2], w.Start.Time().Format(layout), w.End.Time().Format(layout)}
		if !want[row] {
			t.Errorf("%+v is not among the vectors", row)
		}
	}
}
