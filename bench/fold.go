package bench

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Pane is one key, or everything, in one window.
type Pane struct {
	Key int64
	// Start of the window, in milliseconds since 1970.
	Start int64
}

// String says which it is.
func (p Pane) String() string {
	id := everythingID
	if p.Key != everything {
		id = string(appendKey(nil, p.Key))
	}
	return fmt.Sprintf("%s in the window from %d", id, p.Start)
}

// Totals are the result of the aggregate for one pane; q7 has N and Most alone.
type Totals struct{ N, Sum, Least, Most int64 }

// Panes are the result of a workload.
type Panes map[Pane]Totals

// Fold is the result by definition: a map, and one loop over the events.
func Fold(in *Input) Panes {
	out := make(Panes)
	out.add(in)
	return out
}

// add adds the events of an input.
func (p Panes) add(in *Input) {
	size := in.Window.Milliseconds()
	for i := range in.Events {
		e := in.Event(i)
		pane := Pane{Key: e.Key, Start: e.At - e.At%size}
		t, ok := p[pane]
		if !ok {
			t.Least, t.Most = e.Amount, e.Amount
		}
		t.N++
		t.Sum += e.Amount
		t.Least, t.Most = min(t.Least, e.Amount), max(t.Most, e.Amount)
		p[pane] = t
	}
}

// value is the place of a value of the mapping by its name.
func (t *Totals) value(name string) (*int64, bool) {
	to, ok := map[string]*int64{"n": &t.N, "total": &t.Sum, "least": &t.Least, "most": &t.Most}[name]
	return to, ok
}

// Hash is the same for equal results, whatever their order.
func (p Panes) Hash() string {
	var sum uint64
	var b [48]byte
	for pane, t := range p {
		for i, v := range [...]int64{pane.Key, pane.Start, t.N, t.Sum, t.Least, t.Most} {
			binary.BigEndian.PutUint64(b[8*i:], uint64(v))
		}
		sum += xxhash.Sum64(b[:])
	}
	return fmt.Sprintf("%d:%016x", len(p), sum)
}

// Diff says how p differs from what is right: one pane as an example. It is
// empty where they are equal.
func (p Panes) Diff(right Panes) string {
	wrong, example := 0, ""
	note := func(pane Pane, got, want string) {
		wrong++
		if wrong == 1 {
			example = fmt.Sprintf("%s: %s, want %s", pane, got, want)
		}
	}
	for pane, want := range right {
		if got, ok := p[pane]; !ok {
			note(pane, "nothing", fmt.Sprintf("%+v", want))
		} else if got != want {
			note(pane, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
		}
	}
	for pane, got := range p {
		if _, ok := right[pane]; !ok {
			note(pane, fmt.Sprintf("%+v", got), "nothing")
		}
	}
	if wrong == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d panes are wrong; one of them: %s", wrong, len(right), example)
}
