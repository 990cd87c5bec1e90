// Package faults is the crash matrix: it runs the real engine in processes of
// its own, against a broker and a real PostgreSQL, kills it by SIGKILL at every
// point that kafka.Points names, lets it go on in several ways, and then checks
// that nothing of it shows. A second table runs the engine under faults of the
// broker.
//
// The parts
//
//	child      the engine in a process of its own, which dies where it is told
//	replica    such a process as the harness sees it
//	workload   a pipeline with its records, and what they must end in
//	spec       how each point is reached
//	run        one case, from the empty broker to the checks
//	check      what must hold afterwards: functions that share nothing with the engine
//	wire       connections that lose answers, break, or are slow
//
// Whoever starts cases calls Child first: the processes are the same program.
//
// docs/testing.md says how to run and repeat cases, and how to add to them.
package faults
