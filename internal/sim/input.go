package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
)

// input writes the records of the source topics.
type input struct {
	sim     *simulation
	writers []*process
	plan    []planned
}

// planned is one record that is to be written.
type planned struct {
	stream string
	part   event.Partition
	at     span // when, from the start of the input
	record processors.Record
	// group numbers the transactions of the producer, 0 for none; aborted ones
	// are never seen.
	group   int
	aborted bool
}

func newInput(s *simulation) *input {
	in := &input{sim: s}
	// Of its own, so that the input does not depend on what goes wrong.
	r := rand.New(rand.NewPCG(uint64(s.setup.records), s.setup.inputSeed))
	in.draw(r)
	return in
}

// epochOfEvents is about when the first event happened.
func (s *setup) epochOfEvents() int64 {
	if s.zone {
		return 1_711_670_400_000_000 // 2024-03-29T00:00:00Z, before clocks change
	}
	return startOfTime
}

func (in *input) draw(r *rand.Rand) {
	s := &in.sim.setup
	var now span // the arrival, in event time
	var recent []planned
	for i := range s.records {
		now += span(r.Int64N(3 * int64(s.scale)))
		if r.IntN(25) == 0 {
			now += span(r.Int64N(40 * int64(s.scale)))
		}
		p := planned{stream: s.plan.Streams[r.IntN(len(s.plan.Streams))].Name, at: span(int64(s.duration) * int64(i) / int64(s.records))}
		if len(recent) > 0 && r.IntN(8) == 0 {
			p = in.again(r, recent[r.IntN(len(recent))], i)
		} else {
			in.fresh(r, &p, i, now)
		}
		p.record.Timestamp = event.EventTime(s.epochOfEvents() + int64(now))
		if r.IntN(10) == 0 {
			p.record.Timestamp -= event.EventTime(r.Int64N(10 * int64(s.scale)))
		}
		recent = append(recent, p)
		in.plan = append(in.plan, p)
	}
	in.transactions(r)
}

// fresh makes a record that says something new.
func (in *input) fresh(r *rand.Rand, p *planned, i int, now span) {
	s := &in.sim.setup
	late := pick(r, 0, 0, 0, 1, 3, 12, 40, 90, -3)
	at := s.epochOfEvents() + int64(now) - int64(late)*int64(s.scale) - r.Int64N(int64(s.scale))
	key := fmt.Sprintf("k%d", r.IntN(5))
	p.part = event.PartitionOf([]byte(key), s.partitions[p.stream])
	if !in.byKey(p.stream) {
		p.part = event.Partition(r.IntN(int(s.partitions[p.stream])))
	}
	value := fmt.Sprintf(`{"id":"e%d","k":%q,"room":"r%d","at":%d,"v":%s}`, i, key, r.IntN(3), at,
		pick(r, fmt.Sprint(r.IntN(1000)-500), fmt.Sprintf("%d.%d", r.IntN(100), 1+r.IntN(9)), "null"))
	if r.IntN(1000) < s.bad {
		value = pick(r,
			`{"id":`,
			fmt.Sprintf(`{"id":"e%d","k":%q,"room":"r0","v":1}`, i, key),
			fmt.Sprintf(`{"id":"e%d","k":%q,"room":"r0","at":"yesterday","v":1}`, i, key),
			fmt.Sprintf(`{"id":"e%d","k":%q,"room":"r0","at":%d,"v":"many"}`, i, key, at),
			fmt.Sprintf(`{"id":"e%d","k":%q,"room":"r0","at":%d,"v":1}`, i, key, at+10*365*86_400_000_000),
			fmt.Sprintf(`{"k":%q,"room":"r0","at":%d,"v":1}`, key, at))
	}
	p.record.Key, p.record.Value = []byte(key), []byte(value)
	if r.IntN(1000) < s.bad/4 {
		p.record.Value = nil
	}
}

// again makes a record that comes again: as it was, or with its id and other
// content.
func (in *input) again(r *rand.Rand, p planned, i int) planned {
	s := &in.sim.setup
	p.at = span(int64(s.duration) * int64(i) / int64(s.records))
	if r.IntN(4) == 0 && p.record.Value != nil {
		p.record.Value = append([]byte(nil), p.record.Value...)
		p.record.Value = append(p.record.Value, ' ')
	}
	return p
}

func (in *input) byKey(stream string) bool {
	for _, s := range in.sim.setup.plan.Streams {
		if s.Name == stream {
			return s.PartitionedByKey
		}
	}
	return false
}

// transactions puts some runs of records into transactions of their producer.
func (in *input) transactions(r *rand.Rand) {
	if !in.sim.setup.aborts {
		return
	}
	for i, group := 0, 1; i < len(in.plan); group++ {
		n := 1 + r.IntN(5)
		own, aborted := r.IntN(3) == 0, r.IntN(2) == 0
		for ; n > 0 && i < len(in.plan); n, i = n-1, i+1 {
			if own {
				in.plan[i].group, in.plan[i].aborted = group, aborted
			}
		}
	}
}

// start begins to write. One writer for each stream: their order within a
// partition is that of the plan.
func (in *input) start() {
	for _, st := range in.sim.setup.plan.Streams {
		in.writers = append(in.writers, in.sim.world.spawn(nil, "producer of "+st.Name, func(p *process) error {
			return in.write(p, st.Name, st.Topic)
		}))
	}
}

func (in *input) write(p *process, stream, topic string) error {
	begun := p.world.now
	for i := 0; i < len(in.plan); i++ {
		x := &in.plan[i]
		if x.stream != stream {
			continue
		}
		if !in.sim.setup.complete {
			if d := begun + x.at - p.world.now; d > 0 {
				if err := p.sleep(d); err != nil {
					return err
				}
			}
		}
		if x.group == 0 {
			in.append(topic, x)
			continue
		}
		last, err := in.transaction(p, stream, topic, i)
		if err != nil && !passing(err) { // a producer that was too slow is aborted
			return err
		}
		i = last
	}
	return nil
}

func (in *input) append(topic string, x *planned) {
	in.sim.world.tracef("input %s/%s: %s", topic, x.part, x.record.Value)
	in.sim.broker.Topic(topic)[x.part].Append(broker.Record{Record: x.record})
	in.sim.produced++
}

// transaction writes the records of one transaction from i on, and ends it.
func (in *input) transaction(p *process, stream, topic string, i int) (last int, err error) {
	b, first := in.sim.broker, in.plan[i]
	id := "producer of " + stream
	producer, err := insist(p, "begin", always, func() (broker.Producer, error) { return b.InitProducer(id, int64(transactionTimeout)) })
	last = i + 1
	for last < len(in.plan) && in.plan[last].group == first.group {
		last++
	}
	if err != nil {
		return last - 1, err
	}
	sequence := map[*broker.Partition]int{}
	for _, x := range in.plan[i:last] {
		if x.stream != stream {
			continue
		}
		to := b.Topic(topic)[x.part]
		n := sequence[to]
		sequence[to]++
		if _, err := insist(p, "input in a transaction", always, func() (event.Offset, error) {
			if err := b.AddPartitions(id, producer, []*broker.Partition{to}); err != nil {
				return 0, err
			}
			return b.Produce(id, producer, to, n, []broker.Record{{Record: x.record}})
		}); err != nil {
			return last - 1, err
		}
		in.sim.produced++
	}
	if err := p.sleep(p.world.upTo(second)); err != nil {
		return last - 1, err
	}
	_, err = insist(p, "end the input's transaction", always, func() (broker.Producer, error) {
		return b.EndTransaction(id, producer, !first.aborted)
	})
	return last - 1, err
}

// done reports whether everything has been written.
func (in *input) done() bool {
	for _, p := range in.writers {
		if !p.done {
			return false
		}
	}
	return len(in.writers) > 0
}

func (in *input) close() {
	for _, p := range in.writers {
		p.kill()
	}
}
