package windows

import (
	"errors"
	"math"
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
// would make it miss all the time. Week and month are to be built on dayOf and
// startOf.
type zoneDays struct {
	eras []era // ordered by from; eras[0].from = math.MinInt64
}

func newZoneDays(loc *time.Location) *zoneDays {
	z := &zoneDays{}
	// One year more than the cycle, for days that reach over its end.
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

// calendarDay assigns the calendar days of a zone.
type calendarDay struct {
	days *zoneDays
	zone string
}

// CalendarDay returns the assigner of calendar days in a time zone. A day is
// 24 hours long but where the zone's clocks change: there it has 23 or 25, or
// what the zone's history says. A day starts with the first instant of its
// date, also where clocks skip midnight or show it twice. The zone must be a
// named one: what time.Local means depends on the machine.
//
// Building one takes a table of the zone's changes, some 25 kB; the mapping
// builds one for each aggregate.
func CalendarDay(loc *time.Location) (Assigner, error) {
	if loc == nil {
		return nil, errors.New("a calendar window needs a time zone")
	}
	if loc == time.Local || loc.String() == "Local" {
		return nil, errors.New("a calendar window needs a named time zone: the local one depends on the machine")
	}
	return &calendarDay{days: newZoneDays(loc), zone: loc.String()}, nil
}

func (c *calendarDay) Assign(t event.EventTime, dst []Window) []Window {
	if !t.Valid() {
		return dst
	}
	folded, by := fold(int64(t))
	day, k := c.days.dayOf(folded)
	return append(dst, clip(c.days.startOf(day, k)+by, c.days.startOf(day+1, k)+by))
}

// String gives the mapping's notation, such as {calendar: day, zone: Europe/Berlin}.
func (c *calendarDay) String() string { return "{calendar: day, zone: " + c.zone + "}" }
