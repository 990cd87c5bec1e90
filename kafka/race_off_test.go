//go:build !race

package kafka_test

// raceEnabled says that the race detector is on.
const raceEnabled = false
