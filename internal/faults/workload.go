package faults

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology"
)

// generation is the one that replicas run.
const generation event.Generation = 1

// workload is a pipeline with its records, and what they must end in.
type workload struct {
	// mapping is the text of the mapping file.
	mapping string
	// topics are made before anything runs: the inputs, and those of the
	// pipeline's own whose number of partitions matters.
	topics map[string]int32
	inputs []string
	// records stand in the order in which they are produced.
	records []*kgo.Record
	// atOnce: all records become visible together. Under the log's clock what
	// is cut depends on what the log holds.
	atOnce bool
	// want is what the records of the inputs, as the broker has them, must end in.
	want func(inputs []*kgo.Record) (outcome, error)
	// got is the same from the ontology.
	got func(ctx context.Context, r *ontology.Reader) ([]string, error)
	// balance is a query for recorded times at which a snapshot holds half of
	// an event, "" where there is none.
	balance string
}

// outcome is what records end in: lines that compare as they are, sorted.
type outcome struct {
	believed    []string
	deadLetters []string // reason, then bytes
}

// The pace at which a workload produces: some records for every epoch that is
// announced, so that there are many epochs however slow the machine is; where
// none is announced, some now and then.
const (
	feedRecords = 40
	feedEvery   = 20 * time.Millisecond
	feedAtLeast = 400 * time.Millisecond
)

// feed produces a workload's records in the background.
type feed struct {
	epoch func() int64 // the newest announced
	hurry sync.Once
	rush  chan struct{} // closed: no more pauses
	done  chan struct{} // closed: all is produced, or err says why not
	err   error
}

func startFeed(ctx context.Context, b Broker, w *workload, epoch func() int64) *feed {
	f := &feed{epoch: epoch, rush: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		if w.atOnce {
			f.err = produceAtOnce(ctx, b, w.records)
		} else {
			f.err = f.produce(ctx, b, w.records)
		}
	}()
	return f
}

// finish produces the rest without pauses and waits for it.
func (f *feed) finish() error {
	f.hurry.Do(func() { close(f.rush) })
	<-f.done
	return f.err
}

func (f *feed) produce(ctx context.Context, b Broker, records []*kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return err
	}
	defer client.Close()
	for len(records) > 0 {
		was := f.epoch()
		n := min(feedRecords, len(records))
		if err := client.ProduceSync(ctx, records[:n]...).FirstErr(); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
		records = records[n:]
		if err := f.pause(ctx, was); err != nil {
			return err
		}
	}
	return nil
}

// pause waits until an epoch has been announced after the one that was.
func (f *feed) pause(ctx context.Context, was int64) error {
	tick := time.NewTicker(feedEvery)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-f.rush:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.epoch() > was || time.Since(began) > feedAtLeast {
			return nil
		}
	}
}

// produceAtOnce produces in one transaction. The records are of one topic, after
// which the transaction is named.
func produceAtOnce(ctx context.Context, b Broker, records []*kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...), kgo.TransactionalID("feed-"+records[0].Topic),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

// renamed gives a mapping a pipeline and topics of its own, so that cases do
// not meet on a broker that they share. Every name ends in a dot-free suffix.
func renamed(mapping, pipeline string, topics map[string]string) string {
	lines := strings.Split(mapping, "\n")
	for i, line := range lines {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch {
		case key == "pipeline":
			lines[i] = "pipeline: " + pipeline
		case key == "topic" && topics[value] != "":
			lines[i] = indent + "topic: " + topics[value]
		}
	}
	return strings.Join(lines, "\n")
}

func micros(t event.EventTime) string { return strconv.FormatInt(int64(t), 10) }
