// Package formats turns the bytes of a record into the fields that a mapping
// names.
//
// Contract
//
//  1. A Decoder reads only the paths that it was built with (projection), but
//     it accepts exactly the inputs that are well formed as a whole.
//  2. It never panics, never hangs, and bounds depth, length of a number and
//     number of elements: a record cannot grow the process.
//  3. Texts in its results may alias the record's memory; whoever keeps them
//     longer clones them.
//  4. A Decoder may be used by one goroutine at a time; Clone gives another.
package formats

import "github.com/forge-platform/strom/event"

// Fields are the decoded values of one event, in the order of the paths that
// the decoder was built with. A path that leads nowhere is ScalarAbsent.
type Fields []event.Scalar

// Decoder decodes one format with one projection.
type Decoder interface {
	// Decode calls emit once for each event in the value: once, or once for
	// each element of the array that the stream explodes (index from 0). The
	// fields are valid only during the call. Its error is an *event.Reject
	// with ReasonNotJSON or the like, found before the first emit: a record
	// is an event, or several, or a rejection, never a part of one. An error
	// of emit is returned as it is, and ends the decoding.
	Decode(value []byte, emit func(index int32, f Fields) error) error
	// Clone returns a Decoder for use by another goroutine.
	Clone() Decoder
}
