// Package bench measures Strom beside its peers: the same job on the same broker,
// over the same events, in one run. cmd/strom runs it (`strom bench`), so do
// `go test -bench` and, with tiny inputs, `make bench-smoke`.
//
// Contract
//
//  1. The broker, and every job that is measured, is a process of its own. This
//     process only makes the input, waits, and checks.
//  2. What is read is a pure function of Input: event i is the same in every run, and
//     fewer events are a prefix of more.
//  3. A result is compared with a fold of the input. One that is wrong has no time.
//  4. The time of a run is from the start of processing to the commit of what
//     comes of the last event (see Run). A run of less than MinTime does not count
//     for the report: starting and ending weigh too much in it.
//  5. A workload that is Strom's alone gives figures, each with its goal; the time of
//     each is documented where it is made (sink.go, latency.go,
//     recover.go, stall.go).
//
// Jobs talk to the harness on their standard output, in lines: `started N` when
// processing starts, and `ended N` when the last result is committed, N in
// microseconds since 1970. A peer says only the first, and runs until it is
// asked to stop: the harness sees from its group's committed offsets when it has
// done all. A live pipeline says how far it is (see runLive), and runs until it is
// stopped. Every job ends when its standard input ends.
package bench
