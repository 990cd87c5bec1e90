package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// NeverRanError says that Kafka knows nothing of a pipeline.
type NeverRanError struct{ Pipeline, Topic string }

// Error says what to do as well.
func (e *NeverRanError) Error() string {
	return fmt.Sprintf("pipeline %q has not run on this Kafka: topic %q does not exist; check its name and the brokers, or run it first", e.Pipeline, e.Topic)
}

// Status is what Kafka says of a pipeline: its control topic, its topics and its
// groups. What is not there at the moment (an owner, an acknowledgement) is
// said to be missing; it is no error.
type Status struct {
	Taken time.Time
	// Newest is the newest announcement; its Epoch is 0 where there is none.
	// AnnouncedAt is when, by the clock of Announcer, the replica that made it.
	Newest      processors.Announcement
	AnnouncedAt time.Time
	Announcer   string
	// Mapping is the one in force; its Version is empty before the first barrier.
	Mapping Registered
	// Coordinator is whoever announces the next one.
	Coordinator Owner
	// Tasks are all tasks in the order of stages and partitions, those that
	// have never acknowledged an epoch among them.
	Tasks []TaskStatus
	// Sink says who applies each results partition.
	Sink map[event.Partition]Owner

	topology *processors.Topology
	barrier  *controlRecord // the newest; nil for none
	acks     map[processors.TaskID]heardAck
	times    []epochTime // of the newest announcements
}

// TaskStatus is what a task has acknowledged last.
type TaskStatus struct {
	processors.Ack // its Epoch is 0 where it never has
	Inputs         []InputStatus
	// Member is the transactional id under which that was, Replica the replica
	// in it, AckedAt its clock.
	Member, Replica string
	AckedAt         time.Time
	Owner           Owner
}

// InputStatus is how far a task has read one of its inputs.
type InputStatus struct {
	Topic string
	// Offset is the next one to read at the acknowledged barrier, End the last
	// stable offset of the partition; OffsetNone where the topic is gone.
	Offset, End event.Offset
}

// Lag is the number of offsets between a task and the end of an input; 0 where
// that is not known. Markers of transactions are among them.
func (i InputStatus) Lag() int64 { return max(0, int64(i.End-i.Offset)) }

// ReadStatus reads what Kafka says of a pipeline that runs, or has run. Of the
// topology it needs only the names of topics, so a plan with nothing but the
// pipeline's name will do.
func ReadStatus(ctx context.Context, k mapping.Kafka, t *processors.Topology, log *slog.Logger) (Status, error) {
	e := New(Config{Topology: t, Kafka: k, Log: log})
	if err := e.connect(ctx); err != nil {
		return Status{}, err
	}
	defer e.client.Close()
	adm := kadm.NewClient(e.client)
	meta, err := adm.Metadata(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("read the cluster's metadata: %w", err)
	}
	if d, ok := meta.Topics[t.ControlTopic()]; !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
		return Status{}, &NeverRanError{Pipeline: t.Plan.Pipeline, Topic: t.ControlTopic()}
	}
	s, err := e.readStatus(ctx, adm)
	if err != nil {
		return Status{}, err
	}
	if s.barrier != nil {
		if s.Mapping, err = e.registered(ctx, s.barrier); err != nil {
			e.log.Debug("read the mapping in force", "error", err)
			s.Mapping = Registered{Version: s.Newest.Mapping}
		}
	}
	s.addTasks(meta.Topics)
	if err := s.findEnds(ctx, adm); err != nil {
		return Status{}, err
	}
	s.findOwners(ctx, adm, meta.Topics)
	s.Taken = time.Now()
	return s, nil
}

// HeldBy names those whom the horizon waits for; applied is the progress of the
// results partitions, nil where it is not known.
func (s *Status) HeldBy(applied map[event.Partition]ontology.Progress) []Holder {
	plan := s.topology.Plan
	st := standing{
		newest: s.Newest, announcedAt: s.AnnouncedAt, acks: s.acks, applied: applied,
		wall:    s.wall(),
		longest: processors.LongestInterval(plan.Epoch),
	}
	for i := range s.Tasks {
		st.tasks = append(st.tasks, s.Tasks[i].Task)
	}
	return st.heldBy(s.Taken)
}

// AnnouncedAround is about when an epoch was announced, given its R; for one
// that lies far back under the log's clock it is later than it was. Zero: not
// known.
func (s *Status) AnnouncedAround(n event.Epoch, r event.RecordedTime) time.Time {
	return announcedAround(s.times, s.wall(), n, r)
}

// wall says that R is the clock on the wall; a plan with a name only does not say.
func (s *Status) wall() bool {
	epoch := s.topology.Plan.Epoch
	return epoch.Clock == mapping.ClockWall && epoch.Interval > 0
}

// readStatus reads as much of the log as it takes to hear of every task: the
// tasks acknowledge every epoch, so two epochs hold all of them.
func (e *Engine) readStatus(ctx context.Context, adm *kadm.Client) (Status, error) {
	for back := event.Offset(256); ; back *= 4 {
		b, err := partitionBounds(ctx, adm, e.topology.ControlTopic(), 0)
		if err != nil {
			return Status{}, err
		}
		l, err := e.controlFrom(max(b.start, b.stable-back))
		if err != nil {
			return Status{}, err
		}
		_, err = l.readTo(ctx, b.stable)
		l.close()
		if err != nil {
			return Status{}, err
		}
		s, epochs := e.statusOf(l.pending)
		if epochs > 2 || back >= b.stable-b.start {
			return s, nil
		}
	}
}

// statusOf also gives the number of announcements among the records.
func (e *Engine) statusOf(recs []controlRecord) (Status, int) {
	s := Status{
		Newest:   processors.Announcement{Recorded: event.RecordedUnknown},
		topology: e.topology, acks: map[processors.TaskID]heardAck{},
	}
	epochs := 0
	for i := range recs {
		r := &recs[i]
		switch r.Kind {
		case kindBarrier:
			epochs++
			s.barrier = r
			s.Newest, s.AnnouncedAt, s.Announcer = r.announcement(), r.at, r.Coordinator
			s.times = append(s.times, epochTime{r.Epoch, r.at})
		case kindAck:
			for j := range r.Tasks {
				a := heardAck{Ack: r.Tasks[j].ack(r), offsets: r.Tasks[j].Offsets, member: r.Member, at: r.at}
				s.acks[a.Task] = a
			}
		}
	}
	return s, epochs
}

// addTasks lists the tasks: those that have acknowledged, and those that the
// changelogs have room for.
func (s *Status) addTasks(topics kadm.TopicDetails) {
	ids := map[processors.TaskID]bool{}
	for id := range s.acks {
		ids[id] = true
	}
	prefix := strings.TrimSuffix(s.topology.ControlTopic(), "control")
	for name, d := range topics {
		rest, ours := strings.CutPrefix(name, prefix)
		stage, changelog := strings.CutSuffix(rest, "-table")
		if !ours || !changelog || d.Err != nil {
			continue
		}
		for p := range d.Partitions {
			ids[processors.TaskID{Stage: stage, Partition: event.Partition(p)}] = true
		}
	}
	for id := range ids {
		t := TaskStatus{Ack: processors.Ack{Task: id, Watermark: event.WatermarkUnknown}}
		if a, ok := s.acks[id]; ok {
			t.Ack, t.Member, t.AckedAt = a.Ack, a.member, a.at
			t.Replica = replicaOf(s.group(id.Stage), a.member)
			for topic, o := range a.offsets {
				t.Inputs = append(t.Inputs, InputStatus{Topic: topic, Offset: o, End: event.OffsetNone})
			}
			slices.SortFunc(t.Inputs, func(x, y InputStatus) int { return cmp.Compare(x.Topic, y.Topic) })
		}
		s.Tasks = append(s.Tasks, t)
	}
	slices.SortFunc(s.Tasks, func(a, b TaskStatus) int { return compareTasks(a.Task, b.Task) })
}

// group is the consumer group of a stage by its name.
func (s *Status) group(stage string) string {
	return s.topology.Group(&processors.Stage{Name: stage})
}

func (s *Status) findEnds(ctx context.Context, adm *kadm.Client) error {
	var topics []string
	for i := range s.Tasks {
		for _, in := range s.Tasks[i].Inputs {
			topics = append(topics, in.Topic)
		}
	}
	if len(topics) == 0 {
		return nil // no topic would ask for all of them
	}
	slices.Sort(topics)
	ends, err := adm.ListCommittedOffsets(ctx, slices.Compact(topics)...)
	if err != nil {
		return fmt.Errorf("find the ends of the inputs: %w", err)
	}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		for j := range t.Inputs {
			o, ok := ends.Lookup(t.Inputs[j].Topic, int32(t.Task.Partition))
			if ok && o.Err == nil {
				t.Inputs[j].End = event.Offset(o.Offset)
			}
		}
	}
	return nil
}
