package processors

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
)

// Under the log clock what a pipeline publishes, recorded times included, is a
// function of its log: not of the slabs in which it was fetched, nor of tasks
// that crashed before or after a commit, nor of the coordinator's successors.
func TestCrashesChangeNothingThatIsPublished(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := drawPlan(t)
		logs := drawLogs(t)
		calm := &play{t: t, logs: logs}
		want := calm.run(plan)
		rough := &play{t: t, logs: logs, rough: true}
		if got := rough.run(plan); got != want {
			t.Fatalf("with crashes:\n%s\nwithout:\n%s", got, want)
		}
	})
}

func drawPlan(t *rapid.T) *mapping.Plan {
	text := fmt.Sprintf(`
pipeline: test
epoch: {clock: log, step: %s}
streams:
  readings:
    topic: readings
    key: k
    identity: {event_id: id, horizon: 30s}
    event_time: {field: at, format: s, max_ahead: 10s}
    watermark: {out_of_orderness: %s, idle_after: %s}
    allowed_lateness: %s
objects:
  Sensor:
    from: readings
    id: k
    properties: {last: {value: v, kind: integer}}
    aggregates:
      tens: {from: readings, id: k, window: {tumbling: 10s}, values: {n: count(), total: sum(v)}}
  Room:
    aggregates:
      halves: {from: readings, id: room, window: {tumbling: 30s}, values: {n: count(), total: sum(v)}}
      all: {from: readings, id: room, window: none, values: {n: count(), total: sum(v)}}
`,
		rapid.SampledFrom([]string{"1s", "7s", "30s"}).Draw(t, "step"),
		rapid.SampledFrom([]string{"0s", "5s"}).Draw(t, "out_of_orderness"),
		rapid.SampledFrom([]string{"0s", "20s"}).Draw(t, "idle_after"),
		rapid.SampledFrom([]string{"0s", "15s"}).Draw(t, "lateness"))
	plan, err := mapping.Parse("test.yaml", []byte(text), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// drawLogs draws two partitions: some events late, repeated or too far ahead.
func drawLogs(t *rapid.T) [2][]Record {
	var logs [2][]Record
	stamp := int64(1000)
	for i := range rapid.IntRange(0, 40).Draw(t, "records") {
		stamp += rapid.Int64Range(0, 12).Draw(t, "gap")
		at := stamp - rapid.SampledFrom([]int64{0, 0, 1, 3, 20, 60, -5, -100}).Draw(t, "delay")
		p := rapid.IntRange(0, 1).Draw(t, "partition")
		id := max(0, i-rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "repeats"))
		logs[p] = append(logs[p], Record{
			Timestamp: event.EventTime(stamp * 1e6),
			Value: fmt.Appendf(nil, `{"id":"%d","k":"k%d","room":"r%d","at":%d,"v":%d}`, id,
				rapid.IntRange(0, 1).Draw(t, "k"), rapid.IntRange(0, 1).Draw(t, "room"), at, i),
		})
	}
	return logs
}

// play runs a pipeline over logs that are complete from the start.
type play struct {
	t     *rapid.T
	logs  [2][]Record
	rough bool

	*script
	order []*scripted
	// control is what the coordinator was told, in order.
	control []func(*Coordinator)
	out     strings.Builder
}

func (p *play) run(plan *mapping.Plan) string {
	p.script = &script{
		topology: NewTopology(plan, 1), partitions: map[string]int32{},
		logs: map[string]map[event.Partition][]Record{}, believed: map[string]event.Result{},
	}
	for _, g := range p.topology.Stages {
		p.partitions[g.Name] = 2
	}
	for n, records := range p.logs {
		for _, r := range records {
			p.append("readings", event.Partition(n), r)
		}
	}
	p.coordinator = NewCoordinator(p.topology, p.partitions, p.script.ends(0))
	for _, id := range p.coordinator.Tasks() {
		t := &scripted{id: id, stage: p.topology.Stage(id.Stage), store: state.NewMemory()}
		p.order = append(p.order, t)
		p.check(p.start(t))
		p.fetchSome(t)
		next := t.runner.NextRecord()
		p.tell(func(c *Coordinator) {
			c.Acked(Ack{Task: id, Watermark: event.WatermarkUnknown, Next: next, AtEnd: next.None})
		})
	}
	for n := 0; !p.coordinator.Ended(); n++ {
		if n > 1000 {
			p.t.Fatal("the run does not end")
		}
		p.epoch()
	}
	for _, t := range p.order {
		fmt.Fprintf(&p.out, "%v %s\n", t.id, t.progress.Counters)
	}
	return p.out.String()
}

func (p *play) check(err error) {
	if err != nil {
		p.t.Fatal(err)
	}
}

// chance is whether something goes wrong here.
func (p *play) chance(what string) bool {
	return p.rough && rapid.IntRange(0, 7).Draw(p.t, what) == 0
}

func (p *play) tell(what func(*Coordinator)) {
	p.control = append(p.control, what)
	what(p.coordinator)
}

// fetchSome delivers the next slab: all that there is, or some of it.
func (p *play) fetchSome(t *scripted) {
	have := event.Offset(len(p.script.logs[t.stage.Input][t.id.Partition]))
	to := have
	if p.rough && have > t.fetched {
		to = t.fetched + event.Offset(rapid.Int64Range(1, int64(have-t.fetched)).Draw(p.t, "slab"))
	}
	p.deliver(t, to)
}

func (p *play) epoch() {
	if p.chance("coordinator dies") {
		last := p.coordinator.Last()
		p.coordinator = NewCoordinator(p.topology, p.partitions, p.script.ends(0))
		p.coordinator.Restore(last)
		for _, told := range p.control {
			told(p.coordinator)
		}
	}
	a, ok := p.coordinator.Next(0)
	if !ok {
		p.t.Fatalf("nothing to announce after %s", p.coordinator.Last().Epoch)
	}
	p.out.WriteString(showAnnouncement(&a))
	for _, t := range p.order {
		p.reach(t, &a)
		for p.chance("dies before the commit") {
			p.check(p.start(t))
			p.reach(t, &a)
		}
		p.print(t)
		p.check(t.runner.Task().Answer(p.believe(t.runner.Task().Waiting())))
		ack, err := p.commitTask(t)
		p.check(err)
		p.tell(func(c *Coordinator) { c.Acked(ack) })
		if p.chance("dies after the commit") {
			p.takeOver(t)
		}
		if !t.stage.Source() {
			continue
		}
		for !t.runner.NextRecord().Known {
			p.fetchSome(t)
		}
		next := t.runner.NextRecord()
		p.tell(func(c *Coordinator) { c.Noticed(t.id, a.Epoch, next, next.None) })
	}
}

// takeOver gives a task that stands at a barrier to a new owner, who
// acknowledges that barrier again.
func (p *play) takeOver(t *scripted) {
	p.check(p.start(t))
	waiting := t.runner.Task().Waiting()
	again := Ack{
		Task: t.id, Epoch: t.progress.Epoch, Watermark: t.progress.Watermark, Next: t.runner.NextRecord(),
		Waiting: len(waiting), Answered: min(t.runner.Task().Answered(), t.progress.Epoch),
	}
	p.tell(func(c *Coordinator) { c.Acked(again) })
	p.check(t.runner.Task().Answer(p.believe(waiting)))
}

// reach lets a task go on to the barrier.
func (p *play) reach(t *scripted, a *Announcement) {
	p.check(t.runner.Task().Answer(p.believe(t.runner.Task().Waiting())))
	p.check(t.runner.Announce(a.Barrier()))
	for n := 0; t.handed == nil; n++ {
		if n > 1000 {
			p.t.Fatalf("%v does not reach barrier %s", t.id, a.Epoch)
		}
		p.fetchSome(t)
		_, err := p.step(t)
		p.check(err)
	}
}

// print notes what a task publishes for the ontology.
func (p *play) print(t *scripted) {
	for _, o := range t.outputs {
		if o.Topic > 0 {
			continue
		}
		r, err := event.DecodeResult(o.Value)
		p.check(err)
		p.out.WriteString(showResult(&r))
	}
	for _, d := range t.handed.DeadLetters {
		fmt.Fprintf(&p.out, "dead letter %s: %s\n", d.Place, d.Reject.Reason)
	}
}
