package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	osexec "os/exec"
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
	part.Offset, part.Metadata = offset, kmsg.StringPtr("by "+txid)
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

// history is what both restart tests find: a committed, an aborted and an open
// transaction, a plain group commit.
func history(t *testing.T, ctx context.Context, b interface{ Brokers() []string }) {
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
}

// committed reads topic "out" to the last stable offset, per partition.
func committed(t *testing.T, ctx context.Context, b interface{ Brokers() []string }) map[int32][]string {
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

func offsets(t *testing.T, ctx context.Context, b interface{ Brokers() []string }, group string) string {
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

func wantOffsets(t *testing.T, ctx context.Context, b interface{ Brokers() []string }, want map[string]string) {
	t.Helper()
	for _, group := range slices.Sorted(maps.Keys(want)) {
		if got := offsets(t, ctx, b, group); got != want[group] {
			t.Errorf("%s: offset %s, want %s", group, got, want[group])
		}
	}
}

func ends(t *testing.T, ctx context.Context, b interface{ Brokers() []string }) (high, stable kadm.ListedOffsets) {
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

func TestKilledBrokerKeepsWhatWasCommittedAndNothingElse(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	other := startElsewhere(t, dir)
	history(t, ctx, other)
	before, _ := ends(t, ctx, other)
	if _, err := embedded.Start(ctx, embedded.Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(other.cmd.Process.Pid)) {
		t.Fatalf("got %v, want that process %d has the directory", err, other.cmd.Process.Pid)
	}
	other.kill()

	b, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Topics: map[string]int32{"out": 2, "in": 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Stop() }()
	for p, values := range committed(t, ctx, b) {
		if strings.Join(values, " ") != "committed" {
			t.Errorf("partition %d: %v is visible", p, values)
		}
	}
	wantOffsets(t, ctx, b, map[string]string{
		"group-committed": "7 by ended", "group-aborted": "none", "group-plain": "9 plain", "group-open": "none",
	})
	high, stable := ends(t, ctx, b)
	high.Each(func(o kadm.ListedOffset) {
		was, _ := before.Lookup("out", o.Partition)
		lso, _ := stable.Lookup("out", o.Partition)
		if o.Offset != was.Offset+1 || lso.Offset != o.Offset {
			t.Errorf("partition %d: end %d, was %d, and one marker; last stable offset %d", o.Partition, o.Offset, was.Offset, lso.Offset)
		}
	})

	// The transactional ids are known, and go on.
	again := newClient(t, b, kgo.TransactionalID("open"))
	transaction(t, ctx, again, "open", "second life", "group-open", 11)
	end(t, ctx, again, kgo.TryCommit)
	wantOffsets(t, ctx, b, map[string]string{"group-open": "11 by open"})
	for p, values := range committed(t, ctx, b) {
		if strings.Join(values, " ") != "committed" && strings.Join(values, " ") != "committed second life" {
			t.Errorf("partition %d: %v is visible", p, values)
		}
	}
}

func TestStoppedBrokerKeepsAnOpenTransactionOpen(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	first, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Topics: map[string]int32{"out": 2, "in": 1}})
	if err != nil {
		t.Fatal(err)
	}
	history(t, ctx, first)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	b, err := embedded.Start(ctx, embedded.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Stop() }()
	high, stable := ends(t, ctx, b)
	high.Each(func(o kadm.ListedOffset) {
		if lso, _ := stable.Lookup("out", o.Partition); lso.Offset != o.Offset-1 {
			t.Errorf("partition %d: end %d, last stable offset %d", o.Partition, o.Offset, lso.Offset)
		}
	})
	wantOffsets(t, ctx, b, map[string]string{
		"group-committed": "7 by ended", "group-aborted": "none", "group-plain": "9 plain", "group-open": "none",
	})
	if _, _, err := newClient(t, b, kgo.TransactionalID("open")).ProducerID(ctx); err != nil { // ends the open one
		t.Fatal(err)
	}
	high, stable = ends(t, ctx, b)
	high.Each(func(o kadm.ListedOffset) {
		if lso, _ := stable.Lookup("out", o.Partition); lso.Offset != o.Offset {
			t.Errorf("partition %d: end %d, last stable offset %d", o.Partition, o.Offset, lso.Offset)
		}
	})
	for p, values := range committed(t, ctx, b) {
		if strings.Join(values, " ") != "committed" {
			t.Errorf("partition %d: %v is visible", p, values)
		}
	}
}
