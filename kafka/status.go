package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// NeverRanError says that Kafka knows nothing of a pipeline.
type NeverRanError struct{ Pipeline, Topic string }

// Error says what to do as well.
func (e *NeverRanError) Error() string {
	return fmt.Sprintf("pipeline %q has not run on this Kafka: topic %q does not exist; check its name and the brokers, or run it first", e.Pipeline, e.Topic)
}

// Status is what the control topic says of a pipeline.
type Status struct {
	// Newest is the newest announcement; its Epoch is 0 where there is none.
	Newest processors.Announcement
	// Tasks are in the order of stages and partitions: those that have
	// acknowledged an epoch.
	Tasks []TaskStatus
}

// TaskStatus is what a task has acknowledged last.
type TaskStatus struct {
	processors.Ack
	Inputs []InputStatus // by topic
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

// ReadStatus reads what the control topic says of a pipeline that runs, or has
// run. Of the topology it needs only the names of topics, so a plan with
// nothing but the pipeline's name will do.
func ReadStatus(ctx context.Context, k mapping.Kafka, t *processors.Topology, log *slog.Logger) (Status, error) {
	e := New(Config{Topology: t, Kafka: k, Log: log})
	if err := e.connect(ctx); err != nil {
		return Status{}, err
	}
	defer e.client.Close()
	adm := kadm.NewClient(e.client)
	meta, err := adm.Metadata(ctx, t.ControlTopic())
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
	if err := s.findEnds(ctx, adm); err != nil {
		return Status{}, err
	}
	return s, nil
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
		s, epochs := statusOf(l.pending)
		if epochs > 2 || back >= b.stable-b.start {
			return s, nil
		}
	}
}

// statusOf also gives the number of announcements among the records.
func statusOf(recs []controlRecord) (Status, int) {
	s := Status{Newest: processors.Announcement{Recorded: event.RecordedUnknown}}
	tasks := map[processors.TaskID]TaskStatus{}
	epochs := 0
	for i := range recs {
		r := &recs[i]
		switch r.Kind {
		case kindBarrier:
			epochs++
			s.Newest = r.announcement()
		case kindAck:
			for j := range r.Tasks {
				a := TaskStatus{Ack: r.Tasks[j].ack(r)}
				for topic, o := range r.Tasks[j].Offsets {
					a.Inputs = append(a.Inputs, InputStatus{Topic: topic, Offset: o, End: event.OffsetNone})
				}
				slices.SortFunc(a.Inputs, func(x, y InputStatus) int { return cmp.Compare(x.Topic, y.Topic) })
				tasks[a.Task] = a
			}
		}
	}
	for _, a := range tasks {
		s.Tasks = append(s.Tasks, a)
	}
	slices.SortFunc(s.Tasks, func(a, b TaskStatus) int {
		return cmp.Or(cmp.Compare(a.Task.Stage, b.Task.Stage), cmp.Compare(a.Task.Partition, b.Task.Partition))
	})
	return s, epochs
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
