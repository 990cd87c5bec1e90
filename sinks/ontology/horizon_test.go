package ontology

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
)

// Two sinks apply a partition each, at their own pace; they are restarted, and
// a zombie repeats what was applied. In the end a newer generation begins with
// no progress at all. Whoever looks meanwhile never sees the horizon fall.
func TestTheHorizonNeverFallsWhileSinksComeAndGo(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	openPostgres(t, url, l.p) // makes the tables
	looked := watchHorizon(t, url)

	const epochs = 150
	var chunks [2][]Chunk
	for epoch := range epochs {
		l.put("a0", int64(epoch), prop("status", "x"))
		l.put("a1", int64(epoch), prop("status", "x"))
		l.end()
		for p := range chunks {
			chunks[p] = append(chunks[p], l.chunk(event.Partition(p), -1))
		}
	}
	var wg sync.WaitGroup
	for p := range chunks {
		wg.Go(func() { runSink(t, url, l.p, chunks[p], uint64(p)) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	looked.await(t, second(epochs))

	p := l.p
	p.Generation = 2
	openPostgres(t, url, p)
	looks := looked.count()
	looked.awaitLooks(t, looks+3)
	if b, err := openReader(t, url).Bounds(t.Context(), ""); err != nil || b.Horizon != second(epochs) {
		t.Errorf("the newer generation begins with the horizon %s, %v", b.Horizon, err)
	}
	if n := looked.count(); n < 20 {
		t.Errorf("looked only %d times", n)
	}
}

// runSink applies the chunks of one partition, in its order, over restarts.
func runSink(t *testing.T, url string, p Pipeline, chunks []Chunk, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 7))
	var s *Postgres
	defer func() {
		if s != nil {
			s.Close()
		}
	}()
	for i := range chunks {
		if s == nil || random.IntN(10) == 0 {
			if s != nil {
				s.Close()
			}
			var err error
			if s, err = Open(t.Context(), connection(url), p, Options{}); err != nil {
				t.Error(err)
				return
			}
		}
		if err := s.Apply(t.Context(), chunks[i:i+1]); err != nil {
			t.Error(err)
			return
		}
		if old := random.IntN(i + 1); random.IntN(5) == 0 {
			if err := s.Apply(t.Context(), chunks[old:old+1]); !errors.Is(err, ErrFenced) {
				t.Errorf("chunk %d once more, after %d: %v", old, i, err)
				return
			}
		}
	}
}

// horizonWatch looks at the horizon again and again.
type horizonWatch struct {
	mu    sync.Mutex // guards all below
	last  event.RecordedTime
	looks int
}

func watchHorizon(t *testing.T, url string) *horizonWatch {
	t.Helper()
	w := &horizonWatch{last: event.RecordedUnknown}
	r := openReader(t, url)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			all, err := r.Pipelines(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil || len(all) != 1 {
				t.Errorf("%d pipelines, %v", len(all), err)
				return
			}
			w.see(t, all[0].Bounds.Horizon)
		}
	})
	return w
}

func (w *horizonWatch) see(t *testing.T, h event.RecordedTime) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if h < w.last {
		t.Errorf("the horizon fell from %s to %s", w.last, h)
	}
	w.last = h
	w.looks++
}

func (w *horizonWatch) state() (event.RecordedTime, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.looks
}

func (w *horizonWatch) count() int {
	_, n := w.state()
	return n
}

func (w *horizonWatch) await(t *testing.T, h event.RecordedTime) {
	t.Helper()
	eventually(t, func() bool {
		last, _ := w.state()
		return last == h
	})
}

func (w *horizonWatch) awaitLooks(t *testing.T, n int) {
	t.Helper()
	eventually(t, func() bool { return w.count() >= n })
}

// eventually waits, for a bounded time, until it is so.
func eventually(t *testing.T, so func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !so(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("not so after 30 s")
		}
	}
}
