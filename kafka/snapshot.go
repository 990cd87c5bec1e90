package kafka

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// The names, beside those of the stages, under which a replica's other groups
// are told of.
const (
	CoordinatorName = "coordinator"
	SinkName        = "sink.ontology"
)

// Snapshot is what an engine knows at one moment of itself, and of its pipeline
// as far as it hears of it. It is a copy: the caller may keep it.
type Snapshot struct {
	Taken   time.Time
	Replica string
	// NotReady says why this replica does not do its part, one reason an entry;
	// empty: it does, or stands by because others have every partition.
	NotReady []string
	// Busy are the loops of this process that have work in hand, with the time
	// since they last turned. One that stays busy for long has stopped.
	Busy []BusyLoop

	// Newest is the newest announcement that was heard; its Epoch is 0 before
	// the first. AnnouncedAt is when, by the clock of Announcer, the replica
	// that made it.
	Newest      processors.Announcement
	AnnouncedAt time.Time
	Announcer   string
	// Coordinator: this replica is the one that announces.
	Coordinator bool

	// Groups are this replica's memberships: the stages, CoordinatorName and
	// SinkName.
	Groups []GroupSnapshot
	// Tasks are those of this replica, by stage and partition.
	Tasks    []TaskSnapshot
	Ontology OntologySnapshot
	// HeldBy names those whom the horizon waits for; empty: it follows.
	HeldBy []Holder

	running bool // the engine's parts run
}

// BusyLoop is a loop that has work in hand.
type BusyLoop struct {
	Name string
	For  time.Duration
}

// GroupSnapshot is this replica's membership in one consumer group.
type GroupSnapshot struct {
	Name string
	// Generation of the group that this replica is of; below 1: of none.
	Generation int32
	// Rebalances of the group while this process was in it.
	Rebalances int64
}

// TaskSnapshot is one task of this replica.
type TaskSnapshot struct {
	// Ack is the task's newest acknowledgement, by whomever; its Epoch is 0
	// where none was heard of.
	processors.Ack
	// Stream is the stream that a source task reads, else empty.
	Stream string
	Input  string
	// Committed is the epoch that this process has committed, or taken over.
	Committed event.Epoch
	// Lag is the number of offsets between the acknowledged one and the end of
	// the input, markers of transactions counted; -1: not known.
	Lag int64
	// QueuedBytes of records wait in front of the task; Paused: so many that
	// its partition is not fetched.
	QueuedBytes int64
	Paused      bool
	// StoreBytes is the size of the task's store on disk, and Position the
	// changelog offset that it reflects.
	StoreBytes uint64
	Position   event.Offset
}

// OntologySnapshot is how far the ontology was when it was asked last.
type OntologySnapshot struct {
	// Known: it has answered at least once. Err is why it did not the last time.
	Known bool
	Err   error
	ontology.Standing
	// Epoch is the least that a results partition has applied, and At when it
	// was announced; zero: not known.
	Epoch event.Epoch
	At    time.Time
}

// Snapshot says how the engine is. It may be called from any goroutine, before
// and after Run too; it asks neither Kafka nor the database, and does not wait
// for anything: what it says of them was gathered within the last seconds.
func (e *Engine) Snapshot() Snapshot {
	s, members, acks := e.monitor.copy()
	for _, m := range members {
		if why := m.notReady(); why != "" && s.running {
			s.NotReady = append(s.NotReady, why)
		}
		s.Tasks = append(s.Tasks, m.snapshot(&s, acks)...)
	}
	slices.SortFunc(s.Tasks, func(a, b TaskSnapshot) int { return compareTasks(a.Task, b.Task) })
	return s
}

func compareTasks(a, b processors.TaskID) int {
	return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Partition, b.Partition))
}

// copy copies what the monitor has.
func (m *monitor) copy() (Snapshot, []*member, map[processors.TaskID]heardAck) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Snapshot{
		Taken: now, Replica: m.engine.config.Replica,
		Newest: m.newest, AnnouncedAt: m.announcedAt, Announcer: m.announcer, Coordinator: m.announcing.Load(),
		Ontology: m.ontology,
	}
	s.Ontology.Progress = maps.Clone(m.ontology.Progress)
	if s.running = m.phase == ""; s.running {
		s.NotReady = m.complaints()
	} else {
		s.NotReady = []string{m.phase}
	}
	for _, name := range slices.Sorted(maps.Keys(m.groups)) {
		g := m.groups[name]
		s.Groups = append(s.Groups, GroupSnapshot{Name: name, Generation: g.generation, Rebalances: g.rebalances})
	}
	for _, l := range m.loops {
		s.Busy = l.appendTo(s.Busy, m.born)
	}
	s.HeldBy = m.standing().heldBy(now)
	return s, slices.Clone(m.members), maps.Clone(m.acks)
}

// complaints are the reasons of parts that are not a stage. The caller holds mu.
func (m *monitor) complaints() []string {
	var out []string
	for _, name := range [...]string{CoordinatorName, SinkName} {
		if g := m.groups[name]; g == nil || g.generation < 1 {
			out = append(out, fmt.Sprintf("%s: has not joined its group", name))
		}
	}
	switch {
	case m.ontology.Err != nil:
		out = append(out, fmt.Sprintf("the ontology does not answer: %v", m.ontology.Err))
	case !m.ontology.Known:
		out = append(out, "the ontology has not answered yet")
	}
	if m.kafkaErr != nil {
		out = append(out, fmt.Sprintf("Kafka does not answer: %v", m.kafkaErr))
	}
	return out
}

// standing is how far the pipeline is, as heard. The caller holds mu.
func (m *monitor) standing() *standing {
	t := m.engine.topology
	s := &standing{
		newest: m.newest, announcedAt: m.announcedAt, wall: t.Plan.Epoch.Clock == mapping.ClockWall,
		longest: processors.LongestInterval(t.Plan.Epoch), tasks: m.tasks, acks: m.acks,
	}
	if m.ontology.Known {
		s.applied = m.ontology.Progress
	}
	return s
}

// notReady says why this replica does not do its part in the stage.
func (m *member) notReady() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.current != nil || m.assigned == 0:
		return ""
	case m.assigned < 0:
		return fmt.Sprintf("stage %s: has not joined its group", m.stage.Name)
	}
	return fmt.Sprintf("stage %s: takes over %d of its tasks", m.stage.Name, m.assigned)
}

// snapshot adds what a member's loops do, and gives its tasks.
func (m *member) snapshot(s *Snapshot, acks map[processors.TaskID]heardAck) []TaskSnapshot {
	born := m.engine.monitor.born
	current := m.session()
	if current == nil {
		// While tasks are taken over, which may take long, franz-go lets nobody poll.
		if m.given() < 1 {
			s.Busy = m.loop.appendTo(s.Busy, born)
		}
		return nil
	}
	s.Busy = m.loop.appendTo(s.Busy, born)
	var out []TaskSnapshot
	for _, t := range current.tasks {
		s.Busy = t.loop.appendTo(s.Busy, born)
		out = append(out, t.snapshot(acks[t.id]))
	}
	return out
}

func (t *task) snapshot(heard heardAck) TaskSnapshot {
	stage, monitor := t.session.member.stage, t.session.engine.monitor
	s := TaskSnapshot{
		Ack: heard.Ack, Input: stage.Input, Committed: event.Epoch(t.committed.Load()), Lag: -1,
		QueuedBytes: t.inChannel.Load() + t.inRunner.Load(), Paused: t.paused.Load(), Position: event.OffsetNone,
	}
	if heard.Epoch == 0 {
		s.Ack = processors.Ack{Task: t.id, Watermark: event.WatermarkUnknown}
	}
	if stage.Source() {
		s.Stream = stage.Stream.Name
	}
	end, facts := monitor.taskFacts(t.id, stage.Input)
	if offset, ok := heard.offsets[stage.Input]; ok && end >= 0 {
		s.Lag = max(0, int64(end-offset))
	}
	if facts != nil {
		s.StoreBytes, s.Position = facts.bytes, facts.position
	}
	return s
}
