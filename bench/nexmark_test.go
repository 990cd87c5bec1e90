package bench

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func nexmarkOf(k kind, events int64) *nexmark {
	c := Config{Workload: Nexmark, Input: Input{Events: events, Seed: 1}}.WithDefaults()
	return &nexmark{Input: c.Input, kind: k}
}

// text is event i as it is produced, read by the standard library.
func (n *nexmark) text(t *testing.T, i int64) (key string, fields map[string]any, size int) {
	t.Helper()
	id, text := n.appendEvent(nil, i)
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatalf("event %d: %s: %v", i, text, err)
	}
	return strconv.FormatInt(id, 10), fields, len(text)
}

func TestOfFiftyEventsOneIsAPersonThreeAreAuctionsAndTheRestBids(t *testing.T) {
	var got [3]int64
	for i := range int64(3 * cycle) {
		k, before := kindOf(i)
		if before != got[k] {
			t.Fatalf("event %d comes behind %d %s, not %d", i, got[k], k, before)
		}
		got[k]++
		for _, k := range [...]kind{persons, auctions, bids} {
			if n := countOf(k, i+1); n != got[k] {
				t.Fatalf("%d %s in %d events, want %d", n, k, i+1, got[k])
			}
		}
	}
	if got != [3]int64{3, 9, 138} {
		t.Errorf("%v in %d events", got, 3*cycle)
	}
}

func TestATopicHoldsTheEventsOfOneKindKeyedByTheirIDs(t *testing.T) {
	const events = 1234
	for k, key := range map[kind]string{persons: "id", auctions: "id", bids: "auction"} {
		n := nexmarkOf(k, events)
		var records int64
		for r := range n.all() {
			records++
			var fields map[string]any
			if err := json.Unmarshal(r.Value, &fields); err != nil {
				t.Fatalf("%s: %v", r.Value, err)
			}
			if want := strconv.FormatFloat(fields[key].(float64), 'f', -1, 64); string(r.Key) != want || r.Topic != n.topic() {
				t.Fatalf("key %s in %s of %s", r.Key, r.Topic, r.Value)
			}
			if at := r.Timestamp.UTC().Format("2006-01-02T15:04:05.000Z"); fields["dateTime"] != at {
				t.Fatalf("it is of %s, and says %v", at, fields["dateTime"])
			}
		}
		if records != n.count() || records == 0 {
			t.Errorf("%d %s, want %d", records, k, n.count())
		}
	}
}

func TestEventsOfNexmarkHaveItsFields(t *testing.T) {
	for k, want := range map[kind]string{
		persons:  "city creditCard dateTime emailAddress extra id name state",
		auctions: "category dateTime description expires extra id initialBid itemName reserve seller",
		bids:     "auction bidder channel dateTime extra price url",
	} {
		n := nexmarkOf(k, 100*cycle)
		total := 0
		for i := range n.Events {
			if of, _ := kindOf(i); of != k {
				continue
			}
			_, fields, size := n.text(t, i)
			total += size
			if got := strings.Join(slices.Sorted(maps.Keys(fields)), " "); got != want {
				t.Fatalf("%s have %s, want %s", k, got, want)
			}
		}
		about := map[kind]int{persons: 250, auctions: 500, bids: 200}[k]
		if mean := total / int(n.count()); mean < about*9/10 || mean > about*11/10 {
			t.Errorf("%s have %d bytes, want about %d", k, mean, about)
		}
	}
}

func TestNexmarkIsAFunctionOfItsSeedAndFewerEventsAreAPrefix(t *testing.T) {
	n, fewer, other := nexmarkOf(bids, 1000), nexmarkOf(bids, 10), nexmarkOf(bids, 1000)
	other.Seed = 2
	differ := 0
	for i := range int64(1000) {
		_, text := n.appendEvent(nil, i)
		if _, again := fewer.appendEvent(nil, i); string(again) != string(text) {
			t.Fatalf("event %d: %s and %s", i, text, again)
		}
		if _, changed := other.appendEvent(nil, i); string(changed) != string(text) {
			differ++
		}
	}
	if differ != 1000 {
		t.Errorf("another seed changes %d events of 1000", differ)
	}
	topics := map[string]bool{n.topic(): true, fewer.topic(): true, other.topic(): true, nexmarkOf(auctions, 1000).topic(): true}
	if len(topics) != 4 {
		t.Errorf("sources that differ share a topic: %v", topics)
	}
}

// What a bid or an auction refers to has come before it, is recent, and is the
// hot one as often as is usual.
func TestBidsAndAuctionsReferToWhatThereIsAndMostlyToTheHotOne(t *testing.T) {
	n := nexmarkOf(bids, 10_000*cycle)
	hot := map[string]int64{}
	refer := func(what string, i, to, newest, recent int64) {
		t.Helper()
		to -= firstID
		if to < 0 || to > newest || to <= newest-max(recent, hotGroup) {
			t.Fatalf("event %d refers to the %s %d; the newest is %d", i, what, to, newest)
		}
		place := int64(0)
		if what == "bidder" {
			place = 1
		}
		if to == newest-newest%hotGroup+place {
			hot[what]++
		}
	}
	last := int64(0)
	for i := range n.Events {
		if n.at(i) < last {
			t.Fatalf("event %d goes back in time", i)
		}
		last = n.at(i)
		auction, person := countOf(auctions, i)-1, countOf(persons, i)-1
		switch k, _ := kindOf(i); k {
		case bids:
			b, _ := n.bid(i)
			refer("auction", i, b.auction, auction, openAuctions)
			refer("bidder", i, b.bidder, person, activePersons)
			if b.price < 100 || b.price >= 100_000_000 {
				t.Fatalf("event %d bids %d", i, b.price)
			}
		case auctions:
			d := n.dice(i)
			refer("seller", i, n.seller(i, &d), person, activePersons)
			if n.expires(i, &d) <= n.at(i) {
				t.Fatalf("event %d ends before it begins", i)
			}
		case persons:
		}
	}
	if took := last - base; took != (n.Events-1)/nexmarkRate {
		t.Errorf("%d events take %d ms", n.Events, took)
	}
	for what, want := range map[string]float64{"auction": 0.505, "bidder": 0.75, "seller": 0.75} {
		of := n.count()
		if what == "seller" {
			of = countOf(auctions, n.Events)
		}
		if got := float64(hot[what]) / float64(of); got < want-0.02 || got > want+0.02 {
			t.Errorf("%.3f of the %ss are hot, want %.3f", got, what, want)
		}
	}
}

// The right result again, from the texts that are produced.
func TestTheFoldOfQ7IsWhatItsTextsSay(t *testing.T) {
	n := nexmarkOf(bids, 2500)
	n.Window = 100 * time.Millisecond
	want := Panes{}
	for r := range n.all() {
		var b struct {
			Price    int64
			DateTime time.Time
		}
		if err := json.Unmarshal(r.Value, &b); err != nil {
			t.Fatal(err)
		}
		pane := Pane{Key: everything, Start: b.DateTime.Truncate(n.Window).UnixMilli()}
		was := want[pane]
		want[pane] = Totals{N: was.N + 1, Most: max(was.Most, b.Price)}
	}
	if got := n.fold(); len(got) != 3 || !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	spoilt := n.fold()
	for pane, totals := range spoilt {
		totals.Most++
		spoilt[pane] = totals
	}
	if diff := spoilt.Diff(want); !strings.Contains(diff, "3 of 3 panes are wrong; one of them: all in the window from 17") || spoilt.Hash() == want.Hash() {
		t.Errorf("other prices: %s", diff)
	}
}

func TestQ7OfOursIsRight(t *testing.T) {
	r, err := Measure(t.Context(), Config{
		Workload: Nexmark, Self: self(t), Timeout: time.Minute,
		Input: Input{Events: 20_000, Partitions: 2, Window: 500 * time.Millisecond, Seed: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &nexmark{Input: r.Input, kind: bids}
	right := n.fold()
	run := r.Runs[0]
	if run.Wrong != "" || run.Result != right.Hash() || len(right) != 4 {
		t.Errorf("result %s, want %s of 4 windows; %s", run.Result, right.Hash(), run.Wrong)
	}
	if run.Engine != EngineStrom || run.Events != 18_400 || run.Seconds <= 0 || run.PerSecond <= 0 || run.Counts {
		t.Errorf("it was not measured: %+v", run)
	}
	if r.Query != Q7 || len(r.Summaries) != 1 || r.Summaries[0].Median != run.PerSecond {
		t.Errorf("%+v", r)
	}
	text := Report([]*Result{r}, "")
	for _, want := range []string{"## nexmark, q7\n", run.Result, "windows of 500ms, epochs of 200 ms; the bids among 20000 events"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not tell %q:\n%s", want, text)
		}
	}
}

func TestAQueryThatCannotBeRunIsRefused(t *testing.T) {
	fault := func(c Config) string {
		c.Self, c.Workload = []string{"strom"}, Nexmark
		c = c.WithDefaults()
		if err := c.Validate(); err != nil {
			return err.Error()
		}
		return ""
	}
	if got := fault(Config{}); got != "" {
		t.Errorf("q7 is refused: %s", got)
	}
	if got := fault(Config{Query: "q99"}); got != `there is no query "q99": nexmark has q7 (q5, q8, q11 are still to come)` {
		t.Errorf("an unknown query: %q", got)
	}
	for _, w := range WaitingQueries() {
		if got := fault(Config{Query: w.Query}); !strings.Contains(got, "waits for "+w.For) {
			t.Errorf("%s: %q", w.Query, got)
		}
	}
	if got := fault(Config{Input: Input{Late: 0.1}}); !strings.Contains(got, "a late share of 0.1") {
		t.Errorf("late events: %q", got)
	}
	c := Config{Query: Q7, Engines: []string{EngineStrom}, Self: []string{"strom"}}.WithDefaults()
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "the workload aggregate has no query") {
		t.Errorf("a query of another workload: %v", err)
	}
}

// BenchmarkNexmark measures q7 on the embedded broker.
//
//	go test ./bench -run '^$' -bench Nexmark -benchtime 1x
func BenchmarkNexmark(b *testing.B) {
	for b.Loop() {
		r, err := Measure(b.Context(), Config{Workload: Nexmark, Self: self(b)})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.Runs[0].PerSecond, "events/s")
	}
}
