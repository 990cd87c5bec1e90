// Package processors holds the tasks: what one partition of one stage does
// with records, barriers and read-backs. It also says which stages a mapping
// makes, and decides what the next barrier announces.
//
// Contract
//
//  1. A task is pure: no clock, no goroutine, no I/O but reads of its own
//     state through a state.Reader. The same tasks run under goka, in the
//     simulator and in `strom try`.
//  2. A task is driven by one goroutine. What it hands over at a barrier is
//     the caller's from then on.
//  3. A result at a barrier is a function of the cut: of the set of records
//     before it, not of their interleaving, nor of the replica, nor of the
//     clock on the wall.
//  4. A record is an event, or several, or a rejection as a whole. Whatever a
//     record holds, a task's answer to it is never an error: an error of a
//     task is corrupt state or a bug, and stops it.
package processors
