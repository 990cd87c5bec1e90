package processors_test

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
)

// everyWindow has an aggregate of every kind of window, with every function.
const everyWindow = `
pipeline: kinds
epoch: {clock: %s}
streams:
  visits:
    topic: visits
    key: house
    %s
    identity: %s
    event_time: {field: at, format: ms, max_ahead: 200d}
    watermark: {out_of_orderness: %dh}
    allowed_lateness: %dh
objects:
  House:
    aggregates:
%s`

const everyFunction = "{n: count(), had: count(v), total: sum(v), least: min(v), most: max(v), mean: avg(v), opened: first(s), closed: last(s), some: any(c), every: all(c)}"

// kindOfWindow is a kind of window, and which windows hold a time by hand.
type kindOfWindow struct {
	name, text string
	starts     func(at time.Time) []time.Time
}

func kindsOfWindows(t testing.TB) []kindOfWindow {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	date := func(at time.Time, days int) time.Time {
		at = at.In(berlin)
		return time.Date(at.Year(), at.Month(), at.Day()+days, 0, 0, 0, 0, berlin)
	}
	one := func(f func(time.Time) time.Time) func(time.Time) []time.Time {
		return func(at time.Time) []time.Time { return []time.Time{f(at)} }
	}
	return []kindOfWindow{
		{"pieces", "{tumbling: 10h, offset: 3h}", one(func(at time.Time) time.Time {
			start := time.Unix(3*3600+10*3600*47000, 0) // in 2023
			for !at.Before(start.Add(10 * time.Hour)) {
				start = start.Add(10 * time.Hour)
			}
			return start
		})},
		{"overlapping", "{hopping: 1d, every: 7h, offset: 1h}", func(at time.Time) (out []time.Time) {
			first := at.Add(-24 * time.Hour).Unix()
			for s := first - 7*3600; s <= at.Unix(); s++ {
				if (s-3600)%(7*3600) == 0 && at.Sub(time.Unix(s, 0)) < 24*time.Hour {
					out = append(out, time.Unix(s, 0))
					s += 7*3600 - 1
				}
			}
			return out
		}},
		{"days", "{calendar: day, zone: Europe/Berlin}", one(func(at time.Time) time.Time { return date(at, 0) })},
		{"weeks", "{calendar: week, zone: Europe/Berlin}", one(func(at time.Time) time.Time {
			return date(at, -(int(at.In(berlin).Weekday())+6)%7)
		})},
		{"months", "{calendar: month, zone: Europe/Berlin}", one(func(at time.Time) time.Time {
			return date(at, 1-at.In(berlin).Day())
		})},
		{"ever", "none", one(func(time.Time) time.Time { return event.MinEventTime.Time() })},
	}
}

// visit is an event; missing fields are nil.
type visit struct {
	house string
	n     int64 // counts the visits of a house
	at    time.Time
	v     *int64
	s     *string
	c     *bool
}

func (v *visit) json() string {
	text := fmt.Sprintf(`{"house":%q,"n":%d,"at":%d`, v.house, v.n, v.at.UnixMilli())
	if v.v != nil {
		text += fmt.Sprintf(`,"v":%d`, *v.v)
	}
	if v.s != nil {
		text += fmt.Sprintf(`,"s":%q`, *v.s)
	}
	if v.c != nil {
		text += fmt.Sprintf(`,"c":%v`, *v.c)
	}
	return text + "}"
}

func maybe[T any](t *rapid.T, name string, g *rapid.Generator[T]) *T {
	if rapid.IntRange(0, 4).Draw(t, name+" is missing") == 0 {
		return nil
	}
	v := g.Draw(t, name)
	return &v
}

// genVisits draws visits over some months, at distinct times of a house, in the
// order of their times.
func genVisits(t *rapid.T) []visit {
	at := map[string]time.Time{}
	count := map[string]int64{}
	var out []visit
	for range rapid.IntRange(0, 60).Draw(t, "visits") {
		h := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "house")
		if count[h] == 0 {
			at[h] = time.Date(2024, 2, 20, 0, 0, 0, 0, time.UTC) // a leap day and a change of the clocks are near
		}
		at[h] = at[h].Add(time.Duration(rapid.OneOf(rapid.Int64Range(1, 5*3600*1000), rapid.Int64Range(1, 12*24*3600*1000)).Draw(t, "after")) * time.Millisecond)
		count[h]++
		out = append(out, visit{
			house: h, n: count[h], at: at[h], v: maybe(t, "v", rapid.Int64Range(-9, 9)),
			s: maybe(t, "s", rapid.StringMatching(`[a-c]{1,2}`)), c: maybe(t, "c", rapid.Bool()),
		})
	}
	return out
}

// byHand is what is to be believed of one window: its visits in the order of time.
func byHand(vs []visit) string {
	text := map[string]string{"n": fmt.Sprint(len(vs))}
	var numbers []int64
	var words []string
	var truths []bool
	for _, v := range vs {
		if v.v != nil {
			numbers = append(numbers, *v.v)
		}
		if v.s != nil {
			words = append(words, *v.s)
		}
		if v.c != nil {
			truths = append(truths, *v.c)
		}
	}
	null := event.Value{Null: true}.String()
	for _, name := range []string{"total", "least", "most", "mean", "opened", "closed", "some", "every"} {
		text[name] = null
	}
	text["had"] = fmt.Sprint(len(numbers))
	if len(numbers) > 0 {
		total, least, most := int64(0), numbers[0], numbers[0]
		for _, n := range numbers {
			total, least, most = total+n, min(least, n), max(most, n)
		}
		text["total"], text["least"], text["most"] = fmt.Sprint(total), fmt.Sprint(least), fmt.Sprint(most)
		text["mean"] = event.FromInt64(total).Div(int64(len(numbers))).String()
	}
	if len(words) > 0 {
		text["opened"], text["closed"] = words[0], words[len(words)-1]
	}
	if len(truths) > 0 {
		some, every := false, true
		for _, b := range truths {
			some, every = some || b, every && b
		}
		text["some"], text["every"] = fmt.Sprint(some), fmt.Sprint(every)
	}
	var out []string
	for name, value := range text {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

func believedByHand(kinds []kindOfWindow, visits []visit) string {
	windows := map[string][]visit{}
	for _, k := range kinds {
		for _, v := range visits {
			for _, start := range k.starts(v.at) {
				key := fmt.Sprintf("%s %s %s", v.house, k.name, event.FromTime(start))
				windows[key] = append(windows[key], v)
			}
		}
	}
	var lines []string
	for key, vs := range windows {
		lines = append(lines, key+" "+byHand(vs))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// Whatever the order in which events come, however late, and however often each of
// them: in the end the same is believed, and it is what the events say.
func TestEveryOrderOfArrivalEndsInWhatTheEventsSay(t *testing.T) {
	kinds := kindsOfWindows(t)
	rapid.Check(t, func(t *rapid.T) {
		clock := rapid.SampledFrom([]string{"wall", "log, step: 20s"}).Draw(t, "clock")
		fused := rapid.Bool().Draw(t, "fused")
		by, identity := "", "{event_id: 'house + \"-\" + text(n)', horizon: 10d}"
		if fused {
			by = "partitioned_by: key"
			if rapid.Bool().Draw(t, "by sequence") {
				identity = "{sequence: n}"
			}
		}
		var aggregates strings.Builder
		for _, k := range kinds {
			fmt.Fprintf(&aggregates, "      %s: {from: visits, id: house, window: %s, values: %s}\n", k.name, k.text, everyFunction)
		}
		plan := parsePlan(t, fmt.Sprintf(everyWindow, clock, by, identity,
			rapid.IntRange(0, 100).Draw(t, "out_of_orderness"), rapid.IntRange(0, 100).Draw(t, "lateness"), aggregates.String()))
		visits := genVisits(t)
		arriving := rapid.Permutation(visits).Draw(t, "order")
		for i := range arriving {
			if rapid.IntRange(0, 9).Draw(t, "again") == 0 {
				arriving = append(arriving, arriving[i])
			}
		}
		records := make([]processors.LocalRecord, len(arriving))
		for i := range arriving {
			part := event.Partition(0)
			if !fused {
				part = event.PartitionOf([]byte(arriving[i].house), 3) // ids are those of a partition
			}
			stamp := time.Date(2024, 6, 1, 0, 0, i, 0, time.UTC)
			records[i] = processors.LocalRecord{Partition: part, Record: processors.Record{
				Timestamp: event.FromTime(stamp), Key: []byte(arriving[i].house), Value: []byte(arriving[i].json()),
			}}
		}
		sink := newDumbSink()
		out, err := processors.RunLocal(processors.LocalConfig{
			Topology: processors.NewTopology(plan, 1), Streams: map[string][]processors.LocalRecord{"visits": records},
			EpochEvery: rapid.IntRange(0, 10).Draw(t, "every"), Sink: sink,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sink.String(), believedByHand(kinds, visits); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		if out.Counters.Repeats != int64(len(arriving)-len(visits)) || len(out.DeadLetters) > 0 {
			t.Fatalf("%d events in %d records: %+v, %d dead letters", len(visits), len(arriving), out.Counters, len(out.DeadLetters))
		}
	})
}
