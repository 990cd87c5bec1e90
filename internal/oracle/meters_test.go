package oracle

import (
	"slices"
	"strings"
	"testing"
)

func reading(text string) MeterRecord { return MeterRecord{Value: []byte(text)} }

func TestMetersAreFoldedByTheirWords(t *testing.T) {
	records := []MeterRecord{
		reading(`{"id":"a","meter":"m1","street":"s1","at":9999,"v":5}`),
		reading(`{"id":"b","meter":"m1","street":"s1","at":10000,"v":7}`),
		reading(`{"id":"a","meter":"m1","street":"s1","at":9999,"v":5}`), // a repeat
		reading(`{"id":"a","meter":"m1","street":"s1","at":9999,"v":6}`), // a conflict
		reading(`{"id":"c","meter":"m1","street":"s1","at":9999,"v":7}`), // decides at its instant
		reading(`{"id":"d","meter":"m1","street":"s1"}`),
		reading(`{"id":"e"`),
		reading(`{"id":"f","meter":"m1","street":"s1","at":86402001,"v":1}`),
		reading(`{"id":"g","meter":"m1","street":"s1","at":-1,"v":0}`),
		{Visit: true, Value: []byte(`{"id":1,"house":"h1","at":59999}`)},
		{Visit: true, Value: []byte(`{"id":1,"house":"h1","at":60000}`)},
	}
	fold, err := FoldMeters(records, 2*Second)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"House h1 visits.n 0 60000000 1",
		"House h1 visits.n 60000000 120000000 1",
		"Meter m1 ever.n always always 4",
		"Meter m1 ever.total always always 19",
		"Meter m1 level -1000 9999000 0",
		"Meter m1 level 9999000 open 7",
		"Meter m1 tens.n -10000000 0 1",
		"Meter m1 tens.n 0 10000000 2",
		"Meter m1 tens.n 10000000 20000000 1",
		"Meter m1 tens.total -10000000 0 0",
		"Meter m1 tens.total 0 10000000 12",
		"Meter m1 tens.total 10000000 20000000 7",
		"Street s1 ever.mean always always 4.75",
		"Street s1 ever.n always always 4",
		"Street s1 ever.total always always 19",
	}
	if !slices.Equal(fold.Believed, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(fold.Believed, "\n"), strings.Join(want, "\n"))
	}
	var reasons []string
	for _, d := range fold.DeadLetters {
		reason, _, _ := strings.Cut(d, " ")
		reasons = append(reasons, reason)
	}
	if got := strings.Join(reasons, " "); got != "ahead conflict no_event_time not_json" {
		t.Errorf("dead letters: %s", got)
	}
	if fold.Readings != 4 || fold.Visits != 2 || fold.Repeats != 1 {
		t.Errorf("%d readings, %d visits, %d repeats", fold.Readings, fold.Visits, fold.Repeats)
	}
}

func TestAQuotientHasTwentyDigitsHalfToEven(t *testing.T) {
	for _, c := range []struct {
		a, b int64
		want string
	}{
		{0, 3, "0"}, {1, 3, "0.33333333333333333333"}, {200, 3, "66.666666666666666667"}, {10, 4, "2.5"},
		{100, 1, "100"}, {-2, 3, "-0.66666666666666666667"}, {1, 1024, "0.0009765625"},
		// Twenty-one digits, the last a five: to even, down and up.
		{1, 1 << 30, "0.00000000093132257461547851562"},
		{3, 1 << 29, "0.0000000055879354476928710938"},
	} {
		if got := quotient(c.a, c.b); got != c.want {
			t.Errorf("%d/%d is %s, want %s", c.a, c.b, got, c.want)
		}
	}
}
