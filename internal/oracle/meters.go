package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// MeterRecord is one record of the streams that the crash matrix runs under the
// clock on the wall: readings of meters, and visits of houses.
type MeterRecord struct {
	Visit bool // of the stream of visits, else of the readings
	Value []byte
}

// MetersFold is what every run over the records must end in, however it went.
type MetersFold struct {
	// Believed has a line for each believed value, sorted:
	//
	//	TYPE ID PROPERTY FROM TO VALUE
	//
	// with instants in microseconds, "always always" for what holds for all of
	// time and "open" for an interval without an end.
	Believed []string
	// DeadLetters has a line for each rejected record, its reason and its
	// bytes, sorted.
	DeadLetters []string
	// Readings and Visits are the events that count, Repeats the readings that
	// were there before.
	Readings, Visits, Repeats int
}

// FoldMeters reads all records at once. Those of one meter stand in their order
// in the log; no other order has a say.
//
// A reading {id, meter, street, at, v} sets the level of its meter from `at` on
// until the next one in `at`, of two with one `at` the later in the log holds.
// It counts for its meter in pieces of ten seconds, and for meter and street
// over all of time. A reading whose id was there before is a repeat if its bytes
// are the same, else rejected. A visit {id, house, at} counts for its house in
// pieces of a minute. A record is rejected that is no JSON object, has no `at`,
// or lies more than a day after now.
func FoldMeters(records []MeterRecord, now Micros) (MetersFold, error) {
	f := metersFold{now: now, seen: map[string]string{}, sums: map[string]*meterSum{}, levels: map[string][]level{}}
	for i := range records {
		if err := f.add(&records[i]); err != nil {
			return MetersFold{}, fmt.Errorf("record %d, %q: %w", i, records[i].Value, err)
		}
	}
	for key, s := range f.sums {
		f.publish(key, s)
	}
	for meter, levels := range f.levels {
		f.publishLevels(meter, levels)
	}
	slices.Sort(f.fold.Believed)
	slices.Sort(f.fold.DeadLetters)
	return f.fold, nil
}

type metersFold struct {
	now    Micros
	seen   map[string]string // bytes by id
	sums   map[string]*meterSum
	levels map[string][]level
	fold   MetersFold
}

type meterSum struct{ n, total int64 }

type level struct {
	at Micros
	v  int64
}

type meterEvent struct {
	ID     json.RawMessage `json:"id"`
	Meter  string          `json:"meter"`
	Street string          `json:"street"`
	House  string          `json:"house"`
	At     *int64          `json:"at"` // milliseconds
	V      int64           `json:"v"`
}

func (f *metersFold) reject(why string, r *MeterRecord) {
	f.fold.DeadLetters = append(f.fold.DeadLetters, why+" "+string(r.Value))
}

func (f *metersFold) add(r *MeterRecord) error {
	var e meterEvent
	if !json.Valid(r.Value) {
		f.reject("not_json", r)
		return nil
	}
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return err
	}
	if e.At == nil {
		f.reject("no_event_time", r)
		return nil
	}
	at := Micros(*e.At) * 1000
	if at > f.now+Day {
		f.reject("ahead", r)
		return nil
	}
	if r.Visit {
		f.fold.Visits++
		f.count("House "+e.House+" visits", at, 60*Second, 0)
		return nil
	}
	if len(e.ID) == 0 {
		return errors.New("no id")
	}
	if first, known := f.seen[string(e.ID)]; known {
		if first == string(r.Value) {
			f.fold.Repeats++
		} else {
			f.reject("conflict", r)
		}
		return nil
	}
	f.seen[string(e.ID)] = string(r.Value)
	f.fold.Readings++
	f.count("Meter "+e.Meter+" tens", at, 10*Second, e.V)
	f.count("Meter "+e.Meter+" ever", 0, 0, e.V)
	f.count("Street "+e.Street+" ever", 0, 0, e.V)
	f.levels[e.Meter] = append(f.levels[e.Meter], level{at, e.V})
	return nil
}

// count adds to the piece of a width that an instant lies in; width 0 is all of
// time.
func (f *metersFold) count(name string, at, width Micros, v int64) {
	key := name + "|always always"
	if width > 0 {
		from := at.floorTo(width)
		key = fmt.Sprintf("%s|%d %d", name, int64(from), int64(from+width))
	}
	if f.sums[key] == nil {
		f.sums[key] = &meterSum{}
	}
	f.sums[key].n++
	f.sums[key].total += v
}

func (f *metersFold) publish(key string, s *meterSum) {
	name, when, _ := strings.Cut(key, "|")
	line := func(value, is string) {
		f.fold.Believed = append(f.fold.Believed, fmt.Sprintf("%s.%s %s %s", name, value, when, is))
	}
	line("n", strconv.FormatInt(s.n, 10))
	if !strings.HasPrefix(name, "House ") {
		line("total", strconv.FormatInt(s.total, 10))
	}
	if strings.HasPrefix(name, "Street ") {
		line("mean", quotient(s.total, s.n))
	}
}

// publishLevels writes the timeline of a meter's level; neighbours of one value
// are one interval.
func (f *metersFold) publishLevels(meter string, levels []level) {
	slices.SortStableFunc(levels, func(a, b level) int { return int(min(max(a.at-b.at, -1), 1)) })
	for i := 0; i < len(levels); {
		last := i // the last reading of this value, and of one instant the last
		for last+1 < len(levels) && (levels[last+1].at == levels[last].at || decides(levels, last+1).v == decides(levels, i).v) {
			last++
		}
		to := "open"
		if last+1 < len(levels) {
			to = strconv.FormatInt(int64(levels[last+1].at), 10)
		}
		f.fold.Believed = append(f.fold.Believed,
			fmt.Sprintf("Meter %s level %d %s %d", meter, int64(levels[i].at), to, decides(levels, i).v))
		i = last + 1
	}
}

// decides gives the last of the levels that begin where the i-th does.
func decides(levels []level, i int) level {
	for i+1 < len(levels) && levels[i+1].at == levels[i].at {
		i++
	}
	return levels[i]
}

// quotient divides as an average does: rounded half to even at 20 significant
// digits.
func quotient(a, b int64) string { return rounded(new(big.Rat).SetFrac64(a, b)) }

func rounded(q *big.Rat) string {
	const digits = 20
	if q.Sign() == 0 {
		return "0"
	}
	// The greatest power of ten not above |q| gives the place of the first digit.
	ten, unit := big.NewRat(10, 1), big.NewRat(1, 1)
	size := new(big.Rat).Abs(q)
	place := 0
	for size.Cmp(new(big.Rat).Mul(unit, ten)) >= 0 {
		unit.Mul(unit, ten)
		place++
	}
	for size.Cmp(unit) < 0 {
		unit.Quo(unit, ten)
		place--
	}
	decimals := digits - 1 - place
	scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(decimals, 0))), nil))
	scaled := new(big.Rat).Mul(q, scale) // the numbers are small: decimals are never negative
	whole, rest := new(big.Int).QuoRem(scaled.Num(), scaled.Denom(), new(big.Int))
	twice := new(big.Int).Mul(rest.Abs(rest), big.NewInt(2))
	if c := twice.Cmp(scaled.Denom()); c > 0 || c == 0 && whole.Bit(0) == 1 {
		whole.Add(whole, big.NewInt(int64(q.Sign())))
	}
	text := new(big.Rat).SetFrac(whole, scale.Num()).FloatString(max(decimals, 0))
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
