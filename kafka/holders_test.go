package kafka

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// Who holds the horizon back, from what each has reached. Epoch 58 was announced
// at second 100, R(n) is n+42 seconds.
func TestTheFirstThatIsBehindHoldsTheHorizon(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	recorded := func(n event.Epoch) event.RecordedTime { return event.RecordedTime(n+42) * 1_000_000 }
	for _, c := range []struct {
		name    string
		now     int
		acked   []event.Epoch // of tasks 0, 1, ... at second 90
		applied []event.Epoch // of results partitions; nil: the ontology does not answer
		change  func(*standing)
		want    []string
	}{
		{name: "all follow", now: 101, acked: []event.Epoch{58, 57}, applied: []event.Epoch{57, 57}},
		{name: "a sink that is a little behind", now: 101, acked: []event.Epoch{58, 57}, applied: []event.Epoch{57, 56}},
		{
			name: "a sink that is far behind", now: 101, acked: []event.Epoch{58, 57}, applied: []event.Epoch{41, 57, 41},
			want: []string{
				"sink.ontology/0 since 83: results partition 0 has applied epoch 41 of 58",
				"sink.ontology/2 since 83: results partition 2 has applied epoch 41 of 58",
			},
		},
		{
			name: "a sink that stands still", now: 106, acked: []event.Epoch{58, 58}, applied: []event.Epoch{57, 58},
			want: []string{"sink.ontology/0 since 99: results partition 0 has applied epoch 57 of 58"},
		},
		{
			name: "a sink that has applied nothing", now: 106, acked: []event.Epoch{58, 58}, applied: []event.Epoch{0},
			want: []string{"sink.ontology/0 since never: results partition 0 has applied epoch 0 of 58"},
		},
		{name: "a task whose time has not come", now: 104, acked: []event.Epoch{58, 57}, applied: []event.Epoch{57, 57}},
		{
			name: "a task that does not acknowledge", now: 106, acked: []event.Epoch{58, 57}, applied: []event.Epoch{57, 57},
			want: []string{"ingest.orders/1 since 100: stage ingest.orders partition 1 has not acknowledged epoch 58"},
		},
		{
			name: "a task that never did", now: 106, acked: []event.Epoch{58, 58, 0}, applied: []event.Epoch{0, 0},
			want: []string{"ingest.orders/2 since 100: stage ingest.orders partition 2 has not acknowledged epoch 58"},
		},
		{
			name: "both", now: 106, acked: []event.Epoch{58, 57}, applied: []event.Epoch{50},
			want: []string{
				"sink.ontology/0 since 92: results partition 0 has applied epoch 50 of 58",
				"ingest.orders/1 since 100: stage ingest.orders partition 1 has not acknowledged epoch 58",
			},
		},
		{
			name: "a task, while the ontology does not answer", now: 106, acked: []event.Epoch{58, 57},
			want: []string{"ingest.orders/1 since 100: stage ingest.orders partition 1 has not acknowledged epoch 58"},
		},
		{name: "a pipeline that has nothing to do", now: 106, acked: []event.Epoch{58, 58}, applied: []event.Epoch{58}},
		{
			name: "a coordinator that does not announce", now: 108, acked: []event.Epoch{58, 58}, applied: []event.Epoch{58},
			want: []string{"coordinator/0 since 90: no barrier has been announced since 58, which every task has committed"},
		},
		{
			name: "an input that has ended", now: 1000, acked: []event.Epoch{58, 58}, applied: []event.Epoch{58},
			change: func(s *standing) { s.newest.End = true },
		},
		{
			name: "the log's clock, which waits for records", now: 1000, acked: []event.Epoch{58, 58}, applied: []event.Epoch{58},
			change: func(s *standing) { s.wall = false },
		},
		{name: "before the first epoch", now: 1000, change: func(s *standing) { s.newest.Epoch = 0 }},
	} {
		s := standing{
			newest: processors.Announcement{Epoch: 58, Recorded: recorded(58)}, announcedAt: at(100),
			wall: true, longest: 2 * time.Second, acks: map[processors.TaskID]heardAck{},
		}
		for p, n := range c.acked {
			id := processors.TaskID{Stage: "ingest.orders", Partition: event.Partition(p)}
			s.tasks = append(s.tasks, id)
			if n > 0 {
				s.acks[id] = heardAck{Ack: processors.Ack{Task: id, Epoch: n}, at: at(90)}
			}
		}
		if c.applied != nil {
			s.applied = map[event.Partition]ontology.Progress{}
			for p, n := range c.applied {
				s.applied[event.Partition(p)] = ontology.Progress{Epoch: n, Recorded: recorded(n)}
			}
		}
		if c.change != nil {
			c.change(&s)
		}
		var got []string
		for _, h := range s.heldBy(at(c.now)) {
			since := "never"
			if !h.Since.IsZero() {
				since = fmt.Sprint(h.Since.Unix())
			}
			got = append(got, fmt.Sprintf("%s/%s since %s: %s", h.Stage, h.Partition, since, h.Why))
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

func TestTheReplicaIsTakenOutOfATransactionalID(t *testing.T) {
	const group = "strom.shop.g1.ingest.orders"
	for id, want := range map[string]string{
		group + ".r1.7": "r1", group + ".a.b.12": "a.b", group + ".7": "", "": "", "strom.shop.g1.ingest.r1.7": "",
	} {
		if got := replicaOf(group, id); got != want {
			t.Errorf("%q: got %q, want %q", id, got, want)
		}
	}
}
