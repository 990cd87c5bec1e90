package bench

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

// The goals for assertions a second, on two cores shared with PostgreSQL.
const (
	goalPlain       = 40_000
	goalCorrections = 20_000
)

// sinkInput makes every event the only one of its key and window, so that each
// makes a result of its own; and nothing is too late for the pipeline's state.
func sinkInput(in Input) Input {
	in.Window = time.Duration(in.Keys/in.Rate) * time.Millisecond
	in.Lateness = time.Duration(in.Events/in.Rate)*time.Millisecond + 2*in.Window + time.Hour
	return in
}

// sinkRun runs a pipeline whose output is large beside its input, and reads two
// rates of its way into the ontology: new windows, and a second version of each.
//
// The same events come twice, with other amounts: first in the order of time, so
// that all windows close; then once more, all late.
func (h *harness) sinkRun(ctx context.Context, r *liveRun) error {
	first := sinkInput(r.in)
	second := first
	second.Seed++
	if err := r.produce(ctx, first.records(r.spec.Input, first.Events)); err != nil {
		return err
	}
	if err := r.produce(ctx, first.closers(r.spec.Input)); err != nil {
		return err
	}
	r.spec.Shape, r.spec.WindowMs, r.spec.LatenessMs = shapeWindows, first.Window.Milliseconds(), first.Lateness.Milliseconds()
	h.say("running the pipeline: %d new windows of %d values", first.Events, valuesOfRow)
	l, err := r.start(ctx)
	if err != nil {
		return err
	}
	plain, err := l.awaitRows(ctx, first.Events)
	if err != nil {
		return err
	}
	h.say("%.0f assertions/s; now a correction of each", float64(valuesOfRow*first.Events)/plain.appliedAt.Sub(plain.started).Seconds())
	again := time.Now()
	if err := r.produce(ctx, second.records(r.spec.Input, second.Events)); err != nil {
		return err
	}
	all, err := l.awaitRows(ctx, 2*first.Events)
	if err != nil {
		return err
	}
	if err := r.stop(nil); err != nil {
		return err
	}
	h.say("reading the ontology back")
	return r.judgeSink(ctx, &first, &second, again, &plain, &all)
}

// judgeSink compares what is in the ontology with the fold, as of before the
// corrections and now, and makes the figures.
func (r *liveRun) judgeSink(ctx context.Context, first, second *Input, again time.Time, plain, all *soFar) error {
	reader, err := ontology.OpenReader(ctx, mapping.Ontology{Postgres: mapping.NewSecret(r.database)}, ontology.Options{})
	if err != nil {
		return err
	}
	defer reader.Close()
	right := Fold(first)
	before, err := believedPanes(ctx, reader, plain.recorded)
	if err != nil {
		return err
	}
	r.wrongIf(before.Diff(right), "as of before the corrections")
	right.add(second)
	now, err := believedPanes(ctx, reader, all.recorded)
	if err != nil {
		return err
	}
	r.wrongIf(now.Diff(right), "now")
	stats, err := reader.Stats(ctx, "")
	if err != nil {
		return err
	}
	n := first.Events
	want := map[string]int64{event.CauseOnTime.String(): n, event.CauseCorrection.String(): n}
	if got := stats.WindowResults; fmt.Sprint(got) != fmt.Sprint(want) || stats.Believed != valuesOfRow*n || stats.Closed != valuesOfRow*n {
		r.wrongIf(fmt.Sprintf("%d assertions are believed, %d closed, of results %v; want %d, %d, %v",
			stats.Believed, stats.Closed, got, valuesOfRow*n, valuesOfRow*n, want), "in number")
	}
	r.run.Result = before.Hash() + "," + now.Hash()
	r.run.Events = 2 * n
	r.run.Seconds = all.appliedAt.Sub(plain.started).Seconds()
	r.run.StartSeconds = plain.started.Sub(r.launched).Seconds()
	r.run.Figures = []Figure{
		assertionRate("plain", valuesOfRow*n, plain.appliedAt.Sub(plain.started), goalPlain),
		assertionRate("corrections", valuesOfRow*n, all.appliedAt.Sub(again), goalCorrections),
	}
	return nil
}

// believedPanes reads the windows that were believed at a recorded time.
func believedPanes(ctx context.Context, reader *ontology.Reader, at event.RecordedTime) (Panes, error) {
	const size = 48 // of Totals and its place, about
	out := make(Panes, size)
	values := 0
	for fact, err := range reader.AsOf(ctx, ontology.Question{Type: "User", Recorded: at}) {
		if err != nil {
			return nil, err
		}
		key, err := parseKey(fact.ID)
		if err != nil {
			return nil, err
		}
		pane := Pane{Key: key, Start: int64(fact.ValidFrom) / 1000}
		t := out[pane]
		name := strings.TrimPrefix(fact.Property, "panes.")
		to, ok := t.value(name)
		if !ok {
			return nil, fmt.Errorf("a value %q", fact.Property)
		}
		if *to, err = strconv.ParseInt(fact.Value.Text, 10, 64); err != nil {
			return nil, err
		}
		out[pane] = t
		values++
	}
	if values != valuesOfRow*len(out) {
		return nil, fmt.Errorf("%d values of %d windows: want %d of each", values, len(out), valuesOfRow)
	}
	return out, nil
}

// record is event i as a record.
func (in *Input) record(topic string, i int64, e Event) *kgo.Record {
	buf := in.appendJSON(appendKey(make([]byte, 0, 192), e.Key), i, e)
	key := len(keyPrefix) + keyDigits
	return &kgo.Record{Topic: topic, Key: buf[:key:key], Value: buf[key:], Timestamp: time.UnixMilli(e.At)}
}

// records gives the first n events as records.
func (in *Input) records(topic string, n int64) iter.Seq[*kgo.Record] {
	return func(yield func(*kgo.Record) bool) {
		for i := range n {
			if !yield(in.record(topic, i, in.Event(i))) {
				return
			}
		}
	}
}

// closers gives an event for each partition that closes all windows of the
// input. Their own windows stay open, and their keys are no others'.
func (in *Input) closers(topic string) iter.Seq[*kgo.Record] {
	return func(yield func(*kgo.Record) bool) {
		partitioner := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
		missing := make(map[int]bool, in.Partitions)
		for p := range int(in.Partitions) {
			missing[p] = true
		}
		at := base + in.Events/in.Rate + 2*in.Window.Milliseconds()
		for key := in.Keys; len(missing) > 0; key++ {
			r := in.record(topic, key, Event{Key: key, At: at})
			p := partitioner.Partition(r, int(in.Partitions))
			if !missing[p] {
				continue
			}
			delete(missing, p)
			if !yield(r) {
				return
			}
		}
	}
}
