package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/cmd/strom/internal/serve"
	"github.com/forge-platform/strom/internal/localpg"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
)

// visible is a pipeline that runs in a process of its own, before a broker and a
// database that can be stopped.
type visible struct {
	broker   *embedded.Broker
	postgres *localpg.Server
	options  localpg.Options
	process  *process
	mapping  string
	env      map[string]string
	base     string // of its URLs
}

func newVisible(t *testing.T) *visible {
	t.Helper()
	v := &visible{
		broker: kafkatest.New(t, kafkatest.Topic("orders", 2)), mapping: writeMapping(t),
		options: localpg.Options{DataDir: filepath.Join(pgtest.Dir(t), "pg"), RuntimeDir: filepath.Join(pgtest.Dir(t), "run")},
	}
	v.postgres = pgtest.Server(t, v.options)
	v.env = map[string]string{envBrokers: v.broker.Addr(), envPostgres: v.postgres.URL()}
	return v
}

func (v *visible) start(t *testing.T) {
	t.Helper()
	env := []string{envBrokers + "=" + v.broker.Addr(), envPostgres + "=" + v.postgres.URL()}
	v.process = start(t, env, "run", v.mapping, "--data-dir", t.TempDir(), "--replica", "r1")
	v.base = awaitField(t, &v.process.stderr, "url=", "\n")
}

// get gives the status code and the body of a page.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// awaitReady waits until /readyz has the code and holds the text; /healthz is
// 200 all the while.
func (v *visible) awaitReady(t *testing.T, code int, text string) {
	t.Helper()
	var got int
	var body string
	eventually(t, func() bool {
		if alive, why := get(t, v.base+"/healthz"); alive != http.StatusOK {
			t.Fatalf("not alive: %d %s", alive, why)
		}
		got, body = get(t, v.base+"/readyz")
		return got == code && strings.Contains(body, text)
	}, func() string { return fmt.Sprintf("want %d %q, got %d %s", code, text, got, body) })
}

// eventually waits, for a bounded time, until it is so.
func eventually(t *testing.T, so func() bool, otherwise func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !so(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not so after a minute: %s", otherwise())
		}
	}
}

// scrape gives the samples of /metrics by name and labels, the pipeline's left out.
func (v *visible) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	code, body := get(t, v.base+"/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	out := map[string]float64{}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		n, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		name := line[:i]
		if strings.HasPrefix(name, "strom_") && !strings.Contains(name, `pipeline="shop"`) {
			t.Errorf("%s does not name the pipeline", name)
		}
		name = strings.NewReplacer(`pipeline="shop",`, "", `,pipeline="shop"`, "", `{pipeline="shop"}`, "").Replace(name)
		out[name] = n
	}
	return out
}

// sum adds the samples of a metric.
func sum(samples map[string]float64, name string) float64 {
	var total float64
	for key, v := range samples {
		if key == name || strings.HasPrefix(key, name+"{") {
			total += v
		}
	}
	return total
}

func produceAt(t *testing.T, broker *embedded.Broker, partition int32, values ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, v := range values {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Partition: partition, Value: []byte(v)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// produceOrders produces new orders from a number on, into both partitions in turn.
func produceOrders(t *testing.T, broker *embedded.Broker, from, n int) {
	t.Helper()
	for i := range n {
		at := time.Now().UTC().Add(-time.Second).Format(time.RFC3339Nano)
		produceAt(t, broker, int32(i%2), fmt.Sprintf(`{"order":"o%d","at":%q,"status":"new"}`, from+i, at))
	}
}

func TestARunningPipelineIsVisible(t *testing.T) {
	v := newVisible(t)
	// Nobody is let into a group at first.
	closed := v.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
	v.start(t)
	v.awaitReady(t, http.StatusServiceUnavailable, "stage ingest.orders: has not joined its group")
	m := v.scrape(t)
	if m["strom_ready"] != 0 || m["strom_coordinator"] != 0 || m["go_goroutines"] < 1 {
		t.Errorf("before it is ready: %v", m)
	}
	if runtime.GOOS == "linux" && m["process_resident_memory_bytes"] < 1<<20 {
		t.Errorf("resident memory is %v", m["process_resident_memory_bytes"])
	}
	closed.Remove()
	v.awaitReady(t, http.StatusOK, `{"status":"ready"}`)

	produceOrders(t, v.broker, 0, 40)
	produceAt(t, v.broker, 0, "no JSON")
	v.consistent(t, 40)
	v.withoutDatabase(t)
	v.process.signal(t, syscall.SIGTERM).want(t, exitOK)
}

// consistent compares two scrapes with a status between them.
func (v *visible) consistent(t *testing.T, events int64) {
	t.Helper()
	awaitStatus(t, v.env, func(s *statusJSON) bool {
		return s.Totals.Events == events && s.Totals.DeadLetters == 1 && s.Lag == 0 && s.Ontology != nil && s.Ontology.Behind == 0
	})
	before := v.scrape(t)
	s := awaitStatus(t, v.env, func(s *statusJSON) bool {
		return s.Ontology != nil && float64(s.Epoch) > before["strom_announced_epoch"]
	})
	var after map[string]float64
	eventually(t, func() bool {
		after = v.scrape(t)
		return after["strom_horizon_epoch"] >= float64(s.Epoch)
	}, func() string { return fmt.Sprint(after) })

	for name, want := range map[string]int64{
		"strom_records_total": s.Totals.Records, "strom_events_total": s.Totals.Events, "strom_dead_letters_total": s.Totals.DeadLetters,
		"strom_repeats_total": 0, "strom_on_time_total": s.Totals.OnTime, "strom_late_corrections_total": 0,
		"strom_task_lag_records": s.Lag, "strom_coordinator": 1, "strom_ready": 1, "strom_ontology_up": 1,
		`strom_takeover_duration_seconds_count{stage="ingest.orders"}`: 1,
		"strom_task_halted": 0, "strom_task_parked_windows": 0, "strom_sources_held": 0,
		"strom_takeover_failures_total": 0, "strom_sink_retries_total": 0, "strom_task_queue_bytes": 0,
	} {
		for _, m := range []map[string]float64{before, after} {
			if got := sum(m, name); got != float64(want) {
				t.Errorf("%s is %v, want %d", name, got, want)
			}
		}
	}
	if n := sum(after, "strom_rebalances_total"); n < 3 {
		t.Errorf("%v rebalances of three groups", n)
	}
	eventually(t, func() bool { return sum(v.scrape(t), "strom_horizon_holder") == 0 }, func() string { return "somebody holds the horizon" })
	rising := []string{
		"strom_announced_epoch", "strom_horizon_epoch", "strom_announced_recorded_timestamp_seconds", "strom_horizon_recorded_timestamp_seconds",
		`strom_sink_applied_epoch{partition="0"}`, `strom_task_committed_epoch{partition="1",stage="ingest.orders"}`,
		`strom_task_changelog_offset{partition="0",stage="ingest.orders"}`,
		`strom_commit_duration_seconds_count{stage="ingest.orders"}`, "strom_sink_batch_duration_seconds_count",
		`strom_commit_records_total{stage="ingest.orders"}`,
	}
	for _, name := range rising {
		if before[name] <= 0 || after[name] <= before[name] {
			t.Errorf("%s was %v and is %v", name, before[name], after[name])
		}
	}
	for _, name := range []string{"strom_announcement_age_seconds", "strom_horizon_age_seconds"} {
		if got := after[name]; got < 0 || got > 30 {
			t.Errorf("%s is %v", name, got)
		}
	}
	if w := after[`strom_watermark_timestamp_seconds{stream="orders"}`]; time.Since(time.UnixMicro(int64(w*1e6))) > time.Minute {
		t.Errorf("the watermark is %v", w)
	}
	if rows := after["strom_sink_rows_total"]; rows != float64(events) {
		t.Errorf("%v rows were applied", rows)
	}
	v.owned(t, s)
}

// owned: r1 has everything, as the status says.
func (v *visible) owned(t *testing.T, s *statusJSON) {
	t.Helper()
	r1 := ownerJSON{State: "owned", Replica: "r1", Host: "127.0.0.1"}
	owners := []ownerJSON{s.Coordinator}
	for i := range s.Tasks {
		owners = append(owners, s.Tasks[i].Owner)
		if s.Tasks[i].AcknowledgedBy == nil || *s.Tasks[i].AcknowledgedBy != "r1" {
			t.Errorf("task %d was acknowledged by somebody else: %+v", i, s.Tasks[i])
		}
	}
	for i := range s.Ontology.Partitions {
		owners = append(owners, s.Ontology.Partitions[i].Owner)
	}
	if len(owners) != 5 || !slices.Equal(owners, slices.Repeat([]ownerJSON{r1}, 5)) {
		t.Errorf("owners: %+v", owners)
	}
	if *s.AnnouncedBy != "r1" || *s.Age < 0 || *s.Age > 30 || *s.Ontology.Age > 30 {
		t.Errorf("status: %+v", s)
	}
	strom(t, v.env, "status", v.mapping).want(t, exitOK, "ago by r1", "announced", "OWNER", "safe horizon")
}

// withoutDatabase stops the database, and starts it again.
func (v *visible) withoutDatabase(t *testing.T) {
	t.Helper()
	horizon := v.scrape(t)["strom_horizon_recorded_timestamp_seconds"]
	if err := v.postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	v.awaitReady(t, http.StatusServiceUnavailable, "the ontology does not answer")
	produceOrders(t, v.broker, 40, 10)
	var m map[string]float64
	eventually(t, func() bool {
		m = v.scrape(t)
		return m[`strom_horizon_holder{partition="0",stage="sink.ontology"}`] == 1 && sum(m, "strom_events_total") == 50
	}, func() string { return fmt.Sprint(m) })
	if m["strom_ready"] != 0 || m["strom_ontology_up"] != 0 || sum(m, "strom_sink_retries_total") == 0 || m["strom_horizon_age_seconds"] <= 0 {
		t.Errorf("without a database: %v", m)
	}
	if code, body := get(t, v.base+"/readyz"); code != http.StatusServiceUnavailable || strings.Contains(body, "joined") {
		t.Errorf("%d %s", code, body)
	}
	o := strom(t, v.env, "status", v.mapping, "--format", "json")
	o.want(t, exitPostgres, `"ontology":null`, `"ontology_error":"cannot use`)

	v.postgres = pgtest.Server(t, v.options)
	if v.postgres.URL() != v.env[envPostgres] {
		t.Fatal("the database has moved")
	}
	v.awaitReady(t, http.StatusOK, "ready")
	s := awaitStatus(t, v.env, func(s *statusJSON) bool { return s.Ontology != nil && s.Ontology.Behind <= 1 && s.Totals.Events == 50 })
	eventually(t, func() bool {
		m = v.scrape(t)
		return m["strom_sink_rows_total"] == 50 && sum(m, "strom_horizon_holder") == 0
	}, func() string { return fmt.Sprint(m) })
	if now := m["strom_horizon_recorded_timestamp_seconds"]; now <= horizon || len(s.HeldBy) != 0 {
		t.Errorf("the horizon was %v and is %v; status %+v", horizon, now, s)
	}
}

// One key in both partitions of a stream that is partitioned by it: it is wrong
// in one of them, and that one halts.
func TestAHaltedPartitionIsSeen(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 2))
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	v := &visible{broker: broker, env: env, mapping: writeMapping(t, "key: order", "key: order\n    partitioned_by: key")}
	ctx, cancel := context.WithCancelCause(t.Context())
	var out buffer
	a := newTestApp(&out)
	a.env = environment(env)
	ended := make(chan exitCode, 1)
	go func() { ended <- a.main(ctx, []string{"run", v.mapping, "--data-dir", t.TempDir(), "--replica", "r1"}) }()
	t.Cleanup(func() {
		cancel(errInterrupted)
		if code := <-ended; code != exitOK {
			t.Errorf("exit %d\n%s", code, out.String())
		}
	})
	v.base = awaitField(t, &out, "url=", "\n")
	for p := range int32(2) {
		produceAt(t, broker, p, `{"order":"o7","at":"2026-01-01T00:00:00Z","status":"new"}`)
	}
	s := awaitStatus(t, env, func(s *statusJSON) bool {
		return slices.ContainsFunc(s.Tasks, func(j taskStatusJSON) bool { return j.Halted != "" })
	})
	i := slices.IndexFunc(s.Tasks, func(j taskStatusJSON) bool { return j.Halted != "" })
	halted := s.Tasks[i].Partition
	if len(s.WatermarksHeldBy) == 0 {
		t.Fatalf("nobody holds the watermark: %+v", s)
	}
	if h := s.WatermarksHeldBy[0]; h.Stream != "orders" || h.Partition != halted || !strings.HasPrefix(h.Why, "halted: ") {
		t.Errorf("the watermark is held by %+v, and partition %s has halted", h, halted)
	}
	strom(t, env, "status", v.mapping).want(t, exitOK, fmt.Sprintf("orders: held by partition %s: halted: ", halted))
	name := `strom_task_halted{partition="` + halted.String() + `",stage="ingest.orders"}`
	if m := v.scrape(t); m[name] != 1 || sum(m, "strom_task_halted") != 1 {
		t.Errorf("%s: %v", name, m)
	}
}

func TestAPortForMetricsThatIsInUse(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address := l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	path := writeMapping(t)
	env := map[string]string{envBrokers: "127.0.0.1:1", envPostgres: "postgres:///none"}
	wants := []string{"port " + port + " on 127.0.0.1 is in use by another program", "--listen off", "127.0.0.1:0 for a free one"}
	dir := filepath.Join(t.TempDir(), "data")
	strom(t, env, "run", path, "--data-dir", dir, "--listen", address).want(t, exitPort, wants...)
	strom(t, env, "dev", path, "--data-dir", dir, "--listen", address).want(t, exitPort, wants...)
	env[envListen] = address
	strom(t, env, "run", path, "--data-dir", dir).want(t, exitPort, wants...)
	if _, err := os.Stat(dir); err == nil {
		t.Error("something was begun")
	}
}

func TestAddressesThatAreNone(t *testing.T) {
	path := writeMapping(t)
	env := map[string]string{envBrokers: "127.0.0.1:1", envPostgres: "postgres:///none"}
	for address, why := range map[string]string{
		":7466": "it names no host", "7466": "it is not HOST:PORT", "127.0.0.1:http": "is not a port",
		"127.0.0.1:70000": "is not a port", "192.0.2.1:7466": "assign requested address",
	} {
		strom(t, env, "run", path, "--data-dir", t.TempDir(), "--listen", address).
			want(t, exitUsage, fmt.Sprintf("cannot listen on %q", address), why, "strom run --help")
	}
}

func TestNothingIsServedWhereNobodyIsToListen(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 1))
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	for _, listen := range []string{"off", ""} {
		o := strom(t, env, "run", writeMapping(t), "--data-dir", t.TempDir(), "--until-end", "--listen", listen)
		o.want(t, exitOK)
		if strings.Contains(o.stderr, "served") {
			t.Errorf("served: %s", o)
		}
	}
}

// Where nobody names an address it is one on loopback; dev takes a free port
// there where the usual one is taken, and run does not.
func TestTheDefaultAddressIsOnLoopback(t *testing.T) {
	a := newTestApp(&buffer{})
	a.env = func(string) (string, bool) { return "", false }
	a.format, a.logFormat = "table", "text"
	if err := a.begin(); err != nil {
		t.Fatal(err)
	}
	command := &cobra.Command{}
	var f listening
	addListenFlag(command, &f, "")
	loopback := func(w *web) {
		t.Helper()
		host, _, err := net.SplitHostPort(w.address)
		if err != nil || host != "127.0.0.1" {
			t.Errorf("serves on %q: %v", w.address, err)
		}
	}
	// The usual port may be another program's while the tests run.
	first, err := a.serveWeb(t.Context(), "shop", command, f, true)
	if err != nil {
		t.Fatal(err)
	}
	defer first.close()
	loopback(first)
	second, err := a.serveWeb(t.Context(), "shop", command, f, true)
	if err != nil {
		t.Fatal(err)
	}
	defer second.close()
	loopback(second)
	if second.address == serve.DefaultAddress {
		t.Errorf("both serve on %s", second.address)
	}
	if _, err := a.serveWeb(t.Context(), "shop", command, f, false); !is[*serve.PortInUseError](err) {
		t.Errorf("run on a port that is taken: %v", err)
	}
	if code, body := get(t, second.url()+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "it is starting") {
		t.Errorf("%d %s", code, body)
	}
}

func TestStatusIsWatchedUntilItIsInterrupted(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 1))
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	path := writeMapping(t)
	strom(t, env, "status", path, "--watch").want(t, exitKafka, "has not run on this Kafka")
	strom(t, env, "run", path, "--data-dir", t.TempDir(), "--until-end").want(t, exitOK)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var out buffer
	a := newTestApp(&out)
	a.env = environment(env)
	ended := make(chan exitCode, 1)
	go func() { ended <- a.main(ctx, []string{"status", path, "--watch", "--format", "json"}) }()
	eventually(t, func() bool { return strings.Count(out.String(), "\n") >= 3 }, out.String)
	cancel(errInterrupted)
	if code := <-ended; code != exitOK {
		t.Errorf("exit %d\n%s", code, out.String())
	}
	for line := range strings.Lines(out.String()) {
		var s statusJSON
		if err := json.Unmarshal([]byte(line), &s); err != nil || s.Pipeline != "shop" || s.Ontology == nil || len(s.Tasks) != 1 {
			t.Errorf("%q: %v", line, err)
		}
	}
}
