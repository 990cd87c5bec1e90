// Package kafka runs a pipeline on Kafka: it puts franz-go under goka, carries
// barriers through the topics, commits every epoch as one transaction, and
// feeds the ontology sink.
//
// The parts
//
//	Engine       one pipeline in this process
//	member       one replica's part in one stage: a goka processor
//	session      a member between two rebalances: tasks, committer, producer
//	coordinator  announces barriers, in whichever replica holds the partition
//	controlLog   the control topic, read in order
//	sink         the results topic into the ontology
//	monitor      what a Snapshot of all this is made of
//
// Contract
//
//  1. An epoch of a member is one Kafka transaction: offsets first, then
//     changelog, results, dead letters, markers and the acknowledgement. The
//     local store follows only after the transaction's success.
//  2. Once EndTxn has been sent, every answer but success is an unknown
//     outcome. It is never taken for an abort, nor for a commit: the session
//     ends, and the next one reads everything again from Kafka.
//  3. Nobody injects a barrier that was not announced.
//  4. Only this package imports sarama's types.
//
// Goroutines: goka runs one for each task, which alone drives its runner; the
// session's committer alone writes the stores; one goroutine polls. They talk
// through channels, and share what is guarded by a mutex that says so.
package kafka
