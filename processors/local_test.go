package processors_test

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// windowKey names a window of an object in the dumb sink.
type windowKey struct {
	typ, id, aggregate string
	start, end         event.EventTime
}

// dumbSink keeps the newest result of every window, and checks what any sink
// may rely on: versions without a gap, recorded times that rise.
type dumbSink struct {
	windows map[windowKey]event.Result
	history []event.Result
	puts    int
	last    event.RecordedTime
}

func newDumbSink() *dumbSink {
	return &dumbSink{windows: map[windowKey]event.Result{}, last: event.RecordedUnknown}
}

// Apply implements processors.LocalSink.
func (s *dumbSink) Apply(n event.Epoch, at event.RecordedTime, rows []processors.LocalRow) error {
	if at <= s.last {
		return fmt.Errorf("R(%s) = %s does not rise above %s", n, at, s.last)
	}
	s.last = at
	for _, r := range rows {
		if r.Result.Epoch != n || r.Result.Recorded != at {
			return fmt.Errorf("a row of epoch %s, %s in epoch %s, %s", r.Result.Epoch, r.Result.Recorded, n, at)
		}
		if r.Result.Kind == event.RowPut {
			s.puts++
			continue
		}
		k := windowKey{r.Result.Type, r.Result.ID, r.Result.Aggregate, r.Result.ValidFrom, r.Result.ValidTo}
		if have := s.windows[k]; r.Result.Version != have.Version+1 {
			return fmt.Errorf("window %v: version %d (%s) after %d (%s)", k, r.Result.Version, r.Result.Cause, have.Version, have.Cause)
		}
		s.windows[k] = r.Result
		s.history = append(s.history, r.Result)
	}
	return nil
}

// ReadBack implements processors.LocalSink.
func (s *dumbSink) ReadBack(asked []processors.ReadBack) ([]processors.Answer, error) {
	var out []processors.Answer
	for _, rb := range asked {
		r, ok := s.windows[windowKey{rb.Type, rb.ID, rb.Aggregate, rb.Start, rb.End}]
		out = append(out, processors.Answer{Number: rb.Number, Found: ok, Version: r.Version, Properties: r.Properties})
	}
	return out, nil
}

func (s *dumbSink) String() string {
	var lines []string
	for k, r := range s.windows {
		line := fmt.Sprintf("%s %s %s", k.id, k.aggregate, k.start)
		for _, p := range r.Properties {
			line += fmt.Sprintf(" %s=%s", p.Name, p.Value)
		}
		lines = append(lines, line)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func parsePlan(t rapid.TB, text string) *mapping.Plan {
	t.Helper()
	plan, err := mapping.Parse("test.yaml", []byte(text), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

const sensors = `
pipeline: sensors
epoch: {clock: %s}
streams:
  readings:
    topic: readings
    key: sensor
    %s
    event_time: {field: at, format: s, max_ahead: 24h}
    watermark: {out_of_orderness: %ds}
    allowed_lateness: %ds
objects:
  Sensor:
    aggregates:
      tens:
        from: readings
        id: sensor
        window: {tumbling: 10s}
        values: {n: count(), total: {sum: v}, least: {min: v}, most: {max: v}, mean: {avg: v}}
`

type reading struct {
	sensor string
	at     int64 // seconds
	v      int64
	stamp  int64 // of the log, seconds
	part   event.Partition
}

func (r reading) record() processors.LocalRecord {
	value := fmt.Sprintf(`{"sensor":%q,"at":%d,"v":%d}`, r.sensor, r.at, r.v)
	return processors.LocalRecord{Partition: r.part, Record: processors.Record{
		Timestamp: event.EventTime(r.stamp * 1e6), Key: []byte(r.sensor), Value: []byte(value),
	}}
}

// foldReadings is the answer by hand: every reading in its window, once.
func foldReadings(rs []reading) string {
	type sum struct{ n, total, least, most int64 }
	sums := map[string]*sum{}
	for _, r := range rs {
		start := event.EventTime(event.FloorDiv(r.at, 10) * 10 * 1e6)
		k := fmt.Sprintf("%s tens %s", r.sensor, start)
		s := sums[k]
		if s == nil {
			s = &sum{least: r.v, most: r.v}
			sums[k] = s
		}
		s.n++
		s.total += r.v
		s.least, s.most = min(s.least, r.v), max(s.most, r.v)
	}
	var lines []string
	for k, s := range sums {
		mean := event.FromInt64(s.total).Div(s.n)
		lines = append(lines, fmt.Sprintf("%s least=%d mean=%s most=%d n=%d total=%d", k, s.least, mean, s.most, s.n, s.total))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func genReadings(t *rapid.T, partitioned bool) []reading {
	n := rapid.IntRange(0, 120).Draw(t, "n")
	parts := rapid.Int32Range(1, 3).Draw(t, "partitions")
	var out []reading
	stamp := int64(1_700_000_000)
	for range n {
		stamp += rapid.Int64Range(0, 30).Draw(t, "gap")
		r := reading{
			sensor: "s" + strconv.Itoa(rapid.IntRange(0, 3).Draw(t, "sensor")), stamp: stamp,
			at: stamp - rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64Range(0, 400)).Draw(t, "delay"),
			v:  rapid.Int64Range(-5, 5).Draw(t, "v"), part: event.Partition(rapid.Int32Range(0, parts-1).Draw(t, "part")),
		}
		if partitioned {
			r.part = 0 // of one partition; which is right for every key
		}
		out = append(out, r)
	}
	return out
}

func TestEveryReadingCountsOnceHoweverLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := rapid.SampledFrom([]string{"wall", "log, step: 20s", "log, step: 1s"}).Draw(t, "clock")
		fused := rapid.Bool().Draw(t, "fused")
		by := ""
		if fused {
			by = "partitioned_by: key"
		}
		plan := parsePlan(t, fmt.Sprintf(sensors, clock, by,
			rapid.IntRange(0, 20).Draw(t, "out_of_orderness"), rapid.IntRange(0, 60).Draw(t, "lateness")))
		readings := genReadings(t, fused)
		records := make([]processors.LocalRecord, len(readings))
		for i, r := range readings {
			records[i] = r.record()
		}
		sink := newDumbSink()
		out, err := processors.RunLocal(processors.LocalConfig{
			Topology: processors.NewTopology(plan, 1), Streams: map[string][]processors.LocalRecord{"readings": records},
			EpochEvery: rapid.IntRange(0, 20).Draw(t, "every"), Sink: sink,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sink.String(), foldReadings(readings); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		c := out.Counters
		if c.Events != int64(len(readings)) || c.OnTime+c.Corrections+c.Late != int64(len(readings)) {
			t.Fatalf("%d readings, but %+v", len(readings), c)
		}
	})
}

func TestALocalRunIsTheSameEveryTime(t *testing.T) {
	plan := parsePlan(t, fmt.Sprintf(sensors, "log, step: 5s", "", 2, 20))
	var readings []processors.LocalRecord
	for i := range int64(500) {
		at := 1_700_000_000 + i - (i*i*7)%180
		readings = append(readings, reading{sensor: "s" + strconv.Itoa(int(i%7)), at: at, v: i, stamp: 1_700_000_000 + i, part: event.Partition(i % 3)}.record())
	}
	var first []event.Result
	for range 3 {
		sink := newDumbSink()
		_, err := processors.RunLocal(processors.LocalConfig{
			Topology: processors.NewTopology(plan, 1), Streams: map[string][]processors.LocalRecord{"readings": readings}, Sink: sink,
		})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = sink.history
		}
		if got, want := fmt.Sprint(sink.history), fmt.Sprint(first); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	}
}

const orders = `
pipeline: orders
epoch: {clock: wall}
streams:
  orders:
    topic: orders
    key: id
    identity: {event_id: id, horizon: 24h}
    event_time: {field: at, max_ahead: 1h}
objects:
  Order:
    from: orders
    id: id
    properties:
      total: {value: total, kind: decimal}
`

func value(text, stamp string) processors.LocalRecord {
	r := processors.LocalRecord{Record: processors.Record{Timestamp: processors.NoTimestamp, Value: []byte(text)}}
	if at, err := time.Parse(time.RFC3339, stamp); err == nil {
		r.Record.Timestamp = event.FromTime(at)
	}
	return r
}

func TestABadRecordIsADeadLetterAndStopsNothing(t *testing.T) {
	records := []processors.LocalRecord{
		value(`{"id":"a","at":"2026-01-01T10:00:00Z","total":5.50}`, "2026-01-01T10:00:01Z"),
		value(`{"id":"b",`, ""),
		value(`{"id":"c","total":1}`, ""),
		value(`{"at":"2026-01-01T10:00:00Z","total":1}`, ""),
		value(`{"id":"d","at":"2027-01-01T10:00:00Z","total":1}`, "2026-01-01T10:00:01Z"),
		value(`{"id":"e","at":"2026-01-01T10:00:00Z","total":"much"}`, ""),
		value(`{"id":"a","at":"2026-01-01T10:00:00Z","total":5.50}`, "2026-01-01T10:00:02Z"),
		value(`{"id":"a","at":"2026-01-01T10:00:00Z","total":6}`, ""),
		value(`{"id":"f","at":"2026-01-01T10:00:00Z","total":7}`, ""),
	}
	records = append(records, processors.LocalRecord{Record: processors.Record{Timestamp: processors.NoTimestamp}})
	sink := newDumbSink()
	out, err := processors.RunLocal(processors.LocalConfig{
		Topology: processors.NewTopology(parsePlan(t, orders), 1), Sink: sink,
		Streams: map[string][]processors.LocalRecord{"orders": records}, EpochEvery: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range out.DeadLetters {
		got = append(got, fmt.Sprintf("%s %s", d.Place.Offset, d.Reject.Reason))
		if string(d.Record.Value) != string(records[d.Place.Offset].Record.Value) {
			t.Errorf("dead letter %s does not have its bytes", d.Place)
		}
	}
	want := "1 not_json, 2 no_event_time, 3 no_key, 4 ahead, 5 bad_value, 7 conflict, 9 null_value"
	if strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
	if sink.puts != 2 || out.Counters.Repeats != 1 {
		t.Errorf("%d puts, %d repeats; want 2 and 1", sink.puts, out.Counters.Repeats)
	}
}
