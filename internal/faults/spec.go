package faults

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/forge-platform/strom/kafka"
)

// Way is how a pipeline goes on after a crash.
type Way string

// The ways.
const (
	// SameReplica: the replica starts again, with its name and its directory.
	SameReplica Way = "same-replica"
	// OtherReplica: another one, with an empty directory, takes over.
	OtherReplica Way = "other-replica"
	// TwoReplicas: two others go on.
	TwoReplicas Way = "two-replicas"
	// OneOfTwo: of two replicas one dies, and the other goes on alone.
	OneOfTwo Way = "one-of-two"
	// Woken: of two replicas one is stopped without its knowledge, the other goes
	// on alone, and then the first one wakes where it was.
	Woken Way = "woken"
)

// Ways lists them.
func Ways() []Way { return []Way{SameReplica, OtherReplica, TwoReplicas, OneOfTwo, Woken} }

// scenario is what the replica that dies is doing.
type scenario int

const (
	// running: it runs, alone or beside another one.
	running scenario = iota
	// takingOver: it takes over from one that died, or shares with one that lives.
	takingOver
	// givingUp: another replica joins it.
	givingUp
	// sharing: it runs beside another one, always.
	sharing
	// leading: it becomes the coordinator, after one that died, or before another
	// one joins it.
	leading
)

// spec says how a point is reached.
type spec struct {
	point    string
	scenario scenario
	// from and to bound the how-manieth time that the point is reached.
	from, to int64
	// hold is where the replica is held until another one has joined.
	hold     Trigger
	emptyDir bool // it has no local state
	// only names the one workload that reaches the point, "" for all.
	only string
}

// The names of the workloads.
const (
	workloadQuakes = "quakes"
	workloadMeters = "meters"
)

// specs says how every point is reached: those that are not named here are
// passed in every epoch of a running replica.
func specs() []spec {
	const (
		often, oftenTo = 6, 24 // in every epoch
		some, someTo   = 2, 6  // in some epochs
		few, fewTo     = 1, 2
	)
	named := map[string]spec{
		// Under the clock on the wall what comes is fed at once: there is
		// nothing to tell.
		"notice":            {from: few, to: few, only: workloadQuakes},
		"noticed":           {from: few, to: few, only: workloadQuakes},
		"barrier.markers":   {scenario: sharing, from: few, to: 4, only: workloadMeters},
		"lead":              {scenario: leading, from: few, to: few},
		"lead.fenced":       {scenario: leading, from: few, to: few},
		"readback.asked":    {from: some, to: someTo},
		"readback.answered": {from: some, to: someTo},
		"readback.granted":  {from: few, to: 4},
		"commit.deadletter": {from: some, to: someTo},
		"sink.between":      {from: some, to: someTo, only: workloadMeters},

		"savepoint.checkpoint": {from: some, to: someTo},
		"savepoint.files":      {from: few, to: 4},
		"savepoint.part":       {from: few, to: 4},
		"savepoint.manifest":   {from: few, to: fewTo},

		// The one with the new file takes over, or joins; the barrier is announced
		// by whom it joins.
		"mapping.proposed":  {scenario: takingOver, from: few, to: few},
		"mapping.announced": {scenario: givingUp, from: few, to: few},
		"mapping.heard":     {scenario: takingOver, from: few, to: few},
		"mapping.settled":   {scenario: takingOver, from: few, to: few},
		"mapping.begun":     {scenario: takingOver, from: few, to: few},

		"revoke.idle":      {scenario: givingUp, from: few, to: few},
		"revoke.partly":    {scenario: givingUp, from: few, to: few, hold: Trigger{Point: "handover", N: 30}, only: workloadMeters},
		"revoke.in_flight": {scenario: givingUp, from: few, to: few, hold: Trigger{Point: "commit.offsets", N: 20}},
		"session.end":      {scenario: givingUp, from: few, to: few},
		"revoke.ended":     {scenario: givingUp, from: few, to: few},

		"recovery.slab": {scenario: takingOver, from: few, to: fewTo, emptyDir: true},
	}
	var out []spec
	for _, point := range kafka.Points() {
		s, ok := named[point]
		switch {
		case ok:
		case strings.HasPrefix(point, "recovery."), strings.HasPrefix(point, "adopt."):
			s = spec{scenario: takingOver, from: few, to: fewTo}
		default:
			s = spec{from: often, to: oftenTo}
		}
		s.point = point
		out = append(out, s)
	}
	return out
}

// Case is one row of the matrix: a point and a way on, or a fault of the broker.
type Case struct {
	Point    string
	Way      Way
	Fault    string
	Workload string
	// N is the how-manieth time that the point is reached.
	N int64
	// Static makes the replica that comes back a static member.
	Static bool
	spec   spec
}

// beside says that a second replica runs, whatever the point asks for.
func (c Case) beside() bool { return c.Way == OneOfTwo || c.Way == Woken }

// String is the name of the case: by it `make faults CASE=...` finds it.
func (c Case) String() string {
	if c.Fault != "" {
		return fmt.Sprintf("broker.%s/%s", c.Fault, c.Workload)
	}
	return fmt.Sprintf("%s/%s", c.Point, c.Way)
}

// Matrix lists every case. The seed decides what is left open: which workload
// meets which point on which way, and when in the run.
func Matrix(seed uint64) []Case {
	var out []Case
	for i, s := range specs() {
		for j, way := range Ways() {
			c := Case{Point: s.point, Way: way, spec: s, Workload: s.only}
			rng := caseRand(seed, c.String())
			if c.Workload == "" {
				c.Workload = [...]string{workloadQuakes, workloadMeters}[(i+j+int(seed%2))%2]
			}
			c.N = s.from + rng.Int64N(s.to-s.from+1)
			if s.scenario == takingOver && c.beside() {
				c.N = 1 // it may be given the tasks of one stage only
			}
			c.Static = way == SameReplica && rng.IntN(2) == 0
			out = append(out, c)
		}
	}
	for _, f := range brokerFaults() {
		for _, w := range [...]string{workloadQuakes, workloadMeters} {
			out = append(out, Case{Fault: f.name, Workload: w})
		}
	}
	return out
}

// caseRand gives a case random numbers of its own.
func caseRand(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash takes everything
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Select gives the cases whose names a pattern means: "commit" is the cases of
// all points of commit, "commit.ended" of one, "commit.ended/other-replica" is
// one case, and "/woken" is all cases of one way.
func Select(cases []Case, pattern string) ([]Case, error) {
	var out []Case
	for _, c := range cases {
		name := c.String()
		way := strings.HasPrefix(pattern, "/") && strings.HasSuffix(name, pattern)
		if way || name == pattern || strings.HasPrefix(name, pattern+"/") || strings.HasPrefix(name, pattern+".") {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		var names []string
		for _, c := range cases {
			first, _, _ := strings.Cut(c.String(), "/")
			names = append(names, first)
		}
		return nil, errors.New("no case is named " + pattern + "; there are: " + strings.Join(slices.Compact(names), " "))
	}
	return out, nil
}
