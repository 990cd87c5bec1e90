package faults

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokerFault is something that a broker does to its clients.
type brokerFault struct {
	name string
	// begin begins it; end ends it and gives how often it has struck.
	begin func(b *Embedded, topics []string) (end func() int)
}

// brokerFaults lists the second table of the matrix.
func brokerFaults() []brokerFault {
	everyOther := func(n int64, err *kerr.Error, keys ...kmsg.Key) func(*Embedded, []string) func() int {
		return func(b *Embedded, _ []string) func() int { return refuse(b, n, err, keys...) }
	}
	return []brokerFault{
		// The broker does the work and says that it has not.
		{"produce-timeout", everyOther(4, kerr.RequestTimedOut, kmsg.Produce)},
		{"offsets-timeout", everyOther(3, kerr.RequestTimedOut, kmsg.TxnOffsetCommit)},
		// The broker is not ready.
		{"concurrent-transactions", everyOther(3, kerr.ConcurrentTransactions,
			kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.InitProducerID)},
		{"not-coordinator", everyOther(5, kerr.NotCoordinator,
			kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.InitProducerID, kmsg.OffsetFetch)},
		{"members-forgotten", everyOther(12, kerr.UnknownMemberID, kmsg.Heartbeat)},
		{"coordinators-move", func(b *Embedded, _ []string) func() int {
			return again100ms(func(int) int {
				b.Cluster().RehashCoordinators()
				return 1
			})
		}},
		{"leaders-move", moveLeaders},
		{"endtxn-lost", func(b *Embedded, _ []string) func() int { return b.wire.lose(&b.wire.stops, kmsg.EndTxn) }},
		{"endtxn-answers-lost", func(b *Embedded, _ []string) func() int { return b.wire.lose(&b.wire.loses, kmsg.EndTxn) }},
		{"connections-cut", func(b *Embedded, _ []string) func() int {
			return again100ms(func(i int) int {
				if i%3 != 0 {
					return 0
				}
				return b.wire.cut()
			})
		}},
		{"slow", slowDown},
	}
}

// refuse answers every nth of the requests with an error.
func refuse(b *Embedded, n int64, err *kerr.Error, keys ...kmsg.Key) func() int {
	var seen atomic.Int64
	h := b.Cluster().Fault(kfake.Fault{
		Keys: keys, Err: err, Count: -1,
		When: func(kmsg.Request) bool { return seen.Add(1)%n == 0 },
	})
	return func() int {
		h.Remove()
		return h.Hits()
	}
}

// again100ms does something ten times a second; do gives how often it struck.
func again100ms(do func(i int) int) func() int {
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		hits := 0
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- hits
				return
			case <-tick.C:
				hits += do(i)
			}
		}
	}()
	return func() int {
		close(stop)
		return <-done
	}
}

func moveLeaders(b *Embedded, topics []string) func() int {
	nodes := int32(len(b.Brokers()))
	return again100ms(func(i int) int {
		hits := 0
		for t, topic := range topics {
			// A topic that is not there yet, or has no such partition, has no leader to move.
			if b.Cluster().MoveTopicPartition(topic, int32(i%3), int32(i+t)%nodes) == nil {
				hits++
			}
		}
		return hits
	})
}

// slowDown lets every answer to a producer or a coordinator wait in the broker,
// and holds up every connection a little.
func slowDown(b *Embedded, _ []string) func() int {
	const inBroker, onTheWay = 15 * time.Millisecond, 5 * time.Millisecond
	var hits, over atomic.Int64
	for _, key := range [...]kmsg.Key{kmsg.Produce, kmsg.EndTxn, kmsg.TxnOffsetCommit} {
		b.Cluster().ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			if over.Load() != 0 {
				b.Cluster().DropControl()
				return nil, nil, false
			}
			b.Cluster().SleepControl(func() {
				timer := time.NewTimer(inBroker)
				<-timer.C
			})
			hits.Add(1)
			return nil, nil, false // and now answer
		})
	}
	b.wire.slow.Store(int64(onTheWay))
	return func() int {
		over.Store(1)
		b.wire.slow.Store(0)
		return int(hits.Load())
	}
}

// disturbance is how long the broker misbehaves.
const disturbance = 3 * time.Second

var errNotEmbedded = errors.New("only the embedded broker can be disturbed")

// disturbed runs a case of the second table: two replicas under a fault of the
// broker, while events flow. They survive it, and end exact.
func (r *run) disturbed(ctx context.Context) error {
	b, ok := r.broker.(*Embedded)
	if !ok {
		return errNotEmbedded
	}
	var fault brokerFault
	for _, f := range brokerFaults() {
		if f.name == r.c.Fault {
			fault = f
		}
	}
	one, err := r.start(ctx, childSpec{Replica: "one", DataDir: r.emptyDir()})
	if err != nil {
		return err
	}
	if err := r.awaitAdopted(ctx, one, len(r.topology.Stages)); err != nil {
		return err
	}
	two, err := r.start(ctx, childSpec{Replica: "two", DataDir: r.emptyDir()})
	if err != nil {
		return err
	}
	if err := r.awaitAdopted(ctx, two, r.shared()); err != nil {
		return err
	}
	r.startFeed(ctx)
	if r.workload.atOnce {
		// Its one transaction must not be hit.
		if err := r.feed.finish(); err != nil {
			return err
		}
	}
	end := fault.begin(b, r.facts.topics())
	timer := time.NewTimer(disturbance)
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	if hits := end(); hits == 0 {
		return fmt.Errorf("the fault %s never struck", r.c.Fault)
	}
	if err := r.feed.finish(); err != nil {
		return err
	}
	before, err := r.atCrash(ctx)
	if err != nil {
		return err
	}
	if err := r.drain(ctx, []*replica{one, two}); err != nil {
		return fmt.Errorf("%w; %w", err, r.standing(ctx))
	}
	return r.check(ctx, before)
}
