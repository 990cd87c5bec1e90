package kafka

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// stickyBalancer is franz-go's eager sticky balancer with a memory. An eager
// member gives all of its partitions up before it joins again, and franz-go
// then claims none; so every rebalance would shuffle them, and each that moves
// costs a take-over. This one claims what it was given last, and a process that
// has just started claims the partitions of which it has local state. A claim
// is a wish: the balance comes first, then the claim of the newest generation.
type stickyBalancer struct {
	kgo.GroupBalancer
	topic string

	mu   sync.Mutex // guards last
	last []int32
}

func newStickyBalancer(topic string, local []int32) *stickyBalancer {
	return &stickyBalancer{GroupBalancer: kgo.StickyBalancer(), topic: topic, last: local}
}

// JoinGroupMetadata implements kgo.GroupBalancer.
func (b *stickyBalancer) JoinGroupMetadata(topics []string, current map[string][]int32, generation int32) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(current) == 0 && len(b.last) > 0 {
		current = map[string][]int32{b.topic: slices.Clone(b.last)}
	}
	return b.GroupBalancer.JoinGroupMetadata(topics, current, generation)
}

// ParseSyncAssignment implements kgo.GroupBalancer.
func (b *stickyBalancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	given, err := b.GroupBalancer.ParseSyncAssignment(assignment)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = slices.Sorted(slices.Values(given[b.topic]))
	return given, nil
}
