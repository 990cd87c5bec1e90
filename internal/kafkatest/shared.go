package kafkatest

import (
	"context"
	"sync"
	"testing"

	"github.com/forge-platform/strom/internal/apachekafka"
)

// shared is the Apache Kafka of this test binary. It is mutable state of the
// package because Go gives a test no other way to share with tests that it does
// not know.
type shared struct {
	turn sync.Mutex // held by the test that uses the node, and guards node
	node *Node      // nil until a test asks for it

	once sync.Once
	inst apachekafka.Installation
	err  error // why there is none; it is not tried again
}

var instance shared //nolint:gochecknoglobals // see its type

func (s *shared) installation(ctx context.Context) (apachekafka.Installation, error) {
	s.once.Do(func() { s.inst, s.err = apachekafka.Install(context.WithoutCancel(ctx)) })
	return s.inst, s.err
}

// borrow gives a test the node of the test binary, or the broker that the
// environment names, when no other test has it. What the test leaves there is
// removed when it ends.
func borrow(t testing.TB, topics Topics) *borrowed {
	t.Helper()
	instance.turn.Lock()
	t.Cleanup(instance.turn.Unlock)
	b := instance.broker(t)
	a, err := newAdmin(b.Brokers())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	before, err := a.look(ctx)
	if err != nil {
		t.Fatalf("looking at what is in Kafka at %s: %v", b.Brokers(), err)
	}
	b.before = before
	t.Cleanup(func() { b.clean(t, a) })
	mustCreateAll(t, b, topics)
	return b
}

// borrowed is the Kafka that one test uses until it ends.
type borrowed struct {
	addrs  []string
	node   *Node // nil where the environment names the broker
	before contents

	mu   sync.Mutex // guards made
	made []string   // topics
}

// broker starts the node where that is yet to do. The caller has its turn.
func (s *shared) broker(t testing.TB) *borrowed {
	t.Helper()
	if named := namedBrokers(); named != nil {
		return &borrowed{addrs: named}
	}
	inst, err := s.installation(t.Context())
	if err != nil {
		unavailable(t, err)
	}
	if s.node != nil && s.node.Ended() {
		t.Logf("the tests' Apache Kafka has ended; another one starts\n%s", s.node.Log())
		s.discard()
	}
	if s.node == nil {
		if s.node, err = startNode(t.Context(), inst, nil); err != nil {
			s.node = nil
			t.Fatal(err)
		}
	}
	return &borrowed{addrs: s.node.Brokers(), node: s.node}
}

func (s *shared) discard() {
	s.node.Remove()
	s.node = nil
}

// Brokers implements Broker.
func (b *borrowed) Brokers() []string { return b.addrs }

// CreateTopic implements Broker.
func (b *borrowed) CreateTopic(t testing.TB, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	if b.before.topics[topic] {
		t.Fatalf("Kafka at %s has a topic %s, which this test would make and remove: name a cluster for tests alone in %s", b.addrs, topic, brokersEnv)
	}
	b.mu.Lock()
	b.made = append(b.made, topic)
	b.mu.Unlock()
	mustCreate(t, b, topic, partitions, configs)
}

// clean removes what the test has left. A node that cannot be cleaned serves no
// other test.
func (b *borrowed) clean(t testing.TB, a *admin) {
	t.Helper()
	if b.node != nil {
		showLog(t, b.node)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	err := a.clean(ctx, b.before, b.made)
	if err == nil {
		return
	}
	t.Errorf("removing what the test left in Apache Kafka: %v", err)
	if b.node != nil {
		instance.discard()
	}
}
