package bench

import (
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kgo"
)

// nexmark is the input of Nexmark's queries (Tucker, Tufte, Papadimos, Maier:
// NEXMark, a benchmark for queries over data streams, 2004) as it has become
// usual: persons register, sellers among them open auctions, and bidders bid, in
// one sequence of events of which a topic holds one kind. Its proportions, its
// rate and its shares of the hot ones are the usual ones; its texts are made of
// syllables and letters.
//
// Event i is a pure function of i, the seed and the rate, so fewer events are a
// prefix of more. Of Input it takes no keys and no late events.
type nexmark struct {
	Input

	kind kind // of the events that are read
}

// kind is what an event is about.
type kind uint8

// The kinds of events.
const (
	persons kind = iota
	auctions
	bids
)

var kindNames = [...]string{"persons", "auctions", "bids"}

// String gives the topic's word for the kind.
func (k kind) String() string { return kindNames[k] }

const (
	// cycle is so many events: 1 person, then 3 auctions, then 46 bids.
	cycle = 50
	// firstID is the id of the first person, and of the first auction.
	firstID = 1000
	// hotGroup: of so many persons or auctions in a row one is hot while the
	// newest is among them.
	hotGroup = 100
	// openAuctions is how many of the newest auctions are bid for, activePersons
	// how many of the newest persons sell and bid.
	openAuctions, activePersons = 100, 1000
	// The hot one is taken in all but one of so many cases.
	hotAuctions, hotSellers, hotBidders = 2, 4, 4
	// nexmarkRate is the usual rate: 10,000 events a second of event time.
	nexmarkRate = 10
)

// shares are the places of the kinds in a cycle.
var shares = [...]struct{ first, n int64 }{persons: {0, 1}, auctions: {1, 3}, bids: {4, 46}}

// kindOf gives the kind of event i, and how many of that kind come before it.
func kindOf(i int64) (k kind, before int64) {
	at := i % cycle
	switch {
	case at >= shares[bids].first:
		k = bids
	case at >= shares[auctions].first:
		k = auctions
	default:
		k = persons
	}
	return k, i/cycle*shares[k].n + at - shares[k].first
}

// countOf is how many of the first events are of the kind.
func countOf(k kind, events int64) int64 {
	s := shares[k]
	return events/cycle*s.n + min(max(events%cycle-s.first, 0), s.n)
}

// dice are the random numbers of one event, in a fixed order.
type dice uint64

func (n *nexmark) dice(i int64) dice { return dice(mix(n.Seed ^ mix(uint64(i)))) }

// next gives 64 random bits.
func (d *dice) next() uint64 {
	*d = dice(mix(uint64(*d)))
	return uint64(*d)
}

// roll gives a number from 0 to n-1.
func (d *dice) roll(n int64) int64 { return int64(d.next() % uint64(n)) }

// pick gives one of those up to the newest: the hot one in all but one of so many
// cases, else one of the most recent.
func (d *dice) pick(hot, newest, recent, cases int64) int64 {
	if d.roll(cases) > 0 {
		return hot
	}
	return newest - d.roll(min(recent, newest+1))
}

// price gives a price in cents, from 1.00 to 999,999.99: each power of ten is as
// likely as any other.
func (d *dice) price() int64 {
	low := int64(100)
	for range d.roll(6) {
		low *= 10
	}
	return low + d.roll(9*low)
}

// at is the event time of event i, in milliseconds since 1970.
func (n *nexmark) at(i int64) int64 { return base + i/n.Rate }

// bid is what a query has to know of one bid.
type bid struct {
	auction, bidder int64
	price           int64 // in cents
	at              int64 // in milliseconds since 1970
}

// bid gives event i, which is a bid, and the dice for its texts.
func (n *nexmark) bid(i int64) (bid, dice) {
	d := n.dice(i)
	auction, person := countOf(auctions, i)-1, countOf(persons, i)-1
	b := bid{ // the dice roll in this order
		auction: firstID + d.pick(auction-auction%hotGroup, auction, openAuctions, hotAuctions),
		// Another one of the group than the hot seller, where there is another.
		bidder: firstID + d.pick(min(person-person%hotGroup+1, person), person, activePersons, hotBidders),
		price:  d.price(),
		at:     n.at(i),
	}
	return b, d
}

// seller gives who opens an auction with event i.
func (n *nexmark) seller(i int64, d *dice) int64 {
	person := countOf(persons, i) - 1
	return firstID + d.pick(person-person%hotGroup, person, activePersons, hotSellers)
}

// expires gives when an auction of event i ends, in milliseconds since 1970: about
// when as many have been opened as are open at a time.
func (n *nexmark) expires(i int64, d *dice) int64 {
	open := openAuctions * cycle / shares[auctions].n / n.Rate
	return n.at(i) + 1 + d.roll(2*open+1)
}

// topic implements source.
func (n *nexmark) topic() string {
	return fmt.Sprintf("bench-nexmark-%s-%016x", n.kind, xxhash.Sum64String(fmt.Sprintf("%+v", n.Input)))
}

// count implements source.
func (n *nexmark) count() int64 { return countOf(n.kind, n.Events) }

// String implements source.
func (n *nexmark) String() string {
	return fmt.Sprintf("%d %s of %d events", n.count(), n.kind, n.Events)
}

// all implements source. The records' keys are ids: a bid's is its auction's.
func (n *nexmark) all() iter.Seq[*kgo.Record] {
	topic := n.topic()
	return func(yield func(*kgo.Record) bool) {
		for i := range n.Events {
			if k, _ := kindOf(i); k == n.kind && !yield(n.record(topic, i)) {
				return
			}
		}
	}
}

func (n *nexmark) record(topic string, i int64) *kgo.Record {
	key, value := n.appendEvent(make([]byte, 0, 256), i)
	return &kgo.Record{Topic: topic, Key: strconv.AppendInt(nil, key, 10), Value: value, Timestamp: time.UnixMilli(n.at(i))}
}

// everything is the key of a pane of all events.
const everything = -1

// everythingID is how the mapping writes it.
const everythingID = "all"

// fold implements source: the right result of q7.
func (n *nexmark) fold() Panes {
	out := Panes{}
	size := n.Window.Milliseconds()
	for i := range n.Events {
		if k, _ := kindOf(i); k != bids {
			continue
		}
		b, _ := n.bid(i)
		pane := Pane{Key: everything, Start: b.at - b.at%size}
		t := out[pane]
		t.N++
		t.Most = max(t.Most, b.price) // a price is above 0
		out[pane] = t
	}
	return out
}
