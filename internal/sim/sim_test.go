package sim_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/race"
	"github.com/forge-platform/strom/internal/sim"
)

var (
	oneSeed  = flag.Uint64("sim.seed", 0, "run this seed only, and write its whole trace")
	seeds    = flag.Int("sim.seeds", 0, "run so many seeds; 0: a short round")
	fromSeed = flag.Uint64("sim.from", 0, "the first of them; 0: a random one")
	bugName  = flag.String("sim.bug", "", "plant this bug")
	provoke  = flag.String("sim.provoke", "", "draw what this bug needs, without planting it")
)

// options are those of a seed, by the flags.
func options(t *testing.T, seed uint64) sim.Options {
	t.Helper()
	o := sim.Options{Seed: seed}
	for name, to := range map[string]*sim.Bug{*bugName: &o.Bug, *provoke: &o.Provoke} {
		if name == "" {
			continue
		}
		bug, ok := sim.ParseBug(name)
		if !ok {
			t.Fatalf("no bug is called %q; there are %v", name, sim.Bugs())
		}
		*to = bug
	}
	return o
}

// Pipelines whose machines crash, wake as zombies and lose their disks, whose
// network loses and delays, and whose clocks step, publish what a serial run over
// the same input publishes, exactly once, and end when nothing goes wrong any more.
func TestSimulation(t *testing.T) {
	notUnderRace(t)
	switch {
	case *oneSeed != 0:
		report(t, run(t, options(t, *oneSeed)))
	case *seeds > 0:
		from := *fromSeed
		if from == 0 {
			from = uint64(time.Now().UnixNano()) % 1e12
		}
		round(t, from, *seeds, 0)
	default:
		round(t, 1, fixedSeeds, 0)
		round(t, uint64(time.Now().UnixNano())%1e12, 1<<20, randomTime)
	}
}

// notUnderRace skips a test that the race detector makes slow and tells nothing
// of: a simulation is one goroutine. make test runs it without.
func notUnderRace(t *testing.T) {
	t.Helper()
	if race.Enabled {
		t.Skip("a simulation is one goroutine: it runs without the race detector")
	}
}

// The short round: so many seeds that are always the same, and as many as there
// is time for that never are.
const (
	fixedSeeds = 20
	randomTime = 6 * time.Second
)

// round runs seeds from a first one on, in as many goroutines as there are
// processors, until there are so many or the time is over; 0: no bound.
func round(t *testing.T, from uint64, n int, bound time.Duration) {
	t.Helper()
	var mu sync.Mutex // guards what follows
	started, last := time.Now(), time.Now()
	next, passed, failed := 0, 0, 0
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == n || (bound > 0 && time.Since(started) > bound) || failed >= 5 {
			return 0, false
		}
		next++
		return from + uint64(next-1), true
	}
	done := func(r sim.Result) {
		mu.Lock()
		defer mu.Unlock()
		if r.Failure != nil {
			failed++
			report(t, r)
		} else {
			passed++
		}
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			fmt.Printf("%d of %d seeds, %d failed, %.1f a second\n", passed+failed, n, failed, float64(passed+failed)/time.Since(started).Seconds())
		}
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed, ok := take(); ok; seed, ok = take() {
				done(sim.Run(options(t, seed)))
			}
		})
	}
	wg.Wait()
	fmt.Printf("seeds from %d on: %d passed, %d failed\n", from, passed, failed)
	if passed+failed == 0 {
		t.Error("no seed was run")
	}
}

// report tells of a seed that has failed, and how to repeat it. The trace is
// written by a second run: the same, line by line.
func report(t *testing.T, r sim.Result) {
	t.Helper()
	if r.Failure == nil {
		t.Logf("seed %d passed: %d steps, %d epochs, %d records, %v\n%s", r.Seed, r.Steps, r.Epochs, r.Records, r.Met, r.Setup)
		return
	}
	again := run(t, options(t, r.Seed))
	t.Errorf("%s\nseed %d breaks the invariant %q: %s\n%s\nthe whole trace: %s\nrepeat it with: make sim SEED=%d%s",
		strings.Join(r.Failure.Tail, ""), r.Seed, r.Failure.Invariant, r.Failure.Detail, r.Setup, tracePath(r.Seed), r.Seed, flags())
	if again.Hash != r.Hash {
		t.Errorf("seed %d ran another way the second time", r.Seed)
	}
}

func flags() string {
	out := ""
	if *bugName != "" {
		out += fmt.Sprintf(" BUG=%q", *bugName)
	}
	if *provoke != "" {
		out += fmt.Sprintf(" PROVOKE=%q", *provoke)
	}
	return out
}

func tracePath(seed uint64) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("strom-sim-%d.trace", seed))
}

// run runs a seed and writes its trace.
func run(t *testing.T, o sim.Options) sim.Result {
	t.Helper()
	f, err := os.Create(tracePath(o.Seed))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	o.Trace = w
	r := sim.Run(o)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return r
}

// One seed is one execution, also while others run beside it.
func TestASeedRunsTheSameWayTwice(t *testing.T) {
	notUnderRace(t)
	const n = 12
	var first, second [n]sim.Result
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { first[i] = sim.Run(sim.Options{Seed: uint64(i) + 500}) })
	}
	wg.Wait()
	steps := 0
	for i := range n {
		second[i] = sim.Run(sim.Options{Seed: uint64(i) + 500})
		if first[i].Hash != second[i].Hash || first[i].Steps != second[i].Steps {
			t.Errorf("seed %d: %d steps, trace %x, and then %d steps, trace %x", first[i].Seed, first[i].Steps, first[i].Hash, second[i].Steps, second[i].Hash)
		}
		if i > 0 && first[i].Hash == first[i-1].Hash {
			t.Errorf("seeds %d and %d have the same trace", i-1, i)
		}
		steps += first[i].Steps
	}
	if steps < 1000*n {
		t.Errorf("%d steps in %d seeds: next to nothing happens", steps, n)
	}
}

// seedsForBug is how many seeds a bug is given to show.
const seedsForBug = 30

// Each planted bug turns one of a few seeds red, by an invariant that is meant to
// find it; without the bug the same seeds are green.
func TestEveryPlantedBugIsFound(t *testing.T) {
	notUnderRace(t)
	for _, b := range sim.Bugs() {
		t.Run(strings.ReplaceAll(b.String(), " ", "-"), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(seedsForBug) {
				r := sim.Run(sim.Options{Seed: seed, Bug: b})
				if r.Failure == nil {
					continue
				}
				if !b.FoundBy(r.Failure.Invariant) {
					t.Errorf("seed %d is red by %s: %s", seed, r.Failure.Invariant, r.Failure.Detail)
				}
				if r := sim.Run(sim.Options{Seed: seed, Provoke: b}); r.Failure != nil {
					t.Errorf("seed %d is red without the bug: %s: %s", seed, r.Failure.Invariant, r.Failure.Detail)
				}
				return
			}
			t.Errorf("none of %d seeds is red", seedsForBug)
		})
	}
}

// seedsForEverything is how many seeds a round is given to meet everything.
const seedsForEverything = 300

// A round of seeds meets everything that the simulator is there to meet. What
// does not come does not count as checked.
func TestARoundMeetsEverything(t *testing.T) {
	notUnderRace(t)
	missing := map[string]bool{}
	for _, what := range []string{
		"crash", "disk lost", "pause", "network cut", "planned stop", "database away", "clock step", "trim", "fenced by a stale taker",
		"at announce", "at announced", "at handover", "at commit.offsets", "at commit.flushed", "at commit.ended", "at commit.applied",
		"at recovery.fenced", "at recovery.offsets", "at recovery.tables", "at recovery.adopt", "at adopt.offsets", "at adopt.ended",
		"at sink.apply", "at sink.applied", "recovery: continue", "recovery: catch up", "window read back",
		"unknown outcome", "fenced at EndTxn", "refused by the group's generation", "committed by an older generation", "overtaken",
		"coordinator starts again", "sink fenced", "result on_time", "result correction", "result late_correction",
	} {
		missing[what] = true
	}
	var mu sync.Mutex // guards missing and last
	last := uint64(0)
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(missing) == 0 || last == seedsForEverything {
			return 0, false
		}
		last++
		return last, true
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed, ok := take(); ok; seed, ok = take() {
				r := sim.Run(sim.Options{Seed: seed})
				if r.Failure != nil {
					report(t, r)
				}
				mu.Lock()
				for what := range r.Met {
					delete(missing, what)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("everything was met in %d seeds", last)
	for what := range missing {
		t.Errorf("never met in %d seeds: %s", last, what)
	}
}
