package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topic names the input: inputs that differ have other names.
func (in *Input) topic() string {
	return fmt.Sprintf("bench-input-%016x", xxhash.Sum64String(fmt.Sprintf("%+v", *in)))
}

// load produces a source into a topic of its own, where it is not there yet.
func load(ctx context.Context, brokers []string, from source) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	topic := from.topic()
	adm := kadm.NewClient(client)
	if _, err := adm.CreateTopic(ctx, from.partitions(), 1, nil, topic); errors.Is(err, kerr.TopicAlreadyExists) {
		return checkLoaded(ctx, adm, from)
	} else if err != nil {
		return fmt.Errorf("make the topic %s: %w", topic, err)
	}
	if err := produce(ctx, brokers, topic, from.all()); err != nil {
		return err
	}
	return checkLoaded(ctx, adm, from)
}

// produce produces records to a topic, and returns when the broker has all.
// Partitions are those of Kafka's Java producers.
func produce(ctx context.Context, brokers []string, topic string, records iter.Seq[*kgo.Record]) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.SnappyCompression()), kgo.ProducerLinger(50*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	}
	for r := range records {
		if failed.Load() != nil {
			break
		}
		client.Produce(ctx, r, promise)
	}
	err = client.Flush(ctx)
	if f := failed.Load(); f != nil {
		err = *f
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", topic, err)
	}
	return nil
}

// checkLoaded makes sure that a topic holds all records, and nothing else.
func checkLoaded(ctx context.Context, adm *kadm.Client, from source) error {
	ends, err := adm.ListEndOffsets(ctx, from.topic())
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", from.topic(), err)
	}
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	if n != from.count() {
		return fmt.Errorf("the topic %s holds %d records of %d: an earlier run was interrupted; delete it", from.topic(), n, from.count())
	}
	return nil
}

// readCommitted passes every committed record of the topics to fn, from the
// beginning to the end that they have now, each partition in order.
func readCommitted(ctx context.Context, brokers []string, fn func(*kgo.Record) error, topics ...string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListCommittedOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("look at %v: %w", topics, err)
	}
	type place struct {
		topic     string
		partition int32
	}
	left := map[place]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[place{o.Topic, o.Partition}] = o.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("read %v: %w", topics, err)
		}
		var bad error
		fetches.EachError(func(t string, p int32, err error) { bad = fmt.Errorf("read %s/%d: %w", t, p, err) })
		fetches.EachRecord(func(r *kgo.Record) {
			at := place{r.Topic, r.Partition}
			end, ok := left[at]
			if !ok || bad != nil {
				return
			}
			if !r.Attrs.IsControl() {
				bad = fn(r)
			}
			if r.Offset+1 >= end {
				delete(left, at)
			}
		})
		if bad != nil {
			return bad
		}
	}
	return nil
}

// forget deletes the topics of a run, so that they take no more room. What
// fails here is no fault of the run.
func forget(ctx context.Context, brokers []string, id string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		return
	}
	for _, t := range topics.Names() {
		if strings.Contains(t, id) {
			_, _ = adm.DeleteTopics(ctx, t)
		}
	}
}

// createTopic makes a topic for results.
func createTopic(ctx context.Context, brokers []string, topic string, partitions int32) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		return fmt.Errorf("make the topic %s: %w", topic, err)
	}
	return nil
}

// awaitCommitted waits until a group has committed all of the input.
func awaitCommitted(ctx context.Context, brokers []string, group string, from source) (time.Time, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return time.Time{}, err
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-tick.C:
		}
		offsets, err := adm.FetchOffsets(ctx, group)
		if err != nil {
			continue // the group is not there yet
		}
		now := time.Now()
		var n int64
		offsets.Each(func(o kadm.OffsetResponse) {
			if o.Topic == from.topic() && o.Err == nil {
				n += max(o.At, 0)
			}
		})
		if n >= from.count() {
			return now, nil
		}
	}
}
