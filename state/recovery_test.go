package state_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

var rewrite = flag.Bool("rewrite", false, "write the generated tables of docs/recovery.md again")

// fact is one of the facts that Decide is asked about, with all that it may be.
type fact struct {
	values int
	set    func(f *state.Facts, value int)
	name   func(value int) string
}

func factOf[T interface {
	~uint8
	fmt.Stringer
}](last T, field func(f *state.Facts) *T) fact {
	return fact{
		values: int(last) + 1,
		set:    func(f *state.Facts, v int) { *field(f) = T(v) },
		name:   func(v int) string { return T(v).String() },
	}
}

func local() fact {
	return factOf(state.LocalCutOff, func(f *state.Facts) *state.Local { return &f.Local })
}

func log() fact { return factOf(state.LogEmptied, func(f *state.Facts) *state.Log { return &f.Log }) }
func age() fact { return factOf(state.AgeFuture, func(f *state.Facts) *state.Age { return &f.Age }) }

func barrier() fact {
	return factOf(state.BarrierDiffers, func(f *state.Facts) *state.Barrier { return &f.Barrier })
}

func member() fact {
	return factOf(state.MemberOld, func(f *state.Facts) *state.Member { return &f.Member })
}

func pipelineHistory() fact {
	return factOf(state.HistoryBegun, func(f *state.Facts) *state.History { return &f.History })
}

func reading() fact {
	return factOf(state.ReadingTooLong, func(f *state.Facts) *state.Reading { return &f.Reading })
}

func origin() fact {
	return factOf(state.OriginHeld, func(f *state.Facts) *state.Origin { return &f.Origin })
}

func input() fact {
	return factOf(state.InputCutShort, func(f *state.Facts) *state.Input { return &f.Input })
}

// storeFacts are those that count before the changelog is read, taskFacts those
// that count afterwards.
func storeFacts() []fact { return []fact{local(), log(), age(), pipelineHistory()} }

func taskFacts() []fact {
	return []fact{member(), barrier().from(state.BarrierNone), pipelineHistory(), reading(), origin(), log(), input()}
}

// from leaves out the values before the first.
func (f fact) from(first state.Barrier) fact {
	skip := int(first)
	return fact{
		values: f.values - skip,
		set:    func(to *state.Facts, v int) { f.set(to, v+skip) },
		name:   func(v int) string { return f.name(v + skip) },
	}
}

// combine calls fn for every combination of the facts.
func combine(facts []fact, f state.Facts, fn func(state.Facts)) {
	if len(facts) == 0 {
		fn(f)
		return
	}
	for v := range facts[0].values {
		facts[0].set(&f, v)
		combine(facts[1:], f, fn)
	}
}

func decide(t *testing.T, f state.Facts) state.Verdict {
	t.Helper()
	v, err := state.Decide(f)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Every combination of facts has a decision, for a reason that can be told.
func TestRecoveryIsDecidedForEveryCombinationOfFacts(t *testing.T) {
	all := []fact{local(), log(), age(), barrier(), member(), pipelineHistory(), reading(), origin(), input()}
	decided := map[state.Decision]int{}
	combine(all, state.Facts{}, func(f state.Facts) {
		v := decide(t, f)
		decided[v.Decision]++
		if v.Why == "" || (v.Reason != state.ReasonNone) != (v.Decision == state.Refuse) {
			t.Fatalf("%+v: %+v", f, v)
		}
		// What does not count in a step makes no difference in it.
		masked := state.Facts{Local: f.Local, Log: f.Log, Age: f.Age, History: f.History}
		if f.Barrier != state.BarrierUnread {
			masked = f
			masked.Local, masked.Age = 0, 0
		}
		if decide(t, masked) != v {
			t.Fatalf("%+v is decided otherwise than %+v", f, masked)
		}
	})
	if len(decided) != 6 {
		t.Errorf("decisions: %v, want six kinds", decided)
	}
}

// Before the changelog is read, a store that cannot be trusted is never used.
func TestAStoreThatCannotBeTrustedIsNeverUsed(t *testing.T) {
	combine(storeFacts(), state.Facts{}, func(f state.Facts) {
		v := decide(t, f)
		used := v.Decision == state.Continue || v.Decision == state.CatchUp
		rebuilt := v.Decision == state.Rebuild
		refused := v.Decision == state.Refuse
		if !used && !rebuilt && !refused {
			t.Errorf("%+v: %s", f, v.Decision)
		}
		untrusted := f.Local == state.LocalDamaged || f.Local == state.LocalOtherLog || f.Local == state.LocalAhead ||
			f.Local == state.LocalCutOff
		mayHaveMissed := f.Local == state.LocalBehind && f.Age != state.AgeFresh
		unknown := f.Age == state.AgeUnknown && f.Local == state.LocalAtEnd
		if used && (untrusted || mayHaveMissed || unknown) {
			t.Errorf("%+v: %s", f, v.Decision)
		}
		// What is left to rebuild from decides whether a store may be thrown away.
		nothing := f.Log == state.LogNeverWritten || f.Log == state.LogEmptied
		holds := f.Local != state.LocalAbsent && f.Local != state.LocalDamaged
		if rebuilt && nothing && holds && f.History == state.HistoryBegun {
			t.Errorf("%+v: what may be all that is left is thrown away", f)
		}
		if refused && f.Local != state.LocalForeign && (!nothing || !holds || f.History != state.HistoryBegun) {
			t.Errorf("%+v: refused, though it could be rebuilt", f)
		}
		if f.Local == state.LocalForeign && !refused {
			t.Errorf("%+v: %s", f, v.Decision)
		}
		nothingToRead := f.Local == state.LocalAtEnd || (f.Local == state.LocalAbsent && f.Log == state.LogNeverWritten)
		if v.Decision == state.Continue && !nothingToRead {
			t.Errorf("%+v: continues, though there is something to read", f)
		}
	})
}

// When the changelog has been read, the task goes on where everything agrees
// and begins where there is nothing. Everything else is refused, by a member of
// the current generation only.
func TestATaskGoesOnOnlyWhereEverythingAgrees(t *testing.T) {
	combine(taskFacts(), state.Facts{}, func(f state.Facts) {
		whole := f.Log == state.LogWhole || (f.Log != state.LogNeverWritten && f.Origin == state.OriginHeld)
		goesOn := f.Barrier == state.BarrierAgrees && whole && f.Reading == state.ReadingInTime && f.Input == state.InputThere
		begins := f.Barrier == state.BarrierNone && f.History == state.HistoryNone && f.Origin == state.OriginMissing
		want := state.Refuse
		switch {
		case f.Member == state.MemberOld:
			want = state.BackToGroup
		case goesOn:
			want = state.Continue
		case begins:
			want = state.Begin
		case f.Member == state.MemberUnsure:
			want = state.BackToGroup
		}
		if v := decide(t, f); v.Decision != want {
			t.Errorf("%+v: %+v, want %s", f, v, want)
		}
	})
}

func TestFactsThatAreNoneAreABugThatIsTold(t *testing.T) {
	agrees := state.Facts{Barrier: state.BarrierAgrees, Member: state.MemberCurrent, Log: state.LogBeheaded, Origin: state.OriginHeld}
	with := func(f state.Facts, change func(*state.Facts)) state.Facts {
		change(&f)
		return f
	}
	for _, f := range []state.Facts{
		{Local: 99}, {Log: 99}, {Local: state.LocalAtEnd, Log: 99}, {Local: state.LocalAtEnd, Log: state.LogWhole, Age: 99},
		{Local: state.LocalBehind, Log: 99}, {Local: state.LocalBehind, Log: state.LogWhole, Age: 99},
		{Local: state.LocalAhead, Log: 99}, {Local: state.LocalAhead, Log: state.LogEmptied, History: 99},
		{Barrier: state.BarrierNone, Member: 99}, {Barrier: 99, Member: state.MemberCurrent},
		{Barrier: state.BarrierNone, Member: state.MemberCurrent, History: 99},
		{Barrier: state.BarrierNone, Member: state.MemberCurrent, Origin: 99},
		{Barrier: state.BarrierOffsetsOnly, Member: state.MemberCurrent, History: 99},
		with(agrees, func(f *state.Facts) { f.Reading = 99 }), with(agrees, func(f *state.Facts) { f.Log = 99 }),
		with(agrees, func(f *state.Facts) { f.Origin = 99 }), with(agrees, func(f *state.Facts) { f.Input = 99 }),
	} {
		v, err := state.Decide(f)
		var bug *state.UndecidedError
		if v.Decision != state.Undecided || !errors.As(err, &bug) || bug.Facts != f || !strings.Contains(err.Error(), "bug") {
			t.Errorf("%+v: %+v, %v", f, v, err)
		}
	}
}

func TestAPositionIsComparedWithTheChangelogAsItEnds(t *testing.T) {
	for _, c := range []struct {
		position, start, end event.Offset
		want                 state.Local
	}{
		{event.OffsetNone, 0, 0, state.LocalAbsent},
		{event.OffsetNone, 0, 9, state.LocalAbsent},
		{event.OffsetNone, 9, 9, state.LocalAbsent},
		{0, 0, 0, state.LocalAhead}, // the topic was made again
		{9, 0, 9, state.LocalAhead},
		{12, 3, 9, state.LocalAhead},
		{8, 0, 9, state.LocalAtEnd}, // the store has counted the marker
		{7, 0, 9, state.LocalAtEnd}, // the marker of its own transaction stands behind
		{7, 9, 9, state.LocalAtEnd}, // all records are deleted, it has them all
		{6, 0, 9, state.LocalBehind},
		{6, 7, 9, state.LocalBehind}, // what follows is the first that there is
		{6, 8, 9, state.LocalCutOff},
		{0, 0, 9, state.LocalBehind},
		{0, 9, 9, state.LocalCutOff},
	} {
		if got := state.PlaceOf(c.position, c.start, c.end); got != c.want {
			t.Errorf("position %s in %s..%s: %s, want %s", c.position, c.start, c.end, got, c.want)
		}
	}
	for _, c := range []struct {
		start, end event.Offset
		want       state.Log
	}{
		{0, 0, state.LogNeverWritten}, {0, 5, state.LogWhole}, {1, 5, state.LogBeheaded}, {5, 5, state.LogEmptied},
	} {
		if got := state.LogOf(c.start, c.end); got != c.want {
			t.Errorf("changelog %s..%s: %s, want %s", c.start, c.end, got, c.want)
		}
	}
}

// A clock that was set back tells nothing, so that the store may have missed
// something, and neither does a mark that makes no sense.
func TestAStoreIsFreshForHalfTheTimeThatTombstonesAreKept(t *testing.T) {
	const now, day = event.RecordedTime(1_800_000_000_000_000), 24 * time.Hour
	half := event.RecordedTime((12 * time.Hour).Microseconds())
	for _, c := range []struct {
		caughtUp event.RecordedTime
		keep     time.Duration
		want     state.Age
	}{
		{event.RecordedUnknown, day, state.AgeUnknown},
		{now, day, state.AgeFresh},
		{now - half, day, state.AgeFresh},
		{now - half - 1, day, state.AgeStale},
		{now + 1, day, state.AgeFuture},
		{event.RecordedNever, day, state.AgeFuture},
		{math.MinInt64 + 1, day, state.AgeStale},
		{now - 1, 0, state.AgeStale},
		{now, 0, state.AgeFresh},
		{now - half, math.MaxInt64, state.AgeFresh},
	} {
		if got := state.AgeOf(c.caughtUp, now, c.keep); got != c.want {
			t.Errorf("caught up at %s, kept for %s: %s, want %s", c.caughtUp, c.keep, got, c.want)
		}
	}
	if state.ReadingOf(12*time.Hour, day) != state.ReadingInTime || state.ReadingOf(12*time.Hour+1, day) != state.ReadingTooLong {
		t.Error("reading may take half of the time that tombstones are kept")
	}
}

func TestOffsetsAreComparedWithTheProgressAndTheInput(t *testing.T) {
	const none = event.OffsetNone
	for _, c := range []struct {
		progress, committed event.Offset
		want                state.Barrier
	}{
		{none, none, state.BarrierNone}, {none, 0, state.BarrierOffsetsOnly}, {0, none, state.BarrierProgressOnly},
		{0, 0, state.BarrierAgrees}, {7, 7, state.BarrierAgrees}, {7, 8, state.BarrierDiffers}, {0, 7, state.BarrierDiffers},
	} {
		if got := state.BarrierOf(c.progress, c.committed); got != c.want {
			t.Errorf("progress %s, committed %s: %s, want %s", c.progress, c.committed, got, c.want)
		}
	}
	for _, c := range []struct {
		next, start, end event.Offset
		want             state.Input
	}{
		{50_456, 60_000, 75_033, state.InputExpired}, {60_000, 60_000, 75_033, state.InputThere},
		{75_033, 60_000, 75_033, state.InputThere}, {75_034, 60_000, 75_033, state.InputCutShort}, {0, 0, 0, state.InputThere},
	} {
		if got := state.InputOf(c.next, c.start, c.end); got != c.want {
			t.Errorf("offset %s in %s..%s: %s, want %s", c.next, c.start, c.end, got, c.want)
		}
	}
}

// row is one case: the values of each fact, and what is decided.
type row struct {
	found   []string
	verdict state.Verdict
}

// table gives the cases that the facts make, as few as say it all: values that
// lead to the same are one case.
func table(t *testing.T, facts []fact, f state.Facts) []row {
	t.Helper()
	if len(facts) == 0 {
		return []row{{verdict: decide(t, f)}}
	}
	var cases [][]row
	var values [][]string
	for v := range facts[0].values {
		facts[0].set(&f, v)
		rows := table(t, facts[1:], f)
		at := slices.IndexFunc(cases, func(c []row) bool { return slices.EqualFunc(c, rows, sameRow) })
		if at < 0 {
			cases, values = append(cases, rows), append(values, nil)
			at = len(cases) - 1
		}
		values[at] = append(values[at], facts[0].name(v))
	}
	var out []row
	for i, c := range cases {
		cell := strings.Join(values[i], " *or* ")
		if len(cases) == 1 {
			cell = "any"
		}
		for _, r := range c {
			out = append(out, row{append([]string{cell}, r.found...), r.verdict})
		}
	}
	return out
}

func sameRow(a, b row) bool { return a.verdict == b.verdict && slices.Equal(a.found, b.found) }

func markdown(heads []string, rows []row) string {
	var b strings.Builder
	heads = append(heads, "decision", "why", "what the operator does")
	fmt.Fprintf(&b, "| %s |\n%s|\n", strings.Join(heads, " | "), strings.Repeat("|---", len(heads)))
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | **%s** | %s | %s |\n", strings.Join(r.found, " | "), r.verdict.Decision, r.verdict.Why, r.verdict.Reason.Advice())
	}
	return b.String()
}

// docs/recovery.md shows what Decide does. `go test ./state -run
// TestTheDocumentShowsEveryCase -rewrite` writes its tables anew.
func TestTheDocumentShowsEveryCase(t *testing.T) {
	const path = "../docs/recovery.md"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	text = inPlace(t, text, "store", markdown([]string{"store", "changelog", "age", "history"}, table(t, storeFacts(), state.Facts{})))
	current := state.Facts{Member: state.MemberCurrent}
	text = inPlace(t, text, "task", markdown([]string{"barrier", "history", "reading", "origin", "changelog", "input"}, table(t, taskFacts()[1:], current)))
	if text == string(raw) {
		return
	}
	if !*rewrite {
		t.Fatalf("%s shows something else than Decide decides; write it anew with -rewrite, and read the difference", path)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// inPlace puts a table into its place in the document.
func inPlace(t *testing.T, text, name, table string) string {
	t.Helper()
	begin, end := "<!-- cases: "+name+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("the document has no place for the table %q", name)
	}
	return before + begin + "\n" + table + "\n" + end + after
}
