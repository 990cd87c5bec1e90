// Package sim runs whole pipelines in one goroutine, with time, network, disks
// and faults drawn from a seed, and checks what must hold while they run and
// when they have ended.
//
// What is real: the tasks, the runner and the coordinator of package
// processors, the stores of package state (Pebble, on a file system that loses
// what was not synced), and the ontology in memory of package sinks/ontology.
//
// What is a model: the broker (package broker), and the engine. A replica's
// engine re-enacts package kafka step by step, each request with a wait before
// and behind it: its files are named as those of package kafka and say what
// they re-enact. A change of the protocol there belongs here too.
//
// Contract
//
//  1. One seed is one execution: the trace of two runs is the same, line by
//     line. There is one goroutine (processes are coroutines), no clock, and no
//     source of chance but the seed.
//  2. The checks do not trust what they check. They read the broker's log from
//     outside; what must be counted is counted a second time by package oracle,
//     which shares nothing with the engine.
//  3. A failure names its invariant, the seed, and the command that repeats it.
//  4. A Bug is a known fault that can be planted. Each turns seeds red, by the
//     invariants that are meant to find it.
package sim
