package kafka

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/forge-platform/strom/event"
)

// OwnerState says what is known of who has a partition.
type OwnerState uint8

// The states of ownership.
const (
	// OwnerUnknown: the group's coordinator does not say.
	OwnerUnknown OwnerState = iota
	// OwnerNobody: the group has no member that has it.
	OwnerNobody
	// OwnerRebalancing: the group is being distributed anew.
	OwnerRebalancing
	// OwnerHas: a replica has it.
	OwnerHas
)

// String gives the name of the state, as a status has it.
func (s OwnerState) String() string {
	return [...]string{"unknown", "nobody", "rebalancing", "owned"}[s]
}

// Owner is who has a partition now, as the group's coordinator says.
type Owner struct {
	State OwnerState
	// Replica and Host are for OwnerHas: the name of the replica and the address
	// that its member comes from. Replica is empty where the member is not
	// Strom's own.
	Replica, Host string
}

// findOwners asks who has what. A group that cannot be described leaves its
// owners unknown: the rest of the status is of use all the same.
func (s *Status) findOwners(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails) {
	t := s.topology
	names := []string{t.CoordinatorGroup(), t.SinkGroup()}
	for i := range s.Tasks {
		if name := s.group(s.Tasks[i].Task.Stage); names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	// What is missing in the answer is unknown.
	groups, _ := adm.DescribeGroups(ctx, names...)
	s.Coordinator = owner(groups, t.CoordinatorGroup(), 0)
	s.Sink = map[event.Partition]Owner{}
	for p := range topics[t.ResultsTopic()].Partitions {
		s.Sink[event.Partition(p)] = owner(groups, t.SinkGroup(), event.Partition(p))
	}
	for i := range s.Tasks {
		id := s.Tasks[i].Task
		s.Tasks[i].Owner = owner(groups, s.group(id.Stage), id.Partition)
	}
}

// owner finds who has a partition of the one topic that a group reads.
func owner(groups kadm.DescribedGroups, name string, p event.Partition) Owner {
	g, ok := groups[name]
	switch {
	case !ok:
		return Owner{}
	case errors.Is(g.Err, kerr.GroupIDNotFound), g.Err == nil && len(g.Members) == 0:
		return Owner{State: OwnerNobody}
	case g.Err != nil:
		return Owner{}
	case g.State != "Stable":
		return Owner{State: OwnerRebalancing}
	}
	for i := range g.Members {
		m := &g.Members[i]
		assigned, ok := m.Assigned.AsConsumer()
		if !ok {
			continue
		}
		for _, t := range assigned.Topics {
			for _, q := range t.Partitions {
				if event.Partition(q) == p {
					replica, _ := strings.CutPrefix(m.ClientID, clientPrefix)
					return Owner{State: OwnerHas, Replica: replica, Host: hostOf(m.ClientHost)}
				}
			}
		}
	}
	return Owner{State: OwnerNobody}
}

// hostOf takes the address out of what a broker says of a member's: Kafka puts a
// slash before it, others a port behind it.
func hostOf(client string) string {
	client = strings.TrimPrefix(client, "/")
	if host, _, err := net.SplitHostPort(client); err == nil {
		return host
	}
	return client
}

// replicaOf takes the replica out of a transactional id: group.replica.generation.
func replicaOf(group, id string) string {
	rest, ok := strings.CutPrefix(id, group+".")
	if i := strings.LastIndexByte(rest, '.'); ok && i >= 0 {
		return rest[:i]
	}
	return ""
}
