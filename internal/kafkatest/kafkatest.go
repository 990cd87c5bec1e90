// Package kafkatest runs tests on both brokers: on the embedded one, and on Apache
// Kafka, which it fetches through Maven and starts as a process of its own.
//
//	for _, kind := range kafkatest.Kinds() {
//		t.Run(string(kind), func(t *testing.T) {
//			broker := kind.New(t, kafkatest.Topics{"readings": 3})
//			…
//
// What to know of the Apache Kafka:
//
//   - One node serves all tests of a test binary, one test at a time. Starting one
//     takes three to six seconds; taking away what a test has left, a fraction of
//     one. It starts when the first test asks for it. A test that stops or kills
//     its broker has a node to itself (Own, Start).
//   - A node ends with the test binary, however that ends, SIGKILL included, and
//     then neither process nor file is left (internal/apachekafka says how).
//   - Groups may have sessions of half a second, topics are not made by use, and no
//     record expires by its age.
//   - KAFKA_BROKERS (host:port, separated by commas) names another broker to take,
//     one for tests alone. Tests that stop their broker are then skipped. Nothing is
//     removed from it but the topics that a test has made, and what is called
//     strom.… and was not there before the test.
//   - Where Maven or Java is missing, tests of Apache Kafka are skipped and say what
//     to install; with CI=true in the environment they fail.
package kafkatest

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/apachekafka"
	"github.com/forge-platform/strom/kafka/embedded"
)

// brokersEnv names brokers to use in place of a node of our own.
const brokersEnv = "KAFKA_BROKERS"

// onEnv names the one kind of broker to test on; both where it is not set.
const onEnv = "STROM_TEST_ON"

// Kind is a kind of broker. Its text is the name of a subtest.
type Kind string

// The kinds of brokers.
const (
	Embedded Kind = "embedded"
	Apache   Kind = "apache"
)

// Kinds are all kinds of brokers.
func Kinds() []Kind { return []Kind{Embedded, Apache} }

// patience bounds what is asked of a broker between tests.
const patience = 30 * time.Second

// Topics are topics to be made, with their number of partitions.
type Topics map[string]int32

// Broker is a broker of either kind. Its methods may be called from any goroutine.
type Broker interface {
	// Brokers are the addresses (host:port) to start from.
	Brokers() []string
	// CreateTopic makes a topic and returns when the broker knows it. Its records
	// do not expire, unless configs says so.
	CreateTopic(t testing.TB, topic string, partitions int32, configs map[string]string)
}

// OwnBroker is a broker that one test has to itself.
type OwnBroker interface {
	Broker
	// Stop stops the broker in an orderly way. It is safe to call twice.
	Stop() error
}

// New gives a test a broker of the kind, with the topics and nothing else, until
// the test ends. Where there is none, the test is skipped. A test asks once: it
// waits until no other test has the Apache Kafka of the test binary.
func (k Kind) New(t testing.TB, topics Topics) Broker {
	t.Helper()
	k.wanted(t)
	if k == Apache {
		return borrow(t, topics)
	}
	return newEmbedded(t, topics)
}

// Own gives a test a broker of the kind to itself. Where there is none, the test
// is skipped.
func (k Kind) Own(t testing.TB, topics Topics) OwnBroker {
	t.Helper()
	k.wanted(t)
	if k == Apache {
		return Start(t, topics, nil)
	}
	return newEmbedded(t, topics)
}

// wanted skips a test on a kind that this run leaves to another.
func (k Kind) wanted(t testing.TB) {
	t.Helper()
	if on := os.Getenv(onEnv); on != "" && on != string(k) {
		t.Skipf("this run tests on the %s broker only (%s)", on, onEnv)
	}
}

// embeddedBroker is the embedded broker, in memory.
type embeddedBroker struct{ *embedded.Broker }

// CreateTopic implements Broker.
func (b *embeddedBroker) CreateTopic(t testing.TB, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	mustCreate(t, b, topic, partitions, configs)
}

// Node is an Apache Kafka that one test has to itself.
type Node struct{ *apachekafka.Node }

func startNode(ctx context.Context, inst apachekafka.Installation, settings map[string]string) (*Node, error) {
	n, err := apachekafka.Start(ctx, inst, apachekafka.Options{Settings: settings})
	if err != nil {
		return nil, err
	}
	return &Node{n}, nil
}

// ownSettings are on top of the others for a node that may be killed: it is registered
// again only when the controller takes its earlier life for dead, by default after
// 9 s. A node that nobody kills keeps that: on a busy machine a heartbeat may be late.
func ownSettings(more map[string]string) map[string]string {
	settings := map[string]string{"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
	maps.Copy(settings, more)
	return settings
}

// CreateTopic implements Broker.
func (n *Node) CreateTopic(t testing.TB, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	mustCreate(t, n, topic, partitions, configs)
}

func newEmbedded(t testing.TB, topics Topics) *embeddedBroker {
	t.Helper()
	broker, err := embedded.Start(t.Context(), embedded.Options{})
	if err != nil {
		t.Fatalf("no Kafka for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(); err != nil {
			t.Errorf("stopping the test's Kafka: %v", err)
		}
	})
	b := &embeddedBroker{broker}
	mustCreateAll(t, b, topics)
	return b
}

// Start starts an Apache Kafka for one test alone, with settings (as in
// server.properties) on top of ours. Where it cannot be had, the test is skipped.
func Start(t testing.TB, topics Topics, settings map[string]string) *Node {
	t.Helper()
	Apache.wanted(t)
	if named := namedBrokers(); named != nil {
		t.Skipf("this test stops or kills its broker, which it does not do to the one that %s names", brokersEnv)
	}
	inst, err := instance.installation(t.Context())
	if err != nil {
		unavailable(t, err)
	}
	n, err := startNode(t.Context(), inst, ownSettings(settings))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		showLog(t, n)
		n.Remove()
	})
	mustCreateAll(t, n, topics)
	return n
}

// unavailable ends a test for want of Apache Kafka.
func unavailable(t testing.TB, err error) {
	t.Helper()
	if u := (*apachekafka.UnavailableError)(nil); errors.As(err, &u) {
		u.Hint = " in " + brokersEnv
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%v (CI runs no test without it)", err)
	}
	t.Skip(err)
}

func showLog(t testing.TB, n *Node) {
	t.Helper()
	if log := n.Log(); t.Failed() && log != "" {
		t.Logf("Apache Kafka says at last:\n%s", log)
	}
}

// namedBrokers are those that the environment names, or nil.
func namedBrokers() []string {
	var out []string
	for b := range strings.SplitSeq(os.Getenv(brokersEnv), ",") {
		if b = strings.TrimSpace(b); b != "" {
			out = append(out, b)
		}
	}
	return out
}

func mustCreateAll(t testing.TB, b Broker, topics Topics) {
	t.Helper()
	for topic, partitions := range topics {
		b.CreateTopic(t, topic, partitions, nil)
	}
}

func mustCreate(t testing.TB, b Broker, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := newAdmin(b.Brokers())
	if err == nil {
		defer a.close()
		err = a.createTopic(ctx, topic, partitions, configs)
	}
	if err != nil {
		t.Fatalf("making the test's topic %s: %v", topic, errors.Join(err, ctx.Err()))
	}
}
