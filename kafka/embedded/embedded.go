// Package embedded runs a Kafka broker inside the program: for the demo, for
// developers and for tests. It is kfake of the franz-go project, which speaks the
// real protocol: clients cannot tell the difference, and need none of this package.
//
// Contract:
//
//  1. It listens on 127.0.0.1 only.
//  2. With a data directory, topics, records, transactional state, committed
//     group offsets and transactional ids are there again after a restart,
//     whether the program stopped the broker, exited or was killed.
//  3. A data directory serves one broker at a time, and its lock ends with the
//     process.
//  4. Nothing expires: without a retention that somebody sets on a topic, neither
//     records (Kafka: 7 days by the *record's* timestamp, so that old events are
//     gone at once) nor group offsets (Kafka: 7 days) are dropped.
//
// What to know of the broker:
//
//   - A topic must be created before use, unless Options.AutoCreateTopics (then it
//     has 10 partitions, and clients must ask for it as well). Defaults of a
//     topic: cleanup.policy delete, segments of 100 MiB, batches of at most
//     1,048,588 bytes (max.message.bytes), timestamps from the producer.
//   - Group sessions may be as short as MinSessionTimeout; Kafka's least is 6 s.
//   - Compaction runs once an hour (log.cleaner.backoff.ms), or by
//     Cluster().Compact(). The last batch of a partition is never compacted.
//   - Without SyncWrites every write is in the operating system's cache when it is
//     acknowledged: it survives the death of the program, not that of the machine.
//     With it, a small transaction over four partitions took 5 ms instead of
//     0.1 ms where it was measured; large batches lose about a third.
//   - Data lies in files and is read from there; without a data directory it lies
//     on the heap.
//   - There is no replication, and transactions end at once, so clients never see
//     CONCURRENT_TRANSACTIONS except by fault injection.
//
// What a SIGKILL costs, with a data directory (repair.go):
//
//   - A transaction that was open is aborted, its staged offsets are dropped, and
//     its producer is fenced: the client must call InitProducerId. One that was
//     being committed is committed whole, if its client speaks EndTxn version 5,
//     as franz-go does; with older ones the commit may hold in some partitions
//     only.
//   - Where a log began (DeleteRecords) is forgotten: records that were deleted
//     from the middle of a segment may appear again.
//   - A kill in the middle of a compaction may lose what was being rewritten.
//   - Repeats of producers that are idempotent but not transactional are no longer
//     recognised, and consumer groups begin with a rebalance.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/filelock"
)

// MinSessionTimeout is the shortest session timeout that a consumer group may ask
// for.
const MinSessionTimeout = 100 * time.Millisecond

// Options says what broker to run. The zero value is one in memory, on a free
// port, without topics.
type Options struct {
	// DataDir keeps everything across restarts; "" means in memory only. The
	// directory is the broker's own.
	DataDir string

	// Port on 127.0.0.1; 0 means a free one.
	Port int

	// Topics to have, with their number of partitions. Those that are there
	// already must have that number.
	Topics map[string]int32

	// SyncWrites makes every write durable before it is acknowledged. It costs
	// much: each batch of each partition then waits for the disk.
	SyncWrites bool

	// AutoCreateTopics lets clients create topics by using them.
	AutoCreateTopics bool

	// Nodes is the number of brokers in the cluster, for tests that move
	// partitions; 0 means 1. Only the first listens on Port.
	Nodes int

	// Configs are broker settings (as in server.properties) on top of ours.
	Configs map[string]string

	// Listen makes the listeners, for tests that stand between the broker and
	// its clients; nil means net.Listen.
	Listen func(network, address string) (net.Listener, error)

	// Log receives what the broker says; nil discards it. It must not block and
	// may be called from several goroutines.
	Log func(level slog.Level, message string)
}

// PortInUseError says that the port is taken.
type PortInUseError struct {
	Port int
	Err  error
}

func (e *PortInUseError) Error() string {
	return fmt.Sprintf("port %d on 127.0.0.1 is in use by another program (%v): choose another port for the embedded Kafka, or 0 for a free one", e.Port, e.Err)
}

func (e *PortInUseError) Unwrap() error { return e.Err }

// DataDirInUseError says that another broker has the data directory.
type DataDirInUseError struct {
	Dir string
	PID int // the process that has it; 0 if it is not known
}

func (e *DataDirInUseError) Error() string {
	who := "another program"
	if e.PID != 0 {
		who = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("the data directory %s of the embedded Kafka is in use by %s: stop that one first, or choose another data directory", e.Dir, who)
}

// TopicError says that a topic cannot be had as asked for.
type TopicError struct {
	Topic string
	Err   error
}

func (e *TopicError) Error() string { return fmt.Sprintf("topic %q: %v", e.Topic, e.Err) }
func (e *TopicError) Unwrap() error { return e.Err }

// Broker is a running broker. Its methods may be called from any goroutine.
type Broker struct {
	cluster  *kfake.Cluster
	addrs    []string
	log      *logger
	dir      string         // "" where there is none
	lock     *filelock.Lock // the rest only with a data directory
	recorder *recorder

	stopOnce sync.Once
	stopErr  error
}

// Start starts a broker and makes its topics. ctx bounds the start only. The
// errors that a caller can act on are *PortInUseError, *DataDirInUseError and
// *TopicError.
func Start(ctx context.Context, o Options) (*Broker, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	b := &Broker{log: &logger{out: o.Log}, dir: o.DataDir}
	if err := b.start(ctx, o); err != nil {
		b.abandon()
		return nil, err
	}
	return b, nil
}

func (b *Broker) start(ctx context.Context, o Options) error {
	if o.DataDir != "" {
		if err := b.openDataDir(); err != nil {
			return err
		}
	}
	cluster, err := kfake.NewCluster(o.kfakeOptions(b.log)...)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &PortInUseError{Port: o.Port, Err: err}
	case err != nil && o.DataDir != "":
		return fmt.Errorf("embedded Kafka with data directory %s: %w", o.DataDir, err)
	case err != nil:
		return fmt.Errorf("embedded Kafka: %w", err)
	}
	b.cluster, b.addrs = cluster, cluster.ListenAddrs()
	if o.DataDir != "" {
		if b.recorder, err = startRecorder(b.files(), cluster, o.SyncWrites); err != nil {
			return fmt.Errorf("data directory of the embedded Kafka: %w", err)
		}
	}
	return b.ensureTopics(ctx, o.Topics)
}

// abandon undoes a start that failed. What was there before stays as it was.
func (b *Broker) abandon() {
	if b.cluster != nil {
		_ = b.Stop()
		return
	}
	_ = b.lock.Release()
}

// runningFile is there from Start to Stop, so that Start can tell a restart from
// the return after a kill.
const runningFile = "running"

// files is where the broker itself keeps its data, beside our own files.
func (b *Broker) files() string { return filepath.Join(b.dir, "data") }

// openDataDir locks the directory, and repairs it where the last broker was killed.
func (b *Broker) openDataDir() error {
	var err error
	if b.lock, err = lockDataDir(b.dir); err != nil {
		return err
	}
	running := filepath.Join(b.dir, runningFile)
	if _, err := os.Stat(running); err == nil {
		if err := repair(b.files(), time.Now()); err != nil {
			return fmt.Errorf("embedded Kafka: repairing %s, whose broker was killed: %w", b.dir, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data directory of the embedded Kafka: %w", err)
	}
	if err := os.MkdirAll(b.files(), 0o755); err != nil {
		return fmt.Errorf("data directory of the embedded Kafka: %w", err)
	}
	if err := os.WriteFile(running, nil, 0o600); err != nil {
		return fmt.Errorf("data directory of the embedded Kafka: %w", err)
	}
	return nil
}

func (o Options) validate() error {
	var faults []error
	if o.Port < 0 || o.Port > 65535 {
		faults = append(faults, fmt.Errorf("port %d: must be 0 (a free one) to 65535", o.Port))
	}
	if o.Nodes < 0 {
		faults = append(faults, fmt.Errorf("nodes %d: must not be negative", o.Nodes))
	}
	for _, topic := range slices.Sorted(maps.Keys(o.Topics)) {
		if n := o.Topics[topic]; n < 1 {
			faults = append(faults, &TopicError{Topic: topic, Err: fmt.Errorf("%d partitions: must be at least 1", n)})
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("embedded Kafka: %w", err)
	}
	return nil
}

func lockDataDir(dir string) (*filelock.Lock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("data directory of the embedded Kafka: %w", err)
	}
	lock, err := filelock.Acquire(filepath.Join(dir, "lock"))
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		return nil, &DataDirInUseError{Dir: dir, PID: held.PID}
	}
	if err != nil {
		return nil, fmt.Errorf("data directory of the embedded Kafka: %w", err)
	}
	return lock, nil
}

func (o Options) kfakeOptions(log kfake.Logger) []kfake.Opt {
	ports := make([]int, max(o.Nodes, 1))
	ports[0] = o.Port
	configs := map[string]string{
		"log.retention.ms":             "-1",
		"offsets.retention.minutes":    "2147483647",
		"group.min.session.timeout.ms": strconv.FormatInt(MinSessionTimeout.Milliseconds(), 10),
	}
	maps.Copy(configs, o.Configs)
	opts := []kfake.Opt{
		kfake.Ports(ports...),
		kfake.ClusterID("strom-embedded"),
		kfake.GroupMinSessionTimeout(MinSessionTimeout),
		kfake.BrokerConfigs(configs),
		kfake.WithLogger(log),
	}
	if o.DataDir != "" {
		opts = append(opts, kfake.DataDir(filepath.Join(o.DataDir, "data")))
	}
	if o.Listen != nil {
		opts = append(opts, kfake.ListenFn(o.Listen))
	}
	if o.SyncWrites {
		opts = append(opts, kfake.SyncWrites())
	}
	if o.AutoCreateTopics {
		opts = append(opts, kfake.AllowAutoTopicCreation())
	}
	return opts
}

// ensureTopics makes the topics that are missing. (kfake's own way of seeding them
// works for an empty data directory only.)
func (b *Broker) ensureTopics(ctx context.Context, topics map[string]int32) error {
	if len(topics) == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addrs...))
	if err != nil {
		return fmt.Errorf("embedded Kafka: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		if err := ensureTopic(ctx, admin, topic, topics[topic]); err != nil {
			return &TopicError{Topic: topic, Err: err}
		}
	}
	return nil
}

func ensureTopic(ctx context.Context, admin *kadm.Client, topic string, partitions int32) error {
	_, err := admin.CreateTopic(ctx, partitions, 1, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	details, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	if have := len(details[topic].Partitions); have != int(partitions) {
		return fmt.Errorf("it exists with %d partitions, and %d are wanted: choose another data directory, or keep the number", have, partitions)
	}
	return nil
}

// Addr is the address (host:port) of the first broker.
func (b *Broker) Addr() string { return b.addrs[0] }

// Brokers are the addresses of all brokers.
func (b *Broker) Brokers() []string { return slices.Clone(b.addrs) }

// Cluster is the broker itself, for fault injection; see its own documentation.
// Do not close it: that is what Stop is for.
func (b *Broker) Cluster() *kfake.Cluster { return b.cluster }

// Stop stops the broker and closes its data directory. Every call waits and
// returns the same error: not nil if the broker failed to write something.
func (b *Broker) Stop() error {
	b.stopOnce.Do(func() {
		b.cluster.Close()
		b.stopErr = errors.Join(b.log.failure(), b.recorder.close())
		if b.dir != "" && b.stopErr == nil {
			b.stopErr = os.Remove(filepath.Join(b.dir, runningFile))
		}
		b.stopErr = errors.Join(b.stopErr, b.lock.Release())
	})
	return b.stopErr
}

// logger passes the broker's words on. It is also the only place where a failure
// to write shows: the broker logs it and goes on, so we keep the first.
type logger struct {
	out func(level slog.Level, message string)

	mu    sync.Mutex // guards first
	first error
}

func (l *logger) Logf(level kfake.LogLevel, format string, args ...any) {
	// Formatting costs, and the broker says much that nobody asked for.
	failed := level <= kfake.LogLevelWarn && isWriteFailure(format)
	if l.out == nil && !failed {
		return
	}
	message := fmt.Sprintf(format, args...)
	if failed {
		l.mu.Lock()
		if l.first == nil {
			l.first = fmt.Errorf("embedded Kafka could not keep its data: %s", message)
		}
		l.mu.Unlock()
	}
	if l.out != nil {
		l.out(slogLevel(level), message)
	}
}

// isWriteFailure knows how the broker begins what it says of a failed write.
func isWriteFailure(format string) bool {
	for _, prefix := range []string{"persist ", "endTx: failed to persist", "rebuildSegments ", "compact groups.log", "compact pids.log", "save session state"} {
		if strings.HasPrefix(format, prefix) {
			return true
		}
	}
	return false
}

func (l *logger) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

func slogLevel(level kfake.LogLevel) slog.Level {
	switch level {
	case kfake.LogLevelError:
		return slog.LevelError
	case kfake.LogLevelWarn:
		return slog.LevelWarn
	case kfake.LogLevelInfo:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}
