package windows

import (
	"bytes"
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

// placedLayout has every function that depends on which event came when, or on a
// condition, among others.
func placedLayout() *Layout {
	return NewLayout([]Func{Last, Count, Any, First, Sum, All, Last})
}

// placedEvents draws events whose times often are the same; their places are not.
func placedEvents() *rapid.Generator[[]event.Contribution] {
	one := rapid.Custom(func(t *rapid.T) event.Contribution {
		text := func(name string) event.Scalar {
			switch rapid.IntRange(0, 4).Draw(t, name+" shape") {
			case 0:
				return event.Scalar{}
			case 1:
				return event.Scalar{Type: event.ScalarNull}
			}
			return event.Scalar{Type: event.ScalarText, Text: rapid.StringMatching(`[a-cä]{0,3}`).Draw(t, name)}
		}
		condition := func(name string) event.Scalar {
			if rapid.IntRange(0, 3).Draw(t, name+" shape") == 0 {
				return event.Scalar{}
			}
			return event.Scalar{Type: event.ScalarBool, Bool: rapid.Bool().Draw(t, name)}
		}
		return event.Contribution{
			Time:   event.EventTime(rapid.Int64Range(-3, 3).Draw(t, "time")),
			Tie:    event.Tie{Rank: rapid.Int32Range(0, 1).Draw(t, "rank"), Offset: event.Offset(rapid.Int64Range(0, 1000).Draw(t, "offset"))},
			Values: []event.Scalar{text("last"), condition("any"), text("first"), number(t, "2"), condition("all"), text("other")},
		}
	})
	return rapid.Custom(func(t *rapid.T) []event.Contribution {
		return rapid.SliceOfNDistinct(one, 0, 12, func(c event.Contribution) event.Tie { return c.Tie }).Draw(t, "events")
	})
}

func foldPlaced(l *Layout, events []event.Contribution) *Acc {
	a := l.New()
	for i := range events {
		l.AddEvent(a, &events[i])
	}
	return a
}

// The definition taken literally.
func placedDefinition(events []event.Contribution) string {
	events = slices.Clone(events)
	slices.SortFunc(events, func(a, b event.Contribution) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), a.Tie.Compare(b.Tie))
	})
	null := event.Value{Null: true}.String()
	ends := func(input int) (first, last string) {
		first, last = null, null
		for _, e := range events {
			if v := e.Values[input]; !v.Missing() {
				if first == null {
					first = v.Text
				}
				last = v.Text
			}
		}
		return first, last
	}
	some, every, anys, alls := false, true, 0, 0
	for _, e := range events {
		if v := e.Values[1]; !v.Missing() {
			anys++
			some = some || v.Bool
		}
		if v := e.Values[4]; !v.Missing() {
			alls++
			every = every && v.Bool
		}
	}
	truthOf := func(n int, b bool) string {
		if n == 0 {
			return null
		}
		return strconv.FormatBool(b)
	}
	_, last := ends(0)
	first, _ := ends(2)
	_, other := ends(5)
	sum := null
	if len(events) > 0 {
		sum = strconv.Itoa(2 * len(events))
	}
	return "last=" + last + " count=" + strconv.Itoa(len(events)) + " any=" + truthOf(anys, some) + " first=" + first + " sum=" + sum +
		" all=" + truthOf(alls, every) + " last=" + other
}

func TestFirstLastAnyAndAllEqualTheirDefinitionInAnyOrder(t *testing.T) {
	l := placedLayout()
	rapid.Check(t, func(rt *rapid.T) {
		events := placedEvents().Draw(rt, "events")
		a := foldPlaced(l, events)
		if got, want := texts(l, a), placedDefinition(events); got != want {
			rt.Fatalf("got  %s\nwant %s", got, want)
		}
		b := foldPlaced(l, rapid.Permutation(events).Draw(rt, "order"))
		same(rt, l, "permuted", b, a)
		if !bytes.Equal(l.Append(nil, a), l.Append(nil, b)) {
			rt.Fatal("the bytes differ")
		}
	})
}

func TestFirstAndLastMergeRestoreAndDecode(t *testing.T) {
	l := placedLayout()
	rapid.Check(t, func(rt *rapid.T) {
		events := placedEvents().Draw(rt, "events")
		cut := rapid.IntRange(0, len(events)).Draw(rt, "cut")
		all, left, right := foldPlaced(l, events), foldPlaced(l, events[:cut]), foldPlaced(l, events[cut:])
		enc := l.Append(nil, left)
		back, err := l.Decode(enc)
		if err != nil || !bytes.Equal(l.Append(nil, back), enc) {
			rt.Fatalf("decoded: %v", err)
		}
		if _, err := l.Decode(append(slices.Clone(enc), 0)); !errors.Is(err, event.ErrCorrupt) {
			rt.Fatalf("a longer encoding: %v", err)
		}
		restored, err := l.Restore(l.Results(left))
		if err != nil {
			rt.Fatal(err)
		}
		for name, a := range map[string]*Acc{"merged": left, "decoded and merged": back, "restored and merged": restored} {
			l.Merge(a, right)
			same(rt, l, name, a, all)
		}
		reverse := foldPlaced(l, events[cut:])
		l.Merge(reverse, foldPlaced(l, events[:cut]))
		same(rt, l, "the other way round", reverse, all)
		// A pane that is used again forgets what it held.
		if err := l.DecodeInto(all, l.Append(nil, l.New())); err != nil || texts(l, all) != texts(l, l.New()) {
			rt.Fatalf("used again: %s, %v", texts(l, all), err)
		}
	})
}

func TestCheckRefusesWhatFirstLastAnyAndAllCannotTake(t *testing.T) {
	integer := func(s event.Scalar) (event.Value, *event.Reject) {
		if s.Type != event.ScalarNumber {
			return event.Value{}, event.Rejectf(event.ReasonBadValue, "no number")
		}
		return event.Value{Text: s.Num.String()}, nil
	}
	l := NewLayoutOf([]Step{{Func: Last, Convert: integer}, {Func: Any}})
	good := []event.Scalar{number(t, "7"), {Type: event.ScalarBool}}
	if r := l.Check(good); r != nil {
		t.Error(r)
	}
	a := l.New()
	l.AddEvent(a, &event.Contribution{Values: good})
	if got := texts(l, a); got != "last=7 any=false" {
		t.Error(got)
	}
	for _, bad := range [][]event.Scalar{
		{{Type: event.ScalarText, Text: "7"}, {Type: event.ScalarBool}},
		{number(t, "7"), number(t, "1")},
		{number(t, "7"), {Type: event.ScalarText, Text: "true"}},
	} {
		if r := l.Check(bad); r == nil || r.Reason != event.ReasonBadValue {
			t.Errorf("%v: %v", bad, r)
		}
	}
}

// A text of a record's memory is copied.
func TestLastKeepsNoMemoryOfTheRecord(t *testing.T) {
	l := NewLayout([]Func{Last})
	raw := []byte("first")
	c := event.Contribution{Values: []event.Scalar{{Type: event.ScalarText, Text: unsafe.String(&raw[0], len(raw))}}}
	a := l.New()
	l.AddEvent(a, &c)
	copy(raw, "other")
	if got := texts(l, a); got != "last=first" {
		t.Error(got)
	}
}

func FuzzDecodePlaced(f *testing.F) {
	l := placedLayout()
	f.Add(l.Append(nil, l.New()))
	f.Add(l.Append(nil, foldPlaced(l, []event.Contribution{{
		Time: 5, Tie: event.Tie{Offset: 7}, Values: []event.Scalar{
			{Type: event.ScalarText, Text: "a"}, {Type: event.ScalarBool, Bool: true}, {Type: event.ScalarText, Text: ""}, number(f, "1"),
			{Type: event.ScalarBool}, {},
		},
	}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := l.Decode(b)
		if err != nil {
			if !errors.Is(err, event.ErrCorrupt) && !errors.Is(err, event.ErrVersion) && !errors.Is(err, ErrLayout) {
				t.Fatalf("an error of no class: %v", err)
			}
			return
		}
		again, err := l.Decode(l.Append(nil, a))
		if err != nil || !reflect.DeepEqual(l.Results(again), l.Results(a)) {
			t.Fatalf("reads back as %v, %v", again, err)
		}
	})
}
