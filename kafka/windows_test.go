package kafka_test

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/forge-platform/strom/event"
)

const overlapping = `
pipeline: overlapping
epoch: {clock: wall, interval: 50ms}
streams:
  orders: {topic: orders, key: id, partitioned_by: key, identity: {sequence: total}, event_time: {field: at, format: ms, max_ahead: 24h}, watermark: {idle_after: 0s}}
objects:
  Customer:
    aggregates:
      last3h: {from: orders, id: customer, window: {hopping: 3h, every: 1h}, values: {n: count(), newest: last(place), oldest: {first: total, kind: integer}, large: any(total > 250), all: all(total > 100)}}
      weekly: {from: orders, id: customer, window: {calendar: week, zone: Europe/Berlin}, values: {n: count(), newest: {last: total, kind: integer}}}
`

// What overlaps is kept window by window in the ontology, and read back with the
// places that first and last rest on: a second run finds every window closed and
// its state gone.
func TestOverlappingWindowsAreReadBackFromTheOntology(t *testing.T) {
	s := newShop(t)
	c := s.config(t, overlapping)
	all := orders(0, 600)
	var first, second = all[:0:0], all[:0:0]
	for i, r := range all {
		if i%3 == 0 { // among them the oldest of windows, and the newest
			second = append(second, r)
		} else {
			first = append(first, r)
		}
	}
	s.produce(t, first...)
	if err := runThrough(t, c); err != nil {
		t.Fatal(err)
	}
	s.produce(t, second...)
	s.produce(t, first[:50]...) // repeats
	if err := runThrough(t, s.config(t, overlapping)); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range versions(t, s.postgres, "Customer") {
		if a.RecordedTo == event.RecordedNever {
			got[fmt.Sprintf("%s %s %s", a.ID, a.Property, a.ValidFrom)] = a.Value.Text
		}
	}
	want := map[string]string{}
	hour := func(h int64) event.EventTime { return event.EventTime((day + h*3_600_000) * 1000) }
	monday := event.EventTime(0)
	for _, a := range versions(t, s.postgres, "Customer") {
		if strings.HasPrefix(a.Property, "weekly") {
			monday = a.ValidFrom // whichever it is: all orders are of one week
		}
	}
	for customer := range int64(3) {
		id := fmt.Sprintf("c%d", customer)
		for start := int64(-2); start < 10; start++ {
			var in []int64
			for i := max(0, start*60); i < min(600, (start+3)*60); i++ {
				if i%3 == customer {
					in = append(in, i)
				}
			}
			put := func(name, value string) { want[fmt.Sprintf("%s last3h.%s %s", id, name, hour(start))] = value }
			last := in[len(in)-1]
			put("n", fmt.Sprint(len(in)))
			put("newest", fmt.Sprintf("p%d", last%5))
			put("oldest", fmt.Sprint(in[0]))
			put("large", fmt.Sprint(last > 250))
			put("all", fmt.Sprint(in[0] > 100))
		}
		want[fmt.Sprintf("%s weekly.n %s", id, monday)] = "200"
		want[fmt.Sprintf("%s weekly.newest %s", id, monday)] = fmt.Sprint(597 + customer)
	}
	if g, w := lines(got), lines(want); g != w {
		t.Errorf("%s", firstDifference(g, w))
	}
}

func lines(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, k+" "+v)
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}
