// Package mapping turns a mapping file into a Plan: everything that a pipeline
// does, checked before anything runs.
//
// Contract
//
//  1. Load and Parse report every fault of a file at once, each with its line
//     and column, what is wrong and what to do (Error). A Plan exists only for
//     a file without faults.
//  2. A Plan is read-only after Parse and safe for concurrent use. So is an
//     Expr: evaluating one changes nothing but its result. The decoder of a
//     Stream is not: each task takes a Clone.
//  3. Parsing is bounded: 1 MiB of YAML, 32 levels, no anchors or aliases,
//     4 KiB for an expression. It does not panic, whatever the file holds.
//  4. Evaluating an expression is bounded by the expression and the event:
//     there are no loops, no clock, no random source, no input or output. Equal
//     fields give equal results on every machine.
//  5. Numbers are exact decimals from the event to the result. No float is
//     involved anywhere.
//  6. Plan.Version is equal for files of equal meaning: it ignores layout,
//     comments, the order of keys, defaults written out, and connections.
//  7. Compare classes every difference in meaning between two plans; a field of
//     Plan that it does not compare is derived from others (a test holds this).
package mapping
