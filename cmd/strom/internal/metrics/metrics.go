// Package metrics tells Prometheus how a running pipeline is. What it tells of
// is listed in docs/operations.md, and a test holds that list to it.
//
// Gauges, and counters that travel with the state, are read from the engine's
// Snapshot when they are asked for; durations are observed as they come. Labels
// name stages, partitions and streams: there are as many values as the pipeline
// has tasks, whatever the records hold.
package metrics

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/forge-platform/strom/kafka"
)

// Engine is what is watched.
type Engine interface{ Snapshot() kafka.Snapshot }

// Metrics are those of one pipeline in this process. Its methods may be called
// from any goroutine.
type Metrics struct {
	registry *prometheus.Registry
	engine   atomic.Pointer[Engine]

	histograms map[string]*prometheus.HistogramVec
	counters   map[string]*prometheus.CounterVec
}

// New returns the metrics of a pipeline, in a registry of their own. version is
// that of the program.
func New(pipeline, version string) *Metrics {
	m := &Metrics{
		registry:   prometheus.NewRegistry(),
		histograms: map[string]*prometheus.HistogramVec{}, counters: map[string]*prometheus.CounterVec{},
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	ours := prometheus.WrapRegistererWith(prometheus.Labels{labelPipeline: pipeline}, m.registry)
	c := &collector{metrics: m, version: version, descs: map[string]*prometheus.Desc{}}
	for _, d := range Definitions() {
		switch {
		case !observed(d.Name):
			c.descs[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
		case d.Kind == Histogram:
			h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: durations()}, d.Labels)
			m.histograms[d.Name] = h
			ours.MustRegister(h)
		default:
			n := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
			m.counters[d.Name] = n
			ours.MustRegister(n)
		}
	}
	ours.MustRegister(c)
	return m
}

// durations are the buckets of a duration, in seconds: a commit takes
// milliseconds, the take-over of a large state minutes.
func durations() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
}

// Gatherer gives what is registered.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Watch makes an engine the one that is told of.
func (m *Metrics) Watch(e Engine) { m.engine.Store(&e) }

// Snapshot says how the engine is; false: there is none yet.
func (m *Metrics) Snapshot() (kafka.Snapshot, bool) {
	e := m.engine.Load()
	if e == nil {
		return kafka.Snapshot{}, false
	}
	return (*e).Snapshot(), true
}

// Observe takes what an engine has done. It does not block.
func (m *Metrics) Observe(o kafka.Observation) {
	switch {
	case o.Committed != nil:
		m.took(commitSeconds, o.Committed.Took, o.Committed.Stage)
		m.took(commitWait, o.Committed.Waited, o.Committed.Stage)
		m.add(commitRecords, o.Committed.Records, o.Committed.Stage)
	case o.TookOver != nil && o.TookOver.Err != nil:
		m.add(takeoverFailed, 1, o.TookOver.Stage)
	case o.TookOver != nil:
		m.took(takeoverSeconds, o.TookOver.Took, o.TookOver.Stage)
		m.add(takeoverFailed, 0, o.TookOver.Stage) // so that it is there before the first
	case o.Batch != nil:
		m.took(sinkSeconds, o.Batch.Took)
		m.add(sinkRows, o.Batch.Rows)
	}
}

// Retried counts a call of the database that is tried again.
func (m *Metrics) Retried(operation string) { m.add(sinkRetries, 1, operation) }

func (m *Metrics) took(name string, d time.Duration, labels ...string) {
	m.histograms[name].WithLabelValues(labels...).Observe(d.Seconds())
}

func (m *Metrics) add(name string, n int, labels ...string) {
	m.counters[name].WithLabelValues(labels...).Add(float64(n))
}
