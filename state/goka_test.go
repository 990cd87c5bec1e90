package state_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lovoo/goka/storage"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

func TestGokaRecoversAStoreBySlabs(t *testing.T) {
	for kind, s := range map[string]state.Store{"memory": state.NewMemory(), "pebble": openPebble(t, vfs.NewMem())} {
		t.Run(kind, func(t *testing.T) {
			g := state.NewGokaStorage(s)
			if at, err := g.GetOffset(-2); at != -2 || err != nil {
				t.Errorf("offset of an empty store: %d, %v, want goka's default", at, err)
			}
			recovered := append(put("w1", "a", "w2", "b", "w3", ""), idBlock(4, 9, "id"))
			if err := state.Recover(g, state.EncodeSlab(recovered, 17)); err != nil {
				t.Fatal(err)
			}
			if err := state.Recover(g, state.EncodeSlab(remove("w1"), 20)); err != nil {
				t.Fatal(err)
			}
			expect(t, "windows", dump(t, s, state.PrefixRange([]byte("w"))), `"w2"="b" "w3"="" `)
			if !knows(t, s, 4, "id") {
				t.Error("the id block is not unpacked")
			}
			gokaOffsets(t, g)
			// The store outlives goka's view of it.
			if err := errors.Join(g.MarkRecovered(), g.Close(), g.Open()); err != nil {
				t.Fatal(err)
			}
			if v, err := g.Get("w2"); string(v) != "b" || err != nil {
				t.Errorf("w2 = %q, %v", v, err)
			}
			if has, err := g.Has("w1"); has || err != nil {
				t.Errorf("has w1: %v, %v", has, err)
			}
		})
	}
}

// gokaOffsets: goka sets the offset after each slab, which has set it itself;
// it goes on behind control records, and never back.
func gokaOffsets(t *testing.T, g *state.GokaStorage) {
	t.Helper()
	for _, step := range []struct{ set, want int64 }{{20, 20}, {18, 20}, {22, 22}, {21, 22}} {
		if err := g.SetOffset(step.set); err != nil {
			t.Fatal(err)
		}
		if at, err := g.GetOffset(-2); at != step.want || err != nil {
			t.Errorf("offset after setting %d: %d, %v, want %d", step.set, at, err, step.want)
		}
	}
}

func TestNothingIsWrittenThroughGokaButSlabs(t *testing.T) {
	s := state.NewMemory()
	apply(t, s, 3, put("w1", "a"))
	g := state.NewGokaStorage(s)
	if g.Set("w1", []byte("b")) == nil || g.Delete("w1") == nil {
		t.Error("goka may write")
	}
	good := state.EncodeSlab(put("w1", "b", "w2", "c"), 4)
	for name, slab := range map[string][]byte{
		"empty": {}, "another version": append([]byte{9}, good[1:]...), "cut short": good[:len(good)-1],
		"with a tail": append(append([]byte{}, good...), 0), "a key without bytes": state.EncodeSlab(put("", "x"), 4),
	} {
		if err := state.Recover(g, slab); !errors.Is(err, event.ErrCorrupt) {
			t.Errorf("a slab %s: %v, want ErrCorrupt", name, err)
		}
	}
	expect(t, "entries", dump(t, s, state.Range{}), `"w1"="a" `)
	if p := position(t, s); p != 3 {
		t.Errorf("position %s", p)
	}
}

func TestGokaIteratesOverHalfOpenRanges(t *testing.T) {
	s := state.NewMemory()
	apply(t, s, event.OffsetNone, put("w1", "1", "w2", "2", "w3", "3", "w4", "4"))
	g := state.NewGokaStorage(s)
	keys := func(it storage.Iterator) string {
		var out []string
		for it.Next() {
			v, err := it.Value()
			if err != nil || string(v) != string(it.Key()[1:]) {
				t.Errorf("%s = %s, %v", it.Key(), v, err)
			}
			out = append(out, string(it.Key()))
		}
		if err := it.Err(); err != nil {
			t.Error(err)
		}
		return strings.Join(out, " ")
	}
	for _, r := range []struct{ from, to, want string }{
		{"w2", "w4", "w2 w3"}, {"w2", "w2", ""}, {"w2", "", "w2 w3 w4"}, {"", "w2", "w1"}, {"", "", "w1 w2 w3 w4"}, {"w5", "", ""},
	} {
		it, err := g.IteratorWithRange(bound(r.from), bound(r.to))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, r.from+".."+r.to, keys(it), r.want)
		it.Release()
	}
	it, err := g.Iterator()
	if err != nil {
		t.Fatal(err)
	}
	if !it.Seek([]byte("w21")) {
		t.Error("nothing at or behind w21")
	}
	expect(t, "from w21", keys(it), "w3 w4")
	if !it.Seek([]byte("w1")) {
		t.Error("nothing at or behind w1")
	}
	expect(t, "from w1", keys(it), "w1 w2 w3 w4")
	if it.Seek([]byte("w5")) || it.Next() {
		t.Error("something at or behind w5")
	}
}

func bound(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

func FuzzSlab(f *testing.F) {
	f.Add(state.EncodeSlab(append(put("w1", "a"), remove("w2")...), 7))
	f.Add([]byte{1, 0, 255, 255})
	f.Fuzz(func(t *testing.T, slab []byte) {
		g := state.NewGokaStorage(state.NewMemory())
		err := state.Recover(g, slab)
		if err != nil && !errors.Is(err, event.ErrCorrupt) && !errors.Is(err, event.ErrVersion) {
			t.Fatal(err)
		}
	})
}
