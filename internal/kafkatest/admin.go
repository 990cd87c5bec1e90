package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ours is how all names begin that a pipeline gives to its groups, its
// transactional ids and its own topics.
const ours = "strom."

const pollInterval = 20 * time.Millisecond

// admin asks a broker for what tests need between them.
type admin struct {
	client *kgo.Client
	adm    *kadm.Client
}

func newAdmin(brokers []string) (*admin, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(pollInterval))
	if err != nil {
		return nil, err
	}
	return &admin{client: client, adm: kadm.NewClient(client)}, nil
}

func (a *admin) close() { a.client.Close() }

// eventually repeats a step that is not done until it is done or ctx ends.
func eventually(ctx context.Context, step func() (done bool, err error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		done, err := step()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// createTopic makes a topic and waits until its partitions have leaders.
func (a *admin) createTopic(ctx context.Context, topic string, partitions int32, configs map[string]string) error {
	all := map[string]*string{"retention.ms": new("-1")}
	for name, value := range configs {
		all[name] = new(value)
	}
	if _, err := a.adm.CreateTopic(ctx, partitions, 1, all, topic); err != nil {
		return err
	}
	return eventually(ctx, func() (bool, error) {
		t, err := a.topic(ctx, topic)
		if err != nil {
			return false, err
		}
		led := 0
		for _, p := range t.Partitions {
			if p.Leader >= 0 && p.ErrorCode == 0 {
				led++
			}
		}
		return led == int(partitions), kerr.ErrorForCode(t.ErrorCode)
	})
}

// topic asks the broker itself; kadm may answer from a cache.
func (a *admin) topic(ctx context.Context, name string) (kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &name
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, a.client)
	if err != nil {
		return kmsg.MetadataResponseTopic{}, err
	}
	if len(resp.Topics) != 1 {
		return kmsg.MetadataResponseTopic{}, fmt.Errorf("%d answers for one topic", len(resp.Topics))
	}
	return resp.Topics[0], nil
}

// contents is what a broker holds.
type contents struct {
	topics, groups map[string]bool
}

func (a *admin) look(ctx context.Context) (contents, error) {
	c := contents{topics: map[string]bool{}, groups: map[string]bool{}}
	topics, err := a.adm.ListTopics(ctx)
	if err != nil {
		return c, err
	}
	groups, err := a.adm.ListGroups(ctx)
	if err != nil {
		return c, err
	}
	for name := range topics {
		c.topics[name] = true
	}
	for name := range groups {
		c.groups[name] = true
	}
	return c, nil
}

// clean removes what a test has left: the topics that it made, and what a
// pipeline made since before. Transactions are ended first, because a topic of the
// same name would get their markers, and members are removed from their groups,
// because nobody waits for the dead.
func (a *admin) clean(ctx context.Context, before contents, made []string) error {
	now, err := a.look(ctx)
	if err != nil {
		return err
	}
	if err := a.endTransactions(ctx); err != nil {
		return err
	}
	if err := a.deleteGroups(ctx, since(before.groups, now.groups)); err != nil {
		return err
	}
	topics := since(before.topics, now.topics)
	for _, topic := range made {
		if now.topics[topic] && !strings.HasPrefix(topic, ours) {
			topics = append(topics, topic)
		}
	}
	return a.deleteTopics(ctx, topics)
}

// since are the names of ours that were not there before.
func since(before, now map[string]bool) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if !before[name] && strings.HasPrefix(name, ours) {
			out = append(out, name)
		}
	}
	return out
}

// endTransactions aborts what pipelines have left open.
func (a *admin) endTransactions(ctx context.Context) error {
	listed, err := a.adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		return fmt.Errorf("list transactions: %w", err)
	}
	for id := range listed {
		if !strings.HasPrefix(id, ours) {
			continue
		}
		if err := a.endTransaction(ctx, id); err != nil {
			return fmt.Errorf("end the transaction of %s: %w", id, err)
		}
	}
	return nil
}

func (a *admin) endTransaction(ctx context.Context, id string) error {
	return eventually(ctx, func() (bool, error) {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis = &id, int32(patience.Milliseconds())
		resp, err := req.RequestWith(ctx, a.client)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		return !errors.Is(err, kerr.ConcurrentTransactions), err
	})
}

func (a *admin) deleteGroups(ctx context.Context, groups []string) error {
	if len(groups) == 0 {
		return nil
	}
	return eventually(ctx, func() (bool, error) {
		if err := a.removeMembers(ctx, groups); err != nil {
			return false, err
		}
		deleted, err := a.adm.DeleteGroups(ctx, groups...)
		if err != nil {
			return false, err
		}
		err = deleted.Error()
		if errors.Is(err, kerr.GroupIDNotFound) {
			err = nil
		}
		return err == nil, err
	})
}

func (a *admin) removeMembers(ctx context.Context, groups []string) error {
	described, err := a.adm.DescribeGroups(ctx, groups...)
	if err != nil {
		return fmt.Errorf("describe groups: %w", err)
	}
	for _, g := range described {
		for _, m := range g.Members {
			req := kmsg.NewPtrLeaveGroupRequest()
			req.Group, req.MemberID = g.Group, m.MemberID
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			req.Members = append(req.Members, member)
			if _, err := req.RequestWith(ctx, a.client); err != nil {
				return fmt.Errorf("remove a member of group %s: %w", g.Group, err)
			}
		}
	}
	return nil
}

// deleteTopics deletes topics and waits until the broker no longer knows them.
func (a *admin) deleteTopics(ctx context.Context, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	deleted, err := a.adm.DeleteTopics(ctx, topics...)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	for _, name := range topics {
		err := eventually(ctx, func() (bool, error) {
			t, err := a.topic(ctx, name)
			if err != nil {
				return false, err
			}
			return errors.Is(kerr.ErrorForCode(t.ErrorCode), kerr.UnknownTopicOrPartition), nil
		})
		if err != nil {
			return fmt.Errorf("topic %s is still there: %w", name, err)
		}
	}
	return nil
}
