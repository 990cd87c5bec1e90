// Package event holds the domain types that every other package speaks in:
// times, offsets, epochs, values, causes, and the records that Strom writes to
// its own topics.
//
// Contract
//
//  1. It imports nothing of Strom's but its own subpackages.
//  2. Its types are values. None holds a lock, a goroutine or a connection;
//     a value may be read by many goroutines as long as nobody writes it.
//  3. Every record format starts with a version byte (binary) or a "v" field
//     (JSON). A decoder refuses a version that it does not know with
//     ErrVersion, and never guesses.
//  4. Times are int64 microseconds UTC. Arithmetic on them saturates at the
//     ends of the representable range; it never wraps.
package event
