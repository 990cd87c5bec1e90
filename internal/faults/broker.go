package faults

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/internal/apachekafka"
	"github.com/forge-platform/strom/kafka/embedded"
)

// Broker is a Kafka that a case runs against.
type Broker interface {
	Brokers() []string
	CreateTopic(ctx context.Context, name string, partitions int32) error
}

// remote is a broker that cases share, each with names of its own.
type remote struct{ brokers []string }

var _ Broker = (*remote)(nil)

// Brokers implements Broker.
func (b *remote) Brokers() []string { return b.brokers }

// CreateTopic implements Broker.
func (b *remote) CreateTopic(ctx context.Context, name string, partitions int32) error {
	return createTopic(ctx, b.brokers, name, partitions)
}

// remove removes the topics of a case that is over, so that the broker stays
// small. What the case has begun and not ended goes with them.
func (b *remote) remove(ctx context.Context, pipeline string, inputs map[string]int32) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	listed, err := adm.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list the topics of a case: %w", err)
	}
	own := func(name string) bool {
		_, input := inputs[name]
		return input || strings.HasPrefix(name, "strom."+pipeline+".")
	}
	var names []string
	for name := range listed {
		if own(name) {
			names = append(names, name)
		}
	}
	if _, err := adm.DeleteTopics(ctx, names...); err != nil {
		return fmt.Errorf("delete the topics of a case: %w", err)
	}
	return nil
}

// ApacheKafka gives cases an Apache Kafka, which they share; stop ends it.
func ApacheKafka(ctx context.Context) (newBroker func(context.Context) (Broker, func(), error), stop func() error, err error) {
	inst, err := apachekafka.Install(ctx)
	if err != nil {
		return nil, nil, err
	}
	node, err := apachekafka.Start(ctx, inst, apachekafka.Options{})
	if err != nil {
		return nil, nil, err
	}
	b := &remote{brokers: node.Brokers()}
	return func(context.Context) (Broker, func(), error) { return b, func() {}, nil }, node.Stop, nil
}

// Embedded is a broker in this process, with connections that can be disturbed.
type Embedded struct {
	*embedded.Broker
	wire *wire
}

var _ Broker = (*Embedded)(nil)

// StartEmbedded starts a broker in memory, of so many nodes; Stop ends it.
func StartEmbedded(ctx context.Context, nodes int) (*Embedded, error) {
	w := newWire()
	b, err := embedded.Start(ctx, embedded.Options{Nodes: nodes, Listen: w.listen})
	if err != nil {
		return nil, err
	}
	return &Embedded{Broker: b, wire: w}, nil
}

// CreateTopic implements Broker.
func (b *Embedded) CreateTopic(ctx context.Context, name string, partitions int32) error {
	return createTopic(ctx, b.Brokers(), name, partitions)
}

func createTopic(ctx context.Context, brokers []string, name string, partitions int32) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	if _, err := adm.CreateTopic(ctx, partitions, 1, nil, name); err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	// Apache Kafka's controller answers before its broker has heard of the topic.
	return poll(ctx, "the broker knows topic "+name, 10*time.Second, func() (bool, error) {
		topics, err := adm.ListTopics(ctx, name)
		if err != nil {
			return false, fmt.Errorf("look for topic %s: %w", name, err)
		}
		t := topics[name]
		return t.Err == nil && len(t.Partitions) == int(partitions), nil
	})
}

// groupMember is a member of a consumer group.
type groupMember struct{ group, id string }

// members are those of a client in all groups.
func (b *Embedded) members(ctx context.Context, clientID string) ([]groupMember, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	groups, err := kadm.NewClient(client).DescribeGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe the groups: %w", err)
	}
	var out []groupMember
	for _, g := range groups {
		for _, m := range g.Members {
			if m.ClientID == clientID {
				out = append(out, groupMember{g.Group, m.MemberID})
			}
		}
	}
	return out, nil
}

// bury takes the members of a dead replica out of their groups. Apache Kafka
// does so by itself when their sessions have ended; in the embedded broker a
// member whose connection breaks while it waits for the answer to its JoinGroup
// has no session yet, and lives for ever.
func (b *Embedded) bury(ctx context.Context, dead []groupMember) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...))
	if err != nil {
		return err
	}
	defer client.Close()
	for _, m := range dead {
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = m.group
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.id
		req.Members = append(req.Members, member)
		if _, err := req.RequestWith(ctx, client); err != nil {
			return fmt.Errorf("take %s out of group %s: %w", m.id, m.group, err)
		}
	}
	return nil
}
