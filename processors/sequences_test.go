package processors

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

// numbers draws some that lie close together, and the ends of all numbers.
func numbers() *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		switch rapid.IntRange(0, 9).Draw(t, "where") {
		case 0:
			return math.MaxInt64 - rapid.Int64Range(0, 5).Draw(t, "from the end")
		case 1:
			return math.MinInt64 + rapid.Int64Range(0, 5).Draw(t, "from the start")
		}
		return rapid.Int64Range(-12, 12).Draw(t, "near")
	})
}

func checkRuns(t *rapid.T, r *runs, want map[int64]bool) {
	t.Helper()
	for i, x := range r.all {
		if x.to < x.from || i > 0 && (x.from <= r.all[i-1].to || r.all[i-1].touches(x.from)) {
			t.Fatalf("runs that touch or overlap: %v", r.all)
		}
	}
	var at []int64
	for n := range want {
		at = append(at, n, n-1, n+1) // those beside may wrap, and are asked all the same
	}
	for _, n := range at {
		if r.has(n) != want[n] {
			t.Fatalf("%d is known: %v, want %v, in %v", n, r.has(n), want[n], r.all)
		}
	}
}

func TestSequenceNumbersAreRememberedAsASet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r, want := &runs{}, map[int64]bool{}
		for _, n := range rapid.SliceOfN(numbers(), 0, 40).Draw(rt, "numbers") {
			r.add(n)
			want[n] = true
			checkRuns(rt, r, want)
		}
		again, err := decodeRuns(r.encode())
		if err != nil {
			rt.Fatal(err)
		}
		checkRuns(rt, again, want)
		if !slices.Equal(again.all, r.all) {
			rt.Fatalf("%v are read back as %v", r.all, again.all)
		}
	})
}

func TestTheRunsOfAKeyAreBounded(t *testing.T) {
	r := &runs{}
	for i := range int64(MaxSequenceRanges) {
		if r.full(3 * i) {
			t.Fatalf("full at %d runs", len(r.all))
		}
		r.add(3 * i)
	}
	for n, full := range map[int64]bool{-2: true, -1: false, 0: false, 1: false, 2: false, 3 * MaxSequenceRanges: true, 3*MaxSequenceRanges - 2: false} {
		if got := r.full(n); got != full {
			t.Errorf("full for %d: %v", n, got)
		}
	}
}

func TestRunsThatAreNoneAreRefused(t *testing.T) {
	r := &runs{}
	r.add(1)
	r.add(5)
	good := r.encode()
	for name, bad := range map[string][]byte{
		"empty": {}, "longer": append(slices.Clone(good), 0), "cut": good[:len(good)-1], "more runs than bytes": {sequencesVersion, 200},
		"runs that touch": {sequencesVersion, 2, 2, 0, 4, 0}, "runs out of order": {sequencesVersion, 2, 10, 0, 2, 0},
	} {
		if _, err := decodeRuns(bad); !errors.Is(err, event.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good[0] = sequencesVersion + 1
	if _, err := decodeRuns(good); !errors.Is(err, event.ErrVersion) {
		t.Errorf("a newer version: %v", err)
	}
}

func FuzzDecodeRuns(f *testing.F) {
	f.Add([]byte{sequencesVersion, 2, 2, 0, 10, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRuns(b)
		if err != nil {
			if !errors.Is(err, event.ErrCorrupt) && !errors.Is(err, event.ErrVersion) {
				t.Fatalf("an error of no class: %v", err)
			}
			return
		}
		again, err := decodeRuns(r.encode())
		if err != nil || !slices.Equal(again.all, r.all) {
			t.Fatalf("read back as %v, %v", again, err)
		}
	})
}
