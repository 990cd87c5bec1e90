package processors_test

import (
	"fmt"
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

const benchClicks = `
pipeline: clicks
epoch: {clock: wall, interval: 200ms}
streams:
  clicks:
    topic: clicks
    key: user
    partitioned_by: key
    event_time: {field: at, format: ms}
    watermark: {out_of_orderness: 0s, idle_after: 1s}
    allowed_lateness: 10s
objects:
  User:
    aggregates:
      panes:
        from: clicks
        id: user
        window: {tumbling: 10s}
        values: {n: count(), total: sum(amount), least: min(amount), most: max(amount)}
`

// BenchmarkSource feeds the task of one partition, with a barrier after every
// 100,000 events, and hands its epochs to a store in memory. Time and
// allocations are those of one event.
func BenchmarkSource(b *testing.B) {
	for _, keys := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) { benchmarkSource(b, keys) })
	}
}

func benchmarkSource(b *testing.B, keys int) {
	b.Helper()
	const perEpoch, slab, base = 100_000, 1000, 1_709_251_200_000
	stage := processors.NewTopology(parsePlan(b, benchClicks), 1).Stages[0]
	store := state.NewMemory()
	view := state.NewView(store)
	task, err := processors.NewTask(processors.TaskConfig{Stage: stage, Partitions: 1, State: view, Progress: state.InitialProgress()})
	if err != nil {
		b.Fatal(err)
	}
	epoch, watermark := event.Epoch(0), event.WatermarkUnknown
	barrier := func() {
		epoch++
		h, err := task.Barrier(processors.Barrier{
			Epoch: epoch, Recorded: event.RecordedTime(2_000_000_000_000_000 + int64(epoch)*200_000),
			Watermarks: map[string]event.Watermark{"clicks": watermark},
		})
		if err != nil {
			b.Fatal(err)
		}
		watermark = h.Watermark
		view.Begin(h.Layer)
		drop := func(processors.Output) error { return nil }
		if err := h.Stream(h.Layer.Over(store), drop, func([]byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
		if err := store.Apply(&state.Batch{Changes: h.Layer.Changes(), Expired: h.Expired, Position: event.Offset(epoch)}); err != nil {
			b.Fatal(err)
		}
		view.Applied()
	}
	barrier()
	b.ReportAllocs()
	b.ResetTimer()
	for from := 0; from < b.N; from += perEpoch {
		b.StopTimer()
		records := make([]processors.Record, min(perEpoch, b.N-from))
		for i := range records {
			n := from + i
			records[i] = processors.Record{
				Offset: event.Offset(n), Timestamp: base * 1000,
				Value: fmt.Appendf(nil, `{"user":"user-%08d","at":%d,"amount":%d,"page":"/products/%05d","agent":"Mozilla/5.0 (X11; Linux)","session":"%015x"}`,
					n*7919%keys, base+n/20, n*31%1000, n%99_999, n),
			}
		}
		b.StartTimer()
		for len(records) > 0 {
			n := min(slab, len(records))
			took, err := task.Feed(0, records[:n], processors.Clock{Now: 2_000_000_000_000_000})
			if err != nil || took != n {
				b.Fatal(took, err)
			}
			records = records[n:]
		}
		barrier()
	}
}
