package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/cmd/strom/internal/datadir"
	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/cmd/strom/internal/serve"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
	"github.com/forge-platform/strom/state/savepoint"
)

const shopMapping = `
pipeline: shop
streams:
  orders:
    topic: orders
    format: json
    key: order
    event_time: {field: at}
    watermark: {out_of_orderness: 0s, idle_after: 1s}
objects:
  Order: {from: orders, id: order, properties: {status: status}}
`

// writeMapping writes a mapping file; old and replacement change its text.
func writeMapping(t *testing.T, replace ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.yaml")
	text := strings.NewReplacer(replace...).Replace(shopMapping)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKafkaOutOfReach(t *testing.T) {
	path := writeMapping(t)
	env := map[string]string{envBrokers: "127.0.0.1:1", envPostgres: "postgres://nobody:hunter2@127.0.0.1:1/none"}
	o := strom(t, env, "run", path, "--data-dir", t.TempDir())
	o.want(t, exitKafka, "cannot reach Kafka at 127.0.0.1:1", "--brokers")
	strom(t, env, "status", path).want(t, exitKafka, "cannot reach Kafka at 127.0.0.1:1")
	if strings.Contains(o.String(), "hunter2") {
		t.Errorf("a password is shown:\n%s", o)
	}
}

func TestTopicsThatAreMissing(t *testing.T) {
	broker := kafkatest.New(t)
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	path := writeMapping(t)
	strom(t, env, "run", path, "--data-dir", t.TempDir()).want(t, exitKafka, `topic "orders" does not exist; create it`)
	strom(t, env, "status", path).want(t, exitKafka, `pipeline "shop" has not run on this Kafka`)
}

func TestPostgresOutOfReach(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 1))
	path := writeMapping(t)
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: "postgres://nobody:hunter2@127.0.0.1:1/none"}
	for _, args := range [][]string{
		{"run", path, "--data-dir", t.TempDir()}, {"ontology", "list"},
	} {
		o := strom(t, env, args...)
		o.want(t, exitPostgres, "127.0.0.1:1/none", "connection refused")
		if strings.Contains(o.String(), "hunter2") {
			t.Errorf("a password is shown:\n%s", o)
		}
	}
	strom(t, map[string]string{envPostgres: pgtest.New(t)}, "ontology", "list").want(t, exitPostgres, "there is no ontology in this database")
}

func TestPortsInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	path := writeMapping(t)
	for _, flag := range []string{"--kafka-port", "--postgres-port"} {
		o := strom(t, nil, "dev", path, flag, port, "--data-dir", filepath.Join(pgtest.Dir(t), "dev"))
		o.want(t, exitPort, "port "+port+" on 127.0.0.1 is in use", "choose another port")
	}
}

func TestDataDirectoriesOfOthers(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 1))
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	path := writeMapping(t)
	dir := filepath.Join(t.TempDir(), "data")
	strom(t, env, "run", path, "--data-dir", dir, "--until-end").want(t, exitOK, "pipeline shop stopped at epoch")

	other := writeMapping(t, "pipeline: shop", "pipeline: other")
	strom(t, env, "run", other, "--data-dir", dir).want(t, exitDataDir, `belongs to pipeline "shop", not to "other"`, "--data-dir")

	// The same pipeline on another Kafka: its state is of no use there.
	elsewhere, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.ClusterID("elsewhere"))
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	moved := map[string]string{envBrokers: elsewhere.ListenAddrs()[0], envPostgres: pgtest.New(t)}
	strom(t, moved, "run", path, "--data-dir", dir, "--until-end").want(t, exitDataDir, `cluster "elsewhere"`, "--data-dir")

	held, err := datadir.Claim(dir, "shop")
	if err != nil {
		t.Fatal(err)
	}
	strom(t, env, "run", path, "--data-dir", dir).want(t, exitDataDir, fmt.Sprintf("is in use by process %d", os.Getpid()))
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}

	strange := t.TempDir()
	if err := os.WriteFile(filepath.Join(strange, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	strom(t, env, "run", path, "--data-dir", strange).want(t, exitDataDir, "files that are not Strom's (thesis.tex)")
	strom(t, env, "run", path, "--data-dir", path).want(t, exitDataDir, "cannot be used")
}

func TestAPropertyOfAnotherPipeline(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 1))
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	strom(t, env, "run", writeMapping(t), "--data-dir", t.TempDir(), "--until-end").want(t, exitOK)
	other := writeMapping(t, "pipeline: shop", "pipeline: other")
	strom(t, env, "run", other, "--data-dir", t.TempDir(), "--until-end").want(t, exitPipeline, `Order.status is written by pipeline "shop"`)
	changed := writeMapping(t, "{status: status}", "{status: {value: status, kind: decimal}}")
	strom(t, env, "run", changed, "--data-dir", t.TempDir(), "--until-end").want(t, exitPipeline, "these changes cannot take effect in place", "Order.properties.status.kind: text → decimal, refused")
	env[envBrokers] = kafkatest.New(t, kafkatest.Topic("orders", 1)).Addr()
	strom(t, env, "run", changed, "--data-dir", t.TempDir(), "--until-end").want(t, exitPipeline, "Order.status is stored as text and cannot become decimal")
}

// The topic has dropped what the pipeline was to read next: a stop with a code of
// its own, not a process that lives and does nothing.
func TestRetentionThatHasPassedThePipeline(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("orders", 1))
	env := map[string]string{envBrokers: broker.Addr(), envPostgres: pgtest.New(t)}
	path, dir := writeMapping(t), t.TempDir()
	strom(t, env, "run", path, "--data-dir", dir, "--until-end").want(t, exitOK)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 3 {
		r := &kgo.Record{Topic: "orders", Value: []byte(`{"order":"o1","at":"2026-01-01T00:00:00Z","status":"new"}`)}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := broker.Cluster().DeleteRecords("orders", 0, 2); err != nil {
		t.Fatal(err)
	}
	strom(t, env, "run", path, "--data-dir", dir).want(t, exitPipeline,
		"the next record to read is at offset 0, but the broker's log now starts at 2", "raise retention.ms of the topic")
}

func TestAPartitionThatHalts(t *testing.T) {
	path := writeMapping(t, "key: order", "key: order\n    partitioned_by: key")
	// The same key in both partitions: in one of them it is wrong.
	var text strings.Builder
	for p := range 2 {
		fmt.Fprintf(&text, "{\"partition\":%d,\"key\":\"o1\",\"value\":{\"order\":\"o1\",\"at\":\"2026-01-01T00:00:00Z\",\"status\":\"new\"}}\n", p)
	}
	file := writeFile(t, text.String())
	strom(t, nil, "try", path, "--input", "orders="+file).want(t, exitPipeline, "has halted", "wrong_partition")
	strom(t, nil, "dev", path, "--data-dir", filepath.Join(pgtest.Dir(t), "dev"), "--partitions", "2", "--load", "orders="+file, "--until-end").
		want(t, exitPipeline, "has halted", "wrong_partition")
}

// classes are the errors that the program knows, as docs/errors.md lists them.
func classes() []struct {
	err  error
	code exitCode
} {
	cause := errors.New("cause")
	return []struct {
		err  error
		code exitCode
	}{
		{&mapping.Error{}, exitMapping},
		{&kafka.UnreachableError{Err: cause}, exitKafka},
		{&kafka.MissingTopicError{}, exitKafka},
		{&kafka.NeverRanError{}, exitKafka},
		{&embedded.TopicError{Err: cause}, exitKafka},
		{&ontology.ConnectError{Err: cause}, exitPostgres},
		{&localpg.NotFoundError{}, exitPostgres},
		{&localpg.StartError{Err: cause}, exitPostgres},
		{&embedded.PortInUseError{Err: cause}, exitPort},
		{&localpg.PortInUseError{Err: cause}, exitPort},
		{&datadir.ForeignError{}, exitDataDir},
		{&datadir.InUseError{}, exitDataDir},
		{&datadir.UnusableError{Err: cause}, exitDataDir},
		{&state.ForeignError{}, exitDataDir},
		{&embedded.DataDirInUseError{}, exitDataDir},
		{&localpg.DataDirInUseError{}, exitDataDir},
		{&localpg.VersionError{}, exitDataDir},
		{&localpg.AccessError{Err: cause}, exitDataDir},
		{&serve.PortInUseError{Address: "127.0.0.1:1", Err: cause}, exitPort},
		{&serve.AddressError{}, exitUsage},
		{&localpg.PathTooLongError{}, exitDataDir},
		{&ontology.HorizonError{}, exitQuestion},
		{&ontology.UnknownNameError{}, exitQuestion},
		{&ontology.OwnerError{}, exitPipeline},
		{&ontology.KindError{}, exitPipeline},
		{&ontology.LostStateError{}, exitPipeline},
		{&ontology.NewerSchemaError{}, exitPipeline},
		{&ontology.FencedError{}, exitPipeline},
		{&kafka.DisagreementError{}, exitPipeline},
		{&kafka.MappingError{}, exitPipeline},
		{&kafka.RetentionError{}, exitPipeline},
		{&kafka.ReplacedError{}, exitPipeline},
		{&kafka.TruncatedError{}, exitPipeline},
		{&kafka.ChangelogError{}, exitPipeline},
		{&processors.HaltedError{}, exitPipeline},
		{&kafka.EndedError{}, exitPipeline},
		{&kafka.UnknownGenerationError{}, exitPipeline},
		{&feed.Error{Err: cause}, exitInput},
		{&savepoint.UnknownError{}, exitSavepoint},
		{&savepoint.DamagedError{}, exitSavepoint},
		{&kafka.SavepointError{}, exitSavepoint},
		{&kafka.RestoreError{}, exitSavepoint},
	}
}

func TestEveryErrorHasItsExitCodeAndItsPlaceInTheDocuments(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repo(t), "docs/errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	for _, c := range classes() {
		name := strings.TrimPrefix(reflect.TypeOf(c.err).String(), "*")
		wrapped := fmt.Errorf("stage x: %w", errors.Join(c.err, errors.New("another")))
		if code := codeOf(wrapped); code != c.code {
			t.Errorf("%s: exit code %d, want %d", name, code, c.code)
		}
		if _, row, ok := strings.Cut(document, "`"+name+"`"); !ok {
			t.Errorf("docs/errors.md does not list %s", name)
		} else if line, _, _ := strings.Cut(row, "\n"); !strings.HasSuffix(strings.TrimRight(line, " |"), " "+strconv.Itoa(int(c.code))) {
			t.Errorf("docs/errors.md: %s does not end with exit code %d: %s", name, c.code, line)
		}
	}
	for _, class := range []error{
		event.ErrVersion, event.ErrCorrupt, ontology.ErrPipeline, ontology.ErrNames,
	} {
		if codeOf(fmt.Errorf("wrapped: %w", class)) != exitPipeline {
			t.Errorf("%v is not of class %d", class, exitPipeline)
		}
	}
	for _, c := range exitCodes() {
		if row := fmt.Sprintf("| %d | %s |", c.Code, c.Meaning); !strings.Contains(document, row) {
			t.Errorf("docs/errors.md lacks the row %s", row)
		}
	}
	for _, reason := range []event.Reason{
		event.ReasonNotJSON, event.ReasonNullValue, event.ReasonNoEventTime, event.ReasonBadEventTime, event.ReasonAhead,
		event.ReasonNoKey, event.ReasonBadKey, event.ReasonNoIdentity, event.ReasonConflict, event.ReasonExpression,
		event.ReasonBadValue, event.ReasonTooLarge, event.ReasonBeyondReach, event.ReasonWrongPartition,
	} {
		if !strings.Contains(document, "| `"+string(reason)+"` |") {
			t.Errorf("docs/errors.md lacks the reason %s", reason)
		}
	}
	if codeOf(context.Canceled) != exitInterrupted || codeOf(errors.New("anything else")) != exitFailure {
		t.Error("what has no class ends otherwise than documented")
	}
}
