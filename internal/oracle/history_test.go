package oracle

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func historyOf(t *testing.T, lines ...string) History {
	t.Helper()
	history, err := QuakeHistory(recordsOf(t, lines...), DemoOptions())
	if err != nil {
		t.Fatal(err)
	}
	return history
}

// barriersOf prints barriers as n:hours of R after the test's base.
func barriersOf(h History) string {
	var b []string
	for _, barrier := range h.Timing.Barriers {
		b = append(b, fmt.Sprintf("%s:%d", barrier.N, (barrier.R-testInstant(0))/Hour))
	}
	return strings.Join(b, " ")
}

func classesOf(h History) string {
	var b []string
	for _, e := range h.Timing.Events {
		b = append(b, fmt.Sprintf("%s/%s:%s", e.ID, e.Epoch, e.Class))
	}
	return strings.Join(b, " ")
}

func expectText(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func TestBarriersAreStrictlyAboveTheFirstRecordAndSkipEmptySteps(t *testing.T) {
	h := historyOf(t,
		quakeLine("a", "P", "1", 0, 1),     // on a boundary: R is the next one
		quakeLine("b", "P", "1", 0, 1.5),   //
		quakeLine("c", "P", "1", 0, 2),     // at R: still in
		quakeLine("d", "P", "1", 0, 2.001), //
		quakeLine("e", "P", "1", 0, 7.25))  // four steps skipped
	expectText(t, "barriers", barriersOf(h), "1:2 2:3 3:8 4:9")
	expectText(t, "epochs", classesOf(h), "a/1:on_time b/1:on_time c/1:on_time d/2:on_time e/3:on_time")
}

func TestWatermarkIsAnnouncedOneEpochBehind(t *testing.T) {
	h := historyOf(t,
		quakeLine("a", "P", "1", 23, 23.5),   // epoch 1
		quakeLine("b", "P", "1", 24, 24.5),   // epoch 2: reaches the end of the day
		quakeLine("c", "P", "1", 23.5, 25.5), // epoch 3: W(2) is that of epoch 1
		quakeLine("d", "P", "1", 23.6, 26.5), // epoch 4: W(3) is that of epoch 2
		quakeLine("e", "P", "1", 29.9, 27.5), // epoch 5
		quakeLine("f", "P", "1", 30, 28.5),   // epoch 6: end + lateness
		quakeLine("g", "P", "1", 23.7, 29.5), // epoch 7: W(6) is that of epoch 5, within
		quakeLine("h", "P", "1", 23.8, 30.5)) // epoch 8: W(7) is that of epoch 6
	expectText(t, "classes", classesOf(h), "a/1:on_time b/2:on_time c/3:on_time d/4:correction e/5:on_time "+
		"f/6:on_time g/7:correction h/8:late_correction")
	expectText(t, "history", h.String(), ""+
		"P\t2018-02-01\tv1\t2018-02-02T02:00:00Z\ton_time\t2\t1\n"+
		"P\t2018-02-01\tv2\t2018-02-02T03:00:00Z\tcorrection\t3\t1\n"+
		"P\t2018-02-01\tv3\t2018-02-02T06:00:00Z\tcorrection\t4\t1\n"+
		"P\t2018-02-01\tv4\t2018-02-02T08:00:00Z\tlate_correction\t5\t1\n"+
		"P\t2018-02-02\tv1\t2018-02-02T08:00:00Z\ton_time\t3\t1\n")
	if got := []int{h.Timing.OnTime, h.Timing.Correction, h.Timing.LateCorrection}; !slices.Equal(got, []int{5, 2, 1}) {
		t.Errorf("figures %v, want [5 2 1]", got)
	}
}

func TestEventsOfOneEpochMakeOneVersionAndNewWindowsStartAsCorrections(t *testing.T) {
	h := historyOf(t,
		quakeLine("a", "P", "1", 23, 23.5),
		quakeLine("b", "P", "1", 25, 25.5),
		quakeLine("c", "P", "1", 25, 26.5),
		quakeLine("d", "P", "2.50", 22, 27.5), // corrections, with P published at 27
		quakeLine("e", "P", "null", 22, 27.6),
		quakeLine("f", "Q", "null", 22, 27.7), // a window that never was
		quakeLine("g", "P", "1", 40, 40.5),
		quakeLine("h", "P", "1", 40, 41.5),
		quakeLine("i", "P", "3", 21, 42.2), // beyond lateness: parked, corrected one barrier on
		quakeLine("j", "P", "4", 21, 42.3),
		quakeLine("k", "S", "4", 21, 42.4),
		quakeLine("l", "P", "5", 21, 50.5)) // parked in the last epoch
	expectText(t, "history", h.String(), ""+
		"P\t2018-02-01\tv1\t2018-02-02T03:00:00Z\ton_time\t1\t1\n"+
		"P\t2018-02-01\tv2\t2018-02-02T04:00:00Z\tcorrection\t3\t2.5\n"+
		"P\t2018-02-01\tv3\t2018-02-03T03:00:00Z\tlate_correction\t5\t4\n"+
		"P\t2018-02-01\tv4\t2018-02-03T04:00:00Z\tlate_correction\t6\t5\n"+
		"P\t2018-02-02\tv1\t2018-02-03T04:00:00Z\ton_time\t4\t1\n"+
		"Q\t2018-02-01\tv1\t2018-02-02T04:00:00Z\tcorrection\t1\tnull\n"+
		"S\t2018-02-01\tv1\t2018-02-03T03:00:00Z\tlate_correction\t1\t4\n")
	expectText(t, "as of 27:00", printed(h.AsOf(testInstant(27))), "P\t2018-02-01\t1\t1\n")
	expectText(t, "just before 27:00", printed(h.AsOf(testInstant(27)-1)), "")
	expectText(t, "as of 30:00", printed(h.AsOf(testInstant(30))), "P\t2018-02-01\t3\t2.5\nQ\t2018-02-01\t1\tnull\n")
}

func TestBadLinesMoveNoWatermarkButTheirRecordsAreInTheirEpoch(t *testing.T) {
	h := historyOf(t,
		quakeLine("a", "P", "1", 23, 23.5),
		quakeLine("future", "P", "1", 99, 24.5),
		quakeLine("b", "P", "1", 23, 25.5),
		quakeLine("c", "P", "1", 23, 26.5))
	expectText(t, "barriers", barriersOf(h), "1:24 2:25 3:26 4:27 5:28")
	expectText(t, "classes", classesOf(h), "a/1:on_time b/3:on_time c/4:on_time")
	if h.Timing.Skipped != (Skipped{Future: 1}) {
		t.Errorf("skipped %+v, want one in the future", h.Timing.Skipped)
	}
}

func TestAReadingOfNothingIsEmpty(t *testing.T) {
	h := historyOf(t)
	if h.Timing.Epochs() != 0 || len(h.Timing.Barriers) != 0 || len(h.Windows) != 0 || len(h.AsOf(EndOfInput)) != 0 {
		t.Errorf("got %+v", h)
	}
}

func TestFallingTimestampsAndBadOptionsAreRefused(t *testing.T) {
	falling := recordsOf(t, quakeLine("a", "P", "1", 0, 2), quakeLine("b", "P", "1", 0, 1))
	if _, err := Classify(falling, DemoOptions()); err == nil {
		t.Error("falling timestamps were accepted")
	}
	if _, err := Classify(nil, Options{Step: 0}); err == nil {
		t.Error("a step of zero was accepted")
	}
}

func demoHistory(t *testing.T, text []byte) History {
	t.Helper()
	records, err := ReadRecords(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	history, err := QuakeHistory(records, DemoOptions())
	if err != nil {
		t.Fatal(err)
	}
	return history
}

func TestFiguresOfTheEarthquakeFile(t *testing.T) {
	h := demoHistory(t, readFile(t, quakesFile))
	if got := []int{h.Timing.OnTime, h.Timing.Correction, h.Timing.LateCorrection}; !slices.Equal(got, []int{1244, 126, 337}) {
		t.Errorf("on time, corrections, late corrections: %v, want [1244 126 337]", got)
	}
	if h.Timing.Epochs() != 165 || len(h.Timing.Barriers) != 166 {
		t.Errorf("%d epochs, %d barriers; want 165 and 166", h.Timing.Epochs(), len(h.Timing.Barriers))
	}
	first, last := h.Timing.Barriers[0].R.String(), h.Timing.Barriers[165].R.String()
	if first != "2018-01-31T03:00:00Z" || last != "2018-02-07T03:00:00Z" {
		t.Errorf("recorded from %s to %s", first, last)
	}
	if got, want := h.Versions(), (map[Class]int{OnTime: 157, Correction: 34, LateCorrection: 174}); !reflect.DeepEqual(got, want) {
		t.Errorf("versions by cause %v, want %v", got, want)
	}
	// One window in full: it has each cause, and a magnitude that changed.
	alaska, _ := h.Window("Alaska", dayOf(testInstant(0)))
	var versions strings.Builder
	for _, v := range alaska.Versions {
		fmt.Fprintln(&versions, v)
	}
	expectText(t, "Alaska on 2018-02-01", versions.String(), ""+
		"v1\t2018-02-02T02:00:00Z\ton_time\t34\t3.8\n"+
		"v2\t2018-02-02T06:00:00Z\tcorrection\t35\t3.8\n"+
		"v3\t2018-02-02T15:00:00Z\tlate_correction\t36\t4.3\n"+
		"v4\t2018-02-02T16:00:00Z\tlate_correction\t37\t4.3\n"+
		"v5\t2018-02-02T19:00:00Z\tlate_correction\t38\t4.3\n")
}

func TestTheHistoryOfTheEarthquakeFileEndsAtItsFold(t *testing.T) {
	text := readFile(t, quakesFile)
	fold, err := FoldQuakes(bytes.NewReader(text), Day)
	if err != nil {
		t.Fatal(err)
	}
	if got := demoHistory(t, text).AsOf(EndOfInput); !slices.Equal(got, fold.RegionDays) {
		t.Error("the newest versions of all windows differ from the fold of the file")
	}
}

func TestTheThreeBadLinesAreCountedAndChangeNothingElse(t *testing.T) {
	text := readFile(t, quakesFile)
	bad := readFile(t, "testdata/bad.ndjson")
	// They stand where their `updated` belongs.
	at := bytes.Index(text, []byte(`"updated":15176`))
	at = bytes.LastIndexByte(text[:at], '\n') + 1
	injected := slices.Concat(text[:at], bad, text[at:])

	clean, dirty := demoHistory(t, text), demoHistory(t, injected)
	if want := (Skipped{NoJSON: 1, NoTime: 1, Future: 1}); dirty.Timing.Skipped != want {
		t.Errorf("skipped %+v, want %+v", dirty.Timing.Skipped, want)
	}
	if clean.String() != dirty.String() {
		t.Error("bad lines changed what is published")
	}
	if !slices.Equal(clean.Timing.Barriers, dirty.Timing.Barriers) {
		t.Error("bad lines changed the barriers")
	}
}
