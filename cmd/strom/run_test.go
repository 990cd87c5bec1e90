package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orders.ndjson")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The first signal commits the epoch under way: what was applied before is
// what the status says afterwards, and nothing has to be read again.
func TestRunStopsOnSignalsAndGoesOnWhereItStopped(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 2))
	postgres := pgtest.New(t)
	path, dir := writeMapping(t), t.TempDir()
	env := []string{envBrokers + "=" + broker.Addr(), envPostgres + "=" + postgres}
	asked := map[string]string{envBrokers: broker.Addr(), envPostgres: postgres}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		p := start(t, env, "run", path, "--data-dir", dir)
		p.await(t, "took over")
		awaitStatus(t, asked, func(s *statusJSON) bool { return s.Epoch > 2 && len(s.Tasks) == 2 })
		o := p.signal(t, s)
		o.want(t, exitOK, "stopping: the epoch under way is being committed", "pipeline shop stopped at epoch")
		if strings.Contains(o.stderr, "read again") {
			t.Errorf("the epoch was not committed:\n%s", o)
		}
	}
}

// awaitStatus waits until a status holds.
func awaitStatus(t *testing.T, env map[string]string, holds func(*statusJSON) bool) *statusJSON {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		o := strom(t, env, "status", "--pipeline", "shop", "--format", "json")
		var s statusJSON
		if o.code == exitOK {
			if err := json.Unmarshal([]byte(o.stdout), &s); err != nil {
				t.Fatal(err)
			}
			if holds(&s) {
				return &s
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not so after a minute:\n%s", o)
		}
	}
}

func TestDevLoadsFilesAndKeepsItsData(t *testing.T) {
	path, dir := writeMapping(t), filepath.Join(pgtest.Dir(t), "dev")
	file := writeFile(t, `{"order":"o1","at":"2026-01-01T00:00:00Z","status":"new"}
{"order":"o2","at":"2026-01-01T00:00:01Z","status":"new"}
no JSON at all
{"value":{"order":"o1","at":"2026-01-01T00:00:02Z","status":"paid"},"key":"o1","partition":1}
`)
	o := strom(t, nil, "dev", path, "--data-dir", dir, "--partitions", "2", "--load", "orders="+file+",key=order", "--until-end")
	o.want(t, exitOK, "PostgreSQL  postgres:///", "3 events; in windows: 0 on time", "1 dead letter")

	// It is all there at the next start.
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan outcome, 1)
	p := &buffer{}
	go func() { ended <- stromInto(ctx, p, "dev", path, "--data-dir", dir, "--log-level", "error", "-q") }()
	url := awaitField(t, p, "STROM_POSTGRES='", "'")
	broker := awaitField(t, p, "--brokers ", " ")
	asked := map[string]string{envPostgres: url, envBrokers: broker}
	s := awaitStatus(t, asked, func(s *statusJSON) bool { return s.Ontology != nil && s.Ontology.Horizon != nil && len(s.Tasks) == 2 })
	if s.Totals.Events != 3 || s.Totals.DeadLetters != 1 || s.Lag != 0 || len(s.Tasks) != 2 {
		t.Errorf("status: %+v", s)
	}
	strom(t, asked, "ontology", "get", "Order", "o1").want(t, exitOK, "paid")
	strom(t, asked, "ontology", "history", "Order", "o1").want(t, exitOK, "new", "paid")
	strom(t, asked, "status", path).want(t, exitOK, "ingest.orders", "safe horizon")
	// A second one on the same data is refused.
	strom(t, nil, "dev", path, "--data-dir", dir).want(t, exitDataDir, "is in use by process")
	cancel(errInterrupted)
	(<-ended).want(t, exitOK, "pipeline shop stopped at epoch")
}

// stromInto runs a command line whose output may be read while it runs.
func stromInto(ctx context.Context, b *buffer, args ...string) outcome {
	a := newTestApp(b)
	code := a.main(ctx, args)
	return outcome{b.String(), "", code}
}

// awaitField waits for what stands between two texts.
func awaitField(t *testing.T, b *buffer, before, after string) string {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		if _, rest, ok := strings.Cut(b.String(), before); ok {
			if field, _, ok := strings.Cut(rest, after); ok {
				return field
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %q in\n%s", before, b.String())
		}
	}
}

func TestDevRefusesWhatItCannotLoad(t *testing.T) {
	path, dir := writeMapping(t), filepath.Join(pgtest.Dir(t), "dev")
	file := writeFile(t, `{"value":{"order":"o1"},"partition":7}`+"\n")
	strom(t, nil, "dev", path, "--data-dir", dir, "--load", "orders="+file).
		want(t, exitInput, "orders.ndjson:1: topic orders has no partition 7, it has 1")
	strom(t, nil, "dev", path, "--data-dir", dir, "--load", "orders=none.ndjson").want(t, exitInput, "none.ndjson")
	strom(t, nil, "dev", path, "--data-dir", dir, "--load", "prices="+file).want(t, exitUsage, `no stream "prices"`)
	// One file that cannot be loaded keeps the others from being produced.
	good := writeFile(t, `{"order":"o1","at":"2026-01-01T00:00:00Z","status":"new"}`+"\n")
	fresh := filepath.Join(t.TempDir(), "dev")
	for _, second := range []string{"none.ndjson", file + ",key=nosuch", writeFile(t, `{"value":1,"partition":-1}`)} {
		strom(t, nil, "dev", path, "--data-dir", fresh, "--load", "orders="+good, "--load", "orders="+second, "--partitions", "1").want(t, exitInput)
	}
	if _, err := os.Stat(fresh); err == nil {
		t.Error("something was started")
	}
	strom(t, nil, "dev", path, "--data-dir", dir, "--load", "orders="+good+",key=nosuch").
		want(t, exitInput, "orders.ndjson:1: this record has no field nosuch")
	large := writeFile(t, "{}\n"+`{"order":"`+strings.Repeat("x", 2<<20)+`"}`)
	strom(t, nil, "dev", path, "--data-dir", dir, "--load", "orders="+large).
		want(t, exitInput, "orders.ndjson:2: this record of 2097164 bytes is too large for topic orders")
	// The number of partitions of a topic that is there does not change.
	strom(t, nil, "dev", path, "--data-dir", dir, "--partitions", "3").want(t, exitKafka, `topic "orders": it exists with 1 partitions`)

	keyed := writeMapping(t, "key: order", "key: order\n    partitioned_by: key")
	strom(t, nil, "dev", keyed, "--data-dir", filepath.Join(pgtest.Dir(t), "keyed"), "--partitions", "2", "--load", "orders="+writeFile(t, "{}\n")).
		want(t, exitInput, "orders.ndjson:1: this record has no key", "key=FIELD")
}

func TestLogsAreJSONWhereWanted(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 1))
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	o := strom(t, env, "run", writeMapping(t), "--data-dir", t.TempDir(), "--until-end", "--log-format", "json", "--format", "json")
	o.want(t, exitOK)
	var s summary
	if err := json.Unmarshal([]byte(o.stdout), &s); err != nil || s.Pipeline != "shop" || s.Epoch == 0 {
		t.Errorf("the summary is %q: %v", o.stdout, err)
	}
	n := 0
	for line := range strings.Lines(o.stderr) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry["msg"] == nil {
			t.Errorf("no log entry: %q", line)
		}
		n++
	}
	if n == 0 {
		t.Error("nothing was logged")
	}
}

func TestDevEndsWithItsDatabase(t *testing.T) {
	dir := filepath.Join(pgtest.Dir(t), "dev")
	p := start(t, nil, "dev", writeMapping(t), "--data-dir", dir)
	p.await(t, "took over")
	killPostgres(t, dir)
	o := p.wait(t)
	o.want(t, exitPostgres, "PostgreSQL ended by itself")
	if n := strings.Count(o.stderr, "PostgreSQL ended by itself"); n != 1 {
		t.Errorf("it is told %d times\n%s", n, o)
	}
}
