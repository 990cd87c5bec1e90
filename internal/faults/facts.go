package faults

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
)

// facts reads what the checks look at, from Kafka and PostgreSQL.
type facts struct {
	topology *processors.Topology
	brokers  []string
	postgres string
	client   *kgo.Client
	adm      *kadm.Client
}

func newFacts(p *mapping.Plan, brokers []string, postgres string) (*facts, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, err
	}
	return &facts{
		topology: processors.NewTopology(p, generation), brokers: brokers, postgres: postgres,
		client: client, adm: kadm.NewClient(client),
	}, nil
}

func (f *facts) close() { f.client.Close() }

// topics are those that the pipeline reads and owns.
func (f *facts) topics() []string {
	t := f.topology
	out := []string{t.ControlTopic(), t.ResultsTopic(), t.DeadLetterTopic()}
	for _, s := range t.Stages {
		out = append(out, s.Input, t.Changelog(s))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// committed reads what a topic holds up to its last stable offsets, in the
// order of each partition.
func (f *facts) committed(ctx context.Context, topic string) ([]*kgo.Record, error) {
	ends, err := f.adm.ListCommittedOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("find the end of %s: %w", topic, err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(f.brokers...), kgo.ConsumeTopics(topic), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	left := map[int32]bool{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = true
		}
	})
	var out []*kgo.Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			o, _ := ends.Lookup(topic, r.Partition)
			if !r.Attrs.IsControl() && r.Offset < o.Offset {
				out = append(out, r)
			}
			if r.Offset >= o.Offset-1 {
				delete(left, r.Partition)
			}
		})
	}
	return out, nil
}

func (f *facts) inputs(ctx context.Context, topics []string) ([]*kgo.Record, error) {
	var out []*kgo.Record
	for _, topic := range topics {
		recs, err := f.committed(ctx, topic)
		if err != nil {
			return nil, err
		}
		out = append(out, recs...)
	}
	return out, nil
}

func (f *facts) results(ctx context.Context) ([]resultRow, error) {
	recs, err := f.committed(ctx, f.topology.ResultsTopic())
	if err != nil {
		return nil, err
	}
	var out []resultRow
	for _, r := range recs {
		kind, err := event.RowKindOf(r.Value)
		if err != nil {
			return nil, err
		}
		if kind == event.RowMarker {
			continue
		}
		row, err := event.DecodeResult(r.Value)
		if err != nil {
			return nil, err
		}
		out = append(out, resultRow{Partition: event.Partition(r.Partition), Offset: event.Offset(r.Offset), Result: row})
	}
	return out, nil
}

func (f *facts) letters(ctx context.Context) ([]letter, error) {
	recs, err := f.committed(ctx, f.topology.DeadLetterTopic())
	if err != nil {
		return nil, err
	}
	var out []letter
	for _, r := range recs {
		h := map[string]string{}
		for _, x := range r.Headers {
			h[x.Key] = string(x.Value)
		}
		out = append(out, letter{
			Reason: h["strom.cause"], Value: string(r.Value),
			Place: fmt.Sprintf("%s/%s offset %s", h["strom.topic"], h["strom.partition"], h["strom.offset"]),
		})
	}
	return out, nil
}

func (f *facts) ends(ctx context.Context) ([]partitionEnds, error) {
	high, err := f.adm.ListEndOffsets(ctx, f.topics()...)
	if err = errors.Join(err, high.Error()); err != nil {
		return nil, fmt.Errorf("find the ends of the topics: %w", err)
	}
	stable, err := f.adm.ListCommittedOffsets(ctx, f.topics()...)
	if err = errors.Join(err, stable.Error()); err != nil {
		return nil, fmt.Errorf("find the ends of the topics: %w", err)
	}
	var out []partitionEnds
	high.Each(func(o kadm.ListedOffset) {
		s, _ := stable.Lookup(o.Topic, o.Partition)
		out = append(out, partitionEnds{
			Topic: o.Topic, Partition: event.Partition(o.Partition), Stable: event.Offset(s.Offset), High: event.Offset(o.Offset),
		})
	})
	return out, nil
}

// control is what the checks read in a record of the control topic.
type control struct {
	barrier
	Kind  string `json:"kind"`
	Stage string `json:"stage"`
	Tasks []struct {
		Partition event.Partition         `json:"partition"`
		Offsets   map[string]event.Offset `json:"offsets"`
	} `json:"tasks"`
}

func (f *facts) control(ctx context.Context) ([]control, error) {
	recs, err := f.committed(ctx, f.topology.ControlTopic())
	if err != nil {
		return nil, err
	}
	out := make([]control, len(recs))
	for i, r := range recs {
		if err := json.Unmarshal(r.Value, &out[i]); err != nil {
			return nil, fmt.Errorf("control topic, offset %d: %w", r.Offset, err)
		}
	}
	return out, nil
}

func announcements(log []control) []barrier {
	var out []barrier
	for i := range log {
		if log[i].Kind == "barrier" {
			out = append(out, log[i].barrier)
		}
	}
	return out
}

// durables reads what is known of every task, the committed offsets first.
// Offsets that an open transaction may still change are not waited for.
func (f *facts) durables(ctx context.Context) ([]durable, error) {
	byTask := map[processors.TaskID]*durable{}
	for _, s := range f.topology.Stages {
		offsets, err := f.adm.FetchOffsets(ctx, f.topology.Group(s))
		if err != nil {
			return nil, fmt.Errorf("fetch the offsets of %s: %w", s.Name, err)
		}
		offsets.Each(func(o kadm.OffsetResponse) {
			t := processors.TaskID{Stage: s.Name, Partition: event.Partition(o.Partition)}
			byTask[t] = &durable{Task: t, Committed: event.Offset(o.At), Progress: event.OffsetNone, Acked: event.OffsetNone}
		})
	}
	log, err := f.control(ctx)
	if err != nil {
		return nil, err
	}
	for i := range log {
		for _, t := range log[i].Tasks {
			d := byTask[processors.TaskID{Stage: log[i].Stage, Partition: t.Partition}]
			if d == nil || log[i].Kind != "ack" {
				continue
			}
			d.AckedEpoch, d.Acked = log[i].Epoch, t.Offsets[f.topology.Stage(log[i].Stage).Input]
		}
	}
	for _, s := range f.topology.Stages {
		if err := f.progress(ctx, s, byTask); err != nil {
			return nil, err
		}
	}
	out := make([]durable, 0, len(byTask))
	for _, d := range byTask {
		out = append(out, *d)
	}
	return out, nil
}

func (f *facts) progress(ctx context.Context, s *processors.Stage, byTask map[processors.TaskID]*durable) error {
	recs, err := f.committed(ctx, f.topology.Changelog(s))
	if err != nil {
		return err
	}
	for _, r := range recs {
		d := byTask[processors.TaskID{Stage: s.Name, Partition: event.Partition(r.Partition)}]
		if d == nil || string(r.Key) != string([]byte{state.KeyProgress}) {
			continue
		}
		var p state.Progress
		if err := json.Unmarshal(r.Value, &p); err != nil {
			return fmt.Errorf("progress record of %s/%d at offset %d: %w", s.Name, r.Partition, r.Offset, err)
		}
		d.ProgressEpoch, d.Progress = p.Epoch, p.Offsets[s.Input]
	}
	return nil
}

// drained says whether all that the inputs hold has been committed as read.
func (f *facts) drained(ctx context.Context) (bool, error) {
	for _, s := range f.topology.Stages {
		if !s.Source() {
			continue
		}
		ends, err := f.adm.ListCommittedOffsets(ctx, s.Input)
		if err := errors.Join(err, ends.Error()); err != nil {
			return false, err
		}
		offsets, err := f.adm.FetchOffsets(ctx, f.topology.Group(s))
		if err != nil {
			return false, err
		}
		for p, end := range ends[s.Input] {
			if o, ok := offsets.Lookup(s.Input, p); !ok || o.At < end.Offset {
				return false, nil
			}
		}
	}
	return true, nil
}

// ask runs a query that gives one text a row.
func (f *facts) ask(ctx context.Context, sql string) ([]string, error) {
	conn, err := pgx.Connect(ctx, f.postgres)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// reader opens the ontology for questions; nil where there is none yet.
func (f *facts) reader(ctx context.Context) (*ontology.Reader, error) {
	r, err := ontology.OpenReader(ctx, mapping.Ontology{Postgres: mapping.NewSecret(f.postgres)}, ontology.Options{})
	if err != nil && strings.Contains(err.Error(), "there is no ontology") {
		return nil, nil //nolint:nilnil // nothing to ask is an answer here
	}
	return r, err
}

// answersAsked is how many recorded times are asked for.
const answersAsked = 4

// recordedTimes are the horizon and the newest recorded times below it.
func (f *facts) recordedTimes(ctx context.Context, r *ontology.Reader) ([]event.RecordedTime, error) {
	bounds, err := r.Bounds(ctx, "")
	if err != nil || bounds.Horizon == event.RecordedUnknown {
		return nil, err
	}
	log, err := f.control(ctx)
	if err != nil {
		return nil, err
	}
	out := []event.RecordedTime{bounds.Horizon}
	all := announcements(log)
	for i := len(all) - 1; i >= 0 && len(out) < answersAsked; i-- {
		if all[i].Recorded < bounds.Horizon {
			out = append(out, all[i].Recorded)
		}
	}
	return out, nil
}

// answers asks for everything as of recorded times.
func (f *facts) answers(ctx context.Context, r *ontology.Reader, times []event.RecordedTime) (answers, error) {
	out := answers{}
	for _, at := range times {
		hash, n := sha256.New(), 0
		for fact, err := range r.AsOf(ctx, ontology.Question{Recorded: at}) {
			if err != nil {
				return nil, fmt.Errorf("as of %s: %w", at, err)
			}
			line, err := fact.MarshalJSON()
			if err != nil {
				return nil, err
			}
			_, _ = io.WriteString(hash, string(line)+"\n") // a hash takes everything
			n++
		}
		out[at] = fmt.Sprintf("%d facts %s", n, hex.EncodeToString(hash.Sum(nil)[:8]))
	}
	return out, nil
}

// poll asks until it is so, for so long.
func poll(ctx context.Context, what string, patience time.Duration, is func() (bool, error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for {
		ok, err := is()
		if ok && err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("not so within %s: %s", patience, what), err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
