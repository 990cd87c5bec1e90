package bench

import (
	"fmt"
	"strings"
)

// Query is a query of Nexmark.
type Query string

// Q7 asks for the highest bid of each window; it reads the bids.
const Q7 Query = "q7"

// WaitingQuery is a query of Nexmark that is not there yet.
type WaitingQuery struct {
	Query Query
	// For is the feature that it waits for.
	For string
}

// WaitingQueries are those that wait for a feature of pipelines.
func WaitingQueries() []WaitingQuery {
	return []WaitingQuery{
		{"q5", "an aggregate over another one's results, or top-k: the auctions with the most bids of a window"},
		{"q8", "joins: persons who have opened an auction in the window in which they have come"},
		{"q11", "session windows: the bids of each bidder's session"},
	}
}

// fault says why the query cannot be run; nil where it can.
func (q Query) fault() error {
	if q == Q7 {
		return nil
	}
	names := make([]string, 0, 4)
	for _, w := range WaitingQueries() {
		if w.Query == q {
			return fmt.Errorf("the query %s is not there yet, it waits for %s; take %s", q, w.For, Q7)
		}
		names = append(names, string(w.Query))
	}
	return fmt.Errorf("there is no query %q: nexmark has %s (%s are still to come)", q, Q7, strings.Join(names, ", "))
}

// shapeQ7 is the mapping of q7.
const shapeQ7 = "q7"

// highestBids is the mapping of q7. The bids are partitioned by auction and the
// highest one is that of all: each bid goes through a repartition topic to the one
// task that counts them. To count by auction first would need an aggregate over
// another one's results, which a mapping cannot have.
const highestBids = `
pipeline: %s
epoch: {clock: wall, interval: %dms}
streams:
  bids:
    topic: %s
    key: auction
    event_time: {field: dateTime, format: rfc3339}
    watermark: {out_of_orderness: 0s, idle_after: 1s}
    allowed_lateness: %dms
objects:
  Market:
    aggregates:
      highest:
        from: bids
        id: '"` + everythingID + `"'
        window: {tumbling: %dms}
        values: {n: count(), most: max(price)}
`
