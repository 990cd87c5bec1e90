package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/forge-platform/strom/event"
)

// scriptPatience bounds how long a script waits for a condition.
const scriptPatience = 30 * time.Second

// await waits for a condition; a replica that ended by itself ends the waiting.
func (s *protocolScript) await(what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), scriptPatience)
	defer cancel()
	for {
		ok, err := done()
		for _, r := range s.replicas {
			err = errors.Join(err, r.failure())
		}
		if ok || err != nil {
			return err
		}
		if err := rest(ctx); err != nil {
			return fmt.Errorf("%s: not within %s", what, scriptPatience)
		}
	}
}

// awaitLog waits for a condition of what the control and results topics say.
func (s *protocolScript) awaitLog(what string, done func(l *protocolLog) bool) error {
	return s.await(what, func() (bool, error) {
		s.log.mu.Lock()
		defer s.log.mu.Unlock()
		return done(s.log), s.log.err
	})
}

// ended waits for the end of a replica that was told to end.
func (s *protocolScript) ended(r *replica) error {
	select {
	case <-r.ended:
	case <-time.After(scriptPatience):
		return fmt.Errorf("%s does not end", r.title)
	}
	if _, dead := r.isKilled(); dead {
		return nil
	}
	return r.err
}

func (s *protocolScript) dead(r *replica, _ *datadriven.TestData) (string, error) {
	err := s.await(r.title+" dies", func() (dead bool, _ error) {
		s.died, dead = r.isKilled()
		return dead, nil
	})
	return "", err
}

func (s *protocolScript) stalled(d *datadriven.TestData) (string, error) {
	point := arg(d, "at", "")
	return "", s.await("somebody comes to "+point, func() (bool, error) {
		return slices.ContainsFunc(words(d), func(name string) bool { return s.replica(name).stalledAt(point) }), nil
	})
}

func (s *protocolScript) lost(r *replica, _ *datadriven.TestData) (string, error) {
	err := s.await("the loss", func() (bool, error) {
		select {
		case <-r.loss.done:
			return true, nil
		default:
			return false, nil
		}
	})
	return "", err
}

func (s *protocolScript) says(r *replica, d *datadriven.TestData) (string, error) {
	text := strings.TrimSpace(d.Input)
	return "", s.await(fmt.Sprintf("%s says %q", r.title, text), func() (bool, error) { return r.says(text), nil })
}

// cast calls two replicas by what they hold: which of them the group's partition
// goes to is chance.
func (s *protocolScript) cast(d *datadriven.TestData) (string, error) {
	group, names := s.groups()[arg(d, "holds", "")], words(d)
	adm := kadm.NewClient(s.client)
	cast := map[string]*replica{}
	err := s.await("the members of "+group, func() (bool, error) {
		described, err := adm.DescribeGroups(s.t.Context(), group)
		if err != nil {
			return false, err
		}
		clear(cast)
		for _, m := range described[group].Members {
			a, _ := m.Assigned.AsConsumer()
			for _, r := range s.replicas {
				switch {
				case r.wire.member(group).id != m.MemberID:
				case a != nil && len(a.Topics) > 0:
					cast[names[0]] = r
				default:
					cast[names[1]] = r
				}
			}
		}
		return described[group].State == "Stable" && len(cast) == 2, nil
	})
	if err == nil {
		s.replicas = cast
		for name, r := range cast {
			r.title = name
		}
	}
	return "", err
}

// title is what the script calls a replica by now.
func (s *protocolScript) title(name string) string {
	for title, r := range s.replicas {
		if r.name == name {
			return title
		}
	}
	return name
}

// share waits until the newest owner of one task is each of the replicas, in one
// generation, and calls the tasks as it is told.
func (s *protocolScript) share(d *datadriven.TestData) (string, error) {
	var names []string
	err := s.awaitLog("the tasks are shared", func(l *protocolLog) bool {
		owner := map[event.Partition]member{}
		for _, a := range l.acks {
			if a.member.generation >= owner[a.task].generation {
				owner[a.task] = a.member
			}
		}
		names = names[:0]
		owners, generations := map[string]event.Partition{}, map[int32]bool{}
		for p, m := range owner {
			owners[m.replica] = p
			generations[m.generation] = true
			s.generation = max(s.generation, m.generation)
		}
		if len(owners) < len(owner) || len(owner) < len(s.tasks) || len(generations) > 1 {
			return false
		}
		for _, a := range d.CmdArgs {
			s.tasks[a.Vals[0]] = owners[s.replica(a.Key).name]
			s.replica(a.Key).took = s.generation
			names = append(names, a.Key+" has "+a.Vals[0])
		}
		return true
	})
	return strings.Join(names, ", ") + ", in one generation\n", err
}

func (s *protocolScript) notices(d *datadriven.TestData) (string, error) {
	return "", s.awaitLog("the notices", func(l *protocolLog) bool {
		for _, task := range words(d) {
			if !slices.Contains(l.notices, loggedNotice{s.tasks[task], true}) {
				return false
			}
		}
		return true
	})
}

func (s *protocolScript) reads(r *replica, d *datadriven.TestData) (string, error) {
	task := words(d)[1]
	end, err := s.written(task)
	if err != nil {
		return "", err
	}
	return "", s.await(r.title+" reads "+task, func() (bool, error) {
		return r.wire.fetchedTo(int32(s.tasks[task])) >= int64(end), nil
	})
}

func (s *protocolScript) call(d *datadriven.TestData) (string, error) {
	if err := s.log.catchUp(s.t.Context()); err != nil {
		return "", err
	}
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if n := len(s.log.announced); n > 0 {
		s.epochs[words(d)[0]] = s.log.announced[n-1].epoch
		return "", nil
	}
	return "", errors.New("nothing has been announced")
}

// name says which epoch it is, in terms of those that have names.
func (s *protocolScript) name(n event.Epoch) string {
	names := make([]string, 0, len(s.epochs))
	for name := range s.epochs {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		switch int64(n) - int64(s.epochs[name]) {
		case 0:
			return name
		case -1:
			return name + "-1"
		case 1:
			return name + "+1"
		}
	}
	return "another epoch"
}

// relation compares a generation with the last one that was printed.
func (s *protocolScript) relation(g int32) string {
	was := s.generation
	s.generation = max(s.generation, g)
	switch {
	case was == 0:
		return "in the first generation"
	case g > was:
		return "in a later generation"
	case g == was:
		return "in the same generation"
	}
	return "in an earlier generation"
}

// newest gives the newest acknowledgement of the task by the replica.
func (l *protocolLog) newest(r *replica, task event.Partition, takeover bool) (loggedAck, bool) {
	for _, a := range slices.Backward(l.acks) {
		if a.member.replica == r.name && a.task == task && a.takeover == takeover {
			return a, true
		}
	}
	return loggedAck{}, false
}

func (s *protocolScript) takes(r *replica, d *datadriven.TestData) (string, error) {
	var said []string
	var generation int32
	err := s.awaitLog(r.title+" takes over", func(l *protocolLog) bool {
		said = said[:0]
		for _, task := range words(d)[1:] {
			a, ok := l.newest(r, s.tasks[task], true)
			if !ok || a.member.generation <= r.took {
				return false
			}
			generation = a.member.generation
			at := ""
			if len(s.epochs) > 0 {
				at = " at " + s.name(a.epoch)
			}
			said = append(said, task+at)
		}
		return true
	})
	if err != nil {
		return "", err
	}
	r.took = generation
	out := fmt.Sprintf("%s takes over %s, %s", r.title, strings.Join(said, " and "), s.relation(generation))
	if slack, err := time.ParseDuration(arg(d, "slack", "")); err == nil {
		late := time.Since(s.died) - s.config.SessionTimeout
		if late > slack {
			return "", fmt.Errorf("%s, but %s after the session of the dead had timed out", out, late)
		}
		s.t.Logf("%s after the session of the dead had timed out", late)
		out += ", in time"
	}
	return out + "\n", nil
}

func (s *protocolScript) commits(r *replica, d *datadriven.TestData) (string, error) {
	for _, task := range words(d)[1:] {
		end, err := s.written(task)
		if err != nil {
			return "", err
		}
		n, named := s.epochs[arg(d, "epoch", "")]
		if err := s.awaitLog(r.title+" commits "+task, func(l *protocolLog) bool {
			a, ok := l.newest(r, s.tasks[task], false)
			return ok && (named && a.epoch >= n || !named && a.offset >= end)
		}); err != nil {
			return "", err
		}
	}
	return "", nil
}

func (s *protocolScript) announces(d *datadriven.TestData) (string, error) {
	if err := s.log.catchUp(s.t.Context()); err != nil {
		return "", err
	}
	s.log.mu.Lock()
	was := len(s.log.announced)
	s.log.mu.Unlock()
	return "", s.awaitLog("a barrier is announced", func(l *protocolLog) bool {
		return slices.ContainsFunc(l.announced[was:], func(b loggedBarrier) bool { return slices.Contains(words(d), s.title(b.by)) })
	})
}

// completes waits until the replica has applied what was missing of n.
func (s *protocolScript) completes(r *replica, _ *datadriven.TestData) (string, error) {
	return "", s.await(r.title+" completes n", func() (bool, error) { return r.completions(s.epochs["n"]) > 0, nil })
}

// completions counts how often the replica has completed the epoch in a results
// partition.
func (r *replica) completions(n event.Epoch) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := 0
	for _, a := range r.applied {
		if a.progress.Epoch == n && a.progress.UnderWay == 0 {
			count++
		}
	}
	return count
}
