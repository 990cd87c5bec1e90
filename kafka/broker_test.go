package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// The broker is killed under a running engine and comes back with its data: the
// engine goes on by itself, and nothing is lost or doubled.
func TestABrokerThatIsKilledAndComesBackCostsNothing(t *testing.T) {
	broker := kafkatest.Start(t, metersTopics(), nil)
	url, dir := pgtest.New(t), t.TempDir()
	data, want := meterData(13, 6_000)
	config := func(observe func(kafka.Observation)) kafka.Config {
		return kafka.Config{
			Topology: processors.NewTopology(metersPlan(t), 1), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
			DataDir: dir, Observe: observe, OpenOntology: openPostgres(url), Log: testLog(t),
			SessionTimeout: 2 * time.Second, RebalanceTimeout: 4 * time.Second,
		}
	}
	seen := newProgress()
	running, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- kafka.New(config(seen.observe)).Run(running) }()
	half := len(data) / 2
	produceMeters(t, broker.Brokers(), data[:half])
	seen.await(t, 5, "before the broker dies")
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	pause(t, time.Second)
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	seen.await(t, 5, "after the broker is back")
	t.Logf("five epochs more %s after the broker is back", time.Since(back).Round(time.Millisecond))
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	produceMeters(t, broker.Brokers(), data[half:])
	last, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := config(nil)
	c.UntilEnd = true
	if err := kafka.New(c).Run(last); err != nil {
		t.Fatal(err)
	}
	if got := believedCounts(t, url); got != want {
		t.Errorf("%s", firstDifference(got, want))
	}
}
