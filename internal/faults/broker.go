package faults

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/kafka/embedded"
)

// Broker is a Kafka that a case runs against.
type Broker interface {
	Brokers() []string
	CreateTopic(ctx context.Context, name string, partitions int32) error
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
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, partitions, 1, nil, name); err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return nil
}

// bury takes the members of a dead replica out of their groups. Apache Kafka
// does so by itself when their sessions have ended; in the embedded broker a
// member whose connection breaks while it waits for the answer to its JoinGroup
// has no session yet, and lives for ever.
func (b *Embedded) bury(ctx context.Context, clientID string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...))
	if err != nil {
		return err
	}
	defer client.Close()
	groups, err := kadm.NewClient(client).DescribeGroups(ctx)
	if err != nil {
		return fmt.Errorf("describe the groups: %w", err)
	}
	for _, g := range groups {
		for _, m := range g.Members {
			if m.ClientID != clientID {
				continue
			}
			req := kmsg.NewPtrLeaveGroupRequest()
			req.Group = g.Group
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			req.Members = append(req.Members, member)
			if _, err := req.RequestWith(ctx, client); err != nil {
				return fmt.Errorf("take %s out of group %s: %w", m.MemberID, g.Group, err)
			}
		}
	}
	return nil
}
