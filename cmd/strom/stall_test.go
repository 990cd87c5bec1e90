package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/race"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
)

// stallTime is how long a part stalls; longer where asked for.
func stallTime(t *testing.T) time.Duration {
	t.Helper()
	return durationFromEnv(t, "STROM_TEST_STALL", 10*time.Second)
}

// floodSize is as much as fills the time of a stall, and no more: all of it has
// to be worked off afterwards.
func floodSize(t *testing.T) int {
	t.Helper()
	perSecond := 60_000
	if race.Enabled {
		perSecond = 3000
	}
	return perSecond * int(stallTime(t).Seconds())
}

// gate passes connections on to a server, and holds them up while it is shut.
// Nothing is refused or closed: it is the server that answers nothing.
type gate struct {
	listener net.Listener
	network  string
	address  string

	mu   sync.RWMutex // held for writing while shut
	done sync.WaitGroup
}

// newGate stands in front of a database and gives the URL through it.
func newGate(t *testing.T, url string) (*gate, string) {
	t.Helper()
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{}
	g.network, g.address = pgconn.NetworkAddress(config.Host, config.Port)
	if g.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	g.done.Go(g.accept)
	t.Cleanup(func() {
		_ = g.listener.Close()
		g.done.Wait()
	})
	_, port, err := net.SplitHostPort(g.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return g, fmt.Sprintf("host=127.0.0.1 port=%s dbname=%s user=%s password='%s' sslmode=disable", port, config.Database, config.User, config.Password)
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(g.network, g.address)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.done.Go(func() { g.pass(client, server) })
		g.done.Go(func() { g.pass(server, client) })
	}
}

func (g *gate) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		g.mu.RLock()
		if n > 0 {
			if _, writeErr := to.Write(b[:n]); writeErr != nil {
				err = writeErr
			}
		}
		g.mu.RUnlock()
		if err != nil {
			return
		}
	}
}

func (g *gate) shut() { g.mu.Lock() }
func (g *gate) open() { g.mu.Unlock() }

// resident is the memory of a process, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("no /proc to read a process's memory from: %v", err)
	}
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// flood produces transfers as fast as the broker takes them until ctx ends,
// and gives how many there are.
func flood(ctx context.Context, brokers []string, all []transfer) (int, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.MaxBufferedRecords(5000))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	for i := range all {
		if ctx.Err() != nil {
			return i, client.Flush(context.WithoutCancel(ctx))
		}
		record, err := all[i].record()
		if err != nil {
			return i, err
		}
		client.Produce(context.WithoutCancel(ctx), record, nil)
	}
	return len(all), client.Flush(context.WithoutCancel(ctx))
}

// mostResident bounds the memory of a replica of the bank under full input:
// the block cache, and what waits in front of twelve tasks.
const mostResident = 1200 << 20

// watchMemory watches a process for a while: its memory stays under the bound,
// and does not grow on and on.
func watchMemory(t *testing.T, pid int, during time.Duration, what string) {
	t.Helper()
	var half, most int64
	began := time.Now()
	for tick := time.NewTicker(100 * time.Millisecond); time.Since(began) < during; <-tick.C {
		m := resident(t, pid)
		if most = max(most, m); time.Since(began) < during/2 {
			half = max(half, m)
		}
	}
	t.Logf("%s: at most %d MiB in the first half, %d MiB in all", what, half>>20, most>>20)
	if most > mostResident {
		t.Errorf("%s: %d MiB, more than %d", what, most>>20, mostResident>>20)
	}
	if most > half+half/4+64<<20 {
		t.Errorf("%s: memory grows on: %d MiB, then %d MiB", what, half>>20, most>>20)
	}
}

// The database answers nothing for a while under full input: the results topic
// takes the backlog, the memory does not; then the ontology catches up, exact.
func TestAStalledDatabaseFillsTheLogAndNotTheMemory(t *testing.T) {
	broker := kafkatest.New(t, kafkatest.Topic("transfers", 3))
	f := newFleet(t, broker.Brokers(), bankMapping, 5*time.Second)
	g, url := newGate(t, f.postgres)
	direct := f.postgres
	f.postgres = url
	r := f.add()
	f.begin()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := transfers(4, floodSize(t))
	sent := make(chan int, 1)
	go func() {
		n, err := flood(ctx, f.brokers, all)
		if err != nil {
			t.Errorf("flood: %v", err)
		}
		sent <- n
	}()
	f.await("transfers are counted", time.Minute, func(s *statusJSON) bool { return s.Totals.Events > 5000 })
	f.postgres = direct // the status asks past the gate
	g.shut()
	before := f.status()
	watchMemory(t, r.p.cmd.Process.Pid, stallTime(t), "while the database stalls")
	after := f.status()
	g.open()
	cancel()
	n := <-sent
	if after.Epoch < before.Epoch+5 {
		t.Errorf("epochs stood still while the database did: %s, %s", before.Epoch, after.Epoch)
	}
	if after.Ontology == nil || before.Ontology == nil || after.Ontology.Horizon == nil {
		t.Fatalf("no horizon: %+v", after.Ontology)
	}
	f.await("the ontology has caught up", 2*time.Minute, func(s *statusJSON) bool { return s.Lag == 0 && s.Epoch > after.Epoch })
	f.end()
	t.Logf("%d transfers, epochs %s to %s during the stall", n, before.Epoch, after.Epoch)
	f.checkBank(all[:n])
}

// asBroker makes the test binary a broker, for tests that stop one as a process.
const asBroker = "STROM_TEST_AS_BROKER"

// serveBroker runs a broker until its standard input ends.
func serveBroker() int {
	broker, err := embedded.Start(context.Background(), embedded.Options{Topics: map[string]int32{"transfers": 3}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, strings.Join(broker.Brokers(), ","))
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := broker.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startBroker starts a broker in a process of its own.
func startBroker(t *testing.T) (*exec.Cmd, []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asBroker+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the broker says nothing: %v", err)
	}
	return cmd, strings.Split(strings.TrimSpace(line), ",")
}

// The broker answers nothing for a while in the middle of full input: memory
// stays bounded, and all goes on when it does, exact.
func TestAStalledBrokerFillsNoMemory(t *testing.T) {
	broker, brokers := startBroker(t)
	f := newFleet(t, brokers, bankMapping, 5*time.Second)
	r := f.add()
	f.begin()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := transfers(5, floodSize(t))
	sent := make(chan int, 1)
	go func() {
		n, err := flood(ctx, f.brokers, all)
		if err != nil {
			t.Errorf("flood: %v", err)
		}
		sent <- n
	}()
	f.await("transfers are counted", time.Minute, func(s *statusJSON) bool { return s.Totals.Events > 5000 })
	if err := broker.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	watchMemory(t, r.p.cmd.Process.Pid, stallTime(t), "while the broker stalls")
	if err := broker.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	cancel()
	n := <-sent
	f.await("all is read", 2*time.Minute, func(s *statusJSON) bool { return s.Lag == 0 })
	f.end()
	t.Logf("%d transfers", n)
	f.checkBank(all[:n])
}
