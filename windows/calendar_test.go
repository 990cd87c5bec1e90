package windows

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
)

func TestCalendarDaysFollowTheClocksOfTheirZone(t *testing.T) {
	for _, c := range []struct{ name, zone, at, start, end string }{
		{"an ordinary day", "Europe/Berlin", "2024-06-01T12:00:00Z", "2024-05-31T22:00:00Z", "2024-06-01T22:00:00Z"},
		{"spring has 23 hours", "Europe/Berlin", "2024-03-31T12:00:00Z", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"},
		{"autumn has 25 hours", "Europe/Berlin", "2024-10-27T12:00:00Z", "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"},
		{"midnight is missing", "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"the day before a missing midnight", "America/Sao_Paulo", "2018-11-04T02:59:59.999999Z", "2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z"},
		{"the hour before midnight comes twice", "America/Sao_Paulo", "2019-02-17T02:30:00Z", "2019-02-16T02:00:00Z", "2019-02-17T03:00:00Z"},
		{"midnight is missing", "Asia/Beirut", "2022-03-27T12:00:00Z", "2022-03-26T22:00:00Z", "2022-03-27T21:00:00Z"},
		{"the hour before midnight comes twice", "Asia/Beirut", "2022-10-29T21:30:00Z", "2022-10-28T21:00:00Z", "2022-10-29T22:00:00Z"},
		{"midnight comes twice", "America/Havana", "2022-11-06T04:30:00Z", "2022-11-06T04:00:00Z", "2022-11-07T05:00:00Z"},
		{"midnight comes twice, with a minute of the new day before", "America/St_Johns", "2006-10-29T02:30:30Z", "2006-10-29T02:30:00Z", "2006-10-30T03:30:00Z"},
		{"midnight comes twice, and the old date again between", "America/St_Johns", "2006-10-29T03:00:00Z", "2006-10-29T02:30:00Z", "2006-10-30T03:30:00Z"},
		{"the day before a date that never was", "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"the day after a date that never was", "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"a change of half an hour", "Australia/Lord_Howe", "2024-04-06T16:00:00Z", "2024-04-06T13:00:00Z", "2024-04-07T13:30:00Z"},
		{"local mean time, before zones", "Europe/Berlin", "1800-01-01T12:00:00Z", "1799-12-31T23:06:32Z", "1800-01-01T23:06:32Z"},
		{"a year by the rule", "Europe/Berlin", "8824-03-31T12:00:00Z", "8824-03-30T23:00:00Z", "8824-03-31T22:00:00Z"},
	} {
		t.Run(c.zone+" "+c.name, func(t *testing.T) {
			if got, want := only(t, dayIn(t, c.zone), at(t, c.at)), (Window{at(t, c.start), at(t, c.end)}); got != want {
				t.Fatalf("%s: got %s, want %s", c.at, got, want)
			}
		})
	}
}

// dateIn gives the local date as a day number.
func dateIn(t time.Time, loc *time.Location) int64 {
	y, m, d := t.In(loc).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400
}

// modelStart is the definition taken literally: the earliest second at which
// the local date is day or later, looked for minute by minute.
func modelStart(day int64, loc *time.Location) time.Time {
	t := time.Unix(day*86400, 0).Add(-50 * time.Hour)
	for dateIn(t, loc) < day {
		t = t.Add(time.Minute)
	}
	for dateIn(t.Add(-time.Second), loc) >= day {
		t = t.Add(-time.Second)
	}
	return t
}

func modelDay(t time.Time, loc *time.Location) Window {
	day := dateIn(t, loc)
	for !modelStart(day+1, loc).After(t) { // the date was ahead before a change
		day++
	}
	return Window{event.FromTime(modelStart(day, loc)), event.FromTime(modelStart(day+1, loc))}
}

func TestCalendarDaysEqualTheDefinition(t *testing.T) {
	zones := []string{
		"UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "America/Havana", "America/St_Johns", "Pacific/Apia",
		"Africa/Casablanca", "Australia/Lord_Howe", "Atlantic/Azores", "Asia/Tehran", "Asia/Gaza", "Africa/Monrovia",
		"America/Scoresbysund", "Pacific/Kwajalein", "Asia/Manila", "America/Asuncion", "Antarctica/Troll", "Europe/Dublin",
	}
	type zone struct {
		loc *time.Location
		a   Assigner
		// Instants at which clocks change: the interesting ones.
		changes []int64
	}
	var all []zone
	for _, name := range zones {
		z := zone{a: dayIn(t, name)}
		z.loc, _ = time.LoadLocation(name)
		for _, e := range z.a.(*calendar).days.eras[1:] {
			z.changes = append(z.changes, e.from)
		}
		all = append(all, z)
	}
	rapid.Check(t, func(rt *rapid.T) {
		z := rapid.SampledFrom(all).Draw(rt, "zone")
		when := rapid.Int64Range(int64(event.MinEventTime)+3*dayMicros, int64(event.MaxEventTime)-3*dayMicros).Draw(rt, "t")
		if len(z.changes) > 0 && rapid.IntRange(0, 3).Draw(rt, "near a change") > 0 {
			when = rapid.SampledFrom(z.changes).Draw(rt, "change") + rapid.Int64Range(-dayMicros, dayMicros).Draw(rt, "beside")
			if when > foldMicros && rapid.Bool().Draw(rt, "cycle") {
				when += cycleMicros * rapid.Int64Range(0, 17).Draw(rt, "cycles")
			}
		}
		got := only(rt, z.a, event.EventTime(when))
		if want := modelDay(time.UnixMicro(when), z.loc); got != want {
			rt.Fatalf("%s at %s: got %s, want %s", z.a, event.EventTime(when), got, want)
		}
	})
}

func unitIn(t testing.TB, unit CalendarUnit, zone string) Assigner {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Calendar(unit, loc)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWeeksBeginOnMondayAndMonthsOnTheirFirstDay(t *testing.T) {
	for _, c := range []struct {
		unit                 CalendarUnit
		zone, at, start, end string
	}{
		{CalendarWeek, "UTC", "1970-01-01T00:00:00Z", "1969-12-29T00:00:00Z", "1970-01-05T00:00:00Z"},
		{CalendarWeek, "UTC", "1969-12-28T23:59:59.999999Z", "1969-12-22T00:00:00Z", "1969-12-29T00:00:00Z"},
		{CalendarWeek, "Europe/Berlin", "2024-03-31T22:00:00Z", "2024-03-31T22:00:00Z", "2024-04-07T22:00:00Z"},
		{CalendarWeek, "Europe/Berlin", "2024-03-31T21:59:59Z", "2024-03-24T23:00:00Z", "2024-03-31T22:00:00Z"}, // 167 hours
		{CalendarWeek, "Europe/Berlin", "2024-10-27T12:00:00Z", "2024-10-20T22:00:00Z", "2024-10-27T23:00:00Z"}, // 169 hours
		{CalendarWeek, "UTC", "2020-12-31T12:00:00Z", "2020-12-28T00:00:00Z", "2021-01-04T00:00:00Z"},           // week 53
		{CalendarWeek, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-26T10:00:00Z", "2012-01-01T10:00:00Z"},  // six days
		{CalendarWeek, "UTC", "9999-12-31T12:00:00Z", "9999-12-27T00:00:00Z", ""},
		{CalendarMonth, "UTC", "2024-02-29T23:59:59Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		{CalendarMonth, "UTC", "1900-02-28T12:00:00Z", "1900-02-01T00:00:00Z", "1900-03-01T00:00:00Z"},
		{CalendarMonth, "America/New_York", "2024-12-31T12:00:00Z", "2024-12-01T05:00:00Z", "2025-01-01T05:00:00Z"},
		{CalendarMonth, "Europe/Berlin", "2024-03-15T12:00:00Z", "2024-02-29T23:00:00Z", "2024-03-31T22:00:00Z"},
		{CalendarMonth, "UTC", "2500-02-10T00:00:00Z", "2500-02-01T00:00:00Z", "2500-03-01T00:00:00Z"}, // folded
		{CalendarMonth, "UTC", "0001-01-31T00:00:00Z", "0001-01-01T00:00:00Z", "0001-02-01T00:00:00Z"},
		{CalendarMonth, "UTC", "9999-12-31T12:00:00Z", "9999-12-01T00:00:00Z", ""},
	} {
		want := Window{Start: at(t, c.start), End: endOfTime}
		if c.end != "" {
			want.End = at(t, c.end)
		}
		a := unitIn(t, c.unit, c.zone)
		if got := only(t, a, at(t, c.at)); got != want {
			t.Errorf("%s at %s: got %s, want %s", a, c.at, got, want)
		}
	}
}

// Weeks and months are made of whole days, follow each other without a gap, and
// are what the calendar of the standard library says.
func TestWeeksAndMonthsAreMadeOfWholeDays(t *testing.T) {
	var all []*time.Location
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Apia", "Asia/Tehran", "Asia/Manila"} {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, loc)
	}
	units := map[string]map[CalendarUnit]Assigner{}
	for _, loc := range all {
		units[loc.String()] = map[CalendarUnit]Assigner{}
		for _, u := range CalendarUnits() {
			units[loc.String()][u] = unitIn(t, u, loc.String())
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		loc := rapid.SampledFrom(all).Draw(rt, "zone")
		unit := rapid.SampledFrom([]CalendarUnit{CalendarWeek, CalendarMonth}).Draw(rt, "unit")
		when := event.EventTime(rapid.Int64Range(int64(event.MinEventTime)+40*dayMicros, int64(event.MaxEventTime)-40*dayMicros).Draw(rt, "t"))
		a, day := units[loc.String()][unit], units[loc.String()][CalendarDay]
		w := only(rt, a, when)
		if !w.Contains(when) {
			rt.Fatalf("%s at %s: %s", a, when, w)
		}
		if d := only(rt, day, when); d.Start < w.Start || d.End > w.End {
			rt.Fatalf("%s at %s: %s cuts %s", a, when, w, d)
		}
		if next := only(rt, a, w.End); next.Start != w.End {
			rt.Fatalf("%s at %s: %s is followed by %s", a, when, w, next)
		}
		if before := only(rt, a, w.Start-1); before.End != w.Start {
			rt.Fatalf("%s at %s: %s comes behind %s", a, when, w, before)
		}
		// Noon of its days: what a clock on the wall shows there.
		first, last := w.Start.Add(dayMicros/2).Time().In(loc), w.End.Add(-dayMicros/2).Time().In(loc)
		if unit == CalendarMonth && (first.Day() != 1 || first.Month() != last.Month() || last.AddDate(0, 0, 1).Day() != 1) {
			rt.Fatalf("%s at %s: from %s to %s", a, when, first, last)
		}
		if unit == CalendarWeek && loc.String() != "Pacific/Apia" && loc.String() != "Asia/Manila" && (first.Weekday() != time.Monday || last.Weekday() != time.Sunday) {
			rt.Fatalf("%s at %s: from %s to %s", a, when, first, last)
		}
	})
}

func TestEveryChangeOfTheClockKeepsDaysWhole(t *testing.T) {
	// One by one, since a random instant seldom meets a change.
	for _, name := range []string{"America/Sao_Paulo", "Asia/Beirut", "America/St_Johns", "Pacific/Apia", "America/Juneau", "Asia/Manila"} {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		a := dayIn(t, name)
		eras := a.(*calendar).days.eras
		for _, e := range eras[1:min(len(eras), 200)] {
			for _, beside := range []int64{-3600e6, -1, 0, 3600e6} {
				when := e.from + beside
				if got, want := only(t, a, event.EventTime(when)), modelDay(time.UnixMicro(when), loc); got != want {
					t.Errorf("%s at %s: got %s, want %s", name, event.EventTime(when), got, want)
				}
			}
		}
	}
}

func TestOneCalendarServesManyGoroutines(t *testing.T) {
	a := dayIn(t, "Europe/Berlin")
	want := only(t, a, at(t, "2024-03-31T12:00:00Z"))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range int64(1000) {
				if got := only(t, a, want.Start+event.EventTime(i*80e6)); got != want {
					t.Errorf("got %s", got)
				}
			}
		})
	}
	all.Wait()
}
