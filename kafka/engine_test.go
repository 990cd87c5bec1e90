package kafka_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// observer keeps the newest counters of every task.
type observer struct {
	mu       sync.Mutex // guards counters and epochs
	counters map[processors.TaskID]processors.Counters
	epochs   int
}

func (o *observer) observe(ob kafka.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ob.Acked != nil {
		o.counters[ob.Acked.Task] = ob.Acked.Counters
	}
	if ob.Announced != nil {
		o.epochs++
	}
}

func (o *observer) total() processors.Counters {
	o.mu.Lock()
	defer o.mu.Unlock()
	var c processors.Counters
	for _, t := range o.counters {
		c.Add(t)
	}
	return c
}

func quakesPlan(t *testing.T) *mapping.Plan {
	t.Helper()
	plan, err := mapping.Load("../examples/earthquakes/mapping.yaml", os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// loadQuakes produces the earthquake catalogue as the demo does.
func loadQuakes(t *testing.T, brokers []string) {
	t.Helper()
	f, err := os.Open("../examples/earthquakes/quakes.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var records []*kgo.Record
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var q struct {
			ID      string `json:"id"`
			Updated int64  `json:"updated"`
		}
		line := append([]byte(nil), lines.Bytes()...)
		if err := json.Unmarshal(line, &q); err != nil {
			t.Fatal(err)
		}
		records = append(records, &kgo.Record{
			Topic: "earthquakes", Key: []byte(q.ID), Value: line, Timestamp: time.UnixMilli(q.Updated),
		})
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestTheEarthquakesEndAsTheyAreReadByHand(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "earthquakes"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	loadQuakes(t, cluster.ListenAddrs())

	plan := quakesPlan(t)
	var memory *ontology.Memory
	seen := &observer{counters: map[processors.TaskID]processors.Counters{}}
	engine := kafka.New(kafka.Config{
		Topology: processors.NewTopology(plan, 1), Kafka: mapping.Kafka{Brokers: cluster.ListenAddrs()},
		DataDir: t.TempDir(), UntilEnd: true, Observe: seen.observe, Log: testLog(t),
		OpenOntology: func(_ context.Context, p ontology.Pipeline) (ontology.Store, error) {
			memory = ontology.NewMemory(p)
			return memory, nil
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	started := time.Now()
	if err := engine.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatal("the run did not end")
	}
	for _, r := range readTopic(t, cluster.ListenAddrs(), "strom.earthquakes.deadletter", 3) {
		t.Logf("dead letter: %s", headersText(r))
	}
	total := seen.total()
	t.Logf("%d epochs in %s: %+v", seen.epochs, time.Since(started).Round(time.Millisecond), total)
	if total.OnTime != 1244 || total.Corrections != 126 || total.Late != 337 {
		t.Errorf("on time %d, corrections %d, late corrections %d; want 1244, 126, 337", total.OnTime, total.Corrections, total.Late)
	}
	compareQuakes(t, memory)
}

// compareQuakes compares the history of every region and day, version by
// version, with the reading by hand.
func compareQuakes(t *testing.T, memory *ontology.Memory) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "examples", "earthquakes", "quakes.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := oracle.ReadRecords(f)
	if err != nil {
		t.Fatal(err)
	}
	want, err := oracle.QuakeHistory(records, oracle.DemoOptions())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v", want.Versions()[0])
	t.Logf("%d versions in memory", len(memory.Versions()))
}
