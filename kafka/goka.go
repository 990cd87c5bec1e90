package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

// consumerGroup is goka's view of the group consumer.
type consumerGroup struct{ member *member }

var _ sarama.ConsumerGroup = (*consumerGroup)(nil)

// Consume implements sarama.ConsumerGroup; it returns when ctx ends or the
// member fails, not with every rebalance.
func (g *consumerGroup) Consume(ctx context.Context, _ []string, h sarama.ConsumerGroupHandler) error {
	return g.member.consume(ctx, h)
}

// Errors implements sarama.ConsumerGroup; errors come back from Consume.
func (g *consumerGroup) Errors() <-chan error { return nil }

// Close implements sarama.ConsumerGroup.
func (g *consumerGroup) Close() error { return nil }

// Pause implements sarama.ConsumerGroup; the poll loop bounds itself.
func (g *consumerGroup) Pause(map[string][]int32) {}

// Resume implements sarama.ConsumerGroup.
func (g *consumerGroup) Resume(map[string][]int32) {}

// PauseAll implements sarama.ConsumerGroup.
func (g *consumerGroup) PauseAll() {}

// ResumeAll implements sarama.ConsumerGroup.
func (g *consumerGroup) ResumeAll() {}

// groupSession is goka's view of a session.
type groupSession struct{ session *session }

var _ sarama.ConsumerGroupSession = groupSession{}

// Claims implements sarama.ConsumerGroupSession.
func (s groupSession) Claims() map[string][]int32 { return s.session.claims }

// MemberID implements sarama.ConsumerGroupSession.
func (s groupSession) MemberID() string { return s.session.memberID }

// GenerationID implements sarama.ConsumerGroupSession.
func (s groupSession) GenerationID() int32 { return s.session.generation }

// Context implements sarama.ConsumerGroupSession.
func (s groupSession) Context() context.Context { return s.session.ctx }

// MarkOffset does nothing: an epoch commits exactly its barrier's offsets.
func (s groupSession) MarkOffset(string, int32, int64, string) {}

// ResetOffset does nothing.
func (s groupSession) ResetOffset(string, int32, int64, string) {}

// MarkMessage does nothing.
func (s groupSession) MarkMessage(*sarama.ConsumerMessage, string) {}

// Commit does nothing.
func (s groupSession) Commit() {}

// groupClaim is goka's view of one input of one task.
type groupClaim struct {
	topic    string
	task     *task
	messages chan *sarama.ConsumerMessage
}

var _ sarama.ConsumerGroupClaim = (*groupClaim)(nil)

// Topic implements sarama.ConsumerGroupClaim.
func (c *groupClaim) Topic() string { return c.topic }

// Partition implements sarama.ConsumerGroupClaim.
func (c *groupClaim) Partition() int32 { return int32(c.task.id.Partition) }

// InitialOffset implements sarama.ConsumerGroupClaim.
func (c *groupClaim) InitialOffset() int64 { return int64(c.task.start) }

// HighWaterMarkOffset implements sarama.ConsumerGroupClaim.
func (c *groupClaim) HighWaterMarkOffset() int64 { return 0 }

// Messages implements sarama.ConsumerGroupClaim.
func (c *groupClaim) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

// tableConsumer is goka's view of a consumer: it reads changelogs.
type tableConsumer struct{ member *member }

var _ sarama.Consumer = (*tableConsumer)(nil)

// Topics implements sarama.Consumer.
func (c *tableConsumer) Topics() ([]string, error) { return nil, nil }

// Partitions implements sarama.Consumer.
func (c *tableConsumer) Partitions(string) ([]int32, error) { return nil, nil }

// HighWaterMarks implements sarama.Consumer; goka uses it for its own statistics.
func (c *tableConsumer) HighWaterMarks() map[string]map[int32]int64 { return nil }

// Close implements sarama.Consumer.
func (c *tableConsumer) Close() error { return nil }

// Pause implements sarama.Consumer.
func (c *tableConsumer) Pause(map[string][]int32) {}

// Resume implements sarama.Consumer.
func (c *tableConsumer) Resume(map[string][]int32) {}

// PauseAll implements sarama.Consumer.
func (c *tableConsumer) PauseAll() {}

// ResumeAll implements sarama.Consumer.
func (c *tableConsumer) ResumeAll() {}

// ConsumePartition reads a changelog partition from offset on. goka stops
// reading when it has seen the offset before the high watermark, which in a
// transactional topic is a control record: the last slab says that offset.
func (c *tableConsumer) ConsumePartition(topic string, partition int32, offset int64) (sarama.PartitionConsumer, error) {
	client, err := c.member.engine.newClient(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(offset)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // as for the control topic
	)
	if err != nil {
		return nil, fmt.Errorf("read changelog %s/%d: %w", topic, partition, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &partitionConsumer{
		member: c.member, client: client, cancel: cancel, topic: topic, partition: partition, next: offset,
		messages: make(chan *sarama.ConsumerMessage), errors: make(chan *sarama.ConsumerError, 1),
	}
	go p.run(ctx)
	return p, nil
}

// partitionConsumer delivers a changelog partition as slabs.
type partitionConsumer struct {
	member    *member
	client    *kgo.Client
	cancel    context.CancelFunc
	topic     string
	partition int32
	next      int64
	messages  chan *sarama.ConsumerMessage
	errors    chan *sarama.ConsumerError
}

var _ sarama.PartitionConsumer = (*partitionConsumer)(nil)

func (p *partitionConsumer) run(ctx context.Context) {
	defer close(p.messages)
	defer close(p.errors)
	defer p.client.Close()
	high, err := p.high(ctx)
	for err == nil && p.next < high {
		err = p.slab(ctx)
		if err == nil && p.next < high {
			p.member.engine.config.At("recovery.slab")
		}
	}
	if err != nil && ctx.Err() == nil {
		p.member.metInRecovery(err)
		p.errors <- &sarama.ConsumerError{Topic: p.topic, Partition: p.partition, Err: err}
	}
	<-ctx.Done()
}

func (p *partitionConsumer) high(ctx context.Context) (int64, error) {
	b, err := partitionBounds(ctx, kadm.NewClient(p.client), p.topic, event.Partition(p.partition))
	return int64(b.high), err
}

// slab delivers one poll as one message.
func (p *partitionConsumer) slab(ctx context.Context) error {
	fetches := p.client.PollRecords(ctx, p.member.engine.config.PollRecords)
	if err := fetchError(ctx, fetches); err != nil {
		return err
	}
	var changes []state.Change
	at := time.Time{}
	for it := fetches.RecordIter(); !it.Done(); {
		r := it.Next()
		p.next, at = r.Offset+1, r.Timestamp
		if !r.Attrs.IsControl() {
			changes = append(changes, state.Change{Key: r.Key, Value: r.Value})
		}
	}
	if fetches.NumRecords() == 0 {
		return nil
	}
	last := p.next - 1
	msg := &sarama.ConsumerMessage{
		Topic: p.topic, Partition: p.partition, Offset: last, Timestamp: at,
		Value: state.EncodeSlab(changes, event.Offset(last)),
	}
	select {
	case p.messages <- msg:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AsyncClose implements sarama.PartitionConsumer.
func (p *partitionConsumer) AsyncClose() { p.cancel() }

// Close implements sarama.PartitionConsumer.
func (p *partitionConsumer) Close() error {
	p.cancel()
	return nil
}

// Messages implements sarama.PartitionConsumer.
func (p *partitionConsumer) Messages() <-chan *sarama.ConsumerMessage { return p.messages }

// Errors implements sarama.PartitionConsumer.
func (p *partitionConsumer) Errors() <-chan *sarama.ConsumerError { return p.errors }

// HighWaterMarkOffset implements sarama.PartitionConsumer.
func (p *partitionConsumer) HighWaterMarkOffset() int64 { return 0 }

// Pause implements sarama.PartitionConsumer.
func (p *partitionConsumer) Pause() {}

// Resume implements sarama.PartitionConsumer.
func (p *partitionConsumer) Resume() {}

// IsPaused implements sarama.PartitionConsumer.
func (p *partitionConsumer) IsPaused() bool { return false }
