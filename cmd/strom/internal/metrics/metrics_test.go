package metrics

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"
	"text/template"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

type engine kafka.Snapshot

func (e engine) Snapshot() kafka.Snapshot { return kafka.Snapshot(e) }

// full is a snapshot in which everything is known.
func full() kafka.Snapshot {
	now := time.Unix(2000, 0)
	task := func(stage string, p event.Partition) kafka.TaskSnapshot {
		id := processors.TaskID{Stage: stage, Partition: p}
		return kafka.TaskSnapshot{
			Ack: processors.Ack{
				Task: id, Epoch: 7, Watermark: event.Watermark(1900 * 1_000_000), Idle: true, Waiting: 3, Halted: "why",
				Counters: processors.Counters{Records: 9, Events: 8, Repeats: 1, DeadLetters: 2, Filtered: 3, OnTime: 4, Corrections: 5, Late: 6},
			},
			Committed: 7, Lag: 11, QueuedBytes: 12, Paused: true, StoreBytes: 13, Position: 14,
		}
	}
	return kafka.Snapshot{
		Taken: now, AnnouncedAt: now.Add(-2 * time.Second), Coordinator: true,
		Newest: processors.Announcement{
			Epoch: 8, Recorded: 1998 * 1_000_000, Hold: true,
			Watermarks: map[string]event.Watermark{"orders": 1900 * 1_000_000, "ended": event.WatermarkEnd, "unknown": event.WatermarkUnknown},
		},
		Groups: []kafka.GroupSnapshot{{Name: "ingest.orders", Generation: 4, Rebalances: 2}},
		Tasks:  []kafka.TaskSnapshot{task("ingest.orders", 0), task("ingest.orders", 1)},
		Ontology: kafka.OntologySnapshot{
			Known: true, Epoch: 6, At: now.Add(-5 * time.Second),
			Standing: ontology.Standing{Progress: map[event.Partition]ontology.Progress{0: {Epoch: 6}, 1: {Epoch: 7}}, Horizon: 1995 * 1_000_000},
		},
		HeldBy: []kafka.Holder{{Stage: kafka.SinkName, Partition: 0}},
	}
}

// exercised has every metric.
func exercised(t *testing.T) *Metrics {
	t.Helper()
	m := New("shop", "v1")
	m.Watch(engine(full()))
	m.Observe(kafka.Observation{Committed: &kafka.Committed{Stage: "ingest.orders", Records: 5, Waited: time.Millisecond, Took: 20 * time.Millisecond}})
	m.Observe(kafka.Observation{TookOver: &kafka.TookOver{Stage: "ingest.orders", Tasks: 2, Took: time.Second}})
	m.Observe(kafka.Observation{TookOver: &kafka.TookOver{Stage: "ingest.orders", Err: io.EOF}})
	m.Observe(kafka.Observation{Batch: &kafka.Batch{Partitions: 1, Rows: 42, Took: time.Second}})
	m.Observe(kafka.Observation{}) // nothing
	m.Retried("apply")
	return m
}

func text(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestASnapshotBecomesSamples(t *testing.T) {
	got := text(t, exercised(t))
	for _, want := range []string{
		`strom_build_info{pipeline="shop",version="v1"} 1`,
		`strom_ready{pipeline="shop"} 1`,
		`strom_coordinator{pipeline="shop"} 1`,
		`strom_announced_epoch{pipeline="shop"} 8`,
		`strom_announced_recorded_timestamp_seconds{pipeline="shop"} 1998`,
		`strom_announcement_age_seconds{pipeline="shop"} 2`,
		`strom_sources_held{pipeline="shop"} 1`,
		`strom_watermark_timestamp_seconds{pipeline="shop",stream="orders"} 1900`,
		`strom_watermark_lag_seconds{pipeline="shop",stream="orders"} 100`,
		`strom_horizon_epoch{pipeline="shop"} 6`,
		`strom_horizon_recorded_timestamp_seconds{pipeline="shop"} 1995`,
		`strom_horizon_age_seconds{pipeline="shop"} 5`,
		`strom_horizon_holder{partition="0",pipeline="shop",stage="sink.ontology"} 1`,
		`strom_sink_applied_epoch{partition="1",pipeline="shop"} 7`,
		`strom_ontology_up{pipeline="shop"} 1`,
		`strom_rebalances_total{pipeline="shop",stage="ingest.orders"} 2`,
		`strom_takeover_duration_seconds_sum{pipeline="shop",stage="ingest.orders"} 1`,
		`strom_takeover_failures_total{pipeline="shop",stage="ingest.orders"} 1`,
		`strom_commit_duration_seconds_bucket{pipeline="shop",stage="ingest.orders",le="0.025"} 1`,
		`strom_commit_wait_seconds_sum{pipeline="shop",stage="ingest.orders"} 0.001`,
		`strom_commit_records_total{pipeline="shop",stage="ingest.orders"} 5`,
		`strom_sink_rows_total{pipeline="shop"} 42`,
		`strom_sink_batch_duration_seconds_count{pipeline="shop"} 1`,
		`strom_sink_retries_total{operation="apply",pipeline="shop"} 1`,
		`strom_task_committed_epoch{partition="1",pipeline="shop",stage="ingest.orders"} 7`,
		`strom_task_watermark_lag_seconds{partition="0",pipeline="shop",stage="ingest.orders"} 100`,
		`strom_task_lag_records{partition="0",pipeline="shop",stage="ingest.orders"} 11`,
		`strom_task_halted{partition="0",pipeline="shop",stage="ingest.orders"} 1`,
		`strom_task_queue_bytes{partition="0",pipeline="shop",stage="ingest.orders"} 12`,
		`strom_task_store_bytes{partition="0",pipeline="shop",stage="ingest.orders"} 13`,
		`strom_task_changelog_offset{partition="0",pipeline="shop",stage="ingest.orders"} 14`,
		`strom_late_corrections_total{partition="0",pipeline="shop",stage="ingest.orders"} 6`,
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	for _, stream := range []string{"ended", "unknown"} {
		if strings.Contains(got, `stream="`+stream+`"`) {
			t.Errorf("a watermark that is no time is told of stream %s", stream)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func TestWhatIsNotKnownIsNotTold(t *testing.T) {
	m := New("shop", "v1")
	told := func() []string {
		var names []string
		for _, f := range families(t, m) {
			if strings.HasPrefix(f.name, "strom_") {
				names = append(names, f.name)
			}
		}
		return names
	}
	if got := told(); !slices.Equal(got, []string{buildInfo, coordinator, ready}) {
		t.Errorf("before there is an engine: %v", got)
	}
	m.Watch(engine(kafka.Snapshot{NotReady: []string{"x"}, Newest: processors.Announcement{Recorded: event.RecordedUnknown}, Tasks: []kafka.TaskSnapshot{
		{Ack: processors.Ack{Watermark: event.WatermarkUnknown}, Lag: -1, Position: event.OffsetNone},
	}}))
	want := []string{buildInfo, coordinator, ontologyUp, ready, taskEpoch, taskPaused, taskQueue}
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("before the first epoch: %v, want %v", got, want)
	}
}

type family struct {
	name, kind string
	labels     []string
}

// families gives what the registry has, its own metrics and others.
func families(t *testing.T, m *Metrics) []family {
	t.Helper()
	gathered, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []family
	for _, f := range gathered {
		one := family{name: f.GetName(), kind: strings.ToLower(f.GetType().String())}
		for _, l := range f.GetMetric()[0].GetLabel() {
			one.labels = append(one.labels, l.GetName())
		}
		out = append(out, one)
	}
	return out
}

func TestTheRegistryHasWhatIsDefined(t *testing.T) {
	got := map[string]string{}
	others := map[string]bool{}
	for _, f := range families(t, exercised(t)) {
		if prefix, _, _ := strings.Cut(f.name, "_"); prefix != "strom" {
			others[prefix] = true
			continue
		}
		got[f.name] = fmt.Sprint(f.kind, f.labels)
	}
	for _, d := range Definitions() {
		labels := append([]string{labelPipeline}, d.Labels...)
		sort.Strings(labels)
		if want := fmt.Sprint(d.Kind, labels); got[d.Name] != want {
			t.Errorf("%s: got %q, want %q", d.Name, got[d.Name], want)
		}
		delete(got, d.Name)
	}
	if len(got) > 0 {
		t.Errorf("not defined: %v", got)
	}
	if !others["go"] || (runtime.GOOS == "linux" && !others["process"]) {
		t.Errorf("the runtime and the process are not told of: %v", others)
	}
}

func TestNamesFollowTheConventions(t *testing.T) {
	for _, d := range Definitions() {
		unit := regexp.MustCompile(`_(seconds|bytes|records|total|epoch|offset|info)$`).MatchString(d.Name)
		flag := strings.HasPrefix(d.Help, "1") || d.Name == taskParked
		if (d.Kind == Counter) != strings.HasSuffix(d.Name, "_total") || !(unit || flag) || !strings.HasSuffix(d.Help, ".") {
			t.Errorf("%+v", d)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile("../../../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// The table of docs/operations.md: name, type, labels, meaning.
func TestTheDocumentsListEveryMetricAndNoOther(t *testing.T) {
	rows := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(strom_[a-z_]+)` \\| ([a-z]+) \\| ([a-z, ]*) \\| (.+) \\|$").FindAllStringSubmatch(read(t, "docs/operations.md"), -1) {
		if rows[m[1]] != nil {
			t.Errorf("%s is listed twice", m[1])
		}
		rows[m[1]] = m[2:]
	}
	for _, d := range Definitions() {
		row := rows[d.Name]
		delete(rows, d.Name)
		if row == nil {
			t.Errorf("docs/operations.md lacks\n| `%s` | %s | %s | %s |", d.Name, d.Kind, strings.Join(d.Labels, ", "), strings.TrimSuffix(d.Help, "."))
			continue
		}
		if row[0] != string(d.Kind) || strings.TrimSpace(row[1]) != strings.Join(d.Labels, ", ") {
			t.Errorf("%s: the document says %q, %q; it is a %s with %v", d.Name, row[0], row[1], d.Kind, d.Labels)
		}
	}
	for name := range rows {
		t.Errorf("docs/operations.md lists %s, which there is not", name)
	}
}

// rules is the form of a file of alert rules.
type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

func TestTheAlertRulesAreValid(t *testing.T) {
	decoder := yaml.NewDecoder(strings.NewReader(read(t, "docs/alerts.yaml")))
	decoder.KnownFields(true)
	var file rules
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if !regexp.MustCompile(`^Strom[A-Za-z]+$`).MatchString(r.Alert) || seen[r.Alert] {
				t.Errorf("name %q", r.Alert)
			}
			seen[r.Alert] = true
			if r.For != "" && !regexp.MustCompile(`^[1-9]\d*[smh]$`).MatchString(r.For) {
				t.Errorf("%s: for: %q", r.Alert, r.For)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			labels := checkExpr(t, r.Alert, r.Expr)
			checkTemplates(t, r.Alert, r.Annotations, labels)
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d rules", len(seen))
	}
}

// checkExpr checks that an expression is of known words, that its metrics are
// ours and have the labels it names, and that its brackets match. It gives the
// labels that the metrics have.
func checkExpr(t *testing.T, alert, expr string) map[string]bool {
	t.Helper()
	known := map[string]Definition{}
	for _, d := range Definitions() {
		known[d.Name] = d
		if d.Kind == Histogram {
			d.Labels = append(slices.Clone(d.Labels), "le")
			known[d.Name+"_bucket"] = d
		}
	}
	labels := map[string]bool{labelPipeline: true, "instance": true}
	words := regexp.MustCompile(`[a-z_]+`).FindAllString(regexp.MustCompile(`\[\d+[smh]\]`).ReplaceAllString(expr, ""), -1)
	metrics := 0
	for _, w := range words {
		if d, ok := known[w]; ok {
			metrics++
			for _, l := range d.Labels {
				labels[l] = true
			}
		}
	}
	if metrics == 0 {
		t.Errorf("%s asks of no metric: %s", alert, expr)
	}
	language := []string{"sum", "min", "max", "by", "on", "and", "increase", "rate", "histogram_quantile"}
	for _, w := range words {
		if _, ok := known[w]; !ok && !labels[w] && !slices.Contains(language, w) {
			t.Errorf("%s: %q is not known: %s", alert, w, expr)
		}
	}
	for _, pair := range []string{"()", "[]", "{}"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			t.Errorf("%s: brackets %s: %s", alert, pair, expr)
		}
	}
	return labels
}

// checkTemplates fills in what Prometheus would.
func checkTemplates(t *testing.T, alert string, annotations map[string]string, labels map[string]bool) {
	t.Helper()
	values := map[string]string{}
	for l := range labels {
		values[l] = "x"
	}
	same := func(v any) string { return fmt.Sprint(v) }
	functions := template.FuncMap{"humanize": same, "humanizeDuration": same}
	for _, name := range []string{"summary", "description"} {
		text := `{{ $labels := .Labels }}{{ $value := .Value }}` + annotations[name]
		parsed, err := template.New(alert).Funcs(functions).Option("missingkey=error").Parse(text)
		if err == nil {
			err = parsed.Execute(io.Discard, struct {
				Labels map[string]string
				Value  float64
			}{values, 1})
		}
		if err != nil || annotations[name] == "" {
			t.Errorf("%s: %s %q: %v", alert, name, annotations[name], err)
		}
	}
}
