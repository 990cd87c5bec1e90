package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

// TestStores shows that every Store keeps the contract.
func TestStores(t *testing.T) {
	stores := map[string]func(t testing.TB) state.Store{
		"memory": func(testing.TB) state.Store { return state.NewMemory() },
		"pebble": func(t testing.TB) state.Store {
			t.Helper()
			return openPebble(t, vfs.NewMem())
		},
	}
	behaviours := map[string]func(t *testing.T, s state.Store){
		"an empty store has nothing":                           emptyStore,
		"changes, tombstones and position move together":       changesMoveTogether,
		"expired ranges go after the changes":                  expiredGoAfterChanges,
		"ranges are half-open":                                 rangesAreHalfOpen,
		"a scan runs in key order and stops when told":         scanRunsInOrder,
		"an id block becomes one entry for each id":            idBlockIsUnpacked,
		"a tombstone for an id block forgets its bucket":       idBlockTombstone,
		"wiping leaves an empty store":                         wipeLeavesNothing,
		"a batch that cannot be applied changes nothing":       refusedBatchChangesNothing,
		"a value belongs to the caller":                        valueIsTheCallers,
		"a value without bytes is a value":                     emptyValueIsAValue,
		"a batch without a position keeps the one that it has": positionStays,
		"a mark moves with its batch":                          markMoves,
	}
	for kind, open := range stores {
		for name, show := range behaviours {
			t.Run(kind+"/"+name, func(t *testing.T) { show(t, open(t)) })
		}
		t.Run(kind+"/it holds what a map would hold", func(t *testing.T) { againstMap(t, open) })
	}
}

func identity() state.Identity {
	return state.Identity{Pipeline: "test", Generation: 1, Stage: "ingest.readings", Partition: 3, Cluster: "c"}
}

func openPebble(t testing.TB, fs vfs.FS) *state.Pebble {
	t.Helper()
	s, err := state.OpenPebble("task", identity(), state.PebbleOptions{FS: fs, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func put(pairs ...string) []state.Change {
	var out []state.Change
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, state.Change{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
	}
	return out
}

func remove(keys ...string) []state.Change {
	var out []state.Change
	for _, k := range keys {
		out = append(out, state.Change{Key: []byte(k)})
	}
	return out
}

type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func apply(t fataler, s state.Store, position event.Offset, changes []state.Change, expired ...state.Range) {
	t.Helper()
	if err := s.Apply(&state.Batch{Changes: changes, Expired: expired, Position: position}); err != nil {
		t.Fatal(err)
	}
}

// dump gives the entries of a range that a task can have written, in scan order.
func dump(t fataler, r state.Reader, rng state.Range) string {
	t.Helper()
	var out bytes.Buffer
	err := r.Scan(rng, func(k, v []byte) (bool, error) {
		if k[0] != 'M' {
			fmt.Fprintf(&out, "%q=%q ", k, v)
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func expect(t fataler, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %s, want %s", what, got, want)
	}
}

func position(t fataler, s state.Store) event.Offset {
	t.Helper()
	p, err := s.Position()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func emptyStore(t *testing.T, s state.Store) {
	t.Helper()
	if _, ok, err := s.Get([]byte("w1")); ok || err != nil {
		t.Errorf("an entry: %v, %v", ok, err)
	}
	expect(t, "entries", dump(t, s, state.Range{}), "")
	if p := position(t, s); p != event.OffsetNone {
		t.Errorf("position %s", p)
	}
	p, ok, err := state.ReadProgress(s)
	if ok || err != nil || p.Epoch != 0 || p.Recorded != event.RecordedUnknown || p.Announced != event.WatermarkUnknown {
		t.Errorf("progress %+v, %v, %v", p, ok, err)
	}
}

func changesMoveTogether(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 4, put("w1", "a", "w2", "b"))
	apply(t, s, 9, append(put("w1", "c", "w3", "d"), remove("w2", "w7")...))
	expect(t, "entries", dump(t, s, state.Range{}), `"w1"="c" "w3"="d" `)
	if p := position(t, s); p != 9 {
		t.Errorf("position %s, want 9", p)
	}
	// Of two changes of one key in one batch the later holds.
	apply(t, s, 10, append(put("w1", "e"), remove("w1")...))
	apply(t, s, 11, append(remove("w3"), put("w3", "f")...))
	expect(t, "entries", dump(t, s, state.Range{}), `"w3"="f" `)
}

func expiredGoAfterChanges(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 0, put("w1", "a", "w2", "b", "w3", "c"))
	apply(t, s, 1, put("w2", "new", "w3", "new", "w25", "new"),
		state.Range{From: []byte("w2"), To: []byte("w3")}, state.Range{From: []byte("x"), To: []byte("y")})
	expect(t, "entries", dump(t, s, state.Range{}), `"w1"="a" "w3"="new" `)
}

func rangesAreHalfOpen(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 0, put("w", "0", "w1", "1", "w2", "2", "w\xff", "3", "x", "4"))
	for rng, want := range map[[2]string]string{
		{"w1", "w2"}: `"w1"="1" `,
		{"w1", "w1"}: ``,
		{"w", "x"}:   `"w"="0" "w1"="1" "w2"="2" "w\xff"="3" `,
		{"", "w1"}:   `"w"="0" `,
	} {
		expect(t, fmt.Sprint(rng), dump(t, s, state.Range{From: bound(rng[0]), To: bound(rng[1])}), want)
	}
	expect(t, "open range", dump(t, s, state.Range{From: []byte("w2")}), `"w2"="2" "w\xff"="3" "x"="4" `)
	expect(t, "prefix", dump(t, s, state.PrefixRange([]byte("w"))), `"w"="0" "w1"="1" "w2"="2" "w\xff"="3" `)
	expect(t, "prefix at the end of its byte", dump(t, s, state.PrefixRange([]byte("w\xff"))), `"w\xff"="3" `)
}

func scanRunsInOrder(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 0, put("w3", "", "w1", "", "w\x00", "", "w20", "", "w2", ""))
	var seen []string
	err := s.Scan(state.PrefixRange([]byte("w")), func(k, _ []byte) (bool, error) {
		seen = append(seen, string(k))
		return len(seen) < 3, nil
	})
	if err != nil || !slices.Equal(seen, []string{"w\x00", "w1", "w2"}) {
		t.Errorf("saw %q, %v", seen, err)
	}
	stop := errors.New("enough")
	if err := s.Scan(state.Range{}, func(_, _ []byte) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the callback's error", err)
	}
	// The callback may read the store.
	err = s.Scan(state.PrefixRange([]byte("w1")), func(k, _ []byte) (bool, error) {
		_, ok, err := s.Get(k)
		return ok, err
	})
	if err != nil {
		t.Error(err)
	}
}

func idBlock(bucket int64, n event.Epoch, ids ...string) state.Change {
	var seen []state.SeenID
	for _, id := range ids {
		seen = append(seen, state.SeenID{ID: id, Content: uint64(len(id))})
	}
	return state.Change{Key: state.IDBlockKey(bucket, n, 0), Value: state.AppendIDBlock(nil, seen)}
}

func knows(t fataler, r state.Reader, bucket int64, id string) bool {
	t.Helper()
	raw, ok, err := r.Get(state.IDKey(nil, bucket, id))
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return false
	}
	content, err := state.DecodeIDValue(raw)
	if err != nil || content != uint64(len(id)) {
		t.Fatalf("id %q: content %d, %v", id, content, err)
	}
	return true
}

func idBlockIsUnpacked(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 0, []state.Change{idBlock(-1, 7, "a", "bb", ""), idBlock(2, 7, "ccc")})
	for _, id := range []string{"a", "bb", ""} {
		if !knows(t, s, -1, id) || knows(t, s, 2, id) {
			t.Errorf("id %q is not in its bucket alone", id)
		}
	}
	if !knows(t, s, 2, "ccc") {
		t.Error("ccc is not known")
	}
	// The block's key stays, so that its expiry finds what to tombstone.
	n := 0
	err := s.Scan(state.IDBlockRange(-1), func(k, _ []byte) (bool, error) {
		n++
		return state.BucketOf(k) == -1, nil
	})
	if err != nil || n != 1 {
		t.Errorf("%d blocks up to bucket -1, %v", n, err)
	}
	// Expiry of a bucket: its ids and its blocks, nothing of the next.
	apply(t, s, 1, nil, state.IDBucketRange(-1), state.IDBlockRange(-1))
	if knows(t, s, -1, "a") || !knows(t, s, 2, "ccc") {
		t.Error("the wrong bucket has expired")
	}
}

func idBlockTombstone(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 0, []state.Change{idBlock(1, 7, "a"), idBlock(2, 7, "b")})
	apply(t, s, 1, []state.Change{{Key: state.IDBlockKey(1, 7, 0)}})
	if knows(t, s, 1, "a") || !knows(t, s, 2, "b") {
		t.Error("a tombstone of bucket 1 forgets bucket 1 and nothing else")
	}
	expect(t, "blocks of bucket 1", dump(t, s, state.IDBlockRange(1)), "")
}

func wipeLeavesNothing(t *testing.T, s state.Store) {
	t.Helper()
	progress := state.Progress{Epoch: 3}
	value, err := progress.Encode()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, 5, []state.Change{{Key: []byte{state.KeyProgress}, Value: value}, idBlock(1, 1, "a"), {Key: []byte("w1"), Value: []byte("x")}})
	if p, ok, err := state.ReadProgress(s); !ok || err != nil || p.Epoch != 3 {
		t.Fatalf("progress %+v, %v, %v", p, ok, err)
	}
	if err := s.Wipe(); err != nil {
		t.Fatal(err)
	}
	emptyStore(t, s)
	apply(t, s, 0, put("w1", "again"))
	expect(t, "entries", dump(t, s, state.Range{}), `"w1"="again" `)
}

func refusedBatchChangesNothing(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 5, put("w1", "a"))
	for name, bad := range map[string]state.Change{
		"a key without bytes":       {Value: []byte("x")},
		"a block key that is short": {Key: []byte{state.KeyIDBlock, 1}, Value: []byte{1, 0}},
		"a block cut short":         {Key: state.IDBlockKey(1, 1, 0), Value: []byte{1, 9, 1}},
		"a block with a tail":       {Key: state.IDBlockKey(1, 1, 0), Value: []byte{1, 0, 0}},
	} {
		err := s.Apply(&state.Batch{Changes: append(put("w1", "b", "w2", "c"), bad), Position: 6})
		if !errors.Is(err, event.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
	err := s.Apply(&state.Batch{Changes: append(put("w2", "c"), state.Change{Key: state.IDBlockKey(1, 1, 0), Value: []byte{99, 0}}), Position: 6})
	if !errors.Is(err, event.ErrVersion) {
		t.Errorf("a block of a newer version: %v, want ErrVersion", err)
	}
	expect(t, "entries", dump(t, s, state.Range{}), `"w1"="a" `)
	if p := position(t, s); p != 5 {
		t.Errorf("position %s, want 5", p)
	}
}

func valueIsTheCallers(t *testing.T, s state.Store) {
	t.Helper()
	given := []byte("abc")
	apply(t, s, 0, []state.Change{{Key: []byte("w1"), Value: given}})
	given[0] = 'X'
	got, _, err := s.Get([]byte("w1"))
	if err != nil || string(got) != "abc" {
		t.Fatalf("got %q, %v", got, err)
	}
	got[0] = 'Y'
	if again, _, err := s.Get([]byte("w1")); err != nil || string(again) != "abc" {
		t.Errorf("got %q, %v", again, err)
	}
}

func emptyValueIsAValue(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 0, []state.Change{{Key: []byte("w1"), Value: []byte{}}})
	if v, ok, err := s.Get([]byte("w1")); !ok || err != nil || v == nil || len(v) != 0 {
		t.Errorf("got %v, %v, %v", v, ok, err)
	}
}

func positionStays(t *testing.T, s state.Store) {
	t.Helper()
	apply(t, s, 5, put("w1", "a"))
	apply(t, s, event.OffsetNone, put("w1", "b"))
	if p := position(t, s); p != 5 {
		t.Errorf("position %s, want 5", p)
	}
}

func markMoves(t *testing.T, s state.Store) {
	t.Helper()
	check := func(when string, want state.Mark) {
		t.Helper()
		if got, err := state.ReadMark(s); err != nil || got != want {
			t.Errorf("%s: the mark is %+v, %v, want %+v", when, got, err, want)
		}
	}
	none := state.Mark{CaughtUp: event.RecordedUnknown}
	check("at first", none)
	first, second := state.Mark{Log: "a", CaughtUp: 5}, state.Mark{Log: "b", CaughtUp: -7}
	if err := s.Apply(&state.Batch{Position: event.OffsetNone, Mark: &first}); err != nil {
		t.Fatal(err)
	}
	check("without a position", first)
	if p := position(t, s); p != event.OffsetNone {
		t.Errorf("a mark alone has moved the position to %s", p)
	}
	if err := s.Apply(&state.Batch{Changes: put("w1", "a"), Position: 3, Mark: &second}); err != nil {
		t.Fatal(err)
	}
	check("with changes", second)
	apply(t, s, 4, put("w1", "b"))
	check("after a batch without one", second)
	if err := s.Wipe(); err != nil {
		t.Fatal(err)
	}
	check("after a wipe", none)
}

// againstMap plays random batches and compares with a map.
func againstMap(t *testing.T, open func(t testing.TB) state.Store) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t)
		model := map[string]string{}
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			b, position := drawBatch(rt, model)
			apply(rt, s, position, b.Changes, b.Expired...)
			rng := drawRange(rt)
			expect(rt, "entries", dump(rt, s, rng), dumpMap(model, rng))
		}
	})
}

func drawKey(t *rapid.T) string {
	return "w" + rapid.StringOfN(rapid.SampledFrom([]rune("ab\xff")), 0, 3, -1).Draw(t, "key")
}

func drawRange(t *rapid.T) state.Range {
	from, to := drawKey(t), drawKey(t)
	return state.Range{From: []byte(min(from, to)), To: []byte(max(from, to))}
}

// drawBatch draws a batch and applies it to the model.
func drawBatch(t *rapid.T, model map[string]string) (state.Batch, event.Offset) {
	var b state.Batch
	for range rapid.IntRange(0, 6).Draw(t, "changes") {
		k := drawKey(t)
		if rapid.Bool().Draw(t, "remove") {
			b.Changes = append(b.Changes, remove(k)...)
			delete(model, k)
			continue
		}
		v := rapid.StringN(0, 3, -1).Draw(t, "value")
		b.Changes = append(b.Changes, state.Change{Key: []byte(k), Value: append([]byte{}, v...)})
		model[k] = v
	}
	for range rapid.IntRange(0, 2).Draw(t, "expired") {
		r := drawRange(t)
		b.Expired = append(b.Expired, r)
		for k := range model {
			if r.Contains([]byte(k)) {
				delete(model, k)
			}
		}
	}
	return b, event.Offset(rapid.Int64Range(0, 1000).Draw(t, "position"))
}

func dumpMap(model map[string]string, rng state.Range) string {
	var keys []string
	for k := range model {
		if rng.Contains([]byte(k)) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	var out bytes.Buffer
	for _, k := range keys {
		fmt.Fprintf(&out, "%q=%q ", k, model[k])
	}
	return out.String()
}
