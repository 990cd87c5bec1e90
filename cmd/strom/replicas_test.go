package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/kafkatest"
)

// takeovers counts what a replica has taken over.
func (r *replica) takeovers() int { return strings.Count(r.p.stderr.String(), "took over") }

// awaitTakeovers waits until a replica has taken over more than it had.
func (r *replica) awaitTakeovers(more int, patience time.Duration) {
	r.fleet.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); r.takeovers() < more; <-tick.C {
		if time.Now().After(deadline) {
			r.fleet.t.Fatalf("replica %s has taken over %d times within %s, want %d\n%s", r.name, r.takeovers(), patience, more, r.fleet.logs())
		}
	}
}

// onBothBrokers runs a test with a fleet on the embedded broker and on Apache Kafka.
func onBothBrokers(t *testing.T, partitions int32, session time.Duration, test func(*testing.T, *fleet)) {
	t.Helper()
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			broker := kind.New(t, kafkatest.Topics{"transfers": partitions})
			test(t, newFleet(t, broker.Brokers(), bankMapping, session))
		})
	}
}

// bankStages is the number of stages of the bank.
const bankStages = 4

// One replica more than there are partitions has no task of the stages; it
// stands by, and takes over when an owner dies.
func TestAReplicaTooManyStandsByAndTakesOver(t *testing.T) {
	onBothBrokers(t, 1, time.Second, aReplicaTooManyStandsByAndTakesOver)
}

func aReplicaTooManyStandsByAndTakesOver(t *testing.T, f *fleet) {
	t.Helper()
	owner := f.add()
	f.begin()
	owner.awaitTakeovers(bankStages, time.Minute)
	spare := f.add()
	spare.start()
	spare.p.await(t, "the pipeline starts")
	all := transfers(1, 2000)
	l := &bankLoad{all: all, over: 2 * time.Second}
	l.start(t.Context(), f.brokers)
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	f.await("all is read", time.Minute, func(s *statusJSON) bool { return s.Lag == 0 })
	// (The owner has given them up and taken them again: the protocol is eager.)
	if spare.takeovers() > 0 {
		t.Errorf("tasks have moved though nobody died:\n%s", f.logs())
	}
	owner.kill()
	spare.awaitTakeovers(bankStages, 30*time.Second)
	before := f.status().Epoch
	f.await("announcements go on", 30*time.Second, func(s *statusJSON) bool { return s.Epoch > before+2 })
	f.end()
	f.checkBank(all)
}

// A static member that is killed and started again within its session timeout
// finds its tasks as they were: nobody else notices. When it stops as planned
// the other one has its tasks at once, long before the session timeout.
func TestAStaticMemberFindsItsTasksAgain(t *testing.T) {
	onBothBrokers(t, 2, 20*time.Second, aStaticMemberFindsItsTasksAgain)
}

func aStaticMemberFindsItsTasksAgain(t *testing.T, f *fleet) {
	t.Helper()
	first := f.add("--static-membership")
	f.begin()
	first.awaitTakeovers(bankStages, time.Minute)
	// The first one leads the groups. (That the leader may come back without a
	// rebalance is true of Apache Kafka, not of the embedded broker.)
	second := f.add("--static-membership")
	second.start()
	second.awaitTakeovers(bankStages, time.Minute)
	s := f.status()
	f.await("all is quiet", time.Minute, func(now *statusJSON) bool { return now.Epoch > s.Epoch+3 })
	was := first.takeovers()
	second.kill()
	second.start()
	second.awaitTakeovers(bankStages, 15*time.Second)
	now := f.status().Epoch
	f.await("announcements go on", 15*time.Second, func(s *statusJSON) bool { return s.Epoch > now+2 })
	if n := first.takeovers(); n != was {
		t.Errorf("the other replica took over %d times more\n%s", n-was, f.logs())
	}
	second.stop()
	first.awaitTakeovers(was+bankStages, 15*time.Second)
}

// Two processes under the name of one static member: the elder ends, and says why.
func TestAReplacedStaticMemberEndsAndSaysWhy(t *testing.T) {
	onBothBrokers(t, 2, 5*time.Second, aReplacedStaticMemberEndsAndSaysWhy)
}

func aReplacedStaticMemberEndsAndSaysWhy(t *testing.T, f *fleet) {
	t.Helper()
	elder := f.add("--static-membership")
	f.begin()
	twin := f.add("--static-membership")
	twin.name = elder.name
	twin.start()
	elder.p.wait(t).want(t, exitPipeline, `another process runs as replica "r0" and has taken this one's place`)
	elder.p = nil
	now := f.status().Epoch
	f.await("the younger one goes on", 30*time.Second, func(s *statusJSON) bool { return s.Epoch > now+2 })
	f.end()
}

// A process that was frozen until its tasks had other owners, and wakes: what
// it still writes becomes visible neither in Kafka nor in the ontology.
func TestNothingOfAWokenZombieBecomesVisible(t *testing.T) {
	onBothBrokers(t, 2, time.Second, nothingOfAWokenZombieBecomesVisible)
}

func nothingOfAWokenZombieBecomesVisible(t *testing.T, f *fleet) {
	t.Helper()
	zombie, heir := f.add(), f.add()
	f.begin()
	zombie.awaitTakeovers(bankStages, time.Minute)
	heir.awaitTakeovers(bankStages, time.Minute)
	all := transfers(2, 6000)
	l := &bankLoad{all: all, over: 6 * time.Second}
	l.start(t.Context(), f.brokers)
	f.await("transfers are counted", time.Minute, func(s *statusJSON) bool { return s.Totals.Events > 500 })
	was := heir.takeovers()
	zombie.freeze()
	heir.awaitTakeovers(was+bankStages, 30*time.Second)
	now := f.status().Epoch
	f.await("the heir goes on", 30*time.Second, func(s *statusJSON) bool { return s.Epoch > now+2 })
	zombie.thaw()
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	f.await("all is read", time.Minute, func(s *statusJSON) bool { return s.Lag == 0 })
	if err := zombie.p.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the zombie ended by itself: %v\n%s", err, f.logs())
	}
	f.end()
	f.checkBank(all)
}

// After kill -9 of one of three replicas, the coordinator, announcements go on
// within the session timeout and two seconds.
func TestAnnouncementsGoOnAfterTheCoordinatorDies(t *testing.T) {
	onBothBrokers(t, 3, 3*time.Second, announcementsGoOnAfterTheCoordinatorDies)
}

func announcementsGoOnAfterTheCoordinatorDies(t *testing.T, f *fleet) {
	t.Helper()
	session := f.session
	for range 3 {
		f.add()
	}
	f.begin()
	for _, r := range f.members {
		r.awaitTakeovers(bankStages, time.Minute)
	}
	l := &bankLoad{all: transfers(3, 4000), over: 10 * time.Second}
	l.start(t.Context(), f.brokers)
	now := f.status().Epoch
	f.await("all three take part", time.Minute, func(s *statusJSON) bool { return s.Epoch > now+5 })
	announced := barriers(t, f.brokers, "strom.bank.g1.control")
	var leader *replica
	for _, r := range f.members {
		if r.name == announced[len(announced)-1].Who {
			leader = r
		}
	}
	if leader == nil {
		t.Fatalf("no replica is the coordinator %q", announced[len(announced)-1].Who)
	}
	killed := time.Now()
	leader.kill()
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	f.await("all is read", time.Minute, func(s *statusJSON) bool { return s.Lag == 0 })
	f.end()
	all := barriers(t, f.brokers, "strom.bank.g1.control")
	checkBarriers(t, all)
	for _, b := range all {
		if b.at.After(killed.Add(100 * time.Millisecond)) {
			gap := b.at.Sub(killed)
			t.Logf("killed %s, announcements went on after %s with a session timeout of %s", leader.name, gap.Round(time.Millisecond), session)
			if gap > session+2*time.Second {
				t.Errorf("announcements went on after %s, that is more than %s + 2 s", gap, session)
			}
			break
		}
	}
	f.checkBank(l.all)
}
