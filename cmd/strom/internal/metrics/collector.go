package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
)

// collector reads a snapshot for every scrape.
type collector struct {
	metrics *Metrics
	version string
	descs   map[string]*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	out := sample{c, ch}
	out.gauge(buildInfo, 1, c.version)
	s, ok := c.metrics.Snapshot()
	out.flag(ready, ok && len(s.NotReady) == 0)
	out.flag(coordinator, ok && s.Coordinator)
	if !ok {
		return
	}
	for _, g := range s.Groups {
		out.counter(rebalances, g.Rebalances, g.Name)
	}
	out.announcement(&s)
	out.ontology(&s)
	for i := range s.Tasks {
		out.task(&s.Tasks[i], s.Taken)
	}
}

// sample writes the samples of one scrape.
type sample struct {
	c  *collector
	ch chan<- prometheus.Metric
}

func (o sample) gauge(name string, v float64, labels ...string) {
	o.ch <- prometheus.MustNewConstMetric(o.c.descs[name], prometheus.GaugeValue, v, labels...)
}

func (o sample) counter(name string, n int64, labels ...string) {
	o.ch <- prometheus.MustNewConstMetric(o.c.descs[name], prometheus.CounterValue, float64(n), labels...)
}

func (o sample) flag(name string, is bool, labels ...string) {
	v := 0.0
	if is {
		v = 1
	}
	o.gauge(name, v, labels...)
}

// age is never below 0: the clocks of replicas differ.
func (o sample) age(name string, at, now time.Time, labels ...string) {
	o.gauge(name, max(0, now.Sub(at).Seconds()), labels...)
}

func (o sample) announcement(s *kafka.Snapshot) {
	if s.Newest.Epoch == 0 {
		return
	}
	o.gauge(announcedEpoch, float64(s.Newest.Epoch))
	o.gauge(announcedRecorded, seconds(int64(s.Newest.Recorded)))
	o.age(announcementAge, s.AnnouncedAt, s.Taken)
	o.flag(sourcesHeld, s.Newest.Hold)
	for stream, w := range s.Newest.Watermarks {
		o.watermark(watermark, watermarkLag, w, s.Taken, stream)
	}
}

// watermark writes one that is a time: neither unknown nor the end of the input.
func (o sample) watermark(name, lag string, w event.Watermark, now time.Time, labels ...string) {
	if w == event.WatermarkUnknown || w == event.WatermarkEnd {
		return
	}
	o.gauge(name, seconds(int64(w)), labels...)
	o.gauge(lag, seconds(now.UnixMicro())-seconds(int64(w)), labels...)
}

func (o sample) ontology(s *kafka.Snapshot) {
	up := s.Ontology.Known && s.Ontology.Err == nil
	o.flag(ontologyUp, up)
	for _, h := range s.HeldBy {
		o.gauge(horizonHolder, 1, h.Stage, h.Partition.String())
	}
	if !s.Ontology.Known {
		return
	}
	o.gauge(horizonEpoch, float64(s.Ontology.Epoch))
	for p, progress := range s.Ontology.Progress {
		o.gauge(appliedEpoch, float64(progress.Epoch), p.String())
	}
	if s.Ontology.Horizon != event.RecordedUnknown {
		o.gauge(horizonRecorded, seconds(int64(s.Ontology.Horizon)))
	}
	if !s.Ontology.At.IsZero() {
		o.age(horizonAge, s.Ontology.At, s.Taken)
	}
}

func (o sample) task(t *kafka.TaskSnapshot, now time.Time) {
	labels := []string{t.Task.Stage, t.Task.Partition.String()}
	o.gauge(taskEpoch, float64(t.Committed), labels...)
	o.gauge(taskQueue, float64(t.QueuedBytes), labels...)
	o.flag(taskPaused, t.Paused, labels...)
	if t.Lag >= 0 {
		o.gauge(taskLag, float64(t.Lag), labels...)
	}
	if t.Position != event.OffsetNone {
		o.gauge(taskChangelog, float64(t.Position), labels...)
		o.gauge(taskStore, float64(t.StoreBytes), labels...)
	}
	if t.Epoch == 0 {
		return // it has acknowledged nothing yet: what is below is not known
	}
	o.watermark(taskWatermark, taskWatermarkLag, t.Watermark, now, labels...)
	o.flag(taskIdle, t.Idle, labels...)
	o.flag(taskHalted, t.Halted != "", labels...)
	o.gauge(taskParked, float64(t.Waiting), labels...)
	c := &t.Counters
	o.counter(records, c.Records, labels...)
	o.counter(events, c.Events, labels...)
	o.counter(repeats, c.Repeats, labels...)
	o.counter(filtered, c.Filtered, labels...)
	o.counter(deadLetters, c.DeadLetters, labels...)
	o.counter(onTime, c.OnTime, labels...)
	o.counter(corrections, c.Corrections, labels...)
	o.counter(lateCorrections, c.Late, labels...)
}

// seconds converts microseconds since 1970.
func seconds(micros int64) float64 { return float64(micros) / 1e6 }
