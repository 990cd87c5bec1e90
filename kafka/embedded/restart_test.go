package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/kafka/embedded"
)

// childEnv makes the test binary a program that runs a broker and waits to be
// killed; its value is the data directory.
const childEnv = "STROM_EMBEDDED_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		b, err := embedded.Start(context.Background(), embedded.Options{DataDir: dir, Topics: map[string]int32{"out": 2, "in": 1}})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(b.Addr())
		select {}
	}
	os.Exit(m.Run())
}

type brokers interface{ Brokers() []string }

// otherProcess is a broker that runs in a process of its own, to be killed.
type otherProcess struct {
	cmd  *osexec.Cmd
	addr string
}

func startElsewhere(t *testing.T, dir string) *otherProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &otherProcess{cmd: cmd}
	t.Cleanup(p.kill)
	lines := bufio.NewScanner(out)
	if !lines.Scan() || strings.HasPrefix(lines.Text(), "error:") {
		t.Fatalf("the broker did not start: %s", lines.Text())
	}
	p.addr = lines.Text()
	return p
}

func (p *otherProcess) Brokers() []string { return []string{p.addr} }

func (p *otherProcess) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// transaction begins one, produces to both partitions and stages a group offset.
// It does not end it.
func transaction(t *testing.T, ctx context.Context, client *kgo.Client, txid, value, group string, offset int64) {
	t.Helper()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for p := range int32(2) {
		r := &kgo.Record{Topic: "out", Partition: p, Value: []byte(value)}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = txid, id, epoch, group
	if resp, err := add.RequestWith(ctx, client); err != nil || kerr.ErrorForCode(resp.ErrorCode) != nil {
		t.Fatalf("AddOffsetsToTxn: %v %v", err, resp)
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group = txid, id, epoch, group
	commit.Generation = -1
	part := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	part.Offset, part.Metadata = offset, new("by "+txid)
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic, topic.Partitions = "in", append(topic.Partitions, part)
	details, err := kadm.NewClient(client).ListTopics(ctx, "in")
	if err != nil {
		t.Fatal(err)
	}
	topic.TopicID = details["in"].ID // newer versions of the request carry only this
	commit.Topics = append(commit.Topics, topic)
	resp, err := commit.RequestWith(ctx, client)
	if err != nil || kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode) != nil {
		t.Fatalf("TxnOffsetCommit: %v %v", err, resp)
	}
}

func end(t *testing.T, ctx context.Context, client *kgo.Client, how kgo.TransactionEndTry) {
	t.Helper()
	if err := client.EndTransaction(ctx, how); err != nil {
		t.Fatal(err)
	}
}

// producer is one that left a transaction open.
type producer struct {
	id    int64
	epoch int16
}

// history is what the tests of restarts find: a committed, an aborted and an open
// transaction, and a plain group commit.
func history(t *testing.T, ctx context.Context, b brokers) producer {
	t.Helper()
	ended := newClient(t, b, kgo.TransactionalID("ended"))
	transaction(t, ctx, ended, "ended", "committed", "group-committed", 7)
	end(t, ctx, ended, kgo.TryCommit)
	transaction(t, ctx, ended, "ended", "aborted", "group-aborted", 8)
	end(t, ctx, ended, kgo.TryAbort)

	plain := kadm.Offsets{}
	plain.Add(kadm.Offset{Topic: "in", At: 9, Metadata: "plain"})
	if err := kadm.NewClient(ended).CommitAllOffsets(ctx, "group-plain", plain); err != nil {
		t.Fatal(err)
	}
	open := newClient(t, b, kgo.TransactionalID("open"))
	transaction(t, ctx, open, "open", "open", "group-open", 10)
	id, epoch, err := open.ProducerID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return producer{id: id, epoch: epoch}
}

func wantVisible(t *testing.T, ctx context.Context, b brokers, want string) {
	t.Helper()
	got := committed(t, ctx, b)
	for p := range int32(2) {
		if values := strings.Join(got[p], ", "); values != want {
			t.Errorf("partition %d shows %q, want %q", p, values, want)
		}
	}
}

// committed reads topic "out" to the last stable offset, per partition.
func committed(t *testing.T, ctx context.Context, b brokers) map[int32][]string {
	t.Helper()
	client := newClient(t, b, kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	_, stable := ends(t, ctx, b)
	values, at := make(map[int32][]string), make(map[int32]int64)
	done := func() bool {
		ok := true
		stable.Each(func(o kadm.ListedOffset) { ok = ok && at[o.Partition] >= o.Offset })
		return ok
	}
	for !done() {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				values[r.Partition] = append(values[r.Partition], string(r.Value))
			}
		})
	}
	return values
}

func offsets(t *testing.T, ctx context.Context, b brokers, group string) string {
	t.Helper()
	got, err := kadm.NewClient(newClient(t, b)).FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return "none"
	}
	if err != nil {
		t.Fatal(err)
	}
	o, ok := got.Lookup("in", 0)
	if !ok || o.At < 0 {
		return "none"
	}
	return fmt.Sprintf("%d %s", o.At, o.Metadata)
}

func wantOffsets(t *testing.T, ctx context.Context, b brokers, want map[string]string) {
	t.Helper()
	for _, group := range slices.Sorted(maps.Keys(want)) {
		if got := offsets(t, ctx, b, group); got != want[group] {
			t.Errorf("%s: offset %s, want %s", group, got, want[group])
		}
	}
}

func ends(t *testing.T, ctx context.Context, b brokers) (high, stable kadm.ListedOffsets) {
	t.Helper()
	admin := kadm.NewClient(newClient(t, b))
	high, err := admin.ListEndOffsets(ctx, "out")
	if err != nil {
		t.Fatal(err)
	}
	stable, err = admin.ListCommittedOffsets(ctx, "out")
	if err != nil {
		t.Fatal(err)
	}
	return high, stable
}

// wantEnds checks that the logs grew by the given number of offsets, and how far
// the last stable offset is behind.
func wantEnds(t *testing.T, ctx context.Context, b brokers, before kadm.ListedOffsets, grown, unstable int64) {
	t.Helper()
	high, stable := ends(t, ctx, b)
	for p := range int32(2) {
		was, _ := before.Lookup("out", p)
		now, _ := high.Lookup("out", p)
		lso, _ := stable.Lookup("out", p)
		if now.Offset != was.Offset+grown || lso.Offset != now.Offset-unstable {
			t.Errorf("partition %d: end %d after %d, last stable offset %d; want %d more and %d unstable",
				p, now.Offset, was.Offset, lso.Offset, grown, unstable)
		}
	}
}

func startHere(t *testing.T, ctx context.Context, dir string) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Topics: map[string]int32{"out": 2, "in": 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Stop() })
	return b
}

func TestKilledBrokerKeepsWhatWasCommittedAndNothingElse(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	first := startElsewhere(t, dir)
	left := history(t, ctx, first)
	before, _ := ends(t, ctx, first)
	if _, err := embedded.Start(ctx, embedded.Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(first.cmd.Process.Pid)) {
		t.Fatalf("got %v, want that process %d has the directory", err, first.cmd.Process.Pid)
	}
	first.kill()

	second := startElsewhere(t, dir)
	wantVisible(t, ctx, second, "committed")
	wantEnds(t, ctx, second, before, 1, 0) // an abort marker
	wantOffsets(t, ctx, second, map[string]string{
		"group-committed": "7 by ended", "group-aborted": "none", "group-plain": "9 plain", "group-open": "none",
	})

	// A client that survived the broker is told that its transaction is lost.
	late := kmsg.NewPtrEndTxnRequest()
	late.TransactionalID, late.ProducerID, late.ProducerEpoch, late.Commit = "open", left.id, left.epoch, true
	resp, err := late.RequestWith(ctx, newClient(t, second))
	if err != nil || !errors.Is(kerr.ErrorForCode(resp.ErrorCode), kerr.ProducerFenced) {
		t.Fatalf("EndTxn of the lost transaction: %v, %v; want PRODUCER_FENCED", resp, err)
	}

	// The transactional id goes on, and a second kill brings nothing old to light.
	again := newClient(t, second, kgo.TransactionalID("open"))
	transaction(t, ctx, again, "open", "second life", "group-open", 11)
	end(t, ctx, again, kgo.TryCommit)
	second.kill()
	third := startHere(t, ctx, dir)
	wantVisible(t, ctx, third, "committed, second life")
	wantOffsets(t, ctx, third, map[string]string{"group-open": "11 by open", "group-plain": "9 plain"})
}

func TestStoppedBrokerKeepsAnOpenTransactionOpen(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	first := startHere(t, ctx, dir)
	history(t, ctx, first)
	before, _ := ends(t, ctx, first)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := startHere(t, ctx, dir)
	wantEnds(t, ctx, second, before, 0, 1)
	wantVisible(t, ctx, second, "committed")
	wantOffsets(t, ctx, second, map[string]string{
		"group-committed": "7 by ended", "group-aborted": "none", "group-plain": "9 plain", "group-open": "none",
	})
	if _, _, err := newClient(t, second, kgo.TransactionalID("open")).ProducerID(ctx); err != nil { // ends the open one
		t.Fatal(err)
	}
	wantEnds(t, ctx, second, before, 1, 0)
	wantVisible(t, ctx, second, "committed")
}

// A broker that was stopped with an open transaction, and is killed before
// anything else happened, has files that look as if it had been stopped.
func TestTransactionOpenAtAStopIsAbortedByALaterKill(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	first := startHere(t, ctx, dir)
	history(t, ctx, first)
	before, _ := ends(t, ctx, first)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	startElsewhere(t, dir).kill()
	third := startHere(t, ctx, dir)
	wantEnds(t, ctx, third, before, 1, 0)
	wantVisible(t, ctx, third, "committed")
}

// copyDir copies a data directory whose broker is at rest.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// The broker writes a commit to several files. A kill may come after each write,
// and in the middle of one.
func TestKillAtEveryWriteOfACommitLeavesItWholeOrAbsent(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	b := startHere(t, ctx, dir)
	client := newClient(t, b, kgo.TransactionalID("tx"))
	transaction(t, ctx, client, "tx", "one", "group", 1)
	end(t, ctx, client, kgo.TryCommit)
	transaction(t, ctx, client, "tx", "two", "group", 2)
	before := copyDir(t, dir)
	end(t, ctx, client, kgo.TryCommit)
	after := copyDir(t, dir)
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}

	out := filepath.Join("data", "partitions", "out-")
	for _, order := range [][]string{{"0", "1"}, {"1", "0"}} {
		writes := []string{
			filepath.Join("data", "commit.strom"),
			filepath.Join(out+order[0], "0.dat"), filepath.Join(out+order[0], "0.idx"),
			filepath.Join(out+order[1], "0.dat"), filepath.Join(out+order[1], "0.idx"),
			filepath.Join("data", "groups.log"),
			filepath.Join("data", "pids.log"),
		}
		for done := range len(writes) + 1 {
			for _, torn := range []int{0, 5} { // bytes of the next write that made it
				if done == len(writes) && torn > 0 {
					continue
				}
				name := fmt.Sprintf("partition %s first, %d writes and %d bytes", order[0], done, torn)
				t.Run(name, func(t *testing.T) {
					ctx := withTimeout(t)
					copied := copyDir(t, before)
					for i, path := range writes {
						if i < done || i == done && torn > 0 {
							advance(t, path, before, after, copied, i == done, torn)
						}
					}
					want, offset := "one, two", "2 by tx"
					if done == 0 {
						want, offset = "one", "1 by tx"
					}
					restarted := startHere(t, ctx, copied)
					wantVisible(t, ctx, restarted, want)
					wantOffsets(t, ctx, restarted, map[string]string{"group": offset})
					next := newClient(t, restarted, kgo.TransactionalID("tx"))
					transaction(t, ctx, next, "tx", "three", "group", 3)
					end(t, ctx, next, kgo.TryCommit)
					wantVisible(t, ctx, restarted, want+", three")
				})
			}
		}
	}
}

// advance brings a file from its state before to that after, or only a few bytes
// of the way.
func advance(t *testing.T, path, before, after, target string, partly bool, bytes int) {
	t.Helper()
	was, err := os.ReadFile(filepath.Join(before, path))
	if err != nil {
		t.Fatal(err)
	}
	is, err := os.ReadFile(filepath.Join(after, path))
	if err != nil {
		t.Fatal(err)
	}
	if partly {
		at := len(was)
		if strings.HasSuffix(path, "commit.strom") {
			at = 0 // written in place
		}
		is = append(slices.Clone(is[:at+bytes]), was[min(len(was), at+bytes):]...)
	}
	if err := os.WriteFile(filepath.Join(target, path), is, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A kill between the two writes of a batch leaves it without its index entry.
func TestBatchWithoutIndexEntryStaysInItsTransaction(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	b := startHere(t, ctx, dir)
	history(t, ctx, b)
	copied := copyDir(t, dir)
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	for p := range 2 {
		index := filepath.Join(copied, "data", "partitions", fmt.Sprintf("out-%d", p), "0.idx")
		info, err := os.Stat(index)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(index, info.Size()-15); err != nil {
			t.Fatal(err)
		}
	}
	restarted := startHere(t, ctx, copied)
	wantVisible(t, ctx, restarted, "committed")
	client := newClient(t, restarted, kgo.TransactionalID("open"))
	transaction(t, ctx, client, "open", "later", "group-open", 12)
	end(t, ctx, client, kgo.TryCommit)
	wantVisible(t, ctx, restarted, "committed, later")
}
