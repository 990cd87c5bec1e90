package kafka

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// monitor keeps what a Snapshot is made of: what is heard on the control topic,
// and what is asked of the database, the brokers and the stores every second.
// It changes nothing, and no part of the engine waits for it. Its mutex is held
// for moments only, and no other is taken under it.
type monitor struct {
	engine     *Engine
	born       time.Time
	announcing atomic.Bool // this replica leads

	mu sync.Mutex // guards all below
	// phase says what the engine does while its parts do not run; empty: they do.
	phase   string
	members []*member
	tasks   []processors.TaskID // of the pipeline
	groups  map[string]*groupWatch
	loops   []*loop

	newest      processors.Announcement
	announcedAt time.Time
	announcer   string
	times       []epochTime // of the newest announcements, in order
	acks        map[processors.TaskID]heardAck

	ontology OntologySnapshot
	ends     kadm.ListedOffsets
	kafkaErr error // of the last question
	stores   map[processors.TaskID]*storeFacts
}

// heardAck is a task's newest acknowledgement on the control topic.
type heardAck struct {
	processors.Ack
	offsets map[string]event.Offset
	member  string // transactional id
	at      time.Time
}

type epochTime struct {
	epoch event.Epoch
	at    time.Time
}

// storeFacts are what is told of a store.
type storeFacts struct {
	bytes    uint64
	position event.Offset
}

type groupWatch struct {
	client     *kgo.Client
	generation int32
	rebalances int64
}

func newMonitor(e *Engine) *monitor {
	return &monitor{
		engine: e, born: time.Now(), phase: "it has not been started",
		newest: processors.Announcement{Recorded: event.RecordedUnknown},
		groups: map[string]*groupWatch{}, acks: map[processors.TaskID]heardAck{},
	}
}

// enter says what the engine does now.
func (m *monitor) enter(phase string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = phase
}

// watch begins to tell of the parts of a running engine.
func (m *monitor) watch(members []*member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase, m.members = "", members
	for _, s := range m.engine.topology.Stages {
		for p := range m.engine.layout.tasks[s.Name] {
			m.tasks = append(m.tasks, processors.TaskID{Stage: s.Name, Partition: event.Partition(p)})
		}
	}
}

// joins makes a client's membership known. It ends with the call of the
// function that is returned.
func (m *monitor) joins(name string, client *kgo.Client) (left func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[name]
	if g == nil {
		g = &groupWatch{}
		m.groups[name] = g
	}
	g.client = client
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if g.client == client {
			g.client, g.generation = nil, 0
		}
	}
}

// loop gives a loop to watch.
func (m *monitor) loop(name string) *loop {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &loop{name: name, born: m.born}
	m.loops = append(m.loops, l)
	return l
}

// knownTimes bounds for how many epochs it is remembered when they were announced.
const knownTimes = 4096

func (m *monitor) announced(a *processors.Announcement, r *controlRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.Epoch <= m.newest.Epoch {
		return
	}
	m.newest, m.announcedAt, m.announcer = *a, r.at, r.Coordinator
	if len(m.times) == knownTimes {
		m.times = append(m.times[:0], m.times[knownTimes/2:]...)
	}
	m.times = append(m.times, epochTime{a.Epoch, r.at})
}

func (m *monitor) acked(j *ackJSON, r *controlRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := heardAck{Ack: j.ack(r), offsets: j.Offsets, member: r.Member, at: r.at}
	if m.acks[a.Task].Epoch <= a.Epoch {
		m.acks[a.Task] = a
	}
}

// announcedAround is when an epoch was announced: under the wall clock that is
// its R. Else it is looked up, and the oldest time that is known stands for what
// was earlier. Zero: not known.
func announcedAround(times []epochTime, wall bool, n event.Epoch, r event.RecordedTime) time.Time {
	switch {
	case n == 0:
		return time.Time{}
	case wall:
		return r.Time()
	}
	for _, t := range times {
		if t.epoch >= n {
			return t.at
		}
	}
	return time.Time{}
}

// taskFacts gives the end of a task's input (OffsetNone: not known) and what is
// known of its store.
func (m *monitor) taskFacts(t processors.TaskID, input string) (event.Offset, *storeFacts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := event.OffsetNone
	if o, ok := m.ends.Lookup(input, int32(t.Partition)); ok && o.Err == nil {
		end = event.Offset(o.Offset)
	}
	return end, m.stores[t]
}

const (
	monitorEvery = time.Second
	// askPatience bounds one question to the database or the brokers.
	askPatience = 2 * time.Second
)

// run asks until ctx ends. The database and the brokers do not wait for each other.
func (m *monitor) run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { every(ctx, monitorEvery, m.askOntology) })
	wg.Go(func() { every(ctx, monitorEvery, m.askKafka) })
	wg.Wait()
	return ctx.Err()
}

// every calls f at once and then again and again, until ctx ends.
func every(ctx context.Context, d time.Duration, f func(context.Context)) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, askPatience)
		f(limited)
		cancel()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (m *monitor) askOntology(ctx context.Context) {
	standing, err := m.engine.store.Probe(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ontology.Err = err; err != nil {
		return
	}
	m.ontology = OntologySnapshot{Known: true, Standing: standing}
	var recorded event.RecordedTime
	m.ontology.Epoch, recorded = leastApplied(standing.Progress)
	wall := m.engine.topology.Plan.Epoch.Clock == mapping.ClockWall
	m.ontology.At = announcedAround(m.times, wall, m.ontology.Epoch, recorded)
}

// askKafka finds the ends of the inputs, looks at the groups and the stores.
func (m *monitor) askKafka(ctx context.Context) {
	e := m.engine
	topics := []string{e.topology.ControlTopic()}
	for _, s := range e.topology.Stages {
		topics = append(topics, s.Input)
	}
	ends, err := kadm.NewClient(e.client).ListCommittedOffsets(ctx, topics...)
	if err != nil {
		err = fmt.Errorf("find the ends of the inputs: %w", err)
	}
	facts := e.stores.facts()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kafkaErr = err; err == nil {
		m.ends = ends
	}
	m.stores = facts
	for _, g := range m.groups {
		g.look()
	}
}

// look counts the rebalances since the last look: a group's generation counts them.
func (g *groupWatch) look() {
	if g.client == nil {
		return
	}
	_, n := g.client.GroupMetadata()
	switch was := g.generation; {
	case n < 1 || n == was:
	case was < 1 || n < was:
		g.rebalances++
	default:
		g.rebalances += int64(n - was)
	}
	g.generation = n
}

// facts looks at the open stores.
func (s *stores) facts() map[processors.TaskID]*storeFacts {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[processors.TaskID]*storeFacts, len(s.open))
	for id, st := range s.open {
		position, err := st.Position()
		if err != nil {
			position = event.OffsetNone // whoever uses the store meets the error too
		}
		out[id] = &storeFacts{bytes: st.DiskBytes(), position: position}
	}
	return out
}

// loop tells whether a goroutine that must not stand still does.
type loop struct {
	name string
	born time.Time
	// since is when it last turned, in nanoseconds after born by the monotonic
	// clock; 0: it is at rest, and waits for work.
	since atomic.Int64
}

// turn says that the loop goes on to the next piece of work.
func (l *loop) turn() { l.since.Store(int64(max(1, time.Since(l.born)))) }

// rest says that the loop has nothing to do, or waits for others as it may.
func (l *loop) rest() { l.since.Store(0) }

// appendTo adds the loop to a list if it is busy.
func (l *loop) appendTo(list []BusyLoop, born time.Time) []BusyLoop {
	since := l.since.Load()
	if since == 0 {
		return list
	}
	return append(list, BusyLoop{Name: l.name, For: time.Since(born) - time.Duration(since)})
}
