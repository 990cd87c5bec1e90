package mapping

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

func number(t testing.TB, s string) event.Scalar {
	t.Helper()
	d, err := event.ParseDecimal(s)
	if err != nil {
		t.Fatal(err)
	}
	return event.Scalar{Type: event.ScalarNumber, Num: d}
}

func TestValuesAreCanonical(t *testing.T) {
	null, absent := event.Scalar{Type: event.ScalarNull}, event.Scalar{}
	raw := event.Scalar{Type: event.ScalarJSON, Text: "{}"}
	yes := boolScalar(true)
	for _, c := range []struct {
		kind event.Kind
		in   event.Scalar
		want string
	}{
		{event.KindText, textScalar("x"), "x"}, {event.KindText, textScalar(""), ""}, {event.KindText, number(t, "1"), "bad_value"},
		{event.KindText, yes, "bad_value"}, {event.KindText, raw, "bad_value"}, {event.KindText, textScalar("a\x00b"), "bad_value"},
		{event.KindText, null, "null"}, {event.KindInteger, null, "null"}, {event.KindLink, null, "null"}, {event.KindText, absent, "null"},
		{event.KindInteger, number(t, "5.0"), "5"}, {event.KindInteger, number(t, "1e3"), "1000"}, {event.KindInteger, number(t, "-0"), "0"},
		{event.KindInteger, number(t, "5.5"), "bad_value"}, {event.KindInteger, textScalar("5"), "bad_value"},
		{event.KindInteger, number(t, "123456789012345678901234567890"), "123456789012345678901234567890"},
		{event.KindDecimal, number(t, "5.50"), "5.5"}, {event.KindDecimal, textScalar("5"), "bad_value"}, {event.KindDecimal, raw, "bad_value"},
		{event.KindBoolean, yes, "true"}, {event.KindBoolean, boolScalar(false), "false"}, {event.KindBoolean, textScalar("true"), "bad_value"},
		{event.KindBoolean, number(t, "1"), "bad_value"},
		{event.KindTimestamp, textScalar("2024-02-29T12:00:00.1234567+02:00"), "2024-02-29T10:00:00.123456Z"},
		{event.KindTimestamp, textScalar("2024-02-29"), "bad_value"}, {event.KindTimestamp, number(t, "5"), "bad_value"},
		{event.KindLink, textScalar("c-1"), "c-1"}, {event.KindLink, number(t, "7.0"), "7"}, {event.KindLink, textScalar(""), "bad_value"},
		{event.KindLink, yes, "bad_value"}, {event.KindUnknown, yes, "bad_value"},
	} {
		v, reject := ConvertValue(c.kind, c.in)
		got := v.String()
		if reject != nil {
			got = string(reject.Reason)
		}
		if got != c.want {
			t.Errorf("%s of %s: got %s, want %s", c.kind, show(c.in), got, c.want)
		}
	}
}

func TestKeysAreTextsOrNumbers(t *testing.T) {
	for _, c := range []struct {
		in   event.Scalar
		want string
	}{
		{textScalar("a"), "a"}, {number(t, "7.0"), "7"}, {number(t, "0.50"), "0.5"}, {textScalar(strings.Repeat("x", 1024)), strings.Repeat("x", 1024)},
		{event.Scalar{}, "no_key"}, {event.Scalar{Type: event.ScalarNull}, "no_key"}, {textScalar(""), "bad_key"}, {boolScalar(true), "bad_key"},
		{event.Scalar{Type: event.ScalarJSON, Text: "[]"}, "bad_key"}, {textScalar(strings.Repeat("x", 1025)), "bad_key"}, {textScalar("\x00"), "bad_key"},
	} {
		got, reject := KeyText(c.in)
		if reject != nil {
			got = string(reject.Reason)
		}
		if got != c.want {
			t.Errorf("%.40s: got %.40s, want %.40s", show(c.in), got, c.want)
		}
	}
}

func TestEventTimesAreExact(t *testing.T) {
	for _, c := range []struct {
		format TimeFormat
		in     event.Scalar
		want   string
	}{
		{TimeRFC3339, textScalar("2018-01-31T02:18:21.235Z"), "2018-01-31T02:18:21.235Z"},
		{TimeRFC3339, textScalar("2018-01-31t02:18:21.235999999z"), "2018-01-31T02:18:21.235999Z"},
		{TimeRFC3339, textScalar("1969-12-31T23:59:59.9999999Z"), "1969-12-31T23:59:59.999999Z"},
		{TimeRFC3339, textScalar("2018-01-31T02:18:21+05:30"), "2018-01-30T20:48:21Z"},
		{TimeRFC3339, textScalar("0001-01-01T00:00:00Z"), "0001-01-01T00:00:00Z"},
		{TimeRFC3339, textScalar("9999-12-31T23:59:59.999999999Z"), "9999-12-31T23:59:59.999999Z"},
		{TimeRFC3339, textScalar("0001-01-01T00:00:00+01:00"), "bad_event_time"},
		{TimeRFC3339, textScalar("9999-12-31T23:59:59-01:00"), "bad_event_time"},
		{TimeRFC3339, textScalar("0000-06-01T00:00:00Z"), "bad_event_time"},
		{TimeRFC3339, textScalar("2018-01-31 02:18:21Z"), "bad_event_time"},
		{TimeRFC3339, textScalar("2018-01-31T02:18:21"), "bad_event_time"},
		{TimeRFC3339, textScalar("2018-01-31T2:18:21Z"), "bad_event_time"},
		{TimeRFC3339, textScalar("2018-01-31T02:18:21,5Z"), "bad_event_time"},
		{TimeRFC3339, textScalar("2018-02-30T02:18:21Z"), "bad_event_time"},
		{TimeRFC3339, textScalar("2016-12-31T23:59:60Z"), "bad_event_time"},
		{TimeRFC3339, textScalar(""), "bad_event_time"},
		{TimeRFC3339, number(t, "0"), "bad_event_time"},
		{TimeAuto, textScalar("2018-01-31T02:18:21.235Z"), "2018-01-31T02:18:21.235Z"},
		{TimeAuto, number(t, "1517365101235"), "2018-01-31T02:18:21.235Z"},
		{TimeEpochMillis, number(t, "1517365101235"), "2018-01-31T02:18:21.235Z"},
		{TimeEpochMillis, number(t, "1517365101235.0009"), "2018-01-31T02:18:21.235Z"},
		{TimeEpochMillis, number(t, "-0.0001"), "1969-12-31T23:59:59.999999Z"},
		{TimeEpochSeconds, number(t, "1517365101.235001"), "2018-01-31T02:18:21.235001Z"},
		{TimeEpochSeconds, number(t, "-1"), "1969-12-31T23:59:59Z"},
		{TimeEpochMicros, number(t, "-1"), "1969-12-31T23:59:59.999999Z"},
		{TimeEpochNanos, number(t, "-1"), "1969-12-31T23:59:59.999999Z"},
		{TimeEpochNanos, number(t, "1999"), "1970-01-01T00:00:00.000001Z"},
		{TimeEpochNanos, number(t, "253402300799999999999"), "9999-12-31T23:59:59.999999Z"},
		{TimeEpochNanos, number(t, "253402300800000000000"), "bad_event_time"},
		{TimeEpochMillis, number(t, "253402300799999"), "9999-12-31T23:59:59.999Z"},
		{TimeEpochMillis, number(t, "253402300800000"), "bad_event_time"},
		{TimeEpochMillis, number(t, "9223372036854775807"), "bad_event_time"},
		{TimeEpochSeconds, number(t, "-62135596800"), "0001-01-01T00:00:00Z"},
		{TimeEpochSeconds, number(t, "-62135596801"), "bad_event_time"},
		{TimeEpochSeconds, number(t, "-62135596800.0000001"), "bad_event_time"},
		{TimeEpochSeconds, number(t, "1e900"), "bad_event_time"},
		{TimeEpochSeconds, textScalar("1517365101"), "bad_event_time"},
		{TimeEpochMillis, boolScalar(true), "bad_event_time"},
		{TimeEpochMillis, event.Scalar{}, "no_event_time"},
		{TimeAuto, event.Scalar{Type: event.ScalarNull}, "no_event_time"},
	} {
		at, reject := ParseEventTime(c.format, c.in)
		got := at.String()
		if reject != nil {
			got = string(reject.Reason)
		}
		if got != c.want {
			t.Errorf("%s of %s: got %s, want %s", c.format, show(c.in), got, c.want)
		}
	}
}

// A number of any unit is the time that exact fractions give.
func TestScaledTimesEqualFractions(t *testing.T) {
	perMicro := map[TimeFormat]*big.Rat{
		TimeEpochSeconds: big.NewRat(1_000_000, 1), TimeEpochMillis: big.NewRat(1000, 1), TimeEpochMicros: big.NewRat(1, 1), TimeEpochNanos: big.NewRat(1, 1000),
	}
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringMatching(`-?[1-9][0-9]{0,18}(\.[0-9]{1,8})?`).Draw(rt, "number")
		format := rapid.SampledFrom([]TimeFormat{TimeEpochSeconds, TimeEpochMillis, TimeEpochMicros, TimeEpochNanos}).Draw(rt, "format")
		r, _ := new(big.Rat).SetString(text)
		r.Mul(r, perMicro[format])
		floor := new(big.Int).Div(r.Num(), r.Denom())
		inRange := floor.IsInt64() && event.EventTime(floor.Int64()).Valid()
		got, reject := ParseEventTime(format, number(t, text))
		if (reject == nil) != inRange || reject == nil && int64(got) != floor.Int64() {
			rt.Fatalf("%s %s: %d, %v; want %s", text, format, got, reject, floor)
		}
	})
}

// What is written as a timestamp reads back as the same instant.
func TestTimestampsReadBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := event.EventTime(rapid.Int64Range(int64(event.MinEventTime), int64(event.MaxEventTime)).Draw(rt, "at"))
		v, reject := ConvertValue(event.KindTimestamp, textScalar(at.String()))
		if reject != nil || v.Text != at.String() {
			rt.Fatalf("%s: %v, %v", at, v, reject)
		}
		zone := time.FixedZone("", rapid.IntRange(-23*60, 23*60).Draw(rt, "minutes")*60)
		local := at.Time().In(zone)
		if y := local.Year(); y < 1 || y > 9999 {
			return
		}
		if got, reject := ParseEventTime(TimeAuto, textScalar(local.Format(time.RFC3339Nano))); reject != nil || got != at {
			rt.Fatalf("%s: %s, %v", local, got, reject)
		}
	})
}

func TestTypesHaveTheirArticle(t *testing.T) {
	for typ, want := range map[event.ScalarType]string{
		event.ScalarJSON: "an object or array", event.ScalarText: "a text", event.ScalarNull: "null",
	} {
		if got := aType(typ); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
