package bench

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Input says what events a workload reads. The zero value stands for the defaults.
type Input struct {
	// Events is how many there are; 0: 1,000,000.
	Events int64 `json:"events"`
	// Keys is how many different keys they have; 0: 10,000. Every key comes
	// once in so many events.
	Keys int64 `json:"keys"`
	// Partitions of the input topic; 0: 4.
	Partitions int32 `json:"partitions"`
	// Late is the share of events that come late, from 0 to 1.
	Late float64 `json:"late"`
	// Lateness is by how much a late event comes late at most, and so how long
	// a job keeps a window; whole milliseconds; 0: 10 s.
	Lateness time.Duration `json:"lateness_ns"`
	// Window is the length of windows; whole milliseconds; 0: 10 s.
	Window time.Duration `json:"window_ns"`
	// Rate is how many events there are in a millisecond of event time; 0: 20.
	Rate int64 `json:"events_per_ms"`
	// Seed chooses amounts and which events are late.
	Seed uint64 `json:"seed"`
}

// WithDefaults gives the input with every zero replaced by its default.
func (in Input) WithDefaults() Input {
	orElse(&in.Events, 1_000_000)
	orElse(&in.Keys, 10_000)
	orElse(&in.Partitions, 4)
	orElse(&in.Lateness, 10*time.Second)
	orElse(&in.Window, 10*time.Second)
	orElse(&in.Rate, 20)
	return in
}

func orElse[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// maxKeys is as many as the digits of a key can tell apart.
const maxKeys = 100_000_000

// Validate reports every fault.
func (in Input) Validate() error {
	var all []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	fault(in.Events < 1, "%d events: at least 1", in.Events)
	fault(in.Keys < 1 || in.Keys > maxKeys, "%d keys: from 1 to %d", in.Keys, maxKeys)
	fault(in.Partitions < 1 || in.Partitions > 1000, "%d partitions: from 1 to 1000", in.Partitions)
	fault(!(in.Late >= 0 && in.Late <= 1), "a late share of %v: from 0 to 1", in.Late)
	fault(in.Lateness < time.Millisecond || in.Lateness%time.Millisecond != 0, "a lateness of %s: whole milliseconds", in.Lateness)
	fault(in.Window < time.Millisecond || in.Window%time.Millisecond != 0, "a window of %s: whole milliseconds", in.Window)
	fault(in.Rate < 1, "%d events in a millisecond: at least 1", in.Rate)
	return errors.Join(all...)
}

// Event is what a job has to know of one event.
type Event struct {
	// Key is its number; keyText writes it.
	Key int64
	// At is the event time, in milliseconds since 1970.
	At     int64
	Amount int64
}

// base is the event time of the first event: some time ago, so that no event
// lies ahead of any clock.
const base = 1_709_251_200_000 // 2024-03-01T00:00:00Z

// Event gives event i, from 0.
func (in *Input) Event(i int64) Event {
	r := mix(in.Seed ^ mix(uint64(i)))
	e := Event{
		Key:    keyOf(i, in.Keys),
		At:     base + i/in.Rate,
		Amount: int64(r>>40) % 1000,
	}
	if float64(r%1_000_000) < in.Late*1_000_000 {
		e.At -= 1 + int64(mix(r)%uint64(in.Lateness.Milliseconds()))
	}
	return e
}

// keyOf scatters the keys: each comes once in any n events that follow each other.
func keyOf(i, n int64) int64 {
	stride := int64(7919)
	for gcd(stride, n) != 1 {
		stride += 2
	}
	return i % n * stride % n
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable
// pseudorandom number generators, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const keyPrefix, keyDigits = "user-", 8

func appendKey(dst []byte, key int64) []byte {
	return appendDigits(append(dst, keyPrefix...), uint64(key), keyDigits)
}

// appendDigits appends v in so many decimal digits.
func appendDigits(dst []byte, v uint64, width int) []byte {
	end := len(dst) + width
	dst = append(dst, "00000000000000000000"[:width]...)
	for i := end - 1; v > 0; i-- {
		dst[i] = byte('0' + v%10)
		v /= 10
	}
	return dst
}

// parseKey reads what appendKey writes.
func parseKey(text string) (int64, error) {
	if len(text) != len(keyPrefix)+keyDigits || text[:len(keyPrefix)] != keyPrefix {
		return 0, fmt.Errorf("%q is no key of the input", text)
	}
	return strconv.ParseInt(text[len(keyPrefix):], 10, 64)
}

// appendJSON appends event i as a record's value: JSON of about 140 bytes, of
// which a job needs three fields.
func (in *Input) appendJSON(dst []byte, i int64, e Event) []byte {
	dst = append(dst, `{"user":"`...)
	dst = appendKey(dst, e.Key)
	dst = append(dst, `","at":`...)
	dst = strconv.AppendInt(dst, e.At, 10)
	dst = append(dst, `,"amount":`...)
	dst = strconv.AppendInt(dst, e.Amount, 10)
	dst = append(dst, `,"page":"/products/`...)
	dst = appendDigits(dst, uint64(i)%100_000, 5)
	dst = append(dst, `","agent":"Mozilla/5.0 (X11; Linux)","session":"`...)
	dst = strconv.AppendUint(dst, mix(uint64(e.Key))>>4|1<<59, 16)
	return append(dst, `"}`...)
}
