// Package windows holds what Strom knows of event-time windows: which windows
// an event belongs to, what is accumulated in them, how far time is complete,
// and whether an event comes late.
//
// Contract
//
//  1. The package is pure. It has no clock, no goroutine, no input or output
//     and no state of its own; a result is a function of the arguments.
//  2. Windows are half-open: [Start, End). Alignment uses floor division, so
//     windows before 1970 lie as those after. No arithmetic wraps; windows are
//     cut off at the ends of event time, the years 1 and 9999.
//  3. An Assigner, a Layout and a Window never change once built: any number
//     of goroutines may use them. An Acc and a PartitionWatermark belong to
//     one goroutine at a time.
//  4. Values are exact. count, sum, min and max never round, wrap or saturate;
//     avg divides an exact sum once, when it is published, and says how it
//     rounds (event.Decimal.Div).
//  5. Accumulation does not depend on order: adding events in any order, or in
//     parts that are merged in any order, publishes the same bytes. The
//     functions here are those that can promise it; one that needs to know the
//     order (first, last) carries it in its accumulator.
//  6. What is published suffices to go on: Restore(Results(a)) is a, as far as
//     any later result can tell.
//  7. What is stored starts with a version byte and the functions it was
//     written for. Decode refuses what it does not know and never guesses.
//
// An accumulator knows nothing of the window that it is kept for. So a kind of
// window that places an event in several windows (hopping) or in a longer
// calendar unit (week, month) is one more Assigner, and windows that merge
// (sessions) use Merge; nothing that is stored changes with them.
package windows
