// Package state keeps what a task knows between records: windows that are
// open, events that are parked, ids that were seen.
//
// Contract
//
//  1. A store belongs to one task. One goroutine writes it (the committer,
//     through Apply), any number read it.
//  2. A store holds exactly the state at one barrier. Apply moves it to the
//     next one atomically: changes, progress and changelog position are one
//     batch, so a crash leaves one barrier or the other, never a mixture.
//  3. Kafka is the truth and the store a copy: it never holds an epoch that
//     is not committed in Kafka. A store that is ahead of its changelog, torn,
//     or of another pipeline is never used (see Decide).
//  4. Keys are ordered: what expires together stands together.
//  5. Every value starts with a format version byte.
//
// Tried and rejected: writing state as records arrive, as goka's SetValue
// does. State is then ahead of the changelog and of the offsets after a crash.
package state
