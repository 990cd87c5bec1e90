package ontology

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
)

// testPipeline writes orders (status and total put by events) and their
// hourly count and average.
func testPipeline(suffix string) Pipeline {
	return Pipeline{
		Name: "orders" + suffix, Generation: 1, MappingVersion: "m1", ResultsPartitions: 2,
		Types: []*mapping.ObjectType{
			{Name: "Customer" + suffix, Properties: []mapping.PropertyDef{{Name: "name", Kind: event.KindText}}},
			{Name: "Order" + suffix, Properties: []mapping.PropertyDef{
				{Name: "hourly.avg", Kind: event.KindDecimal, Windowed: true},
				{Name: "hourly.count", Kind: event.KindInteger, Windowed: true},
				{Name: "status", Kind: event.KindText},
				{Name: "total", Kind: event.KindDecimal},
			}},
		},
	}
}

// log plays the results topic of a pipeline: rows are written epoch by epoch
// and cut into chunks as the test says.
type log struct {
	p        Pipeline
	suffix   string
	epoch    event.Epoch
	r        event.RecordedTime
	rows     [2][]Row
	applied  [2]Progress // what the next chunk goes on from
	next     [2]event.Offset
	finished [2]map[event.Epoch]event.Offset // where the epoch's last row ends
}

func newLog(suffix string) *log {
	l := &log{p: testPipeline(suffix), suffix: suffix}
	for i := range l.finished {
		l.finished[i] = make(map[event.Epoch]event.Offset)
	}
	l.begin(0)
	return l
}

func second(n int) event.RecordedTime { return event.RecordedTime(n) * 1_000_000 }

// begin begins the next epoch; r 0: one second after the last.
func (l *log) begin(r event.RecordedTime) {
	l.epoch++
	l.r = cmp.Or(r, l.r+second(1))
}

// end writes the markers of the epoch, and begins the next.
func (l *log) end() {
	for i := range l.next {
		l.next[i]++ // the marker
		l.finished[i][l.epoch] = l.next[i]
	}
	l.begin(0)
}

func partitionOf(id string) event.Partition { return event.Partition(id[len(id)-1] % 2) }

func (l *log) write(r event.Result) {
	p := partitionOf(r.ID)
	r.Epoch, r.Recorded = l.epoch, l.r
	if r.Type == "" {
		r.Type = "Order" + l.suffix
	}
	r.Place = event.Place{Topic: "orders", Partition: p, Offset: l.next[p] + 1000, Timestamp: 5000}
	if r.Kind == event.RowPut && r.Tie == (event.Tie{}) {
		r.Tie = event.Tie{Partition: p, Offset: l.next[p]}
	}
	l.rows[p] = append(l.rows[p], Row{Offset: l.next[p], Result: r})
	l.next[p]++
}

func prop(name, value string) event.Property {
	return event.Property{Name: name, Value: event.Value{Text: value, Null: value == ""}}
}

func (l *log) put(id string, at int64, props ...event.Property) {
	l.write(event.Result{
		Kind: event.RowPut, ID: id, ValidFrom: event.EventTime(at), ValidTo: event.OpenEnd,
		Properties: props, Cause: event.CauseOnTime,
	})
}

func (l *log) window(id string, start int64, version uint32, cause event.Cause, count int) {
	l.write(event.Result{
		Kind: event.RowWindow, ID: id, Aggregate: "hourly",
		ValidFrom: event.EventTime(start), ValidTo: event.EventTime(start + 10), Version: version, Cause: cause,
		Properties: []event.Property{
			{Name: "avg", Value: event.Value{Text: fmt.Sprint(count * 2)}, State: []byte{1, byte(count)}},
			prop("count", fmt.Sprint(count)),
		},
	})
}

// chunk cuts what the partition holds from where it was applied to an offset
// (−1: all), and counts it as applied.
func (l *log) chunk(p event.Partition, to event.Offset) Chunk {
	if to < 0 {
		to = l.next[p]
	}
	c := Chunk{Partition: p, From: l.applied[p], To: l.applied[p]}
	c.To.Offset, c.To.UnderWay, c.To.Seen = to, 0, nil
	for epoch, end := range l.finished[p] {
		if end <= to && epoch > c.To.Epoch {
			c.To.Epoch = epoch
		}
	}
	for _, row := range l.rows[p] {
		if row.Offset >= c.From.Offset && row.Offset < to {
			c.Rows = append(c.Rows, row)
			if row.Result.Epoch > c.To.Epoch {
				c.To.UnderWay = row.Result.Epoch
				c.To.Seen = map[string][]event.Partition{"ingest": {0, 3}}
			}
		}
	}
	c.To.Recorded = l.recorded(c.To.Epoch)
	l.applied[p] = c.To
	return c
}

// recorded gives R of an epoch: the tests number them by the second.
func (l *log) recorded(e event.Epoch) event.RecordedTime { return second(int(e)) }

// all cuts everything that is left, of both partitions.
func (l *log) all() []Chunk { return []Chunk{l.chunk(0, -1), l.chunk(1, -1)} }

func factText(values []Fact) []string {
	var out []string
	for _, f := range values {
		out = append(out, fmt.Sprintf("%s %s=%s [%d,%s) %s", f.ID, f.Property, f.Value, f.ValidFrom, number64(int64(f.ValidTo)), f.Cause))
	}
	return out
}

func number64(v int64) string {
	if v == int64(event.OpenEnd) {
		return "open"
	}
	return fmt.Sprint(v)
}

func versionText(as []Assertion) []string {
	var out []string
	for _, a := range as {
		out = append(out, fmt.Sprintf("%s %s=%s [%d,%s) recorded [%d,%s) %s v%d", a.ID, a.Property, a.Value,
			a.ValidFrom, number64(int64(a.ValidTo)), a.RecordedFrom/1e6, recordedText(a.RecordedTo), a.Cause, a.Version))
	}
	return out
}

func recordedText(r event.RecordedTime) string {
	if r == event.RecordedNever {
		return "never"
	}
	return fmt.Sprint(int64(r / 1e6))
}

func equal(got, want []string) string {
	if slices.Equal(got, want) {
		return ""
	}
	return fmt.Sprintf("got\n  %q\nwant\n  %q", got, want)
}
