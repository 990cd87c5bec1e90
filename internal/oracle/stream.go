package oracle

import (
	"math/big"
	"slices"
	"time"
)

// Arrival is one record of a partition, as far as it decides what becomes of it.
type Arrival struct {
	// ID and Content are the record's identity and all of its bytes. Two
	// records with one id are one event where their content is the same.
	ID, Content string
	// Unreadable: the record is refused before anybody asks for its identity.
	Unreadable bool
	// Refused: the record is refused for what it says, once it is known that no
	// event has its identity.
	Refused bool
	// Epoch is the one that the record falls in, Recorded its R, and Before that
	// of the epoch before. Only a horizon asks for them.
	Epoch            Epoch
	Before, Recorded Micros
}

// Fate is what becomes of a record.
type Fate int

// The fates.
const (
	Counted  Fate = iota // it is an event
	Repeat               // it is an event that was counted before
	Conflict             // it has the identity of an event with other content
	Rejected             // it is none
)

// Fates says what becomes of the records of one partition, in log order. A
// record that is refused gives its identity to nobody.
//
// Identities are forgotten behind a horizon of recorded time; 0 is none. Time is
// cut into eighths of it, from 1970 on. An identity belongs to the eighth that
// the R of its epoch lies in, and it is known to the records of an epoch as long
// as no more than eight lie between there and the R before; within an epoch it
// is known at once.
func Fates(arrivals []Arrival, horizon Micros) []Fate {
	out := make([]Fate, len(arrivals))
	for i, a := range arrivals {
		out[i] = fateOf(a, arrivals[:i], out[:i], horizon)
	}
	return out
}

func fateOf(a Arrival, before []Arrival, fates []Fate, horizon Micros) Fate {
	if a.Unreadable {
		return Rejected
	}
	for j, b := range slices.Backward(before) {
		if fates[j] == Counted && b.ID == a.ID && known(b, a, horizon) {
			if b.Content == a.Content {
				return Repeat
			}
			return Conflict
		}
	}
	if a.Refused {
		return Rejected
	}
	return Counted
}

func known(b, a Arrival, horizon Micros) bool {
	if horizon == 0 || a.Epoch == b.Epoch {
		return true
	}
	const parts = 8
	eighth := max(1, horizon/parts)
	return (a.Before.floorTo(eighth)-b.Recorded.floorTo(eighth))/eighth <= parts
}

// Windows says how time is cut: into pieces of one size, into the days of a
// zone, or (the zero value) not at all.
type Windows struct {
	Size, Offset Micros
	Days         *time.Location
}

// Window is a half-open interval of event time.
type Window struct{ Start, End Micros }

// Always is the window that holds every instant.
func Always() Window { return Window{NoWatermark, EndOfInput} }

// Of gives the window that an instant lies in.
func (w Windows) Of(t Micros) Window {
	switch {
	case w.Size > 0:
		start := (t - w.Offset).floorTo(w.Size) + w.Offset
		return Window{start, start + w.Size}
	case w.Days != nil:
		// By the clock on the wall there, from its midnight to the next one.
		y, m, d := time.UnixMicro(int64(t)).In(w.Days).Date()
		return Window{
			Micros(time.Date(y, m, d, 0, 0, 0, 0, w.Days).UnixMicro()),
			Micros(time.Date(y, m, d+1, 0, 0, 0, 0, w.Days).UnixMicro()),
		}
	}
	return Always()
}

// Sample is what one event adds to the windows of one key.
type Sample struct {
	Key    string
	At     Micros
	Number string // the text of a JSON number; "" for none
}

// Pane is one window of one key.
type Pane struct {
	Key string
	Window
}

// Sums is what the samples of a pane come to. The numbers are canonical
// decimals, "" where no sample has a number.
type Sums struct {
	Count         int
	Numbers       int // samples that have one
	Sum, Min, Max string
}

// FoldSamples counts and sums samples by windows; their order has no say. Its error is
// a number that is none.
func FoldSamples(samples []Sample, w Windows) (map[Pane]Sums, error) {
	out := map[Pane]Sums{}
	for _, s := range samples {
		pane := Pane{s.Key, w.Of(s.At)}
		sums := out[pane]
		sums.Count++
		if s.Number != "" {
			var err error
			if sums, err = sums.with(s.Number); err != nil {
				return nil, err
			}
		}
		out[pane] = sums
	}
	return out, nil
}

// Mean is the sum divided by how many numbers there are: rounded half to even at
// 20 significant digits; "" of none. Its error is a sum that is no number.
func (s Sums) Mean() (string, error) {
	if s.Numbers == 0 {
		return "", nil
	}
	sum, err := parseMagnitude(s.Sum)
	if err != nil {
		return "", err
	}
	return rounded(sum.value.Quo(sum.value, big.NewRat(int64(s.Numbers), 1))), nil
}

func (s Sums) with(number string) (Sums, error) {
	s.Numbers++
	n, err := parseMagnitude(number)
	if err != nil {
		return s, err
	}
	if s.Sum == "" {
		s.Sum, s.Min, s.Max = n.text, n.text, n.text
		return s, nil
	}
	sum, err := parseMagnitude(s.Sum)
	if err != nil {
		return s, err
	}
	least, err := parseMagnitude(s.Min)
	if err != nil {
		return s, err
	}
	most, err := parseMagnitude(s.Max)
	if err != nil {
		return s, err
	}
	s.Sum = sum.plus(n).text
	s.Max = most.larger(n).text
	if n.value.Cmp(least.value) < 0 {
		s.Min = n.text
	}
	return s, nil
}
