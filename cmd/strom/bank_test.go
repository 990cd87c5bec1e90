package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/sinks/ontology"
)

// The bank: transfers between accounts, one event each. Debits and credits are
// counted in different tasks behind different repartition topics, so whoever
// shows half of a transfer shows money that there is not.
const bankMapping = `
pipeline: bank
epoch: {interval: 50ms}
streams:
  transfers:
    topic: transfers
    key: id
    identity: {event_id: id, horizon: 1h}
    event_time: {field: ts_us, format: us}
    watermark: {out_of_orderness: 2s, idle_after: 5s}
    allowed_lateness: 3s
objects:
  Account:
    aggregates:
      credits: {from: transfers, id: to_account, window: none, values: {n: count(), amount: sum(amount)}}
      debits: {from: transfers, id: from_account, window: none, values: {n: count(), amount: sum(amount)}}
      tens: {from: transfers, id: to_account, window: {tumbling: 10s}, values: {n: count()}}
`

const bankAccounts = 10

// transfer is one event; its fields are those of the vectors.
type transfer struct {
	Arrival int64 `json:"arrival_us"`
	ID      int   `json:"id"`
	From    int   `json:"from_account"`
	To      int   `json:"to_account"`
	Amount  int   `json:"amount"`
	At      int64 `json:"ts_us"`
}

// record is the transfer in its topic.
func (t *transfer) record() (*kgo.Record, error) {
	value, err := json.Marshal(t)
	return &kgo.Record{Topic: "transfers", Key: []byte(strconv.Itoa(t.ID)), Value: value}, err
}

// splitmix64 is the generator that the vectors name.
type splitmix64 uint64

func (s *splitmix64) next() uint64 {
	*s += 0x9E3779B97F4A7C15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// transfers generates n of them, in the order of their arrival.
func transfers(seed uint64, n int) []transfer {
	rng := splitmix64(seed)
	out := make([]transfer, n)
	for id := range out {
		t := transfer{ID: id, Amount: 1, At: int64(60*id/n) * 1e6}
		t.From, t.To = int(rng.next()%bankAccounts), int(rng.next()%bankAccounts)
		t.Arrival = t.At + int64(rng.next()%10_000_000)
		out[id] = t
	}
	slices.SortStableFunc(out, func(a, b transfer) int { return int(a.Arrival - b.Arrival) })
	return out
}

// ledger is what the bank's books must say: by account, and credits by account
// and piece of ten seconds.
type ledger struct {
	credits, debits [bankAccounts]int
	tens            [bankAccounts][6]int
}

func (l *ledger) book(t *transfer) {
	l.credits[t.To] += t.Amount
	l.debits[t.From] += t.Amount
	l.tens[t.To][t.At/10e6] += t.Amount
}

func (l *ledger) total() (credits, debits int) {
	for a := range bankAccounts {
		credits, debits = credits+l.credits[a], debits+l.debits[a]
	}
	return credits, debits
}

// set takes up a value of the ontology.
func (l *ledger) set(f *ontology.Fact) error {
	account, err := strconv.Atoi(f.ID)
	if err != nil || account < 0 || account >= bankAccounts {
		return fmt.Errorf("account %q", f.ID)
	}
	n, err := strconv.Atoi(f.Value.Text)
	if err != nil {
		return fmt.Errorf("%s of account %s: %w", f.Property, f.ID, err)
	}
	switch f.Property {
	case "credits.amount":
		l.credits[account] = n
	case "debits.amount":
		l.debits[account] = n
	case "tens.n":
		l.tens[account][f.ValidFrom/10e6] = n
	}
	return nil
}

// believed is the ledger as of a recorded time.
func believed(ctx context.Context, r *ontology.Reader, at event.RecordedTime) (ledger, error) {
	var l ledger
	for f, err := range r.AsOf(ctx, ontology.Question{Type: "Account", Recorded: at}) {
		if err == nil {
			err = l.set(&f)
		}
		if err != nil {
			return l, fmt.Errorf("as of %s: %w", at, err)
		}
	}
	return l, nil
}

// openBank opens the ontology for questions.
func openBank(t *testing.T, postgres string) *ontology.Reader {
	t.Helper()
	r, err := ontology.OpenReader(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(postgres)}, ontology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// barrier is an announcement as the control topic has it.
type barrier struct {
	Epoch    event.Epoch        `json:"epoch"`
	Recorded event.RecordedTime `json:"recorded"`
	Who      string             `json:"coordinator"`
	at       time.Time          // when the log took it
}

// barriers reads all announcements that are committed.
func barriers(t *testing.T, brokers []string, topic string) []barrier {
	t.Helper()
	var out []barrier
	for _, r := range committed(t, brokers, topic) {
		var kind struct{ Kind string }
		if err := json.Unmarshal(r.Value, &kind); err != nil {
			t.Fatal(err)
		}
		if kind.Kind != "barrier" {
			continue
		}
		b := barrier{at: r.Timestamp}
		if err := json.Unmarshal(r.Value, &b); err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// committed reads what a topic holds now, up to its last stable offset.
func committed(t *testing.T, brokers []string, topic string) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ends, err := kadm.NewClient(client).ListCommittedOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := map[int32]bool{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = true
		}
	})
	var out []*kgo.Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read %s: %v", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
			if o, _ := ends.Lookup(topic, r.Partition); r.Offset >= o.Offset-1 {
				delete(left, r.Partition)
			}
		})
	}
	return out
}

// checkBarriers makes sure that the announcements are one sequence: no number
// missing or twice, recorded time strictly increasing.
func checkBarriers(t *testing.T, all []barrier) {
	t.Helper()
	for i := range all {
		if all[i].Epoch != event.Epoch(i+1) {
			t.Fatalf("announcement %d is of epoch %s", i+1, all[i].Epoch)
		}
		if i > 0 && all[i].Recorded <= all[i-1].Recorded {
			t.Fatalf("recorded time %s of epoch %s does not lie after %s", all[i].Recorded, all[i].Epoch, all[i-1].Recorded)
		}
	}
}

// checkEveryRecordedTime asks for the books at each barrier, and one
// microsecond before it: no transfer is ever seen by half, and none vanishes.
func checkEveryRecordedTime(t *testing.T, r *ontology.Reader, all []barrier) {
	t.Helper()
	bounds, err := r.Bounds(t.Context(), "Account")
	if err != nil {
		t.Fatal(err)
	}
	asked, before := 0, 0
	for i := range all {
		for _, at := range []event.RecordedTime{all[i].Recorded - 1, all[i].Recorded} {
			if at < bounds.Floor || at > bounds.Horizon {
				continue
			}
			l, err := believed(t.Context(), r, at)
			if err != nil {
				t.Fatal(err)
			}
			credits, debits := l.total()
			if credits != debits {
				t.Fatalf("as of %s, epoch %s: %d credited, %d debited", at, all[i].Epoch, credits, debits)
			}
			if credits < before {
				t.Fatalf("as of %s, epoch %s: %d transfers after %d", at, all[i].Epoch, credits, before)
			}
			asked, before = asked+1, credits
		}
	}
	if asked < len(all) {
		t.Errorf("only %d recorded times could be asked for, of %d barriers", asked, len(all))
	}
	t.Logf("balanced at %d recorded times", asked)
}

// The vectors' own figures hold for the generator and for the model.
func TestTheBankIsTheVectors(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(repo(t), "../shared/vectors/streaming-consistency/params.json"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the vectors are not there: ../shared/vectors/streaming-consistency")
	}
	if err != nil {
		t.Fatal(err)
	}
	var params struct {
		Runs []struct {
			Seed      uint64
			Transfers int
			First     []transfer        `json:"first_rows_in_arrival_order"`
			Credits   [bankAccounts]int `json:"final_credits"`
			Debits    [bankAccounts]int `json:"final_debits"`
			Tens      struct {
				Counts [bankAccounts][6]int
			} `json:"tumbling_10s_credits"`
		}
	}
	if err := json.Unmarshal(raw, &params); err != nil {
		t.Fatal(err)
	}
	if len(params.Runs) == 0 {
		t.Fatal("no runs")
	}
	for _, run := range params.Runs {
		all := transfers(run.Seed, run.Transfers)
		var l ledger
		for i := range all {
			l.book(&all[i])
		}
		if !slices.Equal(all[:len(run.First)], run.First) {
			t.Errorf("seed %d begins with %+v, want %+v", run.Seed, all[:len(run.First)], run.First)
		}
		if want := (ledger{run.Credits, run.Debits, run.Tens.Counts}); l != want {
			t.Errorf("seed %d: %+v, want %+v", run.Seed, l, want)
		}
	}
}
