package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/kafkatest"
)

// nextBuild builds the program with a record format more than this one knows.
func nextBuild(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "strom-next")
	c := exec.Command("go", "build", "-tags", "strom_next", "-o", path, "./cmd/strom")
	c.Dir = repo(t)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// Replicas of two builds run together and write what both read. When the last
// one is upgraded the format rises, and the older build is refused.
func TestAMixedFleetWritesTheFormatThatAllOfItReads(t *testing.T) {
	next := nextBuild(t)
	broker := kafkatest.Embedded.New(t, kafkatest.Topics{"transfers": 2})
	f := newFleet(t, broker.Brokers(), bankMapping, 2*time.Second)
	a, b := f.add(), f.add()
	f.begin()
	all := transfers(7, 3000)
	l := &bankLoad{all: all, over: 6 * time.Second}
	l.start(t.Context(), f.brokers)
	goesOn := func(what string, format int) {
		t.Helper()
		at := f.status().Epoch
		s := f.await(what, time.Minute, func(s *statusJSON) bool { return s.Epoch > at+5 && tasksOwned(s) == len(f.running()) })
		if int(s.Format) != format {
			t.Errorf("%s: record format %d, want %d", what, s.Format, format)
		}
	}
	replace := func(r *replica, binary string) {
		r.stop()
		r.binary = binary
		r.start()
		r.p.await(t, "took over")
	}
	goesOn("both are old", 1)
	replace(b, next)
	goesOn("one is upgraded", 1)
	replace(b, "")
	goesOn("it went back", 1)
	replace(b, next)
	replace(a, next)
	f.await("the format rises", time.Minute, func(s *statusJSON) bool { return s.Format == 2 })
	goesOn("both are upgraded", 2)
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	late := f.add()
	late.start()
	late.p.wait(t).want(t, exitPipeline, "the pipeline writes record format 2, this build reads up to 1", "run the newer build")
	late.p = nil
	goesOn("an old one was refused", 2)
	f.await("all is read", time.Minute, func(s *statusJSON) bool { return s.Lag == 0 })
	for _, r := range f.running() {
		r.stop()
	}
	last := f.add("--until-end")
	last.binary = next
	last.start()
	last.p.wait(t).want(t, exitOK, "stopped at epoch")
	last.p = nil
	f.checkBank(all)
}

// running are the replicas that run.
func (f *fleet) running() (out []*replica) {
	for _, r := range f.members {
		if r.running() {
			out = append(out, r)
		}
	}
	return out
}

// tasksOwned is how many replicas have tasks.
func tasksOwned(s *statusJSON) int {
	owners := map[string]bool{}
	for i := range s.Tasks {
		if name := s.Tasks[i].Owner.Replica; name != "" {
			owners[name] = true
		}
	}
	return len(owners)
}
