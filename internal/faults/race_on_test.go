//go:build race

package faults

// raceEnabled says that the race detector is on.
const raceEnabled = true
