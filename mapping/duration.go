package mapping

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// maxDuration bounds every duration of a mapping: a hundred years.
const maxDuration = 100 * 366 * 24 * time.Hour

var errNoDuration = errors.New("not a duration")

// parseDuration reads a duration as Go writes it, with d for days of 24 hours
// in front: 200ms, 1h30m, 7d, 1d12h. The unit is a microsecond; what is finer
// is refused.
func parseDuration(s string) (time.Duration, error) {
	var days time.Duration
	rest := s
	if number, tail, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || n > uint64(maxDuration/(24*time.Hour)) {
			return 0, errors.New("the days must be a whole number, and no more than 36600")
		}
		days, rest = time.Duration(n)*24*time.Hour, tail
	}
	if rest == "" && s != "" {
		return days, nil
	}
	if strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, errors.New("no sign can stand before a duration")
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil:
		return 0, errNoDuration
	case d > maxDuration-days:
		return 0, errors.New("longer than a hundred years")
	case d%time.Microsecond != 0:
		return 0, errors.New("finer than a microsecond")
	}
	return days + d, nil
}

// durationFrom reads the value of name, at least least.
func (s *section) durationFrom(name string, byDefault, least time.Duration) time.Duration {
	text, ok := s.text(name)
	if !ok {
		return byDefault
	}
	d, err := parseDuration(text)
	switch {
	case errors.Is(err, errNoDuration):
		s.fault(name, "write it as in 200ms, 30s, 10m, 1h30m or 7d", "%s is not a duration", quoteShort(text))
		return byDefault
	case err != nil:
		s.fault(name, "", "%s: %v", quoteShort(text), err)
		return byDefault
	case d < least:
		s.fault(name, "", "%s is too short, the least is %s", text, least)
		return byDefault
	}
	return d
}

// DurationText writes a duration as a mapping does: 1h, not 1h0m0s.
func DurationText(d time.Duration) string {
	text := d.String()
	if rest, ok := strings.CutSuffix(text, "m0s"); ok {
		text = rest + "m"
	}
	if rest, ok := strings.CutSuffix(text, "h0m"); ok {
		text = rest + "h"
	}
	return text
}
