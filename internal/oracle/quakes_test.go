package oracle

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestCanonicalDecimalKeepsTheValueAndHasOneFormForIt(t *testing.T) {
	for number, want := range map[string]string{
		"0": "0", "-0": "0", "-0.00": "0", "2": "2", "2.50": "2.5", "-0.80": "-0.8", "10": "10",
		"1e2": "100", "1.25E1": "12.5", "1e-2": "0.01", "-12e-1": "-1.2", "0.1e+1": "1", "120e-1": "12",
		"12345678901234567890.10": "12345678901234567890.1",
	} {
		got, err := canonicalDecimal(number)
		if err != nil || got != want {
			t.Errorf("canonicalDecimal(%q) = %q, %v; want %q", number, got, err, want)
		}
	}
	for _, number := range []string{"", "-", "x", `"1"`, "1e999999999", "1e", "true"} {
		if got, err := canonicalDecimal(number); err == nil {
			t.Errorf("canonicalDecimal(%q) = %q, want an error", number, got)
		}
	}
}

func TestMagnitudesCompareByValueAndNoneIsTheLeast(t *testing.T) {
	read := func(number string) magnitude {
		if number == "" {
			return magnitude{}
		}
		m, err := parseMagnitude(number)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, c := range []struct{ a, b, want string }{
		{"", "-3", "-3"}, {"-3", "", "-3"}, {"9", "10", "10"}, {"-0.9", "-0.11", "-0.11"}, {"2.5", "2.49", "2.5"}, {"", "", ""},
	} {
		if got := read(c.a).larger(read(c.b)).text; got != c.want {
			t.Errorf("the larger of %q and %q is %q, want %q", c.a, c.b, got, c.want)
		}
	}
}

func TestRegionIsWhatFollowsTheLastComma(t *testing.T) {
	for place, want := range map[string]string{
		"4km W of Castaic, CA": "CA", "7km W of Progreso, B.C., MX": "MX", "Banda Sea": "Banda Sea", "a,b": "a,b", "": "",
	} {
		if got := Region(place); got != want {
			t.Errorf("Region(%q) = %q, want %q", place, got, want)
		}
	}
}

func TestDaysBeforeTheEpochAreFloored(t *testing.T) {
	day := dayOf(-1)
	if day.String() != "1969-12-31" || day.End() != 0 {
		t.Errorf("the day of -1 µs is %s and ends at %d", day, day.End())
	}
}

// quakeLine renders a line; times are hours after 2018-02-01T00:00:00Z.
func quakeLine(id, place, mag string, timeHours, updatedHours float64) string {
	return fmt.Sprintf(`{"id":%q,"mag":%s,"place":%q,"time":%d,"updated":%d,"status":"automatic"}`,
		id, mag, place, testMillis(timeHours), testMillis(updatedHours))
}

const testBase = 1_517_443_200_000 // 2018-02-01T00:00:00Z in milliseconds

func testMillis(hours float64) int64 { return testBase + int64(hours*3_600_000) }

func testInstant(hours float64) Micros { return Micros(testMillis(hours)) * 1000 }

func recordsOf(t *testing.T, lines ...string) []Record {
	t.Helper()
	records, err := ReadRecords(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestRecordsWithoutATimestampTakeTheOneBefore(t *testing.T) {
	records := recordsOf(t, "no json", "", `{"Updated":9}`, `{"updated":5}`, `{"updated":null}`, `{"updated":7}`, `{}`)
	var got []string
	for _, r := range records {
		got = append(got, fmt.Sprint(r.Line, ":", int64(r.Timestamp)))
	}
	if want := "1:5000 3:5000 4:5000 5:5000 6:7000 7:7000"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestFoldCountsByRegionAndDayAndTakesTheLargestMagnitude(t *testing.T) {
	lines := []string{
		quakeLine("a", "1km N of X, B", "-0.50", 1, 2),
		quakeLine("b", "2km N of Y, B", "null", 23.999, 24),
		quakeLine("c", "Sea", "2.0", 24, 25),
		quakeLine("d", "3km N of X, A", "null", 24, 25),
		quakeLine("e", "4km N of X, B", "-0.11", 2, 26),
	}
	fold, err := FoldQuakes(strings.NewReader(strings.Join(lines, "\n")), Day)
	if err != nil {
		t.Fatal(err)
	}
	wantRows := "A\t2018-02-02\t1\tnull\nB\t2018-02-01\t3\t-0.11\nSea\t2018-02-02\t1\t2\n"
	if got := printed(fold.RegionDays); got != wantRows {
		t.Errorf("rows:\n%s\nwant:\n%s", got, wantRows)
	}
	if len(fold.Quakes) != 5 || fold.Quakes[0].String() != "a\t-0.5\t1km N of X, B\tautomatic" {
		t.Errorf("quakes: %v", fold.Quakes)
	}
	if fold.Events != 5 || fold.Skipped.Total() != 0 {
		t.Errorf("events %d, skipped %+v", fold.Events, fold.Skipped)
	}
}

func TestOfTwoLinesWithOneIDTheLaterInValidTimeHolds(t *testing.T) {
	lines := []string{
		quakeLine("a", "1km N of X, B", "3", 2, 3),
		quakeLine("a", "2km N of X, B", "1", 1, 4),
		`{"id":"a","place":"3km N of X, B","time":` + fmt.Sprint(testMillis(2)) + `}`,
	}
	fold, err := FoldQuakes(strings.NewReader(strings.Join(lines, "\n")), Day)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Quake{{"a", "3", "3km N of X, B", "automatic"}}; !reflect.DeepEqual(fold.Quakes, want) {
		t.Errorf("got %v, want %v", fold.Quakes, want)
	}
	if fold.RegionDays[0].Count != 3 {
		t.Errorf("count %d, want every line once: 3", fold.RegionDays[0].Count)
	}
}

func TestLinesThatAreNoEventAreSkippedAndCountedByReason(t *testing.T) {
	good := quakeLine("a", "1km N of X, B", "3", 1, 2)
	lines := []string{
		good, "[]", "null", `{"id":`, `{"time":1}`, `{"id":"","time":1}`, `{"id":"b","place":"P"}`, `{"id":"b","place":"P","time":null}`,
		`{"id":"b","place":"P","time":"1"}`, `{"id":"b","place":"P","time":1.5}`, `{"id":"b","place":"P","time":9e99}`,
		`{"id":"b","time":1}`, `{"id":"b","place":"P","time":1,"mag":"3"}`,
		quakeLine("b", "P", "1", 26, 2), // exactly a day ahead: not too far
		quakeLine("c", "P", "1", 26.001, 2),
	}
	fold, err := FoldQuakes(strings.NewReader(strings.Join(lines, "\n")), Day)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Skipped{NoJSON: 3, NoID: 2, NoTime: 2, BadField: 5, Future: 1}); fold.Skipped != want {
		t.Errorf("skipped %+v, want %+v", fold.Skipped, want)
	}
	if fold.Events != 2 {
		t.Errorf("events %d, want 2", fold.Events)
	}
}

func printed(rows []RegionDay) string {
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintln(&b, row)
	}
	return b.String()
}

const quakesFile = "../../examples/earthquakes/quakes.ndjson"

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestFoldOfTheEarthquakeFile(t *testing.T) {
	fold, err := FoldQuakes(bytes.NewReader(readFile(t, quakesFile)), Day)
	if err != nil {
		t.Fatal(err)
	}
	if fold.Events != 1707 || fold.Skipped.Total() != 0 {
		t.Errorf("events %d, skipped %+v; want 1707 and none", fold.Events, fold.Skipped)
	}
	if len(fold.RegionDays) != 193 || len(fold.Quakes) != 1707 {
		t.Errorf("%d rows, %d quakes; want 193 and 1707", len(fold.RegionDays), len(fold.Quakes))
	}
	total := 0
	for _, row := range fold.RegionDays {
		total += row.Count
	}
	if total != 1707 {
		t.Errorf("the rows count %d quakes, want 1707", total)
	}
}
