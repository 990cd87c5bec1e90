package local

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/event"
)

// Writer writes the records of files into one topic. It is for one goroutine.
type Writer struct {
	client     *kgo.Client
	topic      string
	partitions int32
	turn       int32

	mu  sync.Mutex // guards err
	err error      // the first failure
}

// PartitionError says that a record names a partition that its topic lacks.
type PartitionError struct {
	Topic                 string
	Partition, Partitions int32
}

// Error gives the whole.
func (e *PartitionError) Error() string {
	return fmt.Sprintf("topic %s has no partition %d, it has %d", e.Topic, e.Partition, e.Partitions)
}

// RefusedError says that the broker takes no record of this size.
type RefusedError struct {
	Topic string
	Line  int // of the file
	Bytes int
	Err   error
}

// Error gives the whole.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("this record of %d bytes is too large for topic %s: %v", e.Bytes, e.Topic, e.Err)
}

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// NewWriter opens a writer for a topic that exists.
func NewWriter(ctx context.Context, brokers []string, topic string) (*Writer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	details, err := kadm.NewClient(client).ListTopics(ctx, topic)
	if err = errors.Join(err, details.Error()); err != nil {
		client.Close()
		return nil, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	return &Writer{client: client, topic: topic, partitions: int32(len(details[topic].Partitions))}, nil
}

// Partitions is the number of partitions of the topic.
func (w *Writer) Partitions() int32 { return w.partitions }

// Write hands a record to the broker. It goes to the partition that it names,
// else to that of its key (murmur2, as Kafka's own producers do), else to one
// after the other. A failure shows here or at Flush.
func (w *Writer) Write(ctx context.Context, r feed.Record) error {
	k := &kgo.Record{Topic: w.topic, Key: r.Key, Value: r.Value, Partition: w.partition(&r)}
	if k.Partition >= w.partitions {
		return &PartitionError{Topic: w.topic, Partition: k.Partition, Partitions: w.partitions}
	}
	if r.Timed {
		k.Timestamp = r.Timestamp.Time()
	}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	w.client.Produce(ctx, k, func(_ *kgo.Record, err error) {
		if err == nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case w.err != nil:
		case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
			w.err = &RefusedError{Topic: w.topic, Line: r.Line, Bytes: len(k.Key) + len(k.Value), Err: err}
		default:
			w.err = fmt.Errorf("write to topic %s: %w", w.topic, err)
		}
	})
	return w.failed()
}

func (w *Writer) partition(r *feed.Record) int32 {
	switch {
	case r.Partition != nil:
		return int32(*r.Partition)
	case r.Key != nil:
		return int32(event.PartitionOf(r.Key, w.partitions))
	}
	w.turn = (w.turn + 1) % w.partitions
	return w.turn
}

func (w *Writer) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Flush waits until everything is written.
func (w *Writer) Flush(ctx context.Context) error {
	return errors.Join(w.client.Flush(ctx), w.failed())
}

// Close ends the connection; what has not been flushed may be lost.
func (w *Writer) Close() { w.client.Close() }
