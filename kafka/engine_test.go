package kafka_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
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

// openPostgres opens the ontology at a URL.
func openPostgres(url string) func(context.Context, ontology.Pipeline) (ontology.Store, error) {
	return func(ctx context.Context, p ontology.Pipeline) (ontology.Store, error) {
		return ontology.Open(ctx, mapping.Ontology{Postgres: mapping.NewSecret(url)}, p, ontology.Options{})
	}
}

func TestTheEarthquakesEndAsTheyAreReadByHand(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			broker := kind.New(t, kafkatest.Topics{"earthquakes": 1})
			loadQuakes(t, broker.Brokers())
			url := pgtest.New(t)
			seen := &observer{counters: map[processors.TaskID]processors.Counters{}}
			engine := kafka.New(kafka.Config{
				Topology: processors.NewTopology(quakesPlan(t), 1), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
				DataDir: t.TempDir(), UntilEnd: true, Observe: seen.observe, Log: testLog(t), OpenOntology: openPostgres(url),
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
			total := seen.total()
			t.Logf("%d epochs in %s: %+v", seen.epochs, time.Since(started).Round(time.Millisecond), total)
			if total.OnTime != 1244 || total.Corrections != 126 || total.Late != 337 {
				t.Errorf("on time %d, corrections %d, late corrections %d; want 1244, 126, 337", total.OnTime, total.Corrections, total.Late)
			}
			compareQuakes(t, url)
		})
	}
}
