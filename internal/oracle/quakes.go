package oracle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Record is one line of the earthquake file as a broker would hold it.
type Record struct {
	Line      int    // in the file, from 1
	Timestamp Micros // the log's timestamp: the line's `updated`
	Value     []byte // the line without its line end
}

// ReadRecords reads a file of lines. A line's timestamp is its `updated`, in
// milliseconds in the file; a line without a readable one has the timestamp of
// the line before it, or of the first line that has one. Empty lines are no
// records.
func ReadRecords(r io.Reader) ([]Record, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var records []Record
	last, leading := Micros(0), 0 // leading: records before the first timestamp
	found := false
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimRight(line, "\r")
		if len(line) == 0 {
			continue
		}
		var fields map[string]json.RawMessage // a map: names in their exact case
		// A line that is no JSON has no `updated` either: that is all that
		// matters here.
		_ = json.Unmarshal(line, &fields)
		if at, ok := milliseconds(fields["updated"]); ok {
			last, found = at, true
		}
		if !found {
			leading++
		}
		records = append(records, Record{Line: i + 1, Timestamp: last, Value: line})
		if found {
			for k := range leading {
				records[k].Timestamp = last
			}
			leading = 0
		}
	}
	return records, nil
}

// milliseconds reads a JSON integer as an instant in milliseconds, from year 1
// to year 9999.
func milliseconds(text json.RawMessage) (Micros, bool) {
	const first, last = -62_135_596_800_000, 253_402_300_799_999
	ms, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || ms < first || ms > last {
		return 0, false
	}
	return Micros(ms) * 1000, true
}

// Skipped counts the lines that are no event, by the first reason that holds
// in this order.
type Skipped struct {
	NoJSON   int // not a JSON object
	NoID     int // no `id`, or not a text, or an empty one
	NoTime   int // no `time`, or null
	BadField int // `time` no integer of milliseconds from year 1 to 9999, `place` no text, or `mag` neither null nor a number
	Future   int // `time` more than the bound after the record's timestamp
}

// Total is how many lines were skipped.
func (s Skipped) Total() int { return s.NoJSON + s.NoID + s.NoTime + s.BadField + s.Future }

// quake is one valid line.
type quake struct {
	record Record
	id     string
	time   Micros
	region string
	mag    magnitude                  // none where it is null or absent
	fields map[string]json.RawMessage // as in the line
}

// parseQuakes gives the valid lines in the order of the records.
func parseQuakes(records []Record, maxAhead Micros) ([]quake, Skipped) {
	var quakes []quake
	var skipped Skipped
	for _, record := range records {
		q := quake{record: record}
		reason := q.parse(&skipped)
		if reason == nil && q.time > record.Timestamp.plus(maxAhead) {
			reason = &skipped.Future
		}
		if reason != nil {
			*reason++
			continue
		}
		quakes = append(quakes, q)
	}
	return quakes, skipped
}

// parse reads the record's line into the quake. It returns nil, or the counter
// of the reason for which the line is no event.
func (q *quake) parse(skipped *Skipped) *int {
	if err := json.Unmarshal(q.record.Value, &q.fields); err != nil || q.fields == nil {
		return &skipped.NoJSON
	}
	var ok bool
	if q.id, ok = textOf(q.fields["id"]); !ok || q.id == "" {
		return &skipped.NoID
	}
	if isAbsent(q.fields["time"]) {
		return &skipped.NoTime
	}
	if q.time, ok = milliseconds(q.fields["time"]); !ok {
		return &skipped.BadField
	}
	place, ok := textOf(q.fields["place"])
	if !ok {
		return &skipped.BadField
	}
	q.region = Region(place)
	if mag := q.fields["mag"]; !isAbsent(mag) {
		number, err := parseMagnitude(string(mag))
		if err != nil {
			return &skipped.BadField
		}
		q.mag = number
	}
	return nil
}

func isAbsent(value json.RawMessage) bool {
	return len(value) == 0 || string(value) == "null"
}

// textOf reads a JSON string; anything else is not ok.
func textOf(value json.RawMessage) (string, bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", false
	}
	var text string
	err := json.Unmarshal(value, &text)
	return text, err == nil
}

// Region is the text after the last ", " of a place, or all of it where there
// is none.
func Region(place string) string {
	if i := strings.LastIndex(place, ", "); i >= 0 {
		return place[i+len(", "):]
	}
	return place
}

// RegionDay is one row of the table of counts.
type RegionDay struct {
	Region string
	Day    DayNumber
	Count  int
	MaxMag string // canonical decimal; "" where no quake has a magnitude
}

// String prints the row in one line, its fields separated by tabs.
func (d RegionDay) String() string {
	return fmt.Sprintf("%s\t%s\t%d\t%s", d.Region, d.Day, d.Count, orNull(d.MaxMag))
}

// Quake is what is believed of one quake. An empty field is unknown.
type Quake struct {
	ID, Mag, Place, Status string
}

// String prints the quake in one line, its fields separated by tabs.
func (q Quake) String() string {
	return fmt.Sprintf("%s\t%s\t%s\t%s", q.ID, orNull(q.Mag), orNull(q.Place), orNull(q.Status))
}

func orNull(text string) string {
	if text == "" {
		return "null"
	}
	return text
}

// Fold is the final answer that a file must lead to.
type Fold struct {
	RegionDays []RegionDay // by region (bytewise), then day
	Quakes     []Quake     // by id (bytewise)
	Events     int         // valid lines
	Skipped    Skipped
}

// FoldQuakes reads the whole file at once: for each region and UTC day of
// `time` the count of quakes and the largest magnitude (null ones are counted
// and have no magnitude), and for each id its magnitude, place and status. An
// event is skipped as lying in the future where its `time` is more than
// maxAhead after its record's timestamp.
//
// Every valid line counts once, also where two have the same id. Of a quake's
// fields the value of the line with the greatest (`time`, line number) holds;
// a line that lacks the field says nothing about it.
func FoldQuakes(r io.Reader, maxAhead Micros) (Fold, error) {
	records, err := ReadRecords(r)
	if err != nil {
		return Fold{}, err
	}
	quakes, skipped := parseQuakes(records, maxAhead)
	return Fold{
		RegionDays: foldRegionDays(quakes),
		Quakes:     foldByID(quakes),
		Events:     len(quakes),
		Skipped:    skipped,
	}, nil
}

type regionDayKey struct {
	region string
	day    DayNumber
}

func (q quake) window() regionDayKey { return regionDayKey{q.region, dayOf(q.time)} }

func compareRegionDays(a, b RegionDay) int {
	return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Day, b.Day))
}

func foldRegionDays(quakes []quake) []RegionDay {
	counts := map[regionDayKey]int{}
	largest := map[regionDayKey]magnitude{}
	for _, q := range quakes {
		counts[q.window()]++
		largest[q.window()] = largest[q.window()].larger(q.mag)
	}
	sorted := make([]RegionDay, 0, len(counts))
	for key, count := range counts {
		sorted = append(sorted, RegionDay{key.region, key.day, count, largest[key].text})
	}
	slices.SortFunc(sorted, compareRegionDays)
	return sorted
}

func foldByID(quakes []quake) []Quake {
	ordered := slices.Clone(quakes)
	slices.SortStableFunc(ordered, func(a, b quake) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.time, b.time))
	})
	var folded []Quake
	for _, q := range ordered {
		if n := len(folded); n == 0 || folded[n-1].ID != q.id {
			folded = append(folded, Quake{ID: q.id})
		}
		believed := &folded[len(folded)-1]
		if _, there := q.fields["mag"]; there {
			believed.Mag = q.mag.text
		}
		believed.Place, _ = textOf(q.fields["place"])
		if status, there := q.fields["status"]; there {
			believed.Status, _ = textOf(status)
		}
	}
	return folded
}
