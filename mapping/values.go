package mapping

import (
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/forge-platform/strom/event"
)

// ConvertValue gives the canonical text of s for a property of a kind, or the
// reason why s is not of it. Null becomes the null value. An absent s has no
// value: the caller leaves the property as it is, and never comes here; it is
// taken for null.
//
//	text       a text
//	integer    a number without a fraction
//	decimal    a number
//	boolean    true or false
//	timestamp  a text as RFC 3339 writes it, years 1 to 9999
//	link       an id: a text or a number, see KeyText
//
// A text that holds the character U+0000 is refused: PostgreSQL cannot store
// it. The value may alias the record.
func ConvertValue(kind event.Kind, s event.Scalar) (event.Value, *event.Reject) {
	if s.Missing() {
		return event.Value{Null: true}, nil
	}
	switch kind {
	case event.KindText:
		if s.Type == event.ScalarText {
			if hasNUL(s.Text) {
				return event.Value{}, event.Rejectf(event.ReasonBadValue, "the text holds the character U+0000")
			}
			return event.Value{Text: s.Text}, nil
		}
	case event.KindInteger:
		if s.Type == event.ScalarNumber && s.Num.IsInteger() {
			return event.Value{Text: s.Num.String()}, nil
		}
		if s.Type == event.ScalarNumber {
			return event.Value{}, event.Rejectf(event.ReasonBadValue, "%s is not an integer", s.Num)
		}
	case event.KindDecimal:
		if s.Type == event.ScalarNumber {
			return event.Value{Text: s.Num.String()}, nil
		}
	case event.KindBoolean:
		if s.Type == event.ScalarBool {
			return event.Value{Text: strconv.FormatBool(s.Bool)}, nil
		}
	case event.KindTimestamp:
		if s.Type == event.ScalarText {
			t, ok := parseRFC3339(s.Text)
			if !ok {
				return event.Value{}, event.Rejectf(event.ReasonBadValue, "%s is not a time as RFC 3339 writes it", quoteShort(s.Text))
			}
			return event.Value{Text: t.String()}, nil
		}
	case event.KindLink:
		id, reject := KeyText(s)
		if reject != nil {
			return event.Value{}, event.Rejectf(event.ReasonBadValue, "not the id of a link: %s", reject.Message)
		}
		return event.Value{Text: id}, nil
	case event.KindUnknown:
	}
	return event.Value{}, event.Rejectf(event.ReasonBadValue, "a value of kind %s cannot be made of %s", kind, aType(s.Type))
}

// KeyText gives the canonical text of an id or a key: a text as it is, or a
// number in its canonical form (so 7 and 7.0 are one key). It is at most 1,024
// bytes long, not empty, and without the character U+0000. It may alias the
// record.
func KeyText(s event.Scalar) (string, *event.Reject) {
	var text string
	switch s.Type {
	case event.ScalarAbsent, event.ScalarNull:
		return "", event.Rejectf(event.ReasonNoKey, "the key is %s", s.Type)
	case event.ScalarText:
		text = s.Text
	case event.ScalarNumber:
		text = s.Num.String()
	default:
		return "", event.Rejectf(event.ReasonBadKey, "the key must be a text or a number, it is %s", aType(s.Type))
	}
	switch {
	case text == "":
		return "", event.Rejectf(event.ReasonBadKey, "the key is an empty text")
	case len(text) > maxKeyBytes:
		return "", event.Rejectf(event.ReasonBadKey, "the key has %d bytes, the most is %d", len(text), maxKeyBytes)
	case hasNUL(text):
		return "", event.Rejectf(event.ReasonBadKey, "the key holds the character U+0000")
	}
	return text, nil
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

// ParseEventTime gives the event time that s writes in a format, exactly:
// numbers are not rounded through floats, and what is finer than a microsecond
// is cut off towards the past. Texts are RFC 3339 where the format is that or
// automatic; the formats in numbers take numbers only.
func ParseEventTime(format TimeFormat, s event.Scalar) (event.EventTime, *event.Reject) {
	switch {
	case s.Missing():
		return 0, event.Rejectf(event.ReasonNoEventTime, "the event time is %s", s.Type)
	case s.Type == event.ScalarText && (format == TimeAuto || format == TimeRFC3339):
		t, ok := parseRFC3339(s.Text)
		if !ok {
			return 0, event.Rejectf(event.ReasonBadEventTime, "%s is not a time as RFC 3339 writes it, between the years 1 and 9999", quoteShort(s.Text))
		}
		return t, nil
	case s.Type == event.ScalarNumber && format != TimeRFC3339:
		t, ok := scaleTime(format, s.Num)
		if !ok {
			return 0, event.Rejectf(event.ReasonBadEventTime, "%s %s since 1970 is not between the years 1 and 9999", s.Num, format.unit())
		}
		return t, nil
	}
	return 0, event.Rejectf(event.ReasonBadEventTime, "the event time is %s, the format %s wants another type", aType(s.Type), format)
}

// String gives the format's name as the mapping writes it.
func (f TimeFormat) String() string {
	switch f {
	case TimeRFC3339:
		return "rfc3339"
	case TimeEpochSeconds:
		return "s"
	case TimeEpochMillis:
		return "ms"
	case TimeEpochMicros:
		return "us"
	case TimeEpochNanos:
		return "ns"
	case TimeAuto:
	}
	return "auto"
}

func (f TimeFormat) unit() string {
	switch f {
	case TimeEpochSeconds:
		return "seconds"
	case TimeEpochMicros:
		return "microseconds"
	case TimeEpochNanos:
		return "nanoseconds"
	case TimeAuto, TimeRFC3339, TimeEpochMillis:
	}
	return "milliseconds"
}

// perMicro gives a format's units as mul/div microseconds.
func (f TimeFormat) perMicro() (mul, div int64) {
	switch f {
	case TimeEpochSeconds:
		return 1_000_000, 1
	case TimeEpochMicros:
		return 1, 1
	case TimeEpochNanos:
		return 1, 1000
	case TimeAuto, TimeRFC3339, TimeEpochMillis:
	}
	return 1000, 1
}

// scaleTime turns a number of the format's units into microseconds.
func scaleTime(format TimeFormat, d event.Decimal) (event.EventTime, bool) {
	mul, div := format.perMicro()
	if n, exact := d.Int64(); exact {
		if mul > 1 && (n > int64(event.MaxEventTime)/mul || n < int64(event.MinEventTime)/mul) {
			return 0, false
		}
		t := event.EventTime(event.FloorDiv(n*mul, div))
		return t, t.Valid()
	}
	r, ok := new(big.Rat).SetString(d.String())
	if !ok {
		return 0, false
	}
	r.Mul(r, big.NewRat(mul, div))
	// Div of big.Int is Euclidean: with a positive divisor it is the floor.
	floor := new(big.Int).Div(r.Num(), r.Denom())
	if !floor.IsInt64() {
		return 0, false
	}
	t := event.EventTime(floor.Int64())
	return t, t.Valid()
}

// parseRFC3339 reads a time as RFC 3339 writes it, and cuts it at the
// microsecond, towards the past. A leap second is no time here: there is none
// in the arithmetic of event time.
func parseRFC3339(s string) (event.EventTime, bool) {
	// The standard library's reader takes a comma for the point, and hours of
	// one digit; RFC 3339 does not.
	if len(s) < len("2006-01-02T15:04:05Z") || s[10] != 'T' && s[10] != 't' || s[13] != ':' || strings.IndexByte(s, ',') >= 0 {
		return 0, false
	}
	if s[10] == 't' || s[len(s)-1] == 'z' {
		s = strings.ToUpper(s)
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, false
	}
	e := event.FromTime(t)
	return e, e.Valid()
}

// aType names a type with its article.
func aType(t event.ScalarType) string {
	switch t {
	case event.ScalarAbsent, event.ScalarNull:
		return t.String()
	case event.ScalarJSON:
		return "an " + t.String()
	case event.ScalarText, event.ScalarNumber, event.ScalarBool:
	}
	return "a " + t.String()
}
