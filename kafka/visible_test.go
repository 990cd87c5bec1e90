package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forge-platform/strom/kafka"
)

// watched is an engine that runs beside others of its pipeline.
type watched struct {
	engine *kafka.Engine
	cancel context.CancelFunc
	ended  chan error
}

func startReplica(t *testing.T, c kafka.Config, name string) *watched {
	t.Helper()
	c.Replica, c.DataDir, c.RebalanceTimeout = name, t.TempDir(), 4*time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	r := &watched{engine: kafka.New(c), cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- r.engine.Run(ctx) }()
	t.Cleanup(func() { r.stop(t) })
	return r
}

func (r *watched) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err, open := <-r.ended; open {
		close(r.ended)
		if err != nil {
			t.Error(err)
		}
	}
}

// tasks is the number of tasks of a stage that the engine says are its own.
func (r *watched) tasks(stage string) int {
	s := r.engine.Snapshot()
	n := 0
	for i := range s.Tasks {
		if s.Tasks[i].Task.Stage == stage {
			n++
		}
	}
	return n
}

func (r *watched) ready() bool { return len(r.engine.Snapshot().NotReady) == 0 }

// soon waits, for a bounded time, until it is so.
func soon(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !so(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not so after 30 s: %s", what)
		}
	}
}

// statusWatch reads the status again and again.
type statusWatch struct {
	mu     sync.Mutex // guards all below
	last   kafka.Status
	reads  int
	states map[kafka.OwnerState]int
}

func watchStatus(t *testing.T, c kafka.Config) *statusWatch {
	t.Helper()
	w := &statusWatch{states: map[kafka.OwnerState]int{}}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			s, err := kafka.ReadStatus(ctx, c.Kafka, c.Topology, c.Log)
			var never *kafka.NeverRanError
			switch {
			case ctx.Err() != nil:
			case err == nil:
				w.take(s)
			case !errors.As(err, &never) || w.count() > 0:
				t.Errorf("after %d statuses: %v", w.count(), err)
				return
			}
		}
	})
	return w
}

func (w *statusWatch) take(s kafka.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = s
	w.reads++
	for i := range s.Tasks {
		w.states[s.Tasks[i].Owner.State]++
	}
}

func (w *statusWatch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads
}

// owners gives how many tasks each replica owns; those of nobody under "nobody".
func (w *statusWatch) owners() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]int{}
	for i := range w.last.Tasks {
		switch o := w.last.Tasks[i].Owner; o.State {
		case kafka.OwnerHas:
			out[o.Replica]++
		case kafka.OwnerNobody, kafka.OwnerRebalancing, kafka.OwnerUnknown:
			out[o.State.String()]++
		}
	}
	return out
}

func TestTheStatusHoldsWhileReplicasComeAndGo(t *testing.T) {
	s := newSteady(t, 3)
	c := s.config(t, fmt.Sprintf(ticks, "wall", "partitioned_by: key"))
	stage := c.Topology.Stages[0].Name
	w := watchStatus(t, c)
	own := func(want map[string]int) {
		t.Helper()
		soon(t, fmt.Sprintf("owners %v", want), func() bool { return maps.Equal(w.owners(), want) })
	}

	r1 := startReplica(t, c, "r1")
	own(map[string]int{"r1": 3})
	soon(t, "r1 is ready", r1.ready)
	if n := r1.tasks(stage); n != 3 || !r1.engine.Snapshot().Coordinator {
		t.Errorf("r1 has %d tasks: %+v", n, r1.engine.Snapshot())
	}

	r2 := startReplica(t, c, "r2")
	soon(t, "they share", func() bool { o := w.owners(); return o["r1"]+o["r2"] == 3 && o["r2"] > 0 })
	soon(t, "both are ready and say the same", func() bool {
		o := w.owners()
		return r1.ready() && r2.ready() && r1.tasks(stage) == o["r1"] && r2.tasks(stage) == o["r2"]
	})
	soon(t, "both hear of the same", func() bool {
		a, b := r1.engine.Snapshot(), r2.engine.Snapshot()
		return a.Newest.Epoch > 0 && a.Newest.Epoch == b.Newest.Epoch && a.Ontology.Known && b.Ontology.Known && a.Coordinator != b.Coordinator
	})

	r2.stop(t)
	own(map[string]int{"r1": 3})
	soon(t, "r1 goes on", func() bool { return r1.ready() && r1.tasks(stage) == 3 })
	soon(t, "three rebalances are counted", func() bool {
		return slices.ContainsFunc(r1.engine.Snapshot().Groups, func(g kafka.GroupSnapshot) bool {
			return g.Name == stage && g.Rebalances >= 3
		})
	})
	r1.stop(t)
	own(map[string]int{"nobody": 3})
	if why := r1.engine.Snapshot().NotReady; !slices.Equal(why, []string{"it has ended"}) {
		t.Errorf("after its end: %v", why)
	}
	t.Logf("%d statuses; owners seen: %v", w.count(), w.states)
}

func TestAReplicaTooManyStandsByAndIsReady(t *testing.T) {
	s := newSteady(t, 1)
	c := s.config(t, fmt.Sprintf(ticks, "wall", "partitioned_by: key"))
	stage := c.Topology.Stages[0].Name
	r1, r2 := startReplica(t, c, "r1"), startReplica(t, c, "r2")
	soon(t, "one has the task, and both are ready", func() bool {
		return r1.ready() && r2.ready() && r1.tasks(stage)+r2.tasks(stage) == 1
	})
}

// A commit that does not come to its end holds up all tasks of its member.
func TestATaskThatDoesNotAcknowledgeIsNamed(t *testing.T) {
	s := newSteady(t, 2)
	c := s.config(t, fmt.Sprintf(ticks, "wall", "partitioned_by: key"))
	stage := c.Topology.Stages[0].Name
	var block atomic.Bool
	release := make(chan struct{})
	c.At = func(point string) {
		if point == "commit.offsets" && block.Load() {
			<-release
		}
	}
	r := startReplica(t, c, "r1")
	var once sync.Once
	free := func() { once.Do(func() { block.Store(false); close(release) }) }
	t.Cleanup(free)
	soon(t, "it runs, and nobody holds anything back", func() bool {
		s := r.engine.Snapshot()
		return r.ready() && s.Newest.Epoch > 2 && len(s.HeldBy) == 0
	})
	block.Store(true)
	named := func(held []kafka.Holder, epoch string) bool {
		return len(held) == 2 && held[0].Stage == stage && held[0].Partition == 0 && held[1].Partition == 1 &&
			strings.Contains(held[1].Why, "has not acknowledged epoch "+epoch) && !held[1].Since.IsZero()
	}
	soon(t, "both tasks are named", func() bool {
		s := r.engine.Snapshot()
		return named(s.HeldBy, s.Newest.Epoch.String())
	})
	st, err := kafka.ReadStatus(t.Context(), c.Kafka, c.Topology, c.Log)
	if err != nil {
		t.Fatal(err)
	}
	if held := st.HeldBy(r.engine.Snapshot().Ontology.Progress); !named(held, st.Newest.Epoch.String()) {
		t.Errorf("the status names %+v", held)
	}
	free()
	soon(t, "nobody is named any more", func() bool { return len(r.engine.Snapshot().HeldBy) == 0 })
}

// With the broker away a replica is not ready, and says so; its loops turn.
func TestABrokerThatIsAwayIsNoReasonToEndTheProcess(t *testing.T) {
	s := newSteady(t, 1)
	r := startReplica(t, s.config(t, fmt.Sprintf(ticks, "wall", "partitioned_by: key")), "r1")
	soon(t, "it runs", func() bool { return r.ready() && r.engine.Snapshot().Newest.Epoch > 1 })
	if err := s.broker.Stop(); err != nil {
		t.Fatal(err)
	}
	soon(t, "it says that Kafka is away", func() bool {
		return strings.Contains(strings.Join(r.engine.Snapshot().NotReady, "\n"), "Kafka does not answer")
	})
	pause(t, 6*time.Second) // as long as a loop might stand still
	for _, l := range r.engine.Snapshot().Busy {
		if l.For > 5*time.Second {
			t.Errorf("%s stands still for %s", l.Name, l.For)
		}
	}
	t.Log(r.engine.Snapshot().NotReady)
}
