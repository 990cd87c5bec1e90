package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// A second process of the same pipeline comes and goes, as in a rolling restart:
// announcements go on, and nothing is lost or doubled.
func TestASecondProcessComesAndGoes(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			broker := kind.New(t, metersTopics())
			url := pgtest.New(t)
			data, want := meterData(11, 20_000)
			engine := func(observe func(kafka.Observation), untilEnd bool) *kafka.Engine {
				return kafka.New(kafka.Config{
					Topology: processors.NewTopology(metersPlan(t), 1), Kafka: mapping.Kafka{Brokers: broker.Brokers()},
					DataDir: t.TempDir(), UntilEnd: untilEnd, Observe: observe, OpenOntology: openPostgres(url), Log: testLog(t),
					SessionTimeout: 2 * time.Second, RebalanceTimeout: 4 * time.Second,
				})
			}
			first, stopFirst := context.WithTimeout(t.Context(), 2*time.Minute)
			defer stopFirst()
			seen := newProgress()
			ended := make(chan error, 1)
			go func() { ended <- engine(seen.observe, false).Run(first) }()
			seen.await(t, 10, "at the start")
			third := len(data) / 3
			for i := range 2 {
				produceMeters(t, broker.Brokers(), data[i*third:(i+1)*third])
				second, stopSecond := context.WithTimeout(t.Context(), time.Minute)
				var committed atomic.Int64
				err := engine(func(o kafka.Observation) {
					if o.Committed != nil && committed.Add(1) == 5 {
						stopSecond() // it has had tasks, and epochs with them
					}
				}, false).Run(second)
				stopSecond()
				if err != nil || committed.Load() == 0 {
					t.Fatalf("the second process committed %d epochs: %v", committed.Load(), err)
				}
				seen.await(t, 10, "after the second process has left")
			}
			stopFirst()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			produceMeters(t, broker.Brokers(), data[2*third:])
			last, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := engine(func(kafka.Observation) {}, true).Run(last); err != nil {
				t.Fatal(err)
			}
			if got := believedCounts(t, url); got != want {
				t.Errorf("%s", firstDifference(got, want))
			}
		})
	}
}

// With the broker away nothing can be committed and no group be left; a stop is
// prompt all the same.
func TestAStopIsPromptWhileTheBrokerIsAway(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			broker := kind.Own(t, kafkatest.Topics{"ticks": 1})
			s := newSteadyOn(t, broker.Brokers())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := s.config(t, fmt.Sprintf(ticks, "wall", ""))
			seen := newProgress()
			c.Observe = seen.observe
			ended := make(chan error, 1)
			go func() { ended <- kafka.New(c).Run(ctx) }()
			seen.await(t, 1, "at the start")
			if err := broker.Stop(); err != nil {
				t.Fatal(err)
			}
			pause(t, 500*time.Millisecond)
			cancel()
			select {
			case err := <-ended:
				t.Logf("ended with %v", err)
			case <-time.After(25 * time.Second):
				t.Fatal("the engine did not stop")
			}
		})
	}
}

// A stop and a rebalance meet: the session that the stop is ending must be gone
// before the next one begins, or its end would take the tasks of that one along.
func TestAStopDuringARebalanceIsNoError(t *testing.T) {
	s := newSteady(t, 2)
	c := s.config(t, fmt.Sprintf(ticks, "log, step: 1h", ""))
	var ending, goOn, stop sync.Once
	var adopted atomic.Int64
	running, ended, again := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.At = func(point string) {
		switch point {
		case "revoke.ended":
			ending.Do(func() {
				close(ended)
				select {
				case <-again:
				case <-time.After(3 * time.Second):
				}
			})
		case "adopt.applied":
			switch n := adopted.Add(1); {
			case n == int64(len(c.Topology.Stages)):
				stop.Do(func() { close(running) })
			case n > int64(len(c.Topology.Stages)):
				goOn.Do(func() { close(again) })
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := make(chan error, 1)
	go func() { first <- kafka.New(c).Run(ctx) }()
	<-running
	cancel()
	<-ended
	// Another member joins: the first one's group rebalances.
	other := s.config(t, fmt.Sprintf(ticks, "log, step: 1h", ""))
	other.DataDir = t.TempDir()
	second, stopSecond := context.WithTimeout(t.Context(), 8*time.Second)
	defer stopSecond()
	joined := make(chan error, 1)
	go func() { joined <- kafka.New(other).Run(second) }()
	if err := <-first; err != nil {
		t.Errorf("the first one: %v", err)
	}
	stopSecond()
	<-joined // whatever it says of being stopped
}
