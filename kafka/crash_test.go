package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/internal/race"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// A test that crashes an engine runs it in a child process: this test binary
// again, told by the environment what to do.
const (
	childEnv    = "STROM_TEST_CHILD"
	brokersEnv  = "STROM_TEST_BROKERS"
	postgresEnv = "STROM_TEST_POSTGRES"
	dataEnv     = "STROM_TEST_DATA"
	crashEnv    = "STROM_TEST_CRASH" // point:n, the n-th time that the point is reached
)

const (
	childSession = time.Second
	childTime    = time.Minute
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	pgtest.Main(m)
}

// childMain runs a pipeline to its end, or dies at the named point.
func childMain() int {
	plan, err := childPlan()
	if err != nil {
		return childFailed(err)
	}
	engine := kafka.New(kafka.Config{
		Topology: processors.NewTopology(plan, 1), DataDir: os.Getenv(dataEnv),
		UntilEnd:       os.Getenv(childEnv) != "ticks", // those are always killed
		Kafka:          mapping.Kafka{Brokers: strings.Split(os.Getenv(brokersEnv), ",")},
		SessionTimeout: childSession, RebalanceTimeout: 2 * childSession, At: crashPoint(os.Getenv(crashEnv)),
		Log:          slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: childLevel()})),
		OpenOntology: openPostgres(os.Getenv(postgresEnv)),
	})
	ctx, cancel := context.WithTimeout(context.Background(), childTime)
	defer cancel()
	if err := engine.Run(ctx); err != nil {
		return childFailed(err)
	}
	if ctx.Err() != nil {
		return childFailed(errors.New("the run did not end within its time"))
	}
	return 0
}

func childPlan() (*mapping.Plan, error) {
	switch os.Getenv(childEnv) {
	case "meters":
		return mapping.Parse("meters.yaml", []byte(meters), os.LookupEnv)
	case "ticks":
		return mapping.Parse("ticks.yaml", []byte(fusedTicks()), os.LookupEnv)
	}
	return mapping.Load("../examples/earthquakes/mapping.yaml", os.LookupEnv)
}

func childFailed(err error) int {
	fmt.Fprintln(os.Stderr, "child:", err)
	return 1
}

// crashPoint kills this process, as nothing can catch it, the n-th time that
// the point is reached.
func crashPoint(spec string) func(string) {
	name, count, _ := strings.Cut(spec, ":")
	n, _ := strconv.Atoi(count)
	var seen atomic.Int64
	return func(point string) {
		if point == name && seen.Add(1) == int64(n) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
	}
}

type child struct {
	pipeline string
	brokers  []string
	postgres string
	dataDir  string
}

// run runs a child and reports whether it died of SIGKILL.
func (c *child) run(t *testing.T, crash string) (killed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+c.pipeline, brokersEnv+"="+strings.Join(c.brokers, ","),
		postgresEnv+"="+c.postgres, dataEnv+"="+c.dataDir, crashEnv+"="+crash)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if childLevel() == slog.LevelDebug {
		cmd.Stderr = io.MultiWriter(&stderr, os.Stderr)
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true
	}
	t.Fatalf("the child ended with %v:\n%s", err, stderr.String())
	return false
}

// crashPoints are the points of the protocol at which the engine is killed, and
// the occurrence at which it is. Apache Kafka is slower: there the points are those
// that leave something in it. STROM_TEST_POINTS=all takes all of them.
func crashPoints(kind kafkatest.Kind) []string {
	switch {
	case os.Getenv("STROM_TEST_POINTS") == "all":
	case kind == kafkatest.Apache:
		return []string{"announce:20", "commit.flushed:70", "commit.ended:80", "adopt.offsets:2"}
	case race.Enabled:
		// The detector makes a run ten times as long; it adds nothing to the rest.
		return []string{"handover:40", "commit.flushed:70", "commit.ended:80", "adopt.offsets:1"}
	}
	return []string{
		"announce:20", "announced:30", "handover:40", "commit.offsets:50", "commit.rows:60", "commit.flushed:70",
		"commit.ended:80", "commit.applied:90", "readback.asked:10", "readback.answered:10",
		"sink.apply:25", "sink.applied:35", "recovery.fenced:1", "recovery.tables:2", "recovery.adopt:1", "adopt.offsets:1", "adopt.offsets:2",
	}
}

func TestAKillAtAnyPointLeavesTheSameHistory(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		for _, point := range crashPoints(kind) {
			t.Run(string(kind)+"/"+point, func(t *testing.T) {
				broker := kind.New(t, kafkatest.Topics{"earthquakes": 1})
				c := &child{pipeline: "earthquakes", brokers: broker.Brokers(), postgres: pgtest.New(t), dataDir: t.TempDir()}
				loadQuakes(t, c.brokers)
				if !c.run(t, point) {
					t.Fatalf("the point %s was not reached", point)
				}
				if c.run(t, "") {
					t.Fatal("the second run was killed")
				}
				compareQuakes(t, c.postgres)
			})
		}
	}
}

// An owner dies in its first transaction, so no metadata names it, and the next
// one comes when the group has noticed: the generations are two apart. It ends
// the transaction all the same, and does not wait for its timeout.
func TestADeathInTheFirstTransactionDoesNotHoldUpTheNextOwner(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			broker := kind.New(t, kafkatest.Topics{"earthquakes": 1})
			c := &child{pipeline: "earthquakes", brokers: broker.Brokers(), postgres: pgtest.New(t), dataDir: t.TempDir()}
			loadQuakes(t, c.brokers)
			if !c.run(t, "adopt.offsets:1") {
				t.Fatal("the point was not reached")
			}
			pause(t, 3*childSession) // the group notices the death
			if c.run(t, "") {
				t.Fatal("the second run was killed")
			}
			compareQuakes(t, c.postgres)
		})
	}
}

func TestKillsAtRandomMomentsLoseAndDoubleNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("STROM_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with: STROM_TEST_SEED=%d go test ./kafka -run %s", seed, t.Name())
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			broker := kind.New(t, metersTopics())
			c := &child{pipeline: "meters", brokers: broker.Brokers(), postgres: pgtest.New(t), dataDir: t.TempDir()}
			records := 120_000
			if race.Enabled {
				records = 12_000 // Pebble notes a stack trace for every file that a Get looks into
			}
			data, want := meterData(seed, records)
			points := []string{"handover", "commit.offsets", "commit.rows", "commit.flushed", "commit.ended", "commit.applied", "announced", "sink.apply", "sink.applied"}
			killed := 0
			const runs = 6
			for i := range runs {
				produceMeters(t, c.brokers, data[i*len(data)/runs:(i+1)*len(data)/runs])
				point := points[rng.IntN(len(points))]
				if c.run(t, fmt.Sprintf("%s:%d", point, 6+rng.IntN(12))) {
					killed++
					if kind == kafkatest.Embedded {
						c.bury(t)
					}
				}
				if rng.IntN(3) == 0 { // the disk is lost as well
					c.dataDir = t.TempDir()
				}
			}
			if c.run(t, "") {
				t.Fatal("the last run was killed")
			}
			t.Logf("%d kills", killed)
			if got := believedCounts(t, c.postgres); got != want {
				t.Errorf("%s", firstDifference(got, want))
			}
		})
	}
}

// bury takes the dead child's members out of their groups. Apache Kafka does so
// by itself; in the embedded broker a member that dies between its JoinGroup and
// its SyncGroup would live for ever.
func (c *child) bury(t *testing.T) {
	t.Helper()
	buryMembers(t, c.brokers)
}

// buryMembers takes every member out of its group.
func buryMembers(t *testing.T, brokers []string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	groups, err := kadm.NewClient(client).DescribeGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, m := range g.Members {
			req := kmsg.NewPtrLeaveGroupRequest()
			req.Group, req.MemberID = g.Group, m.MemberID
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			req.Members = append(req.Members, member)
			if _, err := req.RequestWith(t.Context(), client); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// childLevel lets STROM_TEST_LOG=debug show everything that a child does.
func childLevel() slog.Level {
	if os.Getenv("STROM_TEST_LOG") == "debug" {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
