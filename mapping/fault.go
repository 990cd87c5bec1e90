package mapping

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a mapping file.
type Fault struct {
	File string
	// Line and Column count from 1; the column counts characters. 0: the file
	// as a whole.
	Line, Column int
	// Key is the path of the key, as in streams.orders.key; empty: the file.
	Key string
	// Message says what is wrong, Advice what to do about it (may be empty).
	Message, Advice string
}

// String gives file:line:column: key: message (advice).
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	if f.Key != "" {
		b.WriteString(": " + f.Key)
	}
	b.WriteString(": " + f.Message)
	if f.Advice != "" {
		b.WriteString(" (" + f.Advice + ")")
	}
	return b.String()
}

// Error is a mapping file with faults: all of them, by their place.
type Error struct{ Faults []Fault }

// Error gives one fault a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

func sortFaults(faults []Fault) {
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			strings.Compare(a.Key, b.Key), strings.Compare(a.Message, b.Message))
	})
}
