package apachekafka

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	startPatience = 2 * time.Minute
	stopPatience  = 20 * time.Second
	startAttempts = 3

	dataDir    = "data"
	serverFile = "server.properties"
	logConfig  = "log4j2.properties"
	logFile    = "server.log"
	consoleLog = "console.log"
)

// Node is an Apache Kafka of one node, broker and controller, on loopback. Its
// methods may be called from any goroutine, but it is stopped, killed and
// started again by one at a time.
type Node struct {
	inst    Installation
	options Options
	dir     string
	addr    string

	mu   sync.Mutex // guards proc
	proc *process   // nil while the node is down
}

// Options say how a node runs. The zero value is one for tests.
type Options struct {
	// Settings (as in server.properties) on top of ours.
	Settings map[string]string
	// Java's options for the broker; nil: those of a broker that lives for
	// seconds or minutes, on few cores, beside what it serves.
	Java []string
}

// defaultSettings are those of a node for tests: it answers fast and forgets nothing.
func defaultSettings() map[string]string {
	return map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"controller.listener.names":      "CONTROLLER",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs":                       dataDir,
		"auto.create.topics.enable":      "false",
		// Old events expire by their own timestamps otherwise; the embedded
		// broker keeps them too.
		"log.retention.ms": "-1",
		// One node: nothing can be replicated.
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"share.coordinator.state.topic.num.partitions":     "1",
		// Tests do not wait for members that may come or be dead.
		"group.initial.rebalance.delay.ms": "0",
		"group.min.session.timeout.ms":     "500",
		// A small machine.
		"num.network.threads":            "2",
		"num.io.threads":                 "4",
		"log.cleaner.dedupe.buffer.size": "4194304",
	}
}

const log4j = `status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = %s
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %%d %%p %%m (%%c)%%n
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
`

// Start starts a new node, with a directory of its own below the system's
// temporary one. Somebody may take a port before the node does; then it is
// tried again with others. The caller removes the node in the end; when the
// process ends before, the node ends with it.
func Start(ctx context.Context, inst Installation, o Options) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for attempt := 1; ; attempt++ {
		n := &Node{inst: inst, options: o}
		err := n.create(ctx)
		if err == nil {
			return n, nil
		}
		again := attempt < startAttempts && strings.Contains(n.Log(), "Address already in use")
		n.Remove()
		if !again {
			return nil, err
		}
	}
}

// create makes the directory of the node, formats its storage and starts it.
func (n *Node) create(ctx context.Context) error {
	var err error
	if n.dir, err = os.MkdirTemp("", "strom-kafka-"); err != nil {
		return err
	}
	if err := n.configure(ctx); err != nil {
		return err
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	id[0] &= 0x7f        // Kafka wants no id that begins with a dash
	format, err := n.java("kafka.tools.StorageTool", "format", "--config", serverFile, "--cluster-id", base64.RawURLEncoding.EncodeToString(id))
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := format.release(time.Until(deadline)); err != nil {
		return n.failed("formatting the storage of Apache Kafka", err)
	}
	return n.start(ctx)
}

// configure writes the files that the node is configured with.
func (n *Node) configure(ctx context.Context) error {
	broker, err := freePort(ctx)
	if err != nil {
		return err
	}
	controller, err := freePort(ctx)
	if err != nil {
		return err
	}
	n.addr = address(broker)
	settings := defaultSettings()
	maps.Copy(settings, n.options.Settings)
	settings["listeners"] = "PLAINTEXT://" + n.addr + ",CONTROLLER://" + address(controller)
	settings["advertised.listeners"] = "PLAINTEXT://" + n.addr
	settings["controller.quorum.voters"] = "1@" + address(controller)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", name, settings[name])
	}
	return errors.Join(
		os.Mkdir(filepath.Join(n.dir, "tmp"), 0o700),
		os.WriteFile(filepath.Join(n.dir, serverFile), []byte(text.String()), 0o600),
		os.WriteFile(filepath.Join(n.dir, logConfig), fmt.Appendf(nil, log4j, logFile), 0o600),
	)
}

// java runs a class of Kafka's in the directory of the node.
func (n *Node) java(class string, args ...string) (*process, error) {
	options := n.options.Java
	if options == nil {
		options = []string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	}
	return supervise(n.dir, slices.Concat([]string{n.inst.java}, options, []string{
		"-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData",
		"-Djava.io.tmpdir=tmp", "-Dlog4j2.configurationFile=" + logConfig,
		"-cp", filepath.Join(n.inst.jars, "*"), class,
	}, args))
}

var errEnded = errors.New("it ended before it was ready")

// start starts the node on the data and the ports that it has.
func (n *Node) start(ctx context.Context) error {
	p, err := n.java("kafka.Kafka", serverFile)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.proc = p
	n.mu.Unlock()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	var dialer net.Dialer
	for {
		select {
		case <-p.ended:
			return n.failed("Apache Kafka did not start", errors.Join(errEnded, n.down("KILL")))
		case <-ctx.Done():
			return n.failed("Apache Kafka does not answer", errors.Join(ctx.Err(), n.down("KILL")))
		case <-ticker.C:
		}
		// It listens when it is ready to serve.
		conn, err := dialer.DialContext(ctx, "tcp", n.addr)
		if err == nil {
			return conn.Close()
		}
	}
}

// Dir is where the node's files lie.
func (n *Node) Dir() string { return n.dir }

// Brokers is the address of the node.
func (n *Node) Brokers() []string { return []string{n.addr} }

// Stop stops the node in an orderly way and keeps its data. It is safe to call
// on a node that is down.
func (n *Node) Stop() error {
	return unless(n.down("TERM"), 128+15) // so Java ends when it is asked to
}

// Kill ends the node with SIGKILL and keeps its data. It is safe to call on a
// node that is down.
func (n *Node) Kill() error {
	return unless(n.down("KILL"), 128+9)
}

// unless forgives a program that it ended with the status that was meant.
func unless(err error, status int) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == status {
		return nil
	}
	return err
}

// Ended reports whether the node is down, by itself or not.
func (n *Node) Ended() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return true
	}
	select {
	case <-n.proc.ended:
		return true
	default:
		return false
	}
}

// Restart starts the node again with the data and the address that it had. One
// that runs is stopped first.
func (n *Node) Restart(ctx context.Context) error {
	if err := n.Stop(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return n.start(ctx)
}

// down ends the node by a signal and returns how it ended.
func (n *Node) down(signal string) error {
	n.mu.Lock()
	p := n.proc
	n.proc = nil
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	p.signal(signal)
	return p.release(stopPatience)
}

// Remove ends the node and removes its data.
func (n *Node) Remove() {
	_ = n.down("KILL")
	if n.dir != "" {
		_ = os.RemoveAll(n.dir)
	}
}

// Log is the end of what the node has said.
func (n *Node) Log() string {
	var parts []string
	for _, name := range []string{consoleLog, logFile} {
		out, err := os.ReadFile(filepath.Join(n.dir, name))
		if text := tail(out); err == nil && text != "" {
			parts = append(parts, name+":\n"+text)
		}
	}
	return strings.Join(parts, "\n")
}

func (n *Node) failed(what string, err error) error {
	return fmt.Errorf("%s: %w\n%s", what, err, n.Log())
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePort finds a port below those that operating systems give to outgoing
// connections: a node that is started again must find its own free.
func freePort(ctx context.Context) (int, error) {
	const first, last, attempts = 15_000, 30_000, 100
	var lc net.ListenConfig
	var err error
	for range attempts {
		port := first + mathrand.IntN(last-first)
		var ln net.Listener
		if ln, err = lc.Listen(ctx, "tcp", address(port)); err == nil {
			return port, ln.Close()
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d: %w", first, last, err)
}
