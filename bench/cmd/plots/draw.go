package main

import (
	"cmp"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/forge-platform/strom/bench"
)

// canvas is a plot and its size.
type canvas struct {
	plot *plot.Plot
	w, h vg.Length
}

func (c *canvas) save(path string) error { return c.plot.Save(c.w, c.h, path) }

const (
	width  = 16 * vg.Centimeter
	height = 9 * vg.Centimeter
	// legendRoom keeps the legend off what is drawn.
	legendRoom = 1.3
)

// colorOf gives every engine its color, on both plots.
func colorOf(engine string) color.Color {
	switch engine {
	case bench.EngineStrom:
		return color.RGBA{R: 0x1f, G: 0x5f, B: 0xa8, A: 0xff}
	case bench.EngineKafkaStreams:
		return color.RGBA{R: 0xd9, G: 0x8c, B: 0x21, A: 0xff}
	case bench.EngineFlink:
		return color.RGBA{R: 0xb5, G: 0x3f, B: 0x5c, A: 0xff}
	}
	return color.RGBA{R: 0x7a, G: 0x7a, B: 0x7a, A: 0xff}
}

// aggregates are the results of the windowed aggregate on the usual input, by the
// number of keys.
func aggregates(results []*bench.Result) []*bench.Result {
	var out []*bench.Result
	for _, r := range results {
		if r.Workload == bench.Aggregate && r.Usual() && len(r.Summaries) > 0 {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *bench.Result) int { return cmp.Compare(a.Input.Keys, b.Input.Keys) })
	return out
}

// rates draws the medians of every engine, a group of bars for each number of keys
// at which a peer was measured.
func rates(results []*bench.Result) (*canvas, error) {
	var groups []*bench.Result
	for _, r := range aggregates(results) {
		if len(r.Summaries) > 1 {
			groups = append(groups, r)
		}
	}
	if len(groups) == 0 {
		return nil, nil //nolint:nilnil // nothing to draw
	}
	p := plot.New()
	p.Title.Text = "Windowed aggregate, exactly once (goka: at least once)"
	p.Y.Label.Text = "events/s"
	p.Y.Min = 0
	var names []string
	for _, r := range groups {
		names = append(names, thousands(r.Input.Keys)+" keys")
	}
	engines := enginesOf(groups)
	const bar = 1.1 * vg.Centimeter
	for i, engine := range engines {
		var values plotter.Values
		for _, r := range groups {
			values = append(values, median(r, engine))
		}
		bars, err := plotter.NewBarChart(values, bar)
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width = colorOf(engine), 0
		bars.Offset = bar * vg.Length(2*i-len(engines)+1) / 2
		p.Add(bars)
		p.Legend.Add(engine, bars)
	}
	p.Legend.Top = true
	p.Y.Max *= legendRoom
	p.NominalX(names...)
	p.Y.Tick.Marker = inThousands{}
	return &canvas{p, width, height}, nil
}

// enginesOf names the engines in the order in which they had their turns.
func enginesOf(results []*bench.Result) []string {
	var out []string
	for _, r := range results {
		for i := range r.Summaries {
			if e := r.Summaries[i].Engine; !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out
}

func median(r *bench.Result, engine string) float64 {
	for i := range r.Summaries {
		if r.Summaries[i].Engine == engine {
			return r.Summaries[i].Median
		}
	}
	return 0
}

// cost draws the processor time of a million events by the number of keys: the
// median of each engine's runs.
func cost(results []*bench.Result) (*canvas, error) {
	groups := aggregates(results)
	p := plot.New()
	p.Title.Text = "What an event costs as the keys grow"
	p.X.Label.Text, p.Y.Label.Text = "keys", "CPU seconds per million events"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	drawn := 0
	for _, engine := range enginesOf(groups) {
		var points plotter.XYs
		for _, r := range groups {
			if seconds, ok := cpuOf(r, engine); ok {
				points = append(points, plotter.XY{X: float64(r.Input.Keys), Y: seconds})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, dots.Color, line.Width = colorOf(engine), colorOf(engine), vg.Points(1.5)
		p.Add(line, dots)
		p.Legend.Add(engine, line, dots)
		drawn++
	}
	if drawn == 0 || len(groups) < 2 {
		return nil, nil //nolint:nilnil // nothing to draw
	}
	p.Legend.Top, p.Legend.Left = true, true
	p.Y.Max *= legendRoom
	return &canvas{p, width, height}, nil
}

// cpuOf is the median of the processor time of a million events.
func cpuOf(r *bench.Result, engine string) (float64, bool) {
	var all []float64
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Engine == engine && run.Wrong == "" && run.Events > 0 {
			all = append(all, run.CPUSeconds*1e6/float64(run.Events))
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2, true
}

// inThousands labels an axis of rates: 400k.
type inThousands struct{}

// Ticks implements plot.Ticker.
func (inThousands) Ticks(least, most float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(least, most)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = thousands(int64(ticks[i].Value))
		}
	}
	return ticks
}

func thousands(n int64) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return fmt.Sprintf("%g M", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%g k", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}
