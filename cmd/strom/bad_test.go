package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/cmd/strom/internal/quakes"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
)

// withBadLines puts the bad lines of the oracle's test data where they belong
// among the quakes: before the first that is later than they are.
func withBadLines(t *testing.T) (file string, text []byte, bad [][]byte) {
	t.Helper()
	root := repo(t)
	good, err := os.ReadFile(filepath.Join(root, "examples/earthquakes/quakes.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(filepath.Join(root, "internal/oracle/testdata/bad.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	bad = bytes.Split(bytes.TrimRight(lines, "\n"), []byte("\n"))
	const at = 1517600000000
	for line := range bytes.Lines(good) {
		var q struct {
			Updated int64 `json:"updated"`
		}
		if err := json.Unmarshal(line, &q); err != nil {
			t.Fatal(err)
		}
		if q.Updated > at && bad != nil && !bytes.Contains(text, bad[0]) {
			text = append(append(text, bytes.Join(bad, []byte("\n"))...), '\n')
		}
		text = append(text, line...)
	}
	file = filepath.Join(t.TempDir(), "quakes.ndjson")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, text, bad
}

// Lines that are no event are counted and shown, stop nothing, change nothing
// else, and stand in the dead-letter topic byte for byte.
func TestBadLinesAreKeptAndChangeNothing(t *testing.T) {
	file, text, bad := withBadLines(t)
	broker := kafkatest.New(t, kafkatest.Topic(quakes.Topic, 1))
	w := &world{brokers: broker.Brokers(), postgres: pgtest.New(t), dataDir: t.TempDir()}
	produce(t, broker, file)
	strom(t, w.env(), "run", filepath.Join(repo(t), "examples/earthquakes/mapping.yaml"), "--until-end", "--data-dir", w.dataDir).
		want(t, exitOK, "1,707 events; in windows: 1,244 on time, 126 corrections, 337 late corrections; 0 repeats; 3 dead letters")
	strom(t, w.env(), "status", "--pipeline", "earthquakes").want(t, exitOK, "3 dead letters")

	r, err := (&app{env: func(string) (string, bool) { return "", false }}).reader(t.Context(), &ontologyFlags{postgres: w.postgres})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	wantEqual(t, quakes.FromReader(r), text)

	for i, rec := range readDeadLetters(t, w.brokers, len(bad)) {
		if !bytes.Equal(rec.Value, bad[i]) {
			t.Errorf("dead letter %d is %q, the line was %q", i, rec.Value, bad[i])
		}
		headers := map[string]string{}
		for _, h := range rec.Headers {
			headers[h.Key] = string(h.Value)
		}
		want := []string{"not_json", "no_event_time", "ahead"}[i]
		if headers["strom.cause"] != want || headers["strom.topic"] != quakes.Topic || headers["strom.message"] == "" {
			t.Errorf("dead letter %d has the headers %v, want the cause %s", i, headers, want)
		}
	}
}

func readDeadLetters(t *testing.T, brokers []string, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("strom.earthquakes.deadletter"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d dead letters, want %d", len(out), n)
		}
		out = append(out, fetches.Records()...)
	}
	return out
}

func TestTryShowsBadLines(t *testing.T) {
	file, _, bad := withBadLines(t)
	o := strom(t, nil, "try", filepath.Join(repo(t), "examples/earthquakes/mapping.yaml"), "--input", "quakes="+file+",timestamp=updated")
	o.want(t, exitOK, "not_json", "no_event_time", "ahead: ", string(bad[0]),
		"1 line without a readable timestamp", "1,707 events in 166 epochs; in windows: 1,244 on time, 126 corrections, 337 late corrections; 0 repeats; 3 dead letters")
	if n := strings.Count(o.stderr, "dead letter: "+file); n != len(bad) {
		t.Errorf("%d dead letters are shown with their line, want %d\n%s", n, len(bad), o.stderr)
	}
}
