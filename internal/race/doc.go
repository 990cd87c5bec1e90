// Package race tells tests whether the race detector is on: some do less then,
// for it makes everything slower, and Pebble notes a stack trace for every file
// that a read looks into.
package race
