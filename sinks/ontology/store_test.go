package ontology

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
)

// subject is a store under the conformance suite, with ways to look into it.
type subject struct {
	Store
	asOf    func(Question) ([]Fact, error)
	history func(typ, id, property string) []Assertion
	stats   func(typ string) Stats
	// rewind sets stored progress back, as no caller can.
	rewind func(p event.Partition, to Progress)
}

// conformance is what every Store does.
func conformance(t *testing.T, open func(t *testing.T, p Pipeline) *subject) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *subject, *log){
		"progress begins at zero and is kept":                  testProgress,
		"a repeated call is fenced and changes nothing":        testRepeat,
		"of two versions in one batch the newer is believed":   testTwoInOneBatch,
		"a number that is not greater is discarded":            testOldNumber,
		"a sequence out of order loses nothing":                testSequenceOutOfOrder,
		"insert, delete, insert in one batch stays alive":      testInsertDeleteInsert,
		"a batch of thousands of rows just works":              testLargeBatch,
		"a late put splits and null deletes":                   testLatePutAndNull,
		"late puts before the first and on several sides":      testLateBeforeFirst,
		"version 1 on time for a known window stops the sink":  testLostState,
		"every result of a window is kept":                     testWindows,
		"two results of a window in one chunk are both stored": testTwoResultsInOneChunk,
		"a retracted window is not believed":                   testRetraction,
		"windows are read back with their accumulators":        testReadBack,
		"the horizon is the least of the partitions":           testHorizon,
		"a probe gives progress and horizon":                   testProbe,
		"an epoch's rows may come before its markers":          testPartOfAnEpoch,
		"malformed chunks are refused":                         testMalformed,
		"unknown names are refused":                            testUnknownNames,
		"what cannot be stored is refused":                     testNotStorable,
		"statistics count results and puts by cause":           testStats,
		"any text comes back as it was":                        testTexts,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog("")
			test(t, open(t, l.p), l)
		})
	}
}

func TestMemoryConforms(t *testing.T) {
	conformance(t, func(_ *testing.T, p Pipeline) *subject { return memorySubject(p) })
}

func memorySubject(p Pipeline) *subject {
	m := NewMemory(p)
	return &subject{
		Store: m, asOf: m.AsOf, history: m.History, stats: m.Stats,
		rewind: func(p event.Partition, to Progress) { m.progress[p] = to },
	}
}

func TestPostgresConforms(t *testing.T) {
	conformance(t, func(t *testing.T, p Pipeline) *subject {
		t.Helper()
		return postgresSubject(t, pgtest.New(t), p)
	})
}

func postgresSubject(t *testing.T, url string, p Pipeline) *subject {
	t.Helper()
	s, r := openPostgres(t, url, p), openReader(t, url)
	return &subject{
		Store: s,
		asOf: func(q Question) ([]Fact, error) {
			var facts []Fact
			for f, err := range r.AsOf(t.Context(), q) {
				if err != nil {
					return nil, err
				}
				facts = append(facts, f)
			}
			return facts, nil
		},
		history: func(typ, id, property string) []Assertion {
			var as []Assertion
			for a, err := range r.History(t.Context(), typ, id, property) {
				if err != nil {
					t.Fatal(err)
				}
				as = append(as, a)
			}
			return as
		},
		stats: func(typ string) Stats {
			s, err := r.Stats(t.Context(), typ)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		rewind: func(p event.Partition, to Progress) {
			exec(t, sqlConn(t, url), "UPDATE strom.progress SET epoch = $2, results_offset = $3 WHERE partition = $1",
				int32(p), int64(to.Epoch), int64(to.Offset))
		},
	}
}

func (s *subject) apply(t testing.TB, chunks ...Chunk) {
	t.Helper()
	if err := s.Apply(t.Context(), chunks); err != nil {
		t.Fatal(err)
	}
}

// believed checks what is believed at a second of recorded time.
func (s *subject) believed(t testing.TB, r int, want ...string) {
	t.Helper()
	facts, err := s.asOf(Question{Recorded: second(r)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := equal(factText(facts), want); diff != "" {
		t.Errorf("as of %d: %s", r, diff)
	}
}

func testProgress(t *testing.T, s *subject, l *log) {
	t.Helper()
	check := func(want ...Progress) {
		t.Helper()
		got, err := s.Progress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(map[event.Partition]Progress{0: want[0], 1: want[1]}) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	check(Progress{}, Progress{})
	l.put("a0", 1, prop("status", "placed"))
	l.put("a1", 1, prop("status", "placed"))
	s.apply(t, l.chunk(1, -1))
	under := Progress{Offset: 1, UnderWay: 1, Seen: map[string][]event.Partition{"ingest": {0, 3}}}
	check(Progress{}, under)
	l.end()
	s.apply(t, l.chunk(0, -1))
	check(Progress{Epoch: 1, Recorded: second(1), Offset: 2}, under)
	s.apply(t, l.chunk(1, -1))
	check(Progress{Epoch: 1, Recorded: second(1), Offset: 2}, Progress{Epoch: 1, Recorded: second(1), Offset: 2})
}

func testRepeat(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.put("a0", 1, prop("status", "placed"))
	l.end()
	first := l.all()
	s.apply(t, first...)
	err := s.Apply(t.Context(), first)
	var fenced *FencedError
	if !errors.Is(err, ErrFenced) || !errors.As(err, &fenced) {
		t.Fatalf("got %v", err)
	}
	if fenced.Expected.Offset != 0 || fenced.Found.Offset != 2 || fenced.Found.Epoch != 1 {
		t.Errorf("got %+v", fenced)
	}
	// A call of which one chunk fits and the other does not changes nothing.
	l.put("a0", 2, prop("status", "shipped"))
	l.end()
	stale := first[1]
	if err := s.Apply(t.Context(), []Chunk{l.chunk(0, -1), stale}); !errors.Is(err, ErrFenced) {
		t.Fatalf("got %v", err)
	}
	s.believed(t, 1, "a0 status=placed [1,open) on_time")
	if n := len(s.history("", "", "")); n != 1 {
		t.Errorf("%d versions", n)
	}
}

func testTwoInOneBatch(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.put("a0", 1, prop("status", "five"))
	l.put("a0", 1, prop("status", "six"))
	l.end()
	s.apply(t, l.all()...)
	s.believed(t, 1, "a0 status=six [1,open) on_time")
	if diff := equal(versionText(s.history("", "", "")), []string{
		"a0 status=five [1,open) recorded [1,1) on_time v0",
		"a0 status=six [1,open) recorded [1,never) on_time v0",
	}); diff != "" {
		t.Error(diff)
	}
}

func testOldNumber(t *testing.T, s *subject, l *log) {
	t.Helper()
	for _, status := range []string{"five", "six", "seven"} {
		l.put("a0", 1, prop("status", status))
	}
	l.put("b0", 1, prop("status", "placed"))
	l.end()
	chunks := l.all()
	late := chunks[0]
	late.Rows = late.Rows[2:]
	s.apply(t, late, chunks[1])
	s.rewind(0, Progress{})
	s.apply(t, chunks[0]) // all four again; only b0 and a0's rows before 7 were not seen, and those are old
	s.believed(t, 1, "a0 status=seven [1,open) on_time", "b0 status=placed [1,open) on_time")
	if n := len(s.history("", "a0", "")); n != 1 {
		t.Errorf("%d versions of a0", n)
	}
}

func testSequenceOutOfOrder(t *testing.T, s *subject, l *log) {
	t.Helper()
	for _, n := range []int64{1, 3, 2} {
		l.write(event.Result{
			Kind: event.RowPut, ID: "a0", ValidFrom: event.EventTime(n * 10), ValidTo: event.OpenEnd, Cause: event.CauseOnTime,
			Tie: event.Tie{Sequence: n}, Properties: []event.Property{prop("status", fmt.Sprint(n))},
		})
		l.end()
	}
	s.apply(t, l.all()...)
	s.believed(t, 3, "a0 status=1 [10,20) correction", "a0 status=2 [20,30) on_time", "a0 status=3 [30,open) on_time")
	s.believed(t, 2, "a0 status=1 [10,30) on_time", "a0 status=3 [30,open) on_time")
}

func testInsertDeleteInsert(t *testing.T, s *subject, l *log) {
	t.Helper()
	for _, status := range []string{"there", "", "again"} {
		l.put("a0", 5, prop("status", status))
	}
	l.end()
	s.apply(t, l.all()...)
	s.believed(t, 1, "a0 status=again [5,open) on_time")
	if n := len(s.history("", "a0", "")); n != 3 {
		t.Errorf("%d versions", n)
	}
}

func testLargeBatch(t *testing.T, s *subject, l *log) {
	t.Helper()
	const n = 4000 // of which each writes more than twenty columns
	for i := range n {
		l.put(fmt.Sprintf("object-%06d", i), int64(i), prop("status", "placed"), prop("total", fmt.Sprint(i)))
	}
	l.end()
	for i := range n {
		l.put(fmt.Sprintf("object-%06d", i), int64(i+7), prop("status", "paid"))
	}
	l.end()
	s.apply(t, l.all()...)
	facts, err := s.asOf(Question{Recorded: second(2)})
	if err != nil || len(facts) != 3*n {
		t.Fatalf("%d facts, %v", len(facts), err)
	}
	if facts, err = s.asOf(Question{Recorded: second(1), Limit: 5000}); err != nil || len(facts) != 5000 {
		t.Fatalf("%d facts, %v", len(facts), err)
	}
}

func testLatePutAndNull(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.put("a0", 10, prop("status", "placed"), prop("total", "5"))
	l.end()
	l.put("a0", 30, prop("status", ""))
	l.end()
	l.put("a0", 20, prop("status", "paid"))
	l.end()
	s.apply(t, l.all()...)
	s.believed(t, 1, "a0 status=placed [10,open) on_time", "a0 total=5 [10,open) on_time")
	s.believed(t, 2, "a0 status=placed [10,30) on_time", "a0 total=5 [10,open) on_time")
	s.believed(t, 3, "a0 status=placed [10,20) correction", "a0 status=paid [20,30) on_time", "a0 total=5 [10,open) on_time")
	at := event.EventTime(25)
	facts, err := s.asOf(Question{Type: "Order", ID: "a0", Recorded: second(3), Valid: &at})
	if err != nil {
		t.Fatal(err)
	}
	if diff := equal(factText(facts), []string{"a0 status=paid [20,30) on_time", "a0 total=5 [10,open) on_time"}); diff != "" {
		t.Error(diff)
	}
	facts, err = s.asOf(Question{Type: "Order", Recorded: second(3), Current: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := equal(factText(facts), []string{"a0 total=5 [10,open) on_time"}); diff != "" {
		t.Error(diff)
	}
}

func testLateBeforeFirst(t *testing.T, s *subject, l *log) {
	t.Helper()
	for _, at := range []int64{50, 80} {
		l.put("a0", at, prop("status", fmt.Sprint(at)))
		l.end()
	}
	s.apply(t, l.all()...)
	for _, at := range []int64{10, 60, 20, 90} {
		l.put("a0", at, prop("status", fmt.Sprint(at)))
	}
	l.end()
	s.apply(t, l.all()...)
	s.believed(t, 3, "a0 status=10 [10,20) on_time", "a0 status=20 [20,50) on_time", "a0 status=50 [50,60) correction",
		"a0 status=60 [60,80) on_time", "a0 status=80 [80,90) on_time", "a0 status=90 [90,open) on_time")
	s.believed(t, 2, "a0 status=50 [50,80) on_time", "a0 status=80 [80,open) on_time")
}

func testLostState(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.window("a0", 0, 1, event.CauseOnTime, 3)
	l.end()
	s.apply(t, l.all()...)
	l.put("b0", 1, prop("status", "placed"))
	l.window("a0", 0, 1, event.CauseOnTime, 1)
	l.end()
	err := s.Apply(t.Context(), l.all())
	var lost *LostStateError
	if !errors.Is(err, ErrLostState) || !errors.As(err, &lost) {
		t.Fatalf("got %v", err)
	}
	if lost.ID != "a0" || lost.End != 10 || lost.Believed != 1 || lost.Offset != 3 || lost.Place.Offset != 1003 {
		t.Errorf("got %+v", lost)
	}
	s.believed(t, 1, "a0 hourly.avg=6 [0,10) on_time", "a0 hourly.count=3 [0,10) on_time")
	if as := s.history("", "b0", ""); len(as) != 0 {
		t.Errorf("a refused call left %v", as)
	}
}

func testWindows(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.window("a0", 0, 1, event.CauseOnTime, 3)
	l.window("a0", 10, 1, event.CauseOnTime, 7)
	l.end()
	l.window("a0", 0, 2, event.CauseCorrection, 4)
	l.end()
	s.apply(t, l.all()...)
	l.window("a0", 0, 3, event.CauseLateCorrection, 4) // equal values are asserted again
	l.end()
	s.apply(t, l.all()...)
	if diff := equal(versionText(s.history("Order", "a0", "hourly.count")), []string{
		"a0 hourly.count=3 [0,10) recorded [1,2) on_time v1",
		"a0 hourly.count=7 [10,20) recorded [1,never) on_time v1",
		"a0 hourly.count=4 [0,10) recorded [2,3) correction v2",
		"a0 hourly.count=4 [0,10) recorded [3,never) late_correction v3",
	}); diff != "" {
		t.Error(diff)
	}
}

func testTwoResultsInOneChunk(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.window("a0", 0, 1, event.CauseOnTime, 3)
	l.window("a0", 0, 2, event.CauseCorrection, 4)
	l.end()
	s.apply(t, l.all()...)
	if diff := equal(versionText(s.history("Order", "a0", "hourly.count")), []string{
		"a0 hourly.count=3 [0,10) recorded [1,1) on_time v1",
		"a0 hourly.count=4 [0,10) recorded [1,never) correction v2",
	}); diff != "" {
		t.Error(diff)
	}
	s.believed(t, 1, "a0 hourly.avg=8 [0,10) correction", "a0 hourly.count=4 [0,10) correction")
}

func (l *log) retract(id string, start int64, version uint32) {
	l.write(event.Result{
		Kind: event.RowWindow, ID: id, Aggregate: "hourly", Version: version, Cause: event.CauseRetraction,
		ValidFrom: event.EventTime(start), ValidTo: event.EventTime(start + 10),
		Properties: []event.Property{prop("avg", ""), prop("count", "")},
	})
}

func testRetraction(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.window("a0", 0, 1, event.CauseOnTime, 3)
	l.end()
	l.retract("a0", 0, 2)
	l.end()
	s.apply(t, l.all()...)
	s.believed(t, 2)
	s.believed(t, 1, "a0 hourly.avg=6 [0,10) on_time", "a0 hourly.count=3 [0,10) on_time")
	states, err := s.ReadBack(t.Context(), []WindowRef{{Type: "Order", ID: "a0", Aggregate: "hourly", End: 10, Values: []string{"count"}}})
	if err != nil || states[0].Found || states[0].Version != 2 {
		t.Errorf("got %+v, %v", states, err)
	}
}

func testReadBack(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.window("a0", 0, 1, event.CauseOnTime, 3)
	l.window("b1", 10, 1, event.CauseOnTime, 9)
	l.end()
	l.window("a0", 0, 2, event.CauseCorrection, 4)
	s.apply(t, l.all()...) // the second epoch is not complete, and read back all the same
	values := []string{"count", "avg"}
	states, err := s.ReadBack(t.Context(), []WindowRef{
		{Type: "Order", ID: "b1", Aggregate: "hourly", Start: 10, End: 20, Values: values},
		{Type: "Order", ID: "nobody", Aggregate: "hourly", Start: 0, End: 10, Values: values},
		{Type: "Order", ID: "a0", Aggregate: "hourly", Start: 0, End: 10, Values: values},
		{Type: "Order", ID: "a0", Aggregate: "hourly", Start: 0, End: 11, Values: values},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []WindowState{
		{Found: true, Version: 1, Values: []event.Property{prop("count", "9"), {Name: "avg", Value: event.Value{Text: "18"}, State: []byte{1, 9}}}},
		{Values: []event.Property{prop("count", ""), prop("avg", "")}},
		{Found: true, Version: 2, Values: []event.Property{prop("count", "4"), {Name: "avg", Value: event.Value{Text: "8"}, State: []byte{1, 4}}}},
		{Values: []event.Property{prop("count", ""), prop("avg", "")}},
	}
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("got %+v\nwant %+v", states, want)
	}
	// As of a recorded time it is what was believed then, of head and history.
	first, never := second(1), second(0)
	past := func(id string, start event.EventTime, at *event.RecordedTime) WindowRef {
		return WindowRef{Type: "Order", ID: id, Aggregate: "hourly", Start: start, End: start + 10, Values: values, At: at}
	}
	states, err = s.ReadBack(t.Context(), []WindowRef{past("a0", 0, &first), past("a0", 0, nil), past("a0", 0, &never), past("b1", 10, &first)})
	if err != nil {
		t.Fatal(err)
	}
	want = []WindowState{
		{Found: true, Version: 1, Values: []event.Property{prop("count", "3"), {Name: "avg", Value: event.Value{Text: "6"}, State: []byte{1, 3}}}},
		want[2], want[1], want[0],
	}
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("as of the first epoch: got %+v\nwant %+v", states, want)
	}
	if _, err := s.ReadBack(t.Context(), []WindowRef{{Type: "Order", ID: "a0", Aggregate: "hourly", Values: []string{"median"}}}); !errors.Is(err, ErrUnknownName) {
		t.Errorf("an unknown value gave %v", err)
	}
}

func testHorizon(t *testing.T, s *subject, l *log) {
	t.Helper()
	if _, err := s.asOf(Question{Recorded: 0}); !errors.Is(err, ErrAboveHorizon) {
		t.Errorf("before the first epoch: %v", err)
	}
	l.put("a0", 1, prop("status", "placed"))
	l.end()
	s.apply(t, l.all()...)
	l.put("a0", 2, prop("status", "paid"))
	l.end()
	s.apply(t, l.chunk(0, -1))
	_, err := s.asOf(Question{Recorded: second(2)})
	var above *HorizonError
	if !errors.Is(err, ErrAboveHorizon) || !errors.As(err, &above) || above.Horizon != second(1) {
		t.Fatalf("got %v", err)
	}
	before := fmt.Sprint(s.history("", "", ""))
	s.believed(t, 1, "a0 status=placed [1,open) on_time")
	s.apply(t, l.chunk(1, -1))
	s.believed(t, 2, "a0 status=placed [1,2) on_time", "a0 status=paid [2,open) on_time")
	if after := s.history("", "", ""); len(after) != 3 || fmt.Sprint(after) == before {
		t.Errorf("history after the horizon rose: %v", after)
	}
}

func testProbe(t *testing.T, s *subject, l *log) {
	t.Helper()
	check := func(horizon event.RecordedTime) {
		t.Helper()
		got, err := s.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		progress, err := s.Progress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := (Standing{Progress: progress, Horizon: horizon}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	check(event.RecordedUnknown)
	l.put("a0", 1, prop("status", "placed"))
	l.end()
	s.apply(t, l.all()...)
	check(second(1))
	l.put("a0", 2, prop("status", "paid"))
	l.put("a1", 2, prop("status", "paid"))
	s.apply(t, l.chunk(0, -1))
	check(second(1))
	l.end()
	s.apply(t, l.all()...)
	check(second(2))
}

func testPartOfAnEpoch(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.put("a0", 30, prop("status", "c"))
	l.put("a0", 10, prop("status", "a"))
	l.put("a0", 20, prop("status", "b"))
	l.end()
	for to := range 4 {
		s.apply(t, l.chunk(0, event.Offset(to+1)))
	}
	s.apply(t, l.chunk(1, -1))
	s.believed(t, 1, "a0 status=a [10,20) on_time", "a0 status=b [20,30) on_time", "a0 status=c [30,open) on_time")
}

func testMalformed(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.put("a0", 1, prop("status", "placed"))
	l.put("a0", 2, prop("status", "paid"))
	l.end()
	good := l.chunk(0, -1)
	for name, spoil := range map[string]func(c *Chunk){
		"partition":          func(c *Chunk) { c.Partition = 2 },
		"backwards":          func(c *Chunk) { c.To.Offset = -1 },
		"rows out of order":  func(c *Chunk) { c.Rows[0], c.Rows[1] = c.Rows[1], c.Rows[0] },
		"row beyond the end": func(c *Chunk) { c.Rows[1].Offset = c.To.Offset },
		"old epoch":          func(c *Chunk) { c.Rows[0].Result.Epoch = 0 },
		"future epoch":       func(c *Chunk) { c.Rows[1].Result.Epoch = 3 },
		"two Rs":             func(c *Chunk) { c.Rows[1].Result.Recorded++ },
		"marker":             func(c *Chunk) { c.Rows[1].Result.Kind = event.RowMarker },
		"no version":         func(c *Chunk) { c.Rows[1].Result.Kind = event.RowWindow },
	} {
		c := good
		c.Rows = append([]Row(nil), good.Rows...)
		spoil(&c)
		if err := s.Apply(t.Context(), []Chunk{c}); !errors.Is(err, ErrChunk) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Apply(t.Context(), []Chunk{good, good}); !errors.Is(err, ErrChunk) {
		t.Errorf("a partition twice: %v", err)
	}
	s.apply(t, good)
}

func testUnknownNames(t *testing.T, s *subject, l *log) {
	t.Helper()
	for _, r := range []event.Result{
		{Kind: event.RowPut, Type: "Nothing", Properties: []event.Property{prop("status", "x")}},
		{Kind: event.RowPut, Properties: []event.Property{prop("colour", "x")}},
		{Kind: event.RowPut, Properties: []event.Property{prop("hourly.count", "x")}},
		{Kind: event.RowWindow, Version: 1, Aggregate: "daily", Properties: []event.Property{prop("count", "x")}},
	} {
		l := newLog("")
		r.ID, r.ValidTo = "a0", 5
		l.write(r)
		l.end()
		if err := s.Apply(t.Context(), l.all()); !errors.Is(err, ErrUnknownName) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func testNotStorable(t *testing.T, s *subject, _ *log) {
	t.Helper()
	for name, spoil := range map[string]func(r *event.Result){
		"zero in a value": func(r *event.Result) { r.Properties[0].Value.Text = "a\x00b" },
		"not UTF-8":       func(r *event.Result) { r.Properties[0].Value.Text = "\xff" },
		"zero in the id":  func(r *event.Result) { r.ID = "a\x000" },
		"a long id":       func(r *event.Result) { r.ID = strings.Repeat("0", MaxIDBytes+1) },
		"out of time":     func(r *event.Result) { r.ValidFrom = event.MaxEventTime + 1 },
	} {
		l := newLog("")
		l.put("a0", 1, prop("status", "x"))
		spoil(&l.rows[0][0].Result)
		if Storable(&l.rows[0][0].Result) == nil {
			t.Errorf("%s: storable", name)
		}
		l.end()
		if err := s.Apply(t.Context(), l.all()); !errors.Is(err, ErrChunk) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testStats(t *testing.T, s *subject, l *log) {
	t.Helper()
	l.window("a0", 0, 1, event.CauseOnTime, 3)
	l.put("b0", 10, prop("status", "placed"), prop("total", "1"))
	l.end()
	l.window("a0", 0, 2, event.CauseCorrection, 4)
	l.put("b0", 20, prop("status", "paid"))
	l.end()
	s.apply(t, l.all()...)
	want := Stats{
		Objects: 2, Believed: 2 + 3, Closed: 2 + 1, Reasserted: 1,
		WindowResults: map[string]int64{"on_time": 1, "correction": 1}, Puts: map[string]int64{"on_time": 3},
	}
	if got := s.stats("Order"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.stats("Customer"); got.Objects != 0 || got.Believed != 0 {
		t.Errorf("got %+v", got)
	}
}

func testTexts(t *testing.T, s *subject, l *log) {
	t.Helper()
	texts := []string{" ", "'; DROP TABLE strom.head; --", `{"a":[1,"\\"]}`, "žluťoučký\nkůň 🐎", "\\N", "NULL", strings.Repeat("x", 100_000), "%s $1"}
	for i, text := range texts {
		l.put(fmt.Sprintf("%s0", text[:min(len(text), 300)]), int64(i), prop("status", text))
	}
	l.write(event.Result{
		Kind: event.RowPut, ID: "edges0", ValidFrom: event.MinEventTime, ValidTo: event.OpenEnd, KeyID: 1 << 31,
		Properties: []event.Property{{Name: "status"}, {Name: "total", Value: event.Value{Text: "0"}, State: []byte{0, 255}}}, Lateness: -1,
		Cause: event.CauseSettled, Tie: event.Tie{Sequence: -1, Rank: 2, Partition: 3, Offset: 1 << 60, Index: 7},
	})
	l.end()
	s.apply(t, l.all()...)
	facts, err := s.asOf(Question{Recorded: second(1)})
	if err != nil || len(facts) != len(texts)+2 {
		t.Fatalf("%d facts, %v", len(facts), err)
	}
	for _, f := range facts {
		if f.ID == "edges0" {
			continue
		}
		if f.Value.Text != texts[f.ValidFrom] {
			t.Errorf("%q came back as %q", texts[f.ValidFrom], f.Value.Text)
		}
	}
	for _, a := range s.history("Order", "edges0", "total") {
		want := Fact{
			Type: "Order", ID: "edges0", Property: "total", Value: event.Value{Text: "0"}, ValidFrom: event.MinEventTime, ValidTo: event.OpenEnd,
			RecordedFrom: second(1), Epoch: 1, Generation: 1, Pipeline: "orders", Cause: event.CauseSettled, Lateness: -1, KeyID: 1 << 31,
			Tie:   event.Tie{Sequence: -1, Rank: 2, Partition: 3, Offset: 1 << 60, Index: 7},
			Place: event.Place{Topic: "orders", Offset: a.Place.Offset, Timestamp: 5000},
		}
		if a.Fact != want || a.RecordedTo != event.RecordedNever || string(a.State) != "\x00\xff" {
			t.Errorf("got  %+v\nwant %+v", a, want)
		}
	}
}
