package bench

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"
)

func TestFewerEventsAreAPrefixAndAnotherSeedIsAnotherInput(t *testing.T) {
	in := Input{Events: 1000, Keys: 100, Late: 0.2, Seed: 1}.WithDefaults()
	again, other := in, in
	again.Events, other.Seed = 10, 2
	differ := false
	for i := range again.Events {
		if a, b := in.Event(i), again.Event(i); a != b {
			t.Fatalf("event %d: %+v, %+v", i, a, b)
		}
		differ = differ || in.Event(i) != other.Event(i)
	}
	if !differ {
		t.Error("the seed changes nothing")
	}
	if in.topic() == again.topic() || in.topic() == other.topic() {
		t.Error("inputs that differ share a topic")
	}
}

func TestEveryKeyComesOnceInAsManyEventsAsThereAreKeys(t *testing.T) {
	for _, keys := range []int64{1, 2, 10, 7919, 10_000} {
		in := Input{Keys: keys}.WithDefaults()
		seen := map[int64]bool{}
		for i := range keys {
			seen[in.Event(12_345+i).Key] = true
		}
		if int64(len(seen)) != keys {
			t.Errorf("%d of %d keys", len(seen), keys)
		}
	}
}

func TestAsManyEventsAreLateAsWasAskedFor(t *testing.T) {
	const n = 100_000
	for _, share := range []float64{0, 0.01, 0.2, 1} {
		in := Input{Events: n, Late: share, Lateness: 5 * time.Second}.WithDefaults()
		late := 0
		for i := range int64(n) {
			by := base + i/in.Rate - in.Event(i).At
			if by < 0 || by > 5000 {
				t.Fatalf("event %d is %d ms late", i, by)
			}
			if by > 0 {
				late++
			}
		}
		if got := float64(late) / n; got < share*0.9 || got > share*1.1 {
			t.Errorf("a share of %g instead of %g", got, share)
		}
	}
}

func TestAnEventIsAboutAsLongAsSaidAndSaysWhatItIs(t *testing.T) {
	in := Input{Keys: maxKeys, Late: 0.5}.WithDefaults()
	for i := int64(0); i < 50_000_000; i += 999_983 {
		want := in.Event(i)
		text := in.appendJSON(nil, i, want)
		if len(text) < 135 || len(text) > 145 {
			t.Fatalf("%d bytes: %s", len(text), text)
		}
		var got struct {
			User       string
			At, Amount int64
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		key, err := parseKey(got.User)
		if err != nil || (Event{Key: key, At: got.At, Amount: got.Amount}) != want {
			t.Fatalf("%s (%v) is not %+v", text, err, want)
		}
	}
}

func TestAFaultyInputIsToldWhole(t *testing.T) {
	err := Input{Events: -1, Keys: -1, Partitions: -1, Late: 2, Lateness: -1, Window: 1, Rate: -1}.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 6 {
		t.Errorf("not seven faults: %v", err)
	}
}

func TestTheFoldIsWhatAHandWouldCount(t *testing.T) {
	in := Input{Events: 6, Keys: 2, Rate: 1, Window: 4 * time.Millisecond}.WithDefaults()
	var amounts [6]int64
	for i := range amounts {
		amounts[i] = in.Event(int64(i)).Amount
	}
	// Two keys take turns; a window holds four events, so two of each.
	want := Panes{}
	for i, start := range []int64{0, 0, 4, 4} {
		first := []int{0, 1, 4, 5}[i]
		all := []int64{amounts[first]}
		if start == 0 {
			all = append(all, amounts[first+2])
		}
		totals := Totals{N: int64(len(all)), Least: all[0], Most: all[0]}
		for _, a := range all {
			totals.Sum += a
			totals.Least, totals.Most = min(totals.Least, a), max(totals.Most, a)
		}
		want[Pane{Key: in.Event(int64(first)).Key, Start: base + start}] = totals
	}
	if got := Fold(&in); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAHashTellsResultsApart(t *testing.T) {
	in := Input{Events: 5000, Keys: 100}.WithDefaults()
	right := Fold(&in)
	if d := right.Diff(Fold(&in)); d != "" || right.Hash() != Fold(&in).Hash() {
		t.Fatalf("it differs from itself: %s", d)
	}
	for name, spoil := range map[string]func(Panes, Pane){
		"lost":    func(p Panes, at Pane) { delete(p, at) },
		"changed": func(p Panes, at Pane) { v := p[at]; v.Most++; p[at] = v },
		"new":     func(p Panes, at Pane) { at.Start++; p[at] = Totals{N: 1} },
		"moved":   func(p Panes, at Pane) { v := p[at]; delete(p, at); at.Start++; p[at] = v },
	} {
		wrong := maps.Clone(right)
		for at := range wrong {
			spoil(wrong, at)
			break
		}
		if wrong.Hash() == right.Hash() || wrong.Diff(right) == "" {
			t.Errorf("%s: hash %s, want another than %s; difference %q", name, wrong.Hash(), right.Hash(), wrong.Diff(right))
		}
	}
}
