package windows

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/forge-platform/strom/event"
)

const (
	dayMicros = 24 * 3600 * 1e6
	// The Gregorian calendar, weekdays included, repeats every 400 years.
	cycleMicros = 146097 * dayMicros
	// From here on time is folded back by whole cycles onto the 400 years that
	// follow. It lies behind the last transition that the zone database lists
	// one by one; later ones follow a yearly rule.
	foldMicros = 4102444800 * 1e6 // 2100-01-01T00:00:00Z
)

// era is a time in which a zone has one offset.
type era struct {
	from   int64 // the first instant, microseconds
	offset int64 // local time minus UTC, microseconds
	// reached is the highest local day number that was reached before from.
	reached int64
}

// zoneDays divides time into the calendar days of a zone. Day numbers count
// from 1970-01-01, which is 0.
//
// Day d starts at the earliest instant at which the local date is d or later:
//
//	start(d) = min { t : date(t) >= d }
//	day(t)   = max { d : start(d) <= t } = max { date(s) : s <= t }
//
// So days follow each other without gap or overlap whatever clocks do: a
// change of the clock makes a day of 23 or 25 hours; where midnight does not
// exist the day starts at the change; where it comes twice the day starts at
// the first one and holds what the clock shows again of the day before; a date
// that a zone left out has no time. This is the rule of java.time's
// LocalDate.atStartOfDay.
//
// The table of eras is built once and never changes. A cache of the last day
// was not taken: it is shared state, and out-of-order events near midnight
// would make it miss all the time.
type zoneDays struct {
	eras []era // ordered by from; eras[0].from = math.MinInt64
}

func newZoneDays(loc *time.Location) *zoneDays {
	z := &zoneDays{}
	// One year more than the cycle, for days, weeks and months that reach over
	// its end.
	last := time.UnixMicro(foldMicros + cycleMicros + 366*dayMicros)
	next := event.MinEventTime.Time().In(loc)
	from := int64(math.MinInt64)
	reached := int64(math.MinInt64)
	for {
		_, seconds := next.Zone()
		offset := int64(seconds) * 1e6
		if n := len(z.eras); n == 0 || z.eras[n-1].offset != offset {
			z.eras = append(z.eras, era{from: from, offset: offset, reached: reached})
		}
		end := offsetEnd(next)
		if end.IsZero() || end.After(last) {
			return z
		}
		from = end.UnixMicro()
		reached = max(reached, event.FloorDiv(from-1+offset, dayMicros))
		next = end
	}
}

// offsetEnd returns an instant after t up to which the zone's offset does not
// change; zero if it never does again.
func offsetEnd(t time.Time) time.Time {
	_, end := t.ZoneBounds()
	if end.IsZero() || end.After(t) {
		return end
	}
	// For years that follow the zone's rule, ZoneBounds takes every year for
	// one of 365 days: on 31 December of a leap year it names an end that is
	// over (Go 1.26). The offset itself is right: look for its end on that day.
	_, offset := t.Zone()
	low, high := t, t.Add(24*time.Hour)
	if _, later := high.Zone(); later == offset {
		return high
	}
	for high.Sub(low) > time.Second {
		mid := low.Add(high.Sub(low) / 2).Truncate(time.Second)
		if _, o := mid.Zone(); o == offset {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// at finds the era that holds t.
func (z *zoneDays) at(t int64) int {
	low, high := 0, len(z.eras) // eras[low].from <= t < eras[high].from
	for high-low > 1 {
		mid := int(uint(low+high) / 2)
		if z.eras[mid].from <= t {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// dayOf returns the day that t lies in and the era that holds t.
func (z *zoneDays) dayOf(t int64) (day int64, k int) {
	k = z.at(t)
	e := &z.eras[k]
	return max(e.reached, event.FloorDiv(t+e.offset, dayMicros)), k
}

// startOf returns the instant at which a day starts. It looks for it from era
// k on, in both directions.
func (z *zoneDays) startOf(day int64, k int) int64 {
	// The era in which the day is reached first.
	for k > 0 && z.eras[k].reached >= day {
		k--
	}
	for k+1 < len(z.eras) && z.eras[k+1].reached < day {
		k++
	}
	return max(z.eras[k].from, day*dayMicros-z.eras[k].offset)
}

// fold moves a time behind foldMicros back by whole cycles; by is how far.
func fold(t int64) (folded, by int64) {
	if t < foldMicros {
		return t, 0
	}
	by = (t - foldMicros) / cycleMicros * cycleMicros
	return t - by, by
}

// CalendarUnit is a part of the calendar. Its text is how the mapping writes it.
type CalendarUnit string

// The units.
const (
	CalendarDay CalendarUnit = "day"
	// CalendarWeek begins on Monday, as ISO 8601 has it.
	CalendarWeek  CalendarUnit = "week"
	CalendarMonth CalendarUnit = "month"
)

// CalendarUnits lists them.
func CalendarUnits() []CalendarUnit { return []CalendarUnit{CalendarDay, CalendarWeek, CalendarMonth} }

// around gives the first day of the unit that a day lies in, and of the next one.
func (u CalendarUnit) around(day int64) (first, next int64) {
	switch u {
	case CalendarWeek:
		const thursday = 3 // day 0 is one; Monday is 0
		first = day - floorMod(day+thursday, 7)
		return first, first + 7
	case CalendarMonth:
		y, m, _ := time.Unix(day*86400, 0).UTC().Date()
		return dayNumber(y, m), dayNumber(y, m+1)
	case CalendarDay:
	}
	return day, day + 1
}

// dayNumber is that of the first day of a month; the 13th is January of the next
// year.
func dayNumber(year int, month time.Month) int64 {
	return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).Unix() / 86400
}

// calendar assigns the parts of a zone's calendar.
type calendar struct {
	unit CalendarUnit
	days *zoneDays
	zone string
}

// Calendar returns the assigner of calendar days, weeks or months in a time zone.
// A day is 24 hours long but where the zone's clocks change: there it has 23 or
// 25, or what the zone's history says. A day starts with the first instant of its
// date, also where clocks skip midnight or show it twice; a week and a month with
// their first day, and they end where the next one starts. The zone must be a
// named one: what time.Local means depends on the machine.
//
// Building one takes a table of the zone's changes, some 25 kB; the mapping
// builds one for each aggregate.
func Calendar(unit CalendarUnit, loc *time.Location) (Assigner, error) {
	switch {
	case !slices.Contains(CalendarUnits(), unit):
		return nil, fmt.Errorf("%q is not a part of the calendar", string(unit))
	case loc == nil:
		return nil, errors.New("a calendar window needs a time zone")
	case loc == time.Local || loc.String() == "Local":
		return nil, errors.New("a calendar window needs a named time zone: the local one depends on the machine")
	}
	return &calendar{unit: unit, days: newZoneDays(loc), zone: loc.String()}, nil
}

func (c *calendar) Assign(t event.EventTime, dst []Window) []Window {
	if !t.Valid() {
		return dst
	}
	// The calendar repeats with the cycle: weekdays and leap years as well.
	folded, by := fold(int64(t))
	day, k := c.days.dayOf(folded)
	first, next := c.unit.around(day)
	return append(dst, clip(c.days.startOf(first, k)+by, c.days.startOf(next, k)+by))
}

// String gives the mapping's notation, such as {calendar: day, zone: Europe/Berlin}.
func (c *calendar) String() string {
	return "{calendar: " + string(c.unit) + ", zone: " + c.zone + "}"
}
