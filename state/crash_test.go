package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

// history is what a store held at each position that it has ever had.
type history struct {
	at  map[event.Offset]map[string]string
	now map[string]string
	end event.Offset
}

func newHistory() *history {
	return &history{at: map[event.Offset]map[string]string{event.OffsetNone: {}}, now: map[string]string{}, end: event.OffsetNone}
}

// apply moves the store to the next barrier: some entries change, one goes, a
// range expires, and the progress says which epoch it is.
func (h *history) apply(t testing.TB, s state.Store, value string) {
	t.Helper()
	h.end++
	n := int(h.end)
	changes := put("P", fmt.Sprint("epoch ", n), "w"+strconv.Itoa(n%7), fmt.Sprint(n, value), "x"+strconv.Itoa(n), value)
	changes = append(changes, remove("w"+strconv.Itoa((n+3)%7))...)
	for _, c := range changes {
		if c.Value == nil {
			delete(h.now, string(c.Key))
			continue
		}
		h.now[string(c.Key)] = string(c.Value)
	}
	expired := state.Range{From: []byte("x"), To: []byte("x" + strconv.Itoa(n-3))}
	for k := range h.now {
		if expired.Contains([]byte(k)) {
			delete(h.now, k)
		}
	}
	h.at[h.end] = maps.Clone(h.now)
	apply(t, s, h.end, changes, expired)
}

// check opens what a crash or a fault has left. It must show one barrier of the
// history, whole, or say that it is corrupt.
func (h *history) check(t testing.TB, fs vfs.FS) (opened bool) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %.200v, want ErrCorrupt", r)
		}
	}()
	s, err := state.OpenPebble("task", identity(), state.PebbleOptions{FS: fs, CacheBytes: 1 << 20})
	if err != nil {
		if !errors.Is(err, event.ErrCorrupt) {
			t.Errorf("open: %v, want ErrCorrupt", err)
		}
		return false
	}
	defer func() {
		if err := s.Close(); err != nil && !errors.Is(err, event.ErrCorrupt) {
			t.Logf("close: %v", err)
		}
	}()
	p, err := s.Position()
	if err == nil {
		err = h.compare(s, p)
	}
	if err != nil && !errors.Is(err, event.ErrCorrupt) {
		t.Errorf("at position %s: %v, want one barrier or ErrCorrupt", p, err)
	}
	return err == nil
}

func (h *history) compare(s state.Store, p event.Offset) error {
	want, ok := h.at[p]
	if !ok {
		return fmt.Errorf("a position that never was")
	}
	seen := 0
	err := s.Scan(state.Range{}, func(k, v []byte) (bool, error) {
		if k[0] == 'M' {
			return true, nil
		}
		seen++
		if w, ok := want[string(k)]; !ok || w != string(v) {
			return false, fmt.Errorf("entry %q is %.20q, want %.20q", k, v, w)
		}
		return true, nil
	})
	if err == nil && seen != len(want) {
		err = fmt.Errorf("%d entries, want %d", seen, len(want))
	}
	return err
}

// life is the life of a store: it is opened, filled, closed and opened again,
// so that some of it is in tables and some in the log, and wiped.
func life(t testing.TB, fs vfs.FS, h *history) {
	t.Helper()
	open := func() *state.Pebble {
		s, err := state.OpenPebble("task", identity(), state.PebbleOptions{FS: fs, CacheBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	shut := func(s *state.Pebble) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open()
	for range 5 {
		h.apply(t, s, "small")
	}
	shut(s)
	s = open()
	for range 4 {
		h.apply(t, s, strings.Repeat("large", 3000))
	}
	shut(s)
	s = open()
	for range 4 {
		h.apply(t, s, "small again")
	}
	shut(s)
}

// What has been applied is in no hurry to reach the disk, until somebody asks.
func TestWhatWasSyncedOutlivesTheMachine(t *testing.T) {
	mem, h := vfs.NewCrashableMem(), newHistory()
	s, err := state.OpenPebble("task", identity(), state.PebbleOptions{FS: mem, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		h.apply(t, s, "small")
	}
	for _, dir := range []string{"", "task"} { // those that the store did not make for itself
		d, err := mem.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	lost := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	kept := mem.CrashClone(vfs.CrashCloneCfg{})
	for fs, want := range map[*vfs.MemFS]event.Offset{lost: event.OffsetNone, kept: h.end} {
		again, err := state.OpenPebble("task", identity(), state.PebbleOptions{FS: fs, CacheBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := again.Position(); err != nil || p != want {
			t.Errorf("the store stands at %s (%v), want %s", p, err, want)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A crash at any operation on a file: what was not synced is lost, or parts of
// it. The store then holds one barrier, with its progress and its position.
func TestAfterACrashTheStoreHoldsExactlyOneBarrier(t *testing.T) {
	for _, kept := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("%d percent of what was not synced is kept", kept), func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			rng := rand.New(rand.NewPCG(1, uint64(kept)))
			var mu sync.Mutex // guards clones and rng: Pebble writes from several goroutines
			var clones []*vfs.MemFS
			crashing := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
					mu.Lock()
					defer mu.Unlock()
					clones = append(clones, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rng}))
				}
				return nil
			}))
			h := newHistory()
			life(t, crashing, h)
			for i, c := range clones {
				h.check(t, c)
				if t.Failed() {
					t.Fatalf("after crash %d", i)
				}
			}
		})
	}
}

// A store that has crashed goes on from the barrier that it holds.
func TestAStoreGoesOnAfterCrashes(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	fs, h := vfs.NewCrashableMem(), newHistory()
	for range 12 {
		s := openPebble(t, fs)
		p := position(t, s)
		if err := h.compare(s, p); err != nil {
			t.Fatal(err)
		}
		h.now, h.end = maps.Clone(h.at[p]), p
		for range rng.IntN(6) {
			h.apply(t, s, "x")
		}
		if rng.IntN(4) == 0 {
			if err := s.Wipe(); err != nil {
				t.Fatal(err)
			}
			h.now, h.end = map[string]string{}, event.OffsetNone
		}
		fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	}
}

// A wiped store that crashes is empty: the wipe is synced, or else a store that
// was found wrong would come back.
func TestAWipedStoreStaysEmptyAfterACrash(t *testing.T) {
	fs, h := vfs.NewCrashableMem(), newHistory()
	s := openPebble(t, fs)
	h.apply(t, s, "x")
	if err := s.Wipe(); err != nil {
		t.Fatal(err)
	}
	again := openPebble(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	expect(t, "entries", dump(t, again, state.Range{}), "")
	if p := position(t, again); p != event.OffsetNone {
		t.Errorf("position %s", p)
	}
}

// damage changes one file of a copy of fs.
func damage(t testing.TB, from *vfs.MemFS, name string, change func([]byte) []byte) *vfs.MemFS {
	t.Helper()
	fs := from.CrashClone(vfs.CrashCloneCfg{})
	content := readFile(t, fs, name)
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(change(content))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

func readFile(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// synced makes a store that lies whole in its files.
func synced(t testing.TB) (*vfs.MemFS, *history) {
	t.Helper()
	mem, h := vfs.NewCrashableMem(), newHistory()
	life(t, mem, h)
	return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}), h
}

// Files that are torn or have a flipped bit give an error that wraps
// ErrCorrupt, at the opening or at the first read that meets them, so that the
// caller rebuilds the store; or the store shows a barrier. It never shows
// anything else.
func TestADamagedFileIsNeverTakenForState(t *testing.T) {
	good, h := synced(t)
	names, err := good.List("task/db")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 3))
	for _, name := range names {
		path := good.PathJoin("task", "db", name)
		size := len(readFile(t, good, path))
		if size == 0 {
			continue
		}
		kind := strings.TrimLeft(name, "0123456789.-")
		for range 12 {
			at, bit := rng.IntN(size), byte(1)<<rng.IntN(8)
			t.Run(fmt.Sprintf("%s with bit %d of byte %d of %d flipped", kind, bit, at, size), func(t *testing.T) {
				h.check(t, damage(t, good, path, func(b []byte) []byte {
					b[at] ^= bit
					return b
				}))
			})
			t.Run(fmt.Sprintf("%s torn at byte %d of %d", kind, at, size), func(t *testing.T) {
				h.check(t, damage(t, good, path, func(b []byte) []byte { return b[:at] }))
			})
		}
	}
}

// A manifest is short, so it is torn at every byte. Pebble takes most of what is
// left for a manifest, and forgets the tables that it does not name.
func TestAManifestTornAnywhereHidesNothing(t *testing.T) {
	mem, h := vfs.NewCrashableMem(), newHistory()
	for range 5 {
		s, err := state.OpenPebble("task", identity(), state.PebbleOptions{FS: mem, CacheBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			h.apply(t, s, "small")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	good := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	names, err := good.List("task/db")
	if err != nil {
		t.Fatal(err)
	}
	torn, refused := 0, 0
	for _, name := range names {
		path := good.PathJoin("task", "db", name)
		if !strings.HasPrefix(name, "MANIFEST-") {
			continue
		}
		for at := range len(readFile(t, good, path)) {
			torn++
			if !h.check(t, damage(t, good, path, func(b []byte) []byte { return b[:at] })) {
				refused++
			}
			if t.Failed() {
				t.Fatalf("%s torn at byte %d", name, at)
			}
		}
	}
	if torn < 100 || refused < 100 {
		t.Errorf("%d manifests torn, %d refused: too few to tell anything", torn, refused)
	}
}

func TestADirectoryOfAnotherTaskIsRefusedAndLeftAlone(t *testing.T) {
	fs := vfs.NewMem()
	own := openPebble(t, fs)
	apply(t, own, 1, put("w1", "a"))
	for name, other := range map[string]func(*state.Identity){
		"pipeline":   func(i *state.Identity) { i.Pipeline = "other" },
		"generation": func(i *state.Identity) { i.Generation = 2 },
		"stage":      func(i *state.Identity) { i.Stage = "ingest.other" },
		"partition":  func(i *state.Identity) { i.Partition = 4 },
		"cluster":    func(i *state.Identity) { i.Cluster = "d" },
	} {
		id := identity()
		other(&id)
		_, err := state.OpenPebble("task", id, state.PebbleOptions{FS: fs})
		var foreign *state.ForeignError
		if !errors.As(err, &foreign) {
			t.Errorf("another %s: %v, want a ForeignError", name, err)
			continue
		}
		if foreign.Have.Pipeline != "test" || foreign.Want.V != foreign.Have.V || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("another %s: %v", name, err)
		}
	}
	expect(t, "the owner's entries", dump(t, own, state.Range{}), `"w1"="a" `)
}

func TestAnIdentityThatCannotBeReadIsCorrupt(t *testing.T) {
	good, h := synced(t)
	for _, text := range []string{"", "{", `{"v":1,"pipeline":`, "\x00\x00\x00"} {
		if h.check(t, damage(t, good, "task/STROM-TASK.json", func([]byte) []byte { return []byte(text) })) {
			t.Errorf("%q opens", text)
		}
	}
}

func TestRemoveDirRemovesNothingOfOthers(t *testing.T) {
	dir := t.TempDir()
	others := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(others, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := state.OpenPebble(dir, identity(), state.PebbleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, 1, put("w1", "a"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := state.RemoveDir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(others); err != nil {
		t.Errorf("a file of somebody else's is gone: %v", err)
	}
	if s, err = state.OpenPebble(dir, identity(), state.PebbleOptions{}); err != nil {
		t.Fatal(err)
	}
	emptyStore(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
