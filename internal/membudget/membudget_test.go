package membudget

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]Bytes{
		"2GiB": 2 << 30, "1.5GiB": 3 << 29, "500MB": 500e6, "128MiB": Least, "200000000B": 200e6, "4 GB": 4e9,
	} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for s, want := range map[string]string{
		"": "a number and a unit", "2": "a number and a unit", "GiB": "a number and a unit", "-2GiB": "a number and a unit",
		"2Gi": "a number and a unit", "NaNGiB": "a number and a unit", "1e300GiB": "a number and a unit", "127MiB": Least.String() + " at least",
	} {
		if got, err := Parse(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
}

func TestStringsAreRead(t *testing.T) {
	for _, b := range []Bytes{Least, 2 << 30, 500e6, 223_456_789, 1<<30 + 1} {
		if got, err := Parse(b.String()); err != nil || got != b {
			t.Errorf("%s: %d, %v", b, got, err)
		}
	}
}

// All shares together stay within the budget, however many tasks there are, as
// long as each has a share worth the name.
func TestSharesStayWithinTheBudget(t *testing.T) {
	for _, b := range []Bytes{Least, 1 << 30, 12 << 30, 256 << 30} {
		for _, tasks := range []int{0, 1, 4, 8} {
			all := b.Cache() + int64(max(tasks, 1)*(b.Queue(tasks)+2*b.Epoch(tasks)+2*int(b.Table(tasks))))
			if all > int64(b)/2 {
				t.Errorf("%s for %d tasks: %d MiB", b, tasks, all>>20)
			}
		}
	}
	if d := Default(); d < Least {
		t.Errorf("the default is %s", d)
	}
}
