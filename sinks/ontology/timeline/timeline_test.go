package timeline_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

// table is a store as dumb as can be: the rows of one fact, each with its
// recorded interval. It checks on the way that closed rows stay as they are.
type table struct {
	t    rapid.TB
	rows []timeline.Closed // RecordedTo is RecordedNever for a head
	line timeline.Line
}

// call runs one call as a store does: heads in, changes out.
func (s *table) call(f func(*timeline.Line) error) error {
	s.line.Heads = s.line.Heads[:0]
	for i := range s.rows {
		if s.rows[i].RecordedTo == event.RecordedNever {
			s.line.Heads = append(s.line.Heads, timeline.Head{Assertion: s.rows[i].Assertion, Slot: i})
		}
	}
	slices.SortFunc(s.line.Heads, func(a, b timeline.Head) int { return int(a.ValidFrom - b.ValidFrom) })
	s.line.Closed = nil
	if err := f(&s.line); err != nil {
		return err
	}
	for _, c := range s.line.Closed {
		if c.Slot == timeline.NoSlot {
			s.rows = append(s.rows, c)
			continue
		}
		if s.rows[c.Slot].RecordedTo != event.RecordedNever {
			s.t.Fatalf("slot %d was closed before", c.Slot)
		}
		s.rows[c.Slot].RecordedTo = c.RecordedTo
	}
	for _, h := range s.line.Heads {
		if h.Dirty {
			s.rows = append(s.rows, timeline.Closed{Assertion: h.Assertion, RecordedTo: event.RecordedNever})
		}
	}
	return nil
}

// at gives what is believed at one point.
func (s *table) at(v event.EventTime, r event.RecordedTime) (value string, ok bool) {
	found := 0
	for _, row := range s.rows {
		if row.ValidFrom <= v && v < row.ValidTo && row.RecordedFrom <= r && r < row.RecordedTo {
			found++
			value, ok = row.Value.Text, !row.Value.Null
		}
	}
	if found > 1 {
		s.t.Fatalf("%d assertions at valid %d, recorded %d", found, v, r)
	}
	return value, ok
}

type put struct {
	at    event.EventTime
	tie   int64
	value string // empty: null
	late  bool
	r     event.RecordedTime
}

func (p put) assertion() timeline.Assertion {
	a := timeline.Assertion{
		ValidFrom: p.at, Value: event.Value{Text: p.value, Null: p.value == ""},
		RecordedFrom: p.r, Epoch: event.Epoch(p.r), Cause: event.CauseOnTime, Tie: event.Tie{Sequence: p.tie},
	}
	if p.late {
		a.Cause = event.CauseLateCorrection
	}
	return a
}

func drawPuts(t *rapid.T) []put {
	n := rapid.IntRange(1, 25).Draw(t, "puts")
	puts := make([]put, n)
	r := event.RecordedTime(1)
	for i := range puts {
		if rapid.IntRange(0, 3).Draw(t, "next epoch") == 0 {
			r++
		}
		puts[i] = put{
			at:    event.EventTime(rapid.IntRange(0, 9).Draw(t, "at")),
			tie:   int64(i), // every event has a tie of its own
			value: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "value"),
			late:  rapid.Bool().Draw(t, "late"),
			r:     r,
		}
	}
	// Ties are not in the order of arrival.
	for i, j := range rapid.Permutation(seq(n)).Draw(t, "ties") {
		puts[i].tie = int64(j)
	}
	return puts
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// run applies the puts epoch by epoch; cuts splits epochs into several calls.
func run(t rapid.TB, puts []put, cut func(i int) bool) *table {
	s := &table{t: t}
	var batch []timeline.Assertion
	flush := func() {
		if len(batch) == 0 {
			return
		}
		if err := s.call(func(l *timeline.Line) error { return l.Put(batch) }); err != nil {
			t.Fatal(err)
		}
		batch = nil
	}
	for i, p := range puts {
		if i > 0 && (puts[i-1].r != p.r || cut(i)) {
			flush()
		}
		batch = append(batch, p.assertion())
	}
	flush()
	return s
}

func TestPutsAgreeWithThePointModelAtEveryPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		puts := drawPuts(t)
		s := run(t, puts, func(int) bool { return rapid.Bool().Draw(t, "cut") })
		var events []oracle.TimelineEvent
		for _, p := range puts {
			events = append(events, oracle.TimelineEvent{
				Recorded: int64(p.r), ValidFrom: int64(p.at), Tie: []int64{p.tie}, Value: p.value, Delete: p.value == "",
			})
		}
		for v := int64(-1); v <= 11; v++ {
			for r := int64(0); r <= int64(puts[len(puts)-1].r)+1; r++ {
				want, wantOK := oracle.TimelineBelieved(events, v, r)
				got, ok := s.at(event.EventTime(v), event.RecordedTime(r))
				if got != want || ok != wantOK {
					t.Fatalf("at valid %d, recorded %d: %q %v, want %q %v", v, r, got, ok, want, wantOK)
				}
			}
		}
		checkRows(t, s, puts)
	})
}

// checkRows checks what is not seen in answers: no put is lost, and a rest
// keeps what its event said.
func checkRows(t *rapid.T, s *table, puts []put) {
	byTie := make(map[int64]put)
	for _, p := range puts {
		byTie[p.tie] = p
	}
	said := make(map[int64]bool)
	for _, row := range s.rows {
		p, ok := byTie[row.Tie.Sequence]
		if !ok || row.ValidFrom != p.at || row.Value.Text != p.value {
			t.Fatalf("row %+v is of no put", row)
		}
		if row.ValidFrom >= row.ValidTo || row.RecordedFrom > row.RecordedTo {
			t.Fatalf("empty or reversed interval: %+v", row)
		}
		if !row.Reasserted && row.Cause != p.assertion().Cause {
			t.Fatalf("the assertion of %+v has cause %s", p, row.Cause)
		}
		if row.Reasserted == (row.RecordedFrom == p.r) {
			t.Fatalf("reasserted is %v for %+v of %+v", row.Reasserted, row, p)
		}
		said[p.tie] = true
	}
	if len(said) != len(puts) {
		t.Fatalf("%d of %d puts stand in the table", len(said), len(puts))
	}
}

// visible gives the rows that some answer shows, without their lineage's order.
func visible(s *table) []string {
	var out []string
	for _, r := range s.rows {
		if r.RecordedFrom < r.RecordedTo {
			r.Slot = 0
			out = append(out, fmt.Sprintf("%+v", r))
		}
	}
	slices.Sort(out)
	return out
}

func TestOrderAndCutsWithinAnEpochChangeNoVisibleRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		puts := drawPuts(t)
		plain := run(t, puts, func(int) bool { return false })
		mixed := slices.Clone(puts)
		for i := 0; i < len(mixed); {
			j := i
			for j < len(mixed) && mixed[j].r == mixed[i].r {
				j++
			}
			perm := rapid.Permutation(mixed[i:j]).Draw(t, "order")
			copy(mixed[i:j], perm)
			i = j
		}
		other := run(t, mixed, func(int) bool { return rapid.Bool().Draw(t, "cut") })
		if a, b := visible(plain), visible(other); !slices.Equal(a, b) {
			t.Fatalf("visible rows differ:\n%v\n%v", a, b)
		}
	})
}

func TestALateEventInBetweenSplitsAndTheRestKeepsItsLineage(t *testing.T) {
	s := run(t, []put{
		{at: 10, tie: 1, value: "placed", r: 1},
		{at: 20, tie: 2, value: "shipped", r: 2},
		{at: 15, tie: 3, value: "paid", r: 3, late: true},
	}, func(int) bool { return false })
	var got []string
	for _, r := range s.rows {
		got = append(got, fmt.Sprintf("%s valid %d-%s recorded %d-%s %s %v", r.Value, r.ValidFrom, end(int64(r.ValidTo)),
			r.RecordedFrom, end(int64(r.RecordedTo)), r.Cause, r.Reasserted))
	}
	want := []string{
		"placed valid 10-open recorded 1-2 on_time false",
		"placed valid 10-20 recorded 2-3 on_time true",        // the open end became known
		"shipped valid 20-open recorded 2-open on_time false", // untouched by the late one
		"placed valid 10-15 recorded 3-open correction true",  // the known end was wrong
		"paid valid 15-20 recorded 3-open late_correction false",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got\n%q\nwant\n%q", got, want)
	}
}

func end(v int64) string {
	if v == int64(event.OpenEnd) {
		return "open"
	}
	return fmt.Sprint(v)
}

func TestOfEqualValidTimesTheHigherTieHoldsAndTheLoserIsKept(t *testing.T) {
	for _, order := range [][]int64{{1, 2}, {2, 1}} {
		s := run(t, []put{
			{at: 5, tie: order[0], value: fmt.Sprint(order[0]), r: 1},
			{at: 5, tie: order[1], value: fmt.Sprint(order[1]), r: 1},
		}, func(int) bool { return true })
		if v, _ := s.at(5, 1); v != "2" {
			t.Errorf("order %v: %q is believed", order, v)
		}
		if len(s.rows) != 2 {
			t.Errorf("order %v: %d rows", order, len(s.rows))
		}
	}
}

func TestARepeatedPutChangesNothing(t *testing.T) {
	s := run(t, []put{{at: 5, tie: 1, value: "a", r: 1}, {at: 5, tie: 1, value: "a", r: 2}}, func(int) bool { return true })
	if len(s.rows) != 1 || s.line.Repeats != 1 {
		t.Fatalf("%d rows, %d repeats", len(s.rows), s.line.Repeats)
	}
}

func TestRecordedTimeThatRunsBackwardsIsRefused(t *testing.T) {
	s := run(t, []put{{at: 5, tie: 1, value: "a", r: 7}}, func(int) bool { return false })
	err := s.call(func(l *timeline.Line) error {
		return l.Put([]timeline.Assertion{put{at: 8, tie: 2, value: "b", r: 6}.assertion()})
	})
	if !errors.Is(err, timeline.ErrOrder) {
		t.Fatalf("got %v", err)
	}
}

func TestAPutOutsideTheGivenHeadsIsRefused(t *testing.T) {
	l := timeline.Line{Heads: []timeline.Head{{Assertion: timeline.Assertion{ValidFrom: 1, ValidTo: 5}}}}
	if err := l.Put([]timeline.Assertion{put{at: 7, r: 1}.assertion()}); !errors.Is(err, timeline.ErrHeads) {
		t.Fatalf("got %v", err)
	}
}

func TestAWindowsResultsReplaceEachOtherAndEachIsKept(t *testing.T) {
	s := &table{t: t}
	result := func(version uint32, r event.RecordedTime) timeline.Assertion {
		return timeline.Assertion{ValidFrom: 0, ValidTo: 10, Version: version, RecordedFrom: r, Value: event.Value{Text: fmt.Sprint(version)}}
	}
	for _, results := range [][]timeline.Assertion{{result(1, 1)}, {result(2, 4), result(3, 4)}, {result(4, 6)}} {
		err := s.call(func(l *timeline.Line) error {
			for _, a := range results {
				if err := l.Window(a); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for r, want := range map[event.RecordedTime]string{0: "", 1: "1", 3: "1", 4: "3", 5: "3", 6: "4", 99: "4"} {
		if got, _ := s.at(5, r); got != want {
			t.Errorf("at recorded %d: %q, want %q", r, got, want)
		}
	}
	if len(s.rows) != 4 {
		t.Errorf("%d rows for four results", len(s.rows))
	}
	if err := s.call(func(l *timeline.Line) error { return l.Window(result(5, 5)) }); !errors.Is(err, timeline.ErrOrder) {
		t.Errorf("an older epoch gave %v", err)
	}
}
