package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
)

// MissingTopicError says that an input topic of the mapping does not exist.
type MissingTopicError struct{ Stream, Topic string }

// Error says what to do as well.
func (e *MissingTopicError) Error() string {
	return fmt.Sprintf("stream %q: topic %q does not exist; create it, or correct streams.%s.topic in the mapping", e.Stream, e.Topic, e.Stream)
}

// layout is how many partitions the pipeline's topics have.
type layout struct {
	// tasks is the number of tasks of each stage, by its name.
	tasks   map[string]int32
	results int32
	cluster string
	// largest is the size of the largest record that a source may hold.
	largest int
	// ends is where the input topics end for a run until the end, else nil.
	ends map[string]map[int32]int64
}

// all is how many tasks the pipeline has. One replica may have to run them all.
func (l *layout) all() int {
	n := 0
	for _, tasks := range l.tasks {
		n += int(tasks)
	}
	return n
}

// prepareTopics creates what is missing of the pipeline's own topics, and
// learns the partition counts. Counts of topics that exist are kept.
func (e *Engine) prepareTopics(ctx context.Context) error {
	adm := kadm.NewClient(e.client)
	meta, err := adm.Metadata(ctx)
	if err != nil {
		return fmt.Errorf("read the cluster's metadata: %w", err)
	}
	l := layout{tasks: map[string]int32{}, cluster: meta.Cluster}
	widest := int32(1)
	for _, s := range e.topology.Stages {
		if !s.Source() {
			continue
		}
		d, ok := meta.Topics[s.Input]
		if !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			return &MissingTopicError{Stream: s.Stream.Name, Topic: s.Input}
		}
		l.tasks[s.Name] = int32(len(d.Partitions))
		widest = max(widest, l.tasks[s.Name])
	}
	ensure := func(topic string, partitions int32, config map[string]*string) (int32, error) {
		if d, ok := meta.Topics[topic]; ok && d.Err == nil {
			return int32(len(d.Partitions)), nil
		}
		return partitions, createTopic(ctx, adm, topic, partitions, config)
	}
	if l.largest, err = largestRecord(ctx, adm, e.topology); err != nil {
		return err
	}
	e.layout.largest = l.largest
	if l.results, err = e.ensureOwn(&l, widest, ensure); err != nil {
		return err
	}
	if e.config.UntilEnd {
		if l.ends, err = inputEnds(ctx, adm, e.topology); err != nil {
			return err
		}
	}
	e.layout = l
	return nil
}

type ensureTopic func(topic string, partitions int32, config map[string]*string) (int32, error)

func (e *Engine) ensureOwn(l *layout, widest int32, ensure ensureTopic) (int32, error) {
	t := e.topology
	// Our own topics keep everything until it is applied.
	keep := map[string]*string{
		"cleanup.policy": new("delete"), "retention.ms": new("-1"),
		"retention.bytes": new("-1"), "max.message.bytes": new("10485760"),
	}
	if n, err := ensure(t.ControlTopic(), 1, keep); err != nil {
		return 0, err
	} else if n != 1 {
		return 0, fmt.Errorf("topic %s has %d partitions and must have one; somebody else made it: remove it", t.ControlTopic(), n)
	}
	if _, err := ensure(t.DeadLetterTopic(), 1, e.deadLetterConfig(keep)); err != nil {
		return 0, err
	}
	results, err := ensure(t.ResultsTopic(), widest, keep)
	if err != nil {
		return 0, err
	}
	for _, s := range t.Stages {
		if !s.Source() {
			if l.tasks[s.Name], err = ensure(s.Input, l.tasks[s.Upstream.Name], keep); err != nil {
				return 0, err
			}
		}
		compacted := map[string]*string{
			"cleanup.policy": new("compact"), "max.message.bytes": new("10485760"),
		}
		n, err := ensure(t.Changelog(s), l.tasks[s.Name], compacted)
		if err != nil {
			return 0, err
		}
		if n != l.tasks[s.Name] {
			return 0, fmt.Errorf("topic %s has %d partitions but its changelog %s has %d: the topic was enlarged; changing a partition count is a migration",
				s.Input, l.tasks[s.Name], t.Changelog(s), n)
		}
	}
	return results, nil
}

// deadLetterConfig makes room for the largest record of any source with what
// is added to it, and takes timestamps as they are, however far off.
func (e *Engine) deadLetterConfig(keep map[string]*string) map[string]*string {
	out := maps.Clone(keep)
	out["max.message.bytes"] = new(strconv.Itoa(e.layout.largest + deadLetterRoom))
	out["message.timestamp.after.max.ms"] = new("9223372036854775807")
	out["message.timestamp.before.max.ms"] = new("9223372036854775807")
	return out
}

// deadLetterRoom is what a dead letter's own headers may take.
const deadLetterRoom = 64 << 10

// largestRecord is the greatest max.message.bytes of the sources, at least ten
// megabytes.
func largestRecord(ctx context.Context, adm *kadm.Client, t *processors.Topology) (int, error) {
	var sources []string
	for _, s := range t.Stages {
		if s.Source() {
			sources = append(sources, s.Input)
		}
	}
	largest := 10 << 20
	configs, err := adm.DescribeTopicConfigs(ctx, sources...)
	if err != nil {
		return 0, fmt.Errorf("read the configuration of the input topics: %w", err)
	}
	for _, c := range configs {
		for _, v := range c.Configs {
			if n, err := strconv.Atoi(v.MaybeValue()); err == nil && v.Key == "max.message.bytes" {
				largest = max(largest, n)
			}
		}
	}
	return largest, nil
}

func createTopic(ctx context.Context, adm *kadm.Client, topic string, partitions int32, config map[string]*string) error {
	_, err := adm.CreateTopic(ctx, partitions, -1, config, topic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return waitForTopic(ctx, adm, topic)
}

// waitForTopic waits until a topic just made has a leader for each partition.
func waitForTopic(ctx context.Context, adm *kadm.Client, topic string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err == nil && ends.Error() == nil && len(ends[topic]) > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for topic %s: %w", topic, errors.Join(ctx.Err(), err, ends.Error()))
		case <-tick.C:
		}
	}
}

func inputEnds(ctx context.Context, adm *kadm.Client, t *processors.Topology) (map[string]map[int32]int64, error) {
	out := map[string]map[int32]int64{}
	for _, s := range t.Stages {
		if !s.Source() {
			continue
		}
		ends, err := adm.ListCommittedOffsets(ctx, s.Input)
		if err = errors.Join(err, ends.Error()); err != nil {
			return nil, fmt.Errorf("find the end of topic %s: %w", s.Input, err)
		}
		out[s.Input] = map[int32]int64{}
		for p, o := range ends[s.Input] {
			out[s.Input][p] = o.Offset
		}
	}
	return out, nil
}

// bounds are the first offset, the last stable offset and the high watermark
// of a partition.
type bounds struct{ start, stable, high event.Offset }

func partitionBounds(ctx context.Context, adm *kadm.Client, topic string, p event.Partition) (bounds, error) {
	all, err := topicBounds(ctx, adm, topic)
	if err != nil {
		return bounds{}, err
	}
	b, ok := all[p]
	if !ok {
		return b, fmt.Errorf("topic %s has no partition %s", topic, p)
	}
	return b, nil
}

// topicBounds gives the bounds of all partitions of a topic.
func topicBounds(ctx context.Context, adm *kadm.Client, topic string) (map[event.Partition]bounds, error) {
	all := map[event.Partition]bounds{}
	var failed error
	find := func(list func(context.Context, ...string) (kadm.ListedOffsets, error), set func(b *bounds, o event.Offset)) {
		listed, err := list(ctx, topic)
		if err == nil {
			err = listed.Error()
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("list the offsets of %s: %w", topic, err))
			return
		}
		for p, o := range listed[topic] {
			b := all[event.Partition(p)]
			set(&b, event.Offset(o.Offset))
			all[event.Partition(p)] = b
		}
	}
	find(adm.ListStartOffsets, func(b *bounds, o event.Offset) { b.start = o })
	find(adm.ListEndOffsets, func(b *bounds, o event.Offset) { b.high = o })
	find(adm.ListCommittedOffsets, func(b *bounds, o event.Offset) { b.stable = o })
	return all, failed
}

// lookUpTopic asks a broker for a topic, never a cache as kadm may have one.
func lookUpTopic(ctx context.Context, client *kgo.Client, name string) (*kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("asked for topic %s, the broker told of %d topics", name, len(resp.Topics))
	}
	return &resp.Topics[0], kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// topicManager is goka's view of topics. It creates nothing: the engine has
// made every topic before goka looks.
type topicManager struct {
	ctx    context.Context //nolint:containedctx // goka's interface hands none in
	member *member
	adm    *kadm.Client
}

var _ goka.TopicManager = (*topicManager)(nil)

func (m *topicManager) ensure(topic string, npar int) error {
	have, err := m.Partitions(topic)
	if err != nil {
		return err
	}
	if len(have) != npar {
		return fmt.Errorf("topic %s has %d partitions, not %d", topic, len(have), npar)
	}
	return nil
}

// EnsureTableExists implements goka.TopicManager.
func (m *topicManager) EnsureTableExists(topic string, npar int) error { return m.ensure(topic, npar) }

// EnsureStreamExists implements goka.TopicManager.
func (m *topicManager) EnsureStreamExists(topic string, npar int) error { return m.ensure(topic, npar) }

// EnsureTopicExists implements goka.TopicManager.
func (m *topicManager) EnsureTopicExists(topic string, npar, _ int, _ map[string]string) error {
	return m.ensure(topic, npar)
}

// Partitions implements goka.TopicManager.
func (m *topicManager) Partitions(topic string) ([]int32, error) {
	details, err := m.adm.ListTopics(m.ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	d := details[topic]
	if d.Err != nil {
		return nil, fmt.Errorf("look up topic %s: %w", topic, d.Err)
	}
	return d.Partitions.Numbers(), nil
}

// GetOffset implements goka.TopicManager. The newest offset is the high
// watermark at this moment: goka asks after the stable offset fetch, as the
// recovery rules demand.
func (m *topicManager) GetOffset(topic string, partition int32, at int64) (int64, error) {
	b, err := partitionBounds(m.ctx, m.adm, topic, event.Partition(partition))
	m.member.metInRecovery(err)
	if at == sarama.OffsetOldest {
		return int64(b.start), err
	}
	return int64(b.high), err
}

// Close implements goka.TopicManager; the client belongs to the engine.
func (m *topicManager) Close() error { return nil }
