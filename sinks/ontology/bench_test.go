package ontology

import (
	"fmt"
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/mapping"
)

func benchPipeline() Pipeline {
	return Pipeline{
		Name: "bench", Generation: 1, MappingVersion: "1", ResultsPartitions: 1,
		Types: []*mapping.ObjectType{{Name: "Order", Properties: []mapping.PropertyDef{
			{Name: "hourly.count", Kind: event.KindInteger, Windowed: true},
			{Name: "hourly.sum", Kind: event.KindDecimal, Windowed: true},
			{Name: "status", Kind: event.KindText},
			{Name: "total", Kind: event.KindDecimal},
		}}},
	}
}

// benchApply measures rows a second through Apply; row makes the nth row.
func benchApply(b *testing.B, perEpoch int, row func(n int, r *event.Result)) {
	b.Helper()
	ctx := b.Context()
	s, err := Open(ctx, connection(pgtest.New(b)), benchPipeline(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var from Progress
	n, properties := 0, 0
	for b.Loop() {
		epoch := from.Epoch + 1
		to := Progress{Epoch: epoch, Recorded: event.RecordedTime(epoch) * 200_000, Offset: from.Offset + event.Offset(perEpoch)}
		rows := make([]Row, perEpoch)
		for i := range rows {
			rows[i].Offset = from.Offset + event.Offset(i)
			r := &rows[i].Result
			*r = event.Result{
				Kind: event.RowPut, Epoch: epoch, Recorded: to.Recorded, Type: "Order", ValidTo: event.OpenEnd,
				Cause: event.CauseOnTime,
				Tie:   event.Tie{Offset: event.Offset(n)}, Place: event.Place{Topic: "orders", Offset: event.Offset(n), Timestamp: 1},
			}
			row(n, r)
			properties += len(r.Properties)
			n++
		}
		if err := s.Apply(ctx, []Chunk{{From: from, To: to, Rows: rows}}); err != nil {
			b.Fatal(err)
		}
		from = to
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(properties)/b.Elapsed().Seconds(), "assertions/s")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/epoch")
}

func BenchmarkApply(b *testing.B) {
	status := func(n int) []event.Property {
		return []event.Property{{Name: "status", Value: event.Value{Text: fmt.Sprint("state", n%7)}}}
	}
	b.Run("puts of new objects", func(b *testing.B) {
		benchApply(b, 4000, func(n int, r *event.Result) {
			r.ID, r.ValidFrom, r.Properties = fmt.Sprintf("order-%09d", n), event.EventTime(n), status(n)
		})
	})
	b.Run("puts in order on 10k objects", func(b *testing.B) {
		benchApply(b, 4000, func(n int, r *event.Result) {
			r.ID, r.ValidFrom, r.Properties = fmt.Sprintf("order-%09d", n%10000), event.EventTime(n), status(n)
		})
	})
	b.Run("late puts on 10k objects", func(b *testing.B) {
		benchApply(b, 4000, func(n int, r *event.Result) {
			r.ID, r.ValidFrom, r.Properties = fmt.Sprintf("order-%09d", n%10000), event.EventTime((n*7919)%100000), status(n)
			r.Cause = event.CauseLateCorrection
		})
	})
	window := func(n, keys int, r *event.Result) {
		r.Kind, r.Aggregate, r.Version = event.RowWindow, "hourly", uint32(n/keys)+1
		r.ID, r.ValidFrom, r.ValidTo = fmt.Sprintf("order-%09d", n%keys), 0, 3600_000_000
		r.Properties = []event.Property{
			{Name: "count", Value: event.Value{Text: fmt.Sprint(n)}},
			{Name: "sum", Value: event.Value{Text: fmt.Sprint(n * 3)}},
		}
	}
	b.Run("corrections of 10k windows", func(b *testing.B) {
		benchApply(b, 4000, func(n int, r *event.Result) { window(n, 10000, r) })
	})
	b.Run("new windows of 10k objects", func(b *testing.B) {
		benchApply(b, 4000, func(n int, r *event.Result) {
			window(n, 10000, r)
			r.ValidFrom = event.EventTime(n/10000) * 3600_000_000
			r.ValidTo, r.Version = r.ValidFrom+3600_000_000, 1
		})
	})
}
