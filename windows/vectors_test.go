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
