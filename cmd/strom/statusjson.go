package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
)

// statusJSON is the status for programs; it is documented in docs/cli.md.
type statusJSON struct {
	Pipeline string      `json:"pipeline"`
	Epoch    event.Epoch `json:"epoch"`
	// Recorded is R of that epoch, and the three below it when, how long ago and
	// by which replica it was announced; null before the first.
	Recorded    *string  `json:"recorded"`
	AnnouncedAt *string  `json:"announced_at"`
	Age         *float64 `json:"age_seconds"`
	AnnouncedBy *string  `json:"announced_by"`
	// Coordinator announces the next one.
	Coordinator ownerJSON `json:"coordinator"`
	Ended       bool      `json:"ended"`   // the last epoch ended the input
	Holding     bool      `json:"holding"` // sources wait: too many late events are parked
	Mapping     string    `json:"mapping_version"`
	// MappingSinceEpoch is the barrier behind which the mapping is in force, and
	// MappingSince its recorded time; absent where it is from the beginning.
	MappingSinceEpoch event.Epoch `json:"mapping_since_epoch,omitempty"`
	MappingSince      string      `json:"mapping_since,omitempty"`
	// Format is the record format that the fleet writes.
	Format     state.Format      `json:"record_format"`
	Watermarks map[string]string `json:"watermarks"`
	// WatermarksHeldBy are the partitions whose watermark is the least of their stream.
	WatermarksHeldBy []watermarkHolder `json:"watermarks_held_by"`
	Totals           totalsJSON        `json:"totals"`
	total            *processors.Counters
	Lag              int64            `json:"lag"` // of the topics that the mapping reads
	Tasks            []taskStatusJSON `json:"tasks"`
	// HeldBy are those whom the horizon waits for.
	HeldBy   []holderJSON    `json:"held_by"`
	Ontology *ontologyStatus `json:"ontology"` // null: not asked, or no answer
	// OntologyError says why the ontology gave no answer.
	OntologyError string `json:"ontology_error,omitempty"`
	now           time.Time
}

// ownerJSON is who has a partition.
type ownerJSON struct {
	// State is owned, nobody, rebalancing or unknown.
	State   string `json:"state"`
	Replica string `json:"replica,omitempty"`
	Host    string `json:"host,omitempty"`
}

type watermarkHolder struct {
	Stream    string          `json:"stream"`
	Stage     string          `json:"stage"`
	Partition event.Partition `json:"partition"`
	Watermark *string         `json:"watermark"` // null: none yet
	Why       string          `json:"why"`
}

type holderJSON struct {
	Stage     string          `json:"stage"`
	Partition event.Partition `json:"partition"`
	Why       string          `json:"why"`
	Since     *string         `json:"since"` // null: not known
}

// totalsJSON sums the counters; they count since the pipeline began.
type totalsJSON struct {
	Records     int64 `json:"records"`
	Events      int64 `json:"events"`
	OnTime      int64 `json:"on_time"`
	Corrections int64 `json:"corrections"`
	Late        int64 `json:"late_corrections"`
	Repeats     int64 `json:"repeats"`
	DeadLetters int64 `json:"dead_letters"`
	Filtered    int64 `json:"filtered"`
}

type taskStatusJSON struct {
	Stage     string          `json:"stage"`
	Partition event.Partition `json:"partition"`
	Owner     ownerJSON       `json:"owner"`
	// Epoch is the last one that the task has acknowledged, 0: none; by which
	// replica, and when, is null then.
	Epoch          event.Epoch `json:"epoch"`
	AcknowledgedBy *string     `json:"acknowledged_by"`
	AcknowledgedAt *string     `json:"acknowledged_at"`
	acknowledged   time.Time
	// Watermark is the task's own; null where it has none.
	Watermark *string     `json:"watermark"`
	Source    bool        `json:"source"` // reads a topic of the mapping
	Idle      bool        `json:"idle"`
	AtEnd     bool        `json:"at_end"`
	Halted    string      `json:"halted,omitempty"`
	Parked    int         `json:"parked"` // late windows that wait for their read-back
	Counters  totalsJSON  `json:"counters"`
	Inputs    []inputJSON `json:"inputs"`
}

type inputJSON struct {
	Topic  string       `json:"topic"`
	Offset event.Offset `json:"offset"` // acknowledged
	End    event.Offset `json:"end"`
	Lag    int64        `json:"lag"`
}

// ontologyStatus is how far the ontology is.
type ontologyStatus struct {
	Registered bool             `json:"registered"` // the pipeline has written to this ontology
	Generation event.Generation `json:"generation,omitempty"`
	Mapping    string           `json:"mapping_version,omitempty"`
	Floor      *string          `json:"floor"`   // null: history goes back to the beginning
	Horizon    *string          `json:"horizon"` // null: no epoch is complete
	// Age is the time since the horizon's epoch was announced; null: not known.
	Age    *float64 `json:"horizon_age_seconds"`
	Behind int64    `json:"behind"` // epochs between the newest one and the horizon's
	// HeldBackBy are the results partitions that have applied the least.
	HeldBackBy []event.Partition `json:"held_back_by"`
	Partitions []sinkJSON        `json:"partitions"`
}

type sinkJSON struct {
	Partition event.Partition `json:"partition"`
	Owner     ownerJSON       `json:"owner"`
	Epoch     event.Epoch     `json:"epoch"`
	Recorded  *string         `json:"recorded"`
	Offset    event.Offset    `json:"offset"`
	UnderWay  event.Epoch     `json:"under_way,omitempty"`
}

// newStatusJSON puts together what Kafka and the ontology say; info is nil where
// that says nothing.
func newStatusJSON(name string, st *kafka.Status, info *ontology.PipelineInfo) *statusJSON {
	out := &statusJSON{
		Pipeline: name, Epoch: st.Newest.Epoch, Ended: st.Newest.End, Holding: st.Newest.Hold,
		Mapping: st.Newest.Mapping, Watermarks: map[string]string{}, Coordinator: newOwner(st.Coordinator),
		WatermarksHeldBy: []watermarkHolder{}, Tasks: []taskStatusJSON{}, HeldBy: []holderJSON{}, now: st.Taken,
	}
	if st.Newest.Epoch > 0 {
		out.Recorded, out.AnnouncedAt = new(st.Newest.Recorded.String()), instantText(st.AnnouncedAt)
		out.Age, out.AnnouncedBy = secondsSince(st.AnnouncedAt, st.Taken), new(st.Announcer)
	}
	if st.Mapping.Epoch > 0 {
		out.MappingSinceEpoch, out.MappingSince = st.Mapping.Epoch, st.Mapping.Recorded.String()
	}
	out.Format = max(st.Newest.Format, state.FormatOldest)
	for stream, w := range st.Newest.Watermarks {
		out.Watermarks[stream] = w.String()
	}
	out.addTasks(st)
	if !out.Ended {
		out.addWatermarkHolders(st)
	}
	var applied map[event.Partition]ontology.Progress
	if info != nil {
		out.Ontology = newOntologyStatus(st, info)
		applied = map[event.Partition]ontology.Progress{}
		for i := range info.Partitions {
			applied[event.Partition(i)] = info.Partitions[i]
		}
	}
	for _, h := range st.HeldBy(applied) {
		out.HeldBy = append(out.HeldBy, holderJSON{h.Stage, h.Partition, h.Why + out.ownerSays(st, &h), instantText(h.Since)})
	}
	return out
}

func (s *statusJSON) addTasks(st *kafka.Status) {
	// What stages hand to each other is not counted as the stream's again.
	own := "strom." + s.Pipeline + ".g"
	var total processors.Counters
	for i := range st.Tasks {
		t := &st.Tasks[i]
		j := taskStatusJSON{
			Stage: t.Task.Stage, Partition: t.Task.Partition, Owner: newOwner(t.Owner), Epoch: t.Epoch, Idle: t.Idle, AtEnd: t.AtEnd,
			Halted: t.Halted, Parked: t.Waiting, Counters: totals(t.Counters), Inputs: []inputJSON{}, acknowledged: t.AckedAt,
		}
		if t.Epoch > 0 {
			j.AcknowledgedBy, j.AcknowledgedAt = new(t.Replica), instantText(t.AckedAt)
		}
		if t.Watermark != event.WatermarkUnknown {
			j.Watermark = new(t.Watermark.String())
		}
		counted := t.Counters
		for _, in := range t.Inputs {
			j.Inputs = append(j.Inputs, inputJSON{in.Topic, in.Offset, in.End, in.Lag()})
			if strings.HasPrefix(in.Topic, own) {
				counted.Records = 0
			} else {
				j.Source = true
				s.Lag += in.Lag()
			}
		}
		total.Add(counted)
		s.Tasks = append(s.Tasks, j)
	}
	s.Totals, s.total = totals(total), &total
}

// addWatermarkHolders names, for each stream, the partitions whose watermark is
// the least of those that are not idle, where they have fallen behind others or
// have none.
func (s *statusJSON) addWatermarkHolders(st *kafka.Status) {
	least, most := map[string]event.Watermark{}, map[string]event.Watermark{}
	held := func(i int) bool { return s.Tasks[i].Source && !st.Tasks[i].Idle }
	for i := range st.Tasks {
		stage, w := st.Tasks[i].Task.Stage, st.Tasks[i].Watermark
		if !held(i) {
			continue
		}
		if have, ok := least[stage]; !ok || w < have {
			least[stage] = w
		}
		if have, ok := most[stage]; !ok || w > have {
			most[stage] = w
		}
	}
	for i := range st.Tasks {
		t, j := &st.Tasks[i], &s.Tasks[i]
		if !held(i) || t.Watermark != least[t.Task.Stage] {
			continue
		}
		h := watermarkHolder{Stage: j.Stage, Partition: j.Partition, Watermark: j.Watermark}
		h.Stream = strings.TrimPrefix(j.Stage, "ingest.")
		switch {
		case t.Halted != "":
			h.Why = "halted: " + t.Halted
		case j.Watermark == nil:
			h.Why = "no event has come in it yet, and it is not idle"
		case t.Watermark < most[t.Task.Stage]:
			h.Why = "it is the least"
		default:
			continue
		}
		s.WatermarksHeldBy = append(s.WatermarksHeldBy, h)
	}
}

// ownerSays tells of the owner of what holds the horizon back.
func (s *statusJSON) ownerSays(st *kafka.Status, h *kafka.Holder) string {
	switch h.Stage {
	case kafka.SinkName:
		return "; " + ownerText(newOwner(st.Sink[h.Partition]), "applies it")
	case kafka.CoordinatorName:
		return "; " + ownerText(s.Coordinator, "is the coordinator")
	}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		if t.Stage != h.Stage || t.Partition != h.Partition {
			continue
		}
		text := "; " + taskOwner(t)
		if t.Epoch > 0 {
			text += fmt.Sprintf("; %s acknowledged epoch %s %s ago", *t.AcknowledgedBy, t.Epoch, ageText(s.now.Sub(t.acknowledged)))
		}
		return text
	}
	return ""
}

// taskOwner says who has a task.
func taskOwner(t *taskStatusJSON) string {
	if t.Owner.State == kafka.OwnerHas.String() && t.AcknowledgedBy != nil && *t.AcknowledgedBy != t.Owner.Replica {
		return fmt.Sprintf("%s takes it over from %s", t.Owner.Replica, *t.AcknowledgedBy)
	}
	if t.Owner.State == kafka.OwnerNobody.String() {
		return "no owner: nobody has this task"
	}
	return ownerText(t.Owner, "has this task")
}

func ownerText(o ownerJSON, does string) string {
	switch o.State {
	case kafka.OwnerHas.String():
		return o.Replica + " " + does
	case kafka.OwnerNobody.String():
		return "nobody " + does
	case kafka.OwnerRebalancing.String():
		return "its group is being distributed anew"
	}
	return "who " + does + " is not known"
}

func newOwner(o kafka.Owner) ownerJSON {
	return ownerJSON{State: o.State.String(), Replica: o.Replica, Host: o.Host}
}

// instantText gives RFC 3339, or null for the zero time.
func instantText(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(event.FromTime(t).String())
}

// secondsSince is never below 0: clocks differ. It is null for the zero time.
func secondsSince(at, now time.Time) *float64 {
	if at.IsZero() {
		return nil
	}
	return new(max(0, float64(now.Sub(at).Milliseconds())/1000))
}

func totals(c processors.Counters) totalsJSON {
	return totalsJSON{
		Records: c.Records, Events: c.Events, OnTime: c.OnTime, Corrections: c.Corrections, Late: c.Late,
		Repeats: c.Repeats, DeadLetters: c.DeadLetters, Filtered: c.Filtered,
	}
}

func newOntologyStatus(st *kafka.Status, p *ontology.PipelineInfo) *ontologyStatus {
	newest := st.Newest.Epoch
	out := &ontologyStatus{
		Registered: true, Generation: p.Generation, Mapping: p.MappingVersion,
		HeldBackBy: []event.Partition{}, Partitions: []sinkJSON{},
	}
	if p.Bounds.Floor != event.RecordedUnknown {
		out.Floor = new(p.Bounds.Floor.String())
	}
	if p.Bounds.Horizon != event.RecordedUnknown {
		out.Horizon = new(p.Bounds.Horizon.String())
	}
	least, recorded := newest, st.Newest.Recorded
	for i, g := range p.Partitions {
		s := sinkJSON{
			Partition: event.Partition(i), Owner: newOwner(st.Sink[event.Partition(i)]),
			Epoch: g.Epoch, Offset: g.Offset, UnderWay: g.UnderWay,
		}
		if g.Epoch > 0 {
			s.Recorded = new(g.Recorded.String())
		}
		out.Partitions = append(out.Partitions, s)
		if g.Epoch < least {
			least, recorded = g.Epoch, g.Recorded
		}
	}
	out.Age = secondsSince(st.AnnouncedAround(least, recorded), st.Taken)
	out.Behind = int64(newest - least)
	for _, s := range out.Partitions {
		if out.Behind > 0 && s.Epoch == least {
			out.HeldBackBy = append(out.HeldBackBy, s.Partition)
		}
	}
	return out
}
