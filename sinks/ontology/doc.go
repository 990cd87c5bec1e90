// Package ontology keeps the results of a pipeline bitemporally: every value
// of every property of every object, with the time at which it holds in the
// world (valid time) and the time at which Strom learned and unlearned it
// (recorded time).
//
// Contract
//
//  1. For every (object, property, valid instant, recorded instant) at most
//     one assertion is believed; for a windowed property, for every window.
//     Recorded intervals of one fact neither overlap nor leave a gap.
//  2. Recorded time is the R of an epoch, taken from the rows; no clock of
//     ours or of the database's ever enters a row.
//  3. A closed assertion never changes. Heads (believed now) and history
//     (closed) are separate tables; history is only ever inserted into.
//  4. One call of Apply is one database transaction. The progress it goes on
//     from is compared and set in that transaction, so a repeat and a zombie
//     change nothing (FencedError). Beside it, each (object, pipeline) has its
//     last applied number (generation, results offset); a row whose number is
//     not greater is discarded.
//  5. The safe horizon H of a pipeline is the newest R of which all its
//     results partitions have completed the epoch. It never falls. An answer
//     as of R <= H has the same bytes for ever.
//  6. A window's result that contradicts the versions believed already stops
//     the sink (LostStateError): it is how lost state shows.
//  7. A (type, property) has one writing pipeline, held in the database.
//  8. No secret is in an error or a log line; values reach the database as
//     parameters only.
//
// Store is what the engine writes through; Postgres and Memory implement it
// over the same core (package timeline and work.go). Reader asks.
//
// Tried and left: GiST exclusion constraints to prove that intervals do not
// overlap cost three to four times the throughput; verification proves it
// instead.
package ontology
