package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/kafkatest"
)

// bankByTheLog is the bank under the clock of the log.
func bankByTheLog(name string) string {
	return strings.NewReplacer("pipeline: bank", "pipeline: "+name,
		"epoch: {interval: 50ms}", "epoch: {clock: log, step: 250ms}").Replace(bankMapping)
}

// produceAtArrival produces transfers with the time of their arrival as the
// record's timestamp.
func produceAtArrival(t *testing.T, brokers []string, all []transfer) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range all {
		record, err := all[i].record()
		if err != nil {
			t.Fatal(err)
		}
		record.Timestamp = time.UnixMicro(all[i].Arrival)
		client.Produce(t.Context(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// everything gives every assertion version that the ontology has ever held, a
// line each, but for the pipeline's name.
func (f *fleet) everything() string {
	f.t.Helper()
	var b strings.Builder
	for a, err := range openBank(f.t, f.postgres).History(f.t.Context(), "Account", "", "") {
		if err != nil {
			f.t.Fatal(err)
		}
		a.Pipeline = ""
		fmt.Fprintf(&b, "%+v\n", a)
	}
	return b.String()
}

// Under the clock of the log what is published is a function of the log alone:
// one, two and four replicas, fewer and more in mid-stream, killed and started
// again, give the same bytes, recorded times included.
func TestAnyNumberOfReplicasGivesTheSameBytes(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) { rescale(t, kind) })
	}
}

func rescale(t *testing.T, kind kafkatest.Kind) {
	t.Helper()
	broker := kind.New(t, kafkatest.Topics{"transfers": 4})
	all := transfers(6, 5000)
	produceAtArrival(t, broker.Brokers(), all)
	run := func(name string, change func(*fleet)) string {
		t.Helper()
		f := newFleet(t, broker.Brokers(), bankByTheLog(name), time.Second)
		change(f)
		f.members[0].awaitTakeovers(1, time.Minute)
		f.await(name+" has read all but the last step", 2*time.Minute, func(s *statusJSON) bool { return s.Lag < 200 })
		f.end()
		return f.everything()
	}
	some := func(s *statusJSON) bool { return s.Totals.Events > 200 }
	want := run("one", func(f *fleet) {
		f.add().start()
	})
	if n := strings.Count(want, "\n"); n < 1000 || !strings.Contains(want, "Cause:late_correction") {
		t.Fatalf("only %d versions, or none late:\n%.2000s", n, want)
	}
	got := map[string]string{
		"two": run("two", func(f *fleet) {
			first, second := f.add(), f.add()
			first.start()
			first.awaitTakeovers(1, time.Minute)
			f.await("some is read", time.Minute, some)
			second.start()
			second.awaitTakeovers(1, time.Minute)
			first.stop()
			first.start()
		}),
		"four": run("four", func(f *fleet) {
			for range 4 {
				f.add().start()
			}
			f.members[3].awaitTakeovers(1, time.Minute)
			f.await("some is read", time.Minute, some)
			f.members[0].kill()
			f.members[1].stop()
			f.members[0].start()
		}),
	}
	for name, text := range got {
		if text != want {
			t.Errorf("%s replicas: %s", name, firstDifferentLine(text, want))
		}
	}
}

func firstDifferentLine(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d of %d and %d:\n%s\nwant\n%s", i+1, len(a), len(b), a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}
