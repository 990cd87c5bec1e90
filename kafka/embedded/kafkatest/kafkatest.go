// Package kafkatest gives tests a Kafka broker.
package kafkatest

import (
	"testing"

	"github.com/forge-platform/strom/kafka/embedded"
)

// Option changes the broker that New starts.
type Option func(*embedded.Options)

// New starts a broker in memory for one test; it stops when the test ends.
func New(t testing.TB, opts ...Option) *embedded.Broker {
	t.Helper()
	var o embedded.Options
	for _, opt := range opts {
		opt(&o)
	}
	broker, err := embedded.Start(t.Context(), o)
	if err != nil {
		t.Fatalf("no Kafka for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(); err != nil {
			t.Errorf("stopping the test's Kafka: %v", err)
		}
	})
	return broker
}

// Topic makes a topic.
func Topic(name string, partitions int32) Option {
	return func(o *embedded.Options) {
		if o.Topics == nil {
			o.Topics = make(map[string]int32)
		}
		o.Topics[name] = partitions
	}
}

// Nodes makes a cluster of n brokers, so that partitions and coordinators can move.
func Nodes(n int) Option { return func(o *embedded.Options) { o.Nodes = n } }

// DataDir keeps the data, for tests that stop the broker and start it again.
func DataDir(dir string) Option { return func(o *embedded.Options) { o.DataDir = dir } }

// Config sets a broker setting, as in server.properties.
func Config(key, value string) Option {
	return func(o *embedded.Options) {
		if o.Configs == nil {
			o.Configs = make(map[string]string)
		}
		o.Configs[key] = value
	}
}
