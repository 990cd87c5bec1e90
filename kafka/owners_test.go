package kafka

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestAnOwnerThatIsNotThereIsSaidToBeMissing(t *testing.T) {
	groups := kadm.DescribedGroups{
		"gone":        {Err: kerr.GroupIDNotFound, State: "Dead"},
		"dead":        {State: "Dead"},
		"empty":       {State: "Empty"},
		"moving":      {State: "PreparingRebalance", Members: []kadm.DescribedGroupMember{{ClientID: "strom.r1"}}},
		"syncing":     {State: "CompletingRebalance", Members: []kadm.DescribedGroupMember{{ClientID: "strom.r1"}}},
		"failing":     {Err: errors.New("coordinator not available"), Members: []kadm.DescribedGroupMember{{}}},
		"loading":     {Err: kerr.CoordinatorLoadInProgress},
		"without one": {State: "Stable", Members: []kadm.DescribedGroupMember{{ClientID: "strom.r1"}}},
	}
	for name, want := range map[string]OwnerState{
		"gone": OwnerNobody, "dead": OwnerNobody, "empty": OwnerNobody, "without one": OwnerNobody,
		"moving": OwnerRebalancing, "syncing": OwnerRebalancing,
		"failing": OwnerUnknown, "loading": OwnerUnknown, "not described": OwnerUnknown,
	} {
		if got := owner(groups, name, 0); got.State != want {
			t.Errorf("%s: %s, want %s", name, got.State, want)
		}
	}
	for client, want := range map[string]string{"/10.0.0.7": "10.0.0.7", "10.0.0.7:4711": "10.0.0.7", "/[::1]:4711": "::1", "": ""} {
		if got := hostOf(client); got != want {
			t.Errorf("host of %q: %q, want %q", client, got, want)
		}
	}
}
