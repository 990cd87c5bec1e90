package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/mapping"
)

// setup is what a seed draws before anything happens: the pipeline, its
// machines, and what may go wrong. Each seed leaves much out, so that what is
// left comes often.
type setup struct {
	text string
	plan *mapping.Plan
	// partitions of each stream.
	partitions map[string]int32
	logClock   bool
	// complete: the whole input is there before the first process starts, and
	// all runs are until the end.
	complete bool
	replicas int
	records  int
	// scale is the length of what the mapping calls a second of event time:
	// longer where windows are days.
	scale  span
	zone   bool
	berlin *time.Location
	// horizon of identities; 0: longer than any run.
	horizon oracle.Micros
	// aggregates are those of the mapping, as the oracle needs them.
	aggregates []aggregate
	// inputSeed is where the input comes from.
	inputSeed uint64

	calm      bool
	noFencing bool
	// raiseEpochs: the brokers run transaction.version 2.
	raiseEpochs bool
	rougherEnd  bool
	trims       bool
	queueBytes  int
	budget      int
	sinkChunk   int
	tombstones  span
	net         netProfile
	kinds       []fault
	every       span // a fault
	faulty      span // how long things go wrong
	kills       int
	fenceEnds   bool   // stale takers fence who ends a transaction
	focus       string // a point at which machines are paused for long
	focusOneIn  int    // of so many times
	atPoints    int    // per mille of named points at which something happens
	skew        span
	// duration of the input's arrival, where it is not complete from the start.
	duration span
	bad      int // per mille of records that are bad
	aborts   bool
}

// aggregate is one aggregate of the mapping, in the oracle's words.
type aggregate struct {
	stream, object, name string
	byRoom               bool // else by key
	windows              oracle.Windows
}

// pick draws one of the choices.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// draw draws the setup of a seed. It has a source of chance of its own, so that
// the same input comes whatever goes wrong.
func draw(seed uint64) setup {
	r := rand.New(rand.NewPCG(seed, 0xd4a))
	s := setup{
		logClock: r.IntN(5) < 2, replicas: 1 + r.IntN(3), records: 10 + r.IntN(110), scale: second,
		noFencing: r.IntN(8) == 0, raiseEpochs: r.IntN(3) > 0, rougherEnd: r.IntN(2) == 0, trims: r.IntN(2) == 0,
		queueBytes: pick(r, 300, 4000, 1<<20), budget: pick(r, 0, 0, 0, 3000), sinkChunk: pick(r, 2, 7, 40, 5000),
		tombstones: pick(r, minute, 24*60*minute),
		net:        netProfile{slow: pick(r, 0, 5, 50), stall: pick(r, 0, 1, 10), lost: pick(r, 0, 3, 25), late: pick(r, 0, 0, 3, 15)},
		every:      pick(r, second, 3*second, 10*second), faulty: pick(r, 10*second, 40*second, 80*second),
		kills: pick(r, 0, 2, 6, 20), atPoints: pick(r, 0, 2, 10), duration: pick(r, 5*second, 20*second, 40*second),
		inputSeed: r.Uint64(), bad: pick(r, 0, 50, 200), aborts: r.IntN(3) == 0, skew: pick(r, 0, 50*millisecond, 3*second),
		focus: pick(r, "", "", "", "announce", "handover", "commit.offsets", "commit.flushed", "commit.ended", "recovery.offsets", "adopt.offsets", "sink.apply"),
	}
	s.complete = s.logClock && r.IntN(4) > 0 || r.IntN(8) == 0
	s.focusOneIn = 8
	for k := range faultKinds {
		if r.IntN(2) == 0 {
			s.kinds = append(s.kinds, k)
		}
	}
	if len(s.kinds) == 0 {
		s.kinds = append(s.kinds, faultCrash)
	}
	s.zone = r.IntN(6) == 0
	if s.zone {
		s.scale = 90 * minute
		var err error
		if s.berlin, err = time.LoadLocation("Europe/Berlin"); err != nil {
			s.zone, s.scale = false, second // a machine without zones
		}
	}
	s.text, s.partitions = drawMapping(r, &s)
	plan, err := mapping.Parse("sim.yaml", []byte(s.text), os.LookupEnv)
	if err != nil {
		plan = nil // the run says so
	}
	s.plan = plan
	return s
}

// drawMapping draws a mapping. Sources have one or two aggregates each.
func drawMapping(r *rand.Rand, s *setup) (string, map[string]int32) {
	var b strings.Builder
	partitions := map[string]int32{}
	b.WriteString("pipeline: sim\n")
	if s.logClock {
		fmt.Fprintf(&b, "epoch: {clock: log, step: %s}\n", s.unit(pick(r, int64(1), 3, 10)))
	} else {
		fmt.Fprintf(&b, "epoch: {clock: wall, interval: %s}\n", pick(r, "200ms", "500ms", "1s"))
	}
	horizon := "1000d"
	if r.IntN(3) == 0 {
		n := pick(r, int64(8), 24)
		horizon, s.horizon = s.unit(n), oracle.Micros(n*int64(s.scale))
	}
	b.WriteString("streams:\n")
	names := []string{"readings"}
	if r.IntN(3) == 0 {
		names = append(names, "visits")
	}
	byKey := map[string]bool{}
	for _, name := range names {
		partitions[name] = 1 + int32(r.IntN(3))
		byKey[name] = r.IntN(2) == 0
		fmt.Fprintf(&b, "  %s:\n    topic: %s\n    key: k\n", name, name)
		if byKey[name] {
			b.WriteString("    partitioned_by: key\n")
		}
		b.WriteString("    identity: {event_id: id, horizon: " + horizon + "}\n    event_time: {field: at, format: us, max_ahead: 7d}\n")
		fmt.Fprintf(&b, "    watermark: {out_of_orderness: %s, idle_after: %s}\n    allowed_lateness: %s\n",
			s.unit(pick(r, int64(0), 2)), pick(r, "0s", "2s", "10s"), s.unit(pick(r, int64(0), 5, 20)))
	}
	b.WriteString("objects:\n")
	for i, name := range names {
		drawObjects(r, s, &b, name, i, byKey[name])
	}
	return b.String(), partitions
}

// drawObjects draws what comes of a stream: an object by its key, and perhaps
// one by its room.
func drawObjects(r *rand.Rand, s *setup, b *strings.Builder, stream string, i int, byKey bool) {
	sensor, room := []string{"Sensor", "Device"}[i], []string{"Room", "House"}[i]
	length := func(n int64) oracle.Micros { return oracle.Micros(n * int64(s.scale)) }
	add := func(object, name string, byRoom bool, window string, w oracle.Windows) {
		id := "k"
		if byRoom {
			id = "room"
		}
		fmt.Fprintf(b, "      %s: {from: %s, id: %s, window: %s, values: {n: count(), total: sum(v), least: min(v), most: max(v), mean: avg(v)}}\n",
			name, stream, id, window)
		s.aggregates = append(s.aggregates, aggregate{stream, object, name, byRoom, w})
	}
	fmt.Fprintf(b, "  %s:\n    from: %s\n    id: k\n    properties: {last: {value: v, kind: decimal}}\n    aggregates:\n", sensor, stream)
	if byKey || r.IntN(2) == 0 {
		add(sensor, "tens", false, fmt.Sprintf("{tumbling: %s}", s.unit(10)), oracle.Windows{Size: length(10)})
	}
	add(sensor, "ever", false, "none", oracle.Windows{})
	if i > 0 && r.IntN(2) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s:\n    aggregates:\n", room)
	if s.zone {
		add(room, "spans", true, "{calendar: day, zone: Europe/Berlin}", oracle.Windows{Days: s.berlin})
	} else {
		add(room, "spans", true, fmt.Sprintf("{tumbling: %s, offset: %s}", s.unit(15), s.unit(4)),
			oracle.Windows{Size: length(15), Offset: length(4)})
	}
	if r.IntN(3) == 0 {
		add(room, "ever", true, "none", oracle.Windows{})
	}
}

// unit writes so many of the mapping's seconds.
func (s *setup) unit(n int64) string { return fmt.Sprintf("%ds", n*int64(s.scale/second)) }

// String says the setup in a line.
func (s *setup) String() string {
	clock := "wall"
	if s.logClock {
		clock = "log"
	}
	return fmt.Sprintf("clock %s, complete %v, %d replicas, %d records, stages %d, partitions %v, %v every %s for %s, kills %d, points %d, net %+v, fencing %v",
		clock, s.complete, s.replicas, s.records, len(s.plan.Streams)+len(s.plan.Aggregates), s.partitions, s.kinds, s.every, s.faulty, s.kills, s.atPoints, s.net, !s.noFencing)
}
