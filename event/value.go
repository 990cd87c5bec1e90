package event

import "fmt"

// Kind is the declared kind of a property. The numbers are stored; they never
// change their meaning.
type Kind uint8

// The kinds.
const (
	KindUnknown   Kind = 0
	KindText      Kind = 1
	KindInteger   Kind = 2 // canonical text: -?[1-9][0-9]*|0, any size up to the number limit
	KindDecimal   Kind = 3 // canonical text: Decimal.String
	KindBoolean   Kind = 4 // "true" or "false"
	KindTimestamp Kind = 5 // canonical text: EventTime.String
	KindLink      Kind = 6 // the id of the object linked to
)

var kindNames = [...]string{"unknown", "text", "integer", "decimal", "boolean", "timestamp", "link"}

// String gives the kind's name as the mapping writes it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Value is the value of a property in its canonical text: equal values have
// equal bytes, whatever the event wrote ("5.50" and "5.5" are one decimal).
// A Null value asserts that the property is absent.
type Value struct {
	Null bool
	Text string
}

// String gives the text, or "null".
func (v Value) String() string {
	if v.Null {
		return "null"
	}
	return v.Text
}

// ScalarType is the dynamic type of a value read from an event.
type ScalarType uint8

// The dynamic types.
const (
	ScalarAbsent ScalarType = iota
	ScalarNull
	ScalarText
	ScalarNumber
	ScalarBool
	// ScalarJSON is an object or an array, kept as its raw JSON in Text.
	ScalarJSON
)

// String gives the type's name as error texts use it.
func (t ScalarType) String() string {
	switch t {
	case ScalarAbsent:
		return "absent"
	case ScalarNull:
		return "null"
	case ScalarText:
		return "text"
	case ScalarNumber:
		return "number"
	case ScalarBool:
		return "boolean"
	case ScalarJSON:
		return "object or array"
	}
	return fmt.Sprintf("scalar(%d)", uint8(t))
}

// Scalar is one dynamic value read from an event. Its Text may alias the
// memory of the record that it was read from: whoever keeps it longer than the
// record clones it.
type Scalar struct {
	Type ScalarType
	Bool bool
	Num  Decimal
	Text string
}

// Missing reports whether the scalar is absent or null.
func (s Scalar) Missing() bool { return s.Type == ScalarAbsent || s.Type == ScalarNull }
