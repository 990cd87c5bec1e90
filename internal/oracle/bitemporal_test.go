package oracle

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTheLastPutThatHoldsDecides(t *testing.T) {
	puts := []Put{
		{Key: "k", Recorded: 1, ValidFrom: 10, Value: "a"},
		{Key: "k", Recorded: 2, ValidFrom: 20, ValidTo: new(int64(30)), Value: "b"},
		{Key: "other", Recorded: 2, ValidFrom: 0, Value: "x"},
		{Key: "k", Recorded: 3, ValidFrom: 25, ValidTo: new(int64(40)), Delete: true},
	}
	for _, c := range []struct {
		v, r int64
		want string // "" is nothing
	}{
		{9, 9, ""}, {10, 0, ""}, {10, 1, "a"}, {25, 1, "a"}, {20, 2, "b"}, {29, 2, "b"}, {30, 2, "a"},
		{24, 3, "b"}, {25, 3, ""}, {39, 3, ""}, {40, 3, "a"}, {1 << 60, 3, "a"},
	} {
		got, ok := Believed(puts, "k", c.v, c.r)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("at valid %d as of %d: %q, %v; want %q", c.v, c.r, got, ok, c.want)
		}
	}
}

func TestTheGreatestEventInValidTimeThenTieOrderDecides(t *testing.T) {
	events := []TimelineEvent{
		{Recorded: 1, ValidFrom: 10, Tie: []int64{0, 5}, Value: "a"},
		{Recorded: 2, ValidFrom: 30, Tie: []int64{0, 6}, Delete: true},
		{Recorded: 3, ValidFrom: 20, Tie: []int64{0, 7}, Value: "between"},
		{Recorded: 4, ValidFrom: 10, Tie: []int64{0, 4}, Value: "lower tie"},
		{Recorded: 5, ValidFrom: 10, Tie: []int64{1, 0}, Value: "higher tie"},
	}
	for _, c := range []struct {
		v, r int64
		want string
	}{
		{9, 9, ""}, {10, 0, ""}, {25, 1, "a"}, {30, 1, "a"}, {29, 2, "a"}, {30, 2, ""}, {19, 3, "a"}, {20, 3, "between"},
		{29, 3, "between"}, {30, 3, ""}, {10, 4, "a"}, {19, 5, "higher tie"}, {20, 5, "between"},
	} {
		got, ok := TimelineBelieved(events, c.v, c.r)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("at valid %d as of %d: %q, %v; want %q", c.v, c.r, got, ok, c.want)
		}
	}
}

// asPut says the same as a newly recorded event by a put: it holds until the
// next known event. There is none where a known event stands before it at its
// own instant.
func asPut(known []TimelineEvent, e TimelineEvent) (Put, bool) {
	put := Put{Recorded: e.Recorded, ValidFrom: e.ValidFrom, Value: e.Value, Delete: e.Delete}
	for _, k := range known {
		if !before(e, k) {
			continue
		}
		if k.ValidFrom == e.ValidFrom {
			return Put{}, false
		}
		if put.ValidTo == nil || k.ValidFrom < *put.ValidTo {
			put.ValidTo = new(k.ValidFrom)
		}
	}
	return put, true
}

func TestTimelinesAndTheirPutsBelieveTheSame(t *testing.T) {
	const span = 8
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		var events []TimelineEvent
		var puts []Put
		for i := range 10 {
			e := TimelineEvent{
				Recorded:  int64(i) / 2,
				ValidFrom: random.Int64N(span),
				Tie:       []int64{random.Int64N(3), int64(i)},
				Value:     fmt.Sprint("value ", i),
				Delete:    random.IntN(4) == 0,
			}
			if put, there := asPut(events, e); there {
				puts = append(puts, put)
			}
			events = append(events, e)
		}
		for v := int64(-1); v <= span; v++ {
			for r := int64(-1); r <= 5; r++ {
				fromEvents, ok1 := TimelineBelieved(events, v, r)
				fromPuts, ok2 := Believed(puts, "", v, r)
				if fromEvents != fromPuts || ok1 != ok2 {
					t.Fatalf("seed %d, valid %d as of %d: events %q %v, puts %q %v",
						seed, v, r, fromEvents, ok1, fromPuts, ok2)
				}
			}
		}
	}
}

// vectorCase is one case of the shared bitemporal vectors.
type vectorCase struct {
	Name string
	Puts []struct {
		Key       string
		Recorded  int64
		Op        string
		ValidFrom int64  `json:"valid_from"`
		ValidTo   *int64 `json:"valid_to"`
		Value     *string
	}
	Expect []rectangle
	Grid   []struct {
		Key             string
		Valid, Recorded []int64
		Believed        [][]*string
	}
}

type rectangle struct {
	Key, Value   string
	ValidFrom    int64  `json:"valid_from"`
	ValidTo      *int64 `json:"valid_to"`
	RecordedFrom int64  `json:"recorded_from"`
	RecordedTo   *int64 `json:"recorded_to"`
}

func (x rectangle) has(key string, v, r int64) bool {
	return x.Key == key && v >= x.ValidFrom && (x.ValidTo == nil || v < *x.ValidTo) &&
		r >= x.RecordedFrom && (x.RecordedTo == nil || r < *x.RecordedTo)
}

func TestBelievedAgreesWithTheSharedVectors(t *testing.T) {
	for _, name := range []string{"named.json", "random.json"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.FromSlash("../../../shared/vectors/bitemporal/" + name))
			if os.IsNotExist(err) {
				t.Skip("the shared vectors are not here (../shared/vectors beside the repository): nothing was compared")
			}
			if err != nil {
				t.Fatal(err)
			}
			var cases []vectorCase
			if err := json.Unmarshal(text, &cases); err != nil {
				t.Fatal(err)
			}
			if len(cases) == 0 {
				t.Fatal("the file has no case")
			}
			for _, c := range cases {
				t.Run(c.Name, func(t *testing.T) { checkVector(t, c) })
			}
		})
	}
}

func checkVector(t *testing.T, c vectorCase) {
	t.Helper()
	var puts []Put
	for _, p := range c.Puts {
		put := Put{Key: p.Key, Recorded: p.Recorded, ValidFrom: p.ValidFrom, ValidTo: p.ValidTo, Delete: p.Op == "delete"}
		if p.Value != nil {
			put.Value = *p.Value
		}
		puts = append(puts, put)
	}
	points := 0
	for _, grid := range c.Grid {
		for i, r := range grid.Recorded {
			for j, v := range grid.Valid {
				points++
				got, ok := Believed(puts, grid.Key, v, r)
				want := grid.Believed[i][j]
				if ok != (want != nil) || ok && got != *want {
					t.Errorf("key %q, valid %d as of %d: %q, %v; the grid has %v", grid.Key, v, r, got, ok, want)
				}
				at := slices.IndexFunc(c.Expect, func(x rectangle) bool { return x.has(grid.Key, v, r) })
				if ok != (at >= 0) || ok && got != c.Expect[at].Value {
					t.Errorf("key %q, valid %d as of %d: %q, %v; the rectangles differ", grid.Key, v, r, got, ok)
				}
			}
		}
	}
	if points == 0 {
		t.Error("the grid is empty: nothing was compared")
	}
}
