package processors_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// clicksTask drives the task of one partition of benchClicks.
type clicksTask struct {
	t     *testing.T
	task  processors.Task
	store state.Store
	view  *state.View
	next  event.Offset
	epoch event.Epoch
}

func newClicksTask(t *testing.T) *clicksTask {
	t.Helper()
	c := &clicksTask{t: t, store: state.NewMemory()}
	c.restart(state.InitialProgress())
	c.commit(c.barrier(event.WatermarkUnknown))
	return c
}

// restart makes the task anew, from what the store has.
func (c *clicksTask) restart(p state.Progress) {
	c.t.Helper()
	c.view = state.NewView(c.store)
	stage := processors.NewTopology(parsePlan(c.t, benchClicks), 1).Stages[0]
	var err error
	if c.task, err = processors.NewTask(processors.TaskConfig{Stage: stage, Partitions: 1, State: c.view, Progress: p}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clicksTask) click(user string, second int) {
	c.t.Helper()
	const base = 1_709_251_200_000
	r := processors.Record{Offset: c.next, Timestamp: base * 1000, Value: fmt.Appendf(nil, `{"user":%q,"at":%d,"amount":1}`, user, base+second*1000)}
	c.next++
	if took, err := c.task.Feed(0, []processors.Record{r}, processors.Clock{Now: 2_000_000_000_000_000}); took != 1 || err != nil {
		c.t.Fatal(took, err)
	}
}

func (c *clicksTask) barrier(w event.Watermark) *processors.HandOver {
	c.t.Helper()
	c.epoch++
	h, err := c.task.Barrier(processors.Barrier{
		Epoch: c.epoch, Recorded: event.RecordedTime(2_000_000_000_000_000 + int64(c.epoch)),
		Watermarks: map[string]event.Watermark{"clicks": w},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.view.Begin(h.Layer)
	return h
}

// commit gives what an epoch publishes, as user:count@version.
func (c *clicksTask) commit(h *processors.HandOver) string {
	c.t.Helper()
	var out []string
	publish := func(o processors.Output) error {
		r, err := event.DecodeResult(o.Value)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(r.Properties, func(p event.Property) bool { return p.Name == "n" })
		out = append(out, fmt.Sprintf("%s:%s@%d", r.ID, r.Properties[n].Value.Text, r.Version))
		return nil
	}
	if err := h.Stream(h.Layer.Over(c.store), publish, func([]byte) error { return nil }); err != nil {
		c.t.Fatal(err)
	}
	if err := c.store.Apply(&state.Batch{Changes: h.Layer.Changes(), Expired: h.Expired, Position: event.Offset(c.epoch)}); err != nil {
		c.t.Fatal(err)
	}
	c.view.Applied()
	return strings.Join(out, " ")
}

func (c *clicksTask) want(got, want string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("published %q, want %q", got, want)
	}
}

// second is the watermark at a second of the input's time.
func second(n int) event.Watermark { return event.Watermark((1_709_251_200 + int64(n)) * 1_000_000) }

// What closes at a barrier is published as it was there, whatever comes for the
// window while the epoch is being committed.
func TestALateEventDoesNotReachIntoTheCommitThatClosesItsWindow(t *testing.T) {
	c := newClicksTask(t)
	c.click("b", 1)
	c.click("a", 2)
	c.click("b", 3)
	closing := c.barrier(second(10))
	c.click("a", 4) // late, while that one is being committed
	c.click("c", 4)
	c.want(c.commit(closing), "a:1@1 b:2@1")
	c.want(c.commit(c.barrier(second(11))), "a:2@2 c:1@1")
	c.click("a", 5)
	c.want(c.commit(c.barrier(second(12))), "a:3@3")
}

// Windows that memory has and windows that only the store has close together, in
// the order of their ends and ids.
func TestWindowsOfMemoryAndOfTheStoreCloseInOrder(t *testing.T) {
	c := newClicksTask(t)
	for _, at := range []int{5, 15, 25, 35} {
		c.click("b", at)
		c.click("a", at)
	}
	h := c.barrier(second(0))
	c.want(c.commit(h), "")
	// A new owner: it looks into the store for the windows that exist, and has
	// all of those that begin with it.
	c.restart(state.Progress{Epoch: c.epoch, Recorded: h.Barrier.Recorded, Announced: second(0), Watermark: h.Watermark})
	c.click("c", 25)
	c.click("z", 45)
	c.click("y", 45)
	c.click("a", 55)
	c.want(c.commit(c.barrier(second(60))), "a:1@1 b:1@1 a:1@1 b:1@1 a:1@1 b:1@1 c:1@1 a:1@1 b:1@1 y:1@1 z:1@1 a:1@1")
}
