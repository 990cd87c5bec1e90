package kafkatest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/apachekafka"
)

// childEnv makes the test binary a program that starts a node and waits to be
// killed.
const childEnv = "STROM_KAFKATEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

func child() int {
	inst, err := apachekafka.Install(context.Background())
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	n, err := startNode(context.Background(), inst, nil)
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println(n.Brokers()[0], n.Dir())
	select {}
}

func newClient(t *testing.T, b Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Brokers()...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// roundTrip produces a record and reads the topic's first one.
func roundTrip(t *testing.T, b Broker, topic, value string) string {
	t.Helper()
	ctx := withTimeout(t)
	if err := newClient(t, b).ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	fetches := newClient(t, b, kgo.ConsumeTopics(topic)).PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		t.Fatal(err)
	}
	return string(fetches.Records()[0].Value)
}

// gone waits until no file and no listener is left.
func gone(t *testing.T, addr, dir string) {
	t.Helper()
	err := eventually(withTimeout(t), func() (bool, error) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("%s is still there", dir)
		}
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return false, errors.Join(errors.New("the node still listens"), conn.Close())
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBothBrokersKeepWhatIsOld(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			b := kind.New(t, Topics{"in": 3})
			ctx := withTimeout(t)
			b.CreateTopic(t, "compacted", 2, map[string]string{"cleanup.policy": "compact"})
			client := newClient(t, b)
			topics, err := kadm.NewClient(client).ListTopics(ctx)
			if err != nil || len(topics["in"].Partitions) != 3 || len(topics["compacted"].Partitions) != 2 {
				t.Fatalf("topics %v, %v", topics, err)
			}
			configs, err := kadm.NewClient(client).DescribeTopicConfigs(ctx, "in")
			if err != nil || len(configs) != 1 {
				t.Fatal(configs, err)
			}
			for _, c := range configs[0].Configs {
				if c.Key == "retention.ms" && c.MaybeValue() != "-1" {
					t.Errorf("retention.ms is %s", c.MaybeValue())
				}
			}
			if got := roundTrip(t, b, "in", "x"); got != "x" {
				t.Errorf("got %q", got)
			}
			err = client.ProduceSync(ctx, &kgo.Record{Topic: "typo"}).FirstErr()
			if !errors.Is(err, kerr.UnknownTopicOrPartition) {
				t.Errorf("a topic that nobody made: %v", err)
			}
		})
	}
}

// leave leaves what a killed pipeline leaves: topics, a group with a member, and
// an open transaction.
func leave(t *testing.T, b Broker) {
	t.Helper()
	ctx := withTimeout(t)
	client := newClient(t, b)
	if _, err := kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, "strom.p.results"); err != nil {
		t.Fatal(err)
	}
	member := newClient(t, b, kgo.ConsumerGroup("strom.p.g1.ingest"), kgo.ConsumeTopics("in"), kgo.SessionTimeout(time.Minute))
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: "in"}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := member.PollRecords(ctx, 1).Err(); err != nil {
		t.Fatal(err)
	}
	producer := newClient(t, b, kgo.TransactionalID("strom.p.g1.ingest.r.1"))
	if err := producer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := producer.ProduceSync(ctx, &kgo.Record{Topic: "strom.p.results"}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func checkClean(t *testing.T, b Broker) {
	t.Helper()
	a, err := newAdmin(b.Brokers())
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	ctx := withTimeout(t)
	now, err := a.look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	open, err := a.adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		t.Fatal(err)
	}
	if len(now.groups) != 0 || len(now.topics) != 1 || !now.topics["in"] || len(open) != 0 {
		t.Errorf("the next test finds topics %v, groups %v, transactions %v", now.topics, now.groups, open.Sorted())
	}
}

func TestTheNextTestFindsAnEmptyBroker(t *testing.T) {
	var first []string
	t.Run("first", func(t *testing.T) {
		b := Apache.New(t, Topics{"in": 1})
		first = b.Brokers()
		leave(t, b)
	})
	t.Run("next", func(t *testing.T) {
		b := Apache.New(t, Topics{"in": 1})
		checkClean(t, b)
		if first[0] != b.Brokers()[0] {
			t.Errorf("another node: %s, then %s", first, b.Brokers())
		}
	})
}

// The embedded broker stands for the one that the environment names.
func TestANamedBrokerLosesNothingButWhatTheTestMade(t *testing.T) {
	Apache.wanted(t)
	named := newEmbedded(t, Topics{"theirs": 1, "strom.theirs": 1})
	t.Setenv(brokersEnv, " "+named.Brokers()[0]+" ")
	ctx := withTimeout(t)
	admin := kadm.NewClient(newClient(t, named))
	t.Run("test", func(t *testing.T) {
		b := Apache.New(t, Topics{"in": 1})
		if b.Brokers()[0] != named.Brokers()[0] {
			t.Fatalf("brokers %v", b.Brokers())
		}
		leave(t, b)
		if _, err := admin.CreateTopic(ctx, 1, 1, nil, "also-theirs"); err != nil {
			t.Fatal(err)
		}
	})
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := topics.Names(); fmt.Sprint(got) != "[also-theirs strom.theirs theirs]" {
		t.Errorf("left: %v", got)
	}
	skipped := false
	t.Run("own", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		Start(t, nil, nil)
	})
	if !skipped {
		t.Error("a test that kills its broker is not skipped")
	}
}

func TestANodeComesBackWithItsDataAfterAStopAndAKill(t *testing.T) {
	n := Start(t, Topics{"in": 1}, map[string]string{"log.retention.ms": "-1"})
	addr := n.Brokers()[0]
	for _, end := range []func() error{n.Kill, n.Stop} {
		value := roundTrip(t, n, "in", "first")
		if value != "first" {
			t.Fatalf("got %q", value)
		}
		for range 2 { // twice is safe
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			t.Fatal("it still listens")
		}
		started := time.Now()
		if err := n.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("it was back after %s", time.Since(started).Round(time.Millisecond))
	}
	if got := roundTrip(t, n, "in", "second"); got != "first" || n.Brokers()[0] != addr {
		t.Errorf("%q at %s, was first at %s", got, n.Brokers()[0], addr)
	}
	n.Remove()
	gone(t, n.Brokers()[0], n.Dir())
}

func TestAKilledProcessLeavesNoNode(t *testing.T) {
	if _, err := instance.installation(t.Context()); err != nil {
		unavailable(t, err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	started := lines.Scan()
	addr, dir, ok := strings.Cut(lines.Text(), " ")
	if !started || !ok || addr == "error:" {
		t.Fatalf("the child did not start its node: %s", lines.Text())
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	gone(t, addr, dir)
}

// verdict records how a test would have ended.
type verdict struct {
	testing.TB

	said []string
}

func (v *verdict) Helper()               {}
func (v *verdict) Skip(...any)           { v.said = append(v.said, "skip") }
func (v *verdict) Fatalf(string, ...any) { v.said = append(v.said, "fail") }

func TestWithoutKafkaATestIsSkippedButFailsInCI(t *testing.T) {
	for ci, want := range map[string]string{"": "skip", "true": "fail"} {
		t.Setenv("CI", ci)
		v := &verdict{TB: t}
		unavailable(v, &apachekafka.UnavailableError{What: "nothing"})
		if v.said[0] != want {
			t.Errorf("with CI=%q: %s, want %s", ci, v.said[0], want)
		}
	}
}
