package oracle

import (
	"slices"
	"testing"
	"time"
)

func TestFates(t *testing.T) {
	got := Fates([]Arrival{
		{ID: "a", Content: "1", Refused: true}, // gives its id to nobody
		{ID: "a", Content: "2"},
		{ID: "b", Content: "3"},
		{ID: "a", Content: "2"},
		{ID: "a", Content: "1", Refused: true}, // the id decides before what it says
		{Unreadable: true},
		{Unreadable: true},
		{ID: "b", Content: "4"},
	}, 0)
	want := []Fate{Rejected, Counted, Counted, Repeat, Conflict, Rejected, Rejected, Conflict}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAnIdentityIsForgottenBehindTheHorizon(t *testing.T) {
	at := func(n Epoch, before, recorded Micros) Arrival {
		return Arrival{ID: "a", Content: "1", Epoch: n, Before: before, Recorded: recorded}
	}
	got := Fates([]Arrival{
		at(1, 0, 85),
		at(1, 0, 85),
		at(2, 85, 169),  // first recorded in the eighth from 80 on
		at(3, 169, 171), // it is the eighth after that
		at(4, 171, 500), // the ninth: forgotten, and counted again
		at(5, 500, 505), // and known again
	}, 80)
	want := []Fate{Counted, Repeat, Repeat, Repeat, Counted, Repeat}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWindowsOfAnInstant(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at := func(text string) Micros {
		m, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return Micros(m.UnixMicro())
	}
	for _, c := range []struct {
		windows Windows
		t       Micros
		want    Window
	}{
		{Windows{Size: 10}, 19, Window{10, 20}},
		{Windows{Size: 10}, -1, Window{-10, 0}},
		{Windows{Size: 10, Offset: 4}, 13, Window{4, 14}},
		{Windows{Size: 10, Offset: 4}, 14, Window{14, 24}},
		{Windows{Size: 10, Offset: 4}, 3, Window{-6, 4}},
		{Windows{}, 3, Always()},
		{Windows{Days: berlin}, at("2024-03-30T23:00:00Z"), Window{at("2024-03-30T23:00:00Z"), at("2024-03-31T22:00:00Z")}},
		{Windows{Days: berlin}, at("2024-10-27T22:59:59Z"), Window{at("2024-10-26T22:00:00Z"), at("2024-10-27T23:00:00Z")}},
	} {
		if got := c.windows.Of(c.t); got != c.want {
			t.Errorf("%+v at %d: %v, want %v", c.windows, c.t, got, c.want)
		}
	}
}

func TestFoldSamples(t *testing.T) {
	got, err := FoldSamples([]Sample{
		{"a", 1, "5"}, {"a", 11, "-0.25"}, {"b", 2, ""}, {"a", 9, "1.50"}, {"a", 3, ""}, {"a", 19, "100"},
	}, Windows{Size: 10})
	if err != nil {
		t.Fatal(err)
	}
	want := map[Pane]Sums{
		{"a", Window{0, 10}}:  {3, 2, "6.5", "1.5", "5"},
		{"a", Window{10, 20}}: {2, 2, "99.75", "-0.25", "100"},
		{"b", Window{0, 10}}:  {Count: 1},
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for pane, sums := range want {
		if got[pane] != sums {
			t.Errorf("%v: got %+v, want %+v", pane, got[pane], sums)
		}
	}
	if _, err := FoldSamples([]Sample{{"a", 1, "many"}}, Windows{}); err == nil {
		t.Error("a text was taken for a number")
	}
}
