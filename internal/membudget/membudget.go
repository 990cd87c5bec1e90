// Package membudget divides the memory that a process may use among what needs
// it, and tells the runtime of Go how much that is. It imports nothing of ours.
package membudget

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Bytes is an amount of memory.
type Bytes int64

// Least is the least budget that a pipeline can work with.
const Least Bytes = 128 << 20

// unknown is the budget where nothing tells how much memory there is.
const unknown Bytes = 2 << 30

// Default is half of what the cgroup allows, else half of the machine's memory.
func Default() Bytes {
	provider := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)
	n, err := provider()
	if err != nil || n == 0 || n > 1<<62 {
		return unknown
	}
	return max(Least, Bytes(n/2))
}

// Cache is the share of the block cache of local stores.
func (b Bytes) Cache() int64 { return min(int64(b)/8, 1<<30) }

// Queue is what may wait in front of each of so many tasks.
func (b Bytes) Queue(tasks int) int { return share(int64(b)/16, tasks, 32<<20) }

// Table is what each of the stores of so many tasks may gather before it writes
// a file. A store has two: one that fills, and one that is being written.
func (b Bytes) Table(tasks int) uint64 { return uint64(share(int64(b)/64, tasks, 64<<20)) }

// Epoch is what one epoch of each of so many tasks may gather. A task has two:
// one that fills, and one that is being committed.
func (b Bytes) Epoch(tasks int) int { return share(int64(b)/16, tasks, 64<<20) }

// share is the part of one of n, within bounds: less than a mebibyte makes
// epochs of a few records, and many small files.
func share(all int64, n int, most int64) int {
	return int(max(1<<20, min(all/int64(max(n, 1)), most)))
}

// collectorPercent is by how much the heap may grow between two collections.
// Go's own 100 costs a third of the time where epochs are large; the limit
// bounds what it takes.
const collectorPercent = 400

// Apply tells the runtime of the budget: its heap stays below what the block
// cache, which lies outside of it, leaves. GOGC and GOMEMLIMIT of the
// environment go before.
func (b Bytes) Apply() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectorPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(b) - b.Cache())
	}
}

// String writes the amount in the largest unit that it is a whole number of.
func (b Bytes) String() string {
	for _, u := range units() {
		if b >= u.bytes && b%u.bytes == 0 {
			return strconv.FormatInt(int64(b/u.bytes), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

type unit struct {
	name  string
	bytes Bytes
}

func units() []unit {
	return []unit{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}}
}

var (
	errForm  = errors.New("write a number and a unit, as in 2GiB or 500MB")
	errSmall = errors.New("a pipeline needs 128MiB at least")
)

// Parse reads an amount such as 2GiB, 500MB or 1.5GiB, of Least at least.
func Parse(s string) (Bytes, error) {
	for _, u := range units() {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(n > 0 && n*float64(u.bytes) < 1<<60) {
			return 0, errForm
		}
		b := Bytes(n * float64(u.bytes))
		if b < Least {
			return 0, errSmall
		}
		return b, nil
	}
	return 0, errForm
}

// Set implements pflag.Value, see Parse.
func (b *Bytes) Set(s string) error {
	n, err := Parse(s)
	if err != nil {
		return fmt.Errorf("%q: %w", s, err)
	}
	*b = n
	return nil
}

// Type implements pflag.Value.
func (b *Bytes) Type() string { return "size" }
