package state_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

// A view shows the store under the layers that are being committed, whatever
// changes hold where, as one map would.
func TestAViewShowsLayersOverTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := state.NewMemory()
		view := state.NewView(store)
		model := map[string]string{}
		b, _ := drawBatch(t, model)
		apply(t, store, 1, b.Changes, b.Expired...)
		var begun []*state.Layer
		for range rapid.IntRange(0, 5).Draw(t, "steps") {
			if len(begun) > 0 && rapid.Bool().Draw(t, "apply") {
				apply(t, store, 2, begun[0].Changes())
				view.Applied()
				begun = begun[1:]
			} else {
				b, _ := drawBatch(t, map[string]string{})
				layer := state.NewLayer(b.Changes)
				for _, c := range layer.Changes() {
					delete(model, string(c.Key))
					if c.Value != nil {
						model[string(c.Key)] = string(c.Value)
					}
				}
				view.Begin(layer)
				begun = append(begun, layer)
			}
			rng := drawRange(t)
			expect(t, "scan", dump(t, view, rng), dumpMap(model, rng))
			expect(t, "everything", dump(t, view, state.Range{}), dumpMap(model, state.Range{}))
			k := drawKey(t)
			v, ok, err := view.Get([]byte(k))
			if want, has := model[k]; err != nil || ok != has || string(v) != want {
				t.Fatalf("%q is %q, %v, %v; want %q, %v", k, v, ok, err, want, has)
			}
		}
	})
}

func TestOfTwoChangesOfOneKeyALayerKeepsTheLater(t *testing.T) {
	l := state.NewLayer(append(put("w2", "old", "w1", "a", "w2", "new", "w3", "x"), remove("w3", "w0")...))
	var got string
	for _, c := range l.Changes() {
		got += fmt.Sprintf("%s=%s/%v ", c.Key, c.Value, c.Value == nil)
	}
	expect(t, "layer", got, "w0=/true w1=a/false w2=new/false w3=/true ")
	expect(t, "empty layer", fmt.Sprint(state.NewLayer(nil).Changes()), "[]")
}

func TestAScanOfLayersStopsWhenTold(t *testing.T) {
	store := state.NewMemory()
	apply(t, store, 1, put("w1", "s", "w3", "s", "w5", "s"))
	reader := state.NewLayer(append(put("w2", "l", "w3", "l", "w6", "l"), remove("w5")...)).Over(store)
	for most, want := range []string{"", "w1 ", "w1 w2 ", "w1 w2 w3 ", "w1 w2 w3 w6 ", "w1 w2 w3 w6 "} {
		if most == 0 {
			continue
		}
		got, n := "", 0
		err := reader.Scan(state.PrefixRange([]byte("w")), func(k, _ []byte) (bool, error) {
			got += string(k) + " "
			n++
			return n < most, nil
		})
		if err != nil || got != want {
			t.Errorf("the first %d: %q, %v, want %q", most, got, err, want)
		}
	}
	stop := errors.New("enough")
	for most := range 4 {
		n := 0
		err := reader.Scan(state.PrefixRange([]byte("w")), func(_, _ []byte) (bool, error) {
			n++
			if n > most {
				return true, stop
			}
			return true, nil
		})
		if !errors.Is(err, stop) || n != most+1 {
			t.Errorf("error at entry %d: %v after %d", most, err, n)
		}
	}
}

// The committer applies what the task has begun while the task reads: the task
// sees one value of a key before and after, never the one below.
func TestReadsDuringTheCommitSeeWhatWasHandedOver(t *testing.T) {
	store := state.NewMemory()
	view := state.NewView(store)
	handed := make(chan *state.Layer)
	var committer sync.WaitGroup
	committer.Go(func() {
		for l := range handed {
			if err := store.Apply(&state.Batch{Changes: l.Changes(), Position: 1}); err != nil {
				t.Error(err)
			}
			view.Applied()
		}
	})
	model := map[string]string{}
	rng := rand.New(rand.NewPCG(1, 1))
	for n := range 300 {
		key, value := "w"+strconv.Itoa(rng.IntN(5)), strconv.Itoa(n)
		l := state.NewLayer(put(key, value))
		view.Begin(l)
		model[key] = value
		handed <- l
		for range 4 {
			expect(t, "scan", dump(t, view, state.Range{From: []byte("w"), To: []byte("x")}), dumpMap(model, state.Range{}))
			for k, want := range maps.All(model) {
				if v, _, err := view.Get([]byte(k)); err != nil || string(v) != want {
					t.Fatalf("%s is %s, %v; want %s", k, v, err, want)
				}
			}
		}
	}
	close(handed)
	committer.Wait()
	if view.Store() != state.Store(store) {
		t.Error("the view has lost its store")
	}
}

func TestPrefixRangeHoldsExactlyThePrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0xfe, 0xff}), 0, 3).Draw(t, "prefix")
		key := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0xfe, 0xff}), 0, 4).Draw(t, "key")
		has := len(key) >= len(prefix) && string(key[:len(prefix)]) == string(prefix)
		if got := state.PrefixRange(prefix).Contains(key); got != has {
			t.Fatalf("%x in the range of %x: %v", key, prefix, got)
		}
	})
}

func TestProgressSurvivesItsRecord(t *testing.T) {
	p := state.Progress{
		Epoch: 7, Recorded: 1_700_000_000_000_000, Offsets: map[string]event.Offset{"readings": 12},
		Watermark: event.WatermarkUnknown, Announced: event.WatermarkEnd, Parked: 1 << 60,
		Counters: []byte(`{"records":3}`), Mapping: "m", Member: "a.1",
	}
	raw, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s := state.NewMemory()
	apply(t, s, 1, []state.Change{{Key: []byte{state.KeyProgress}, Value: raw}})
	got, ok, err := state.ReadProgress(s)
	if err != nil || !ok || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", p) {
		t.Errorf("got %+v, %v, %v", got, ok, err)
	}
	for text, want := range map[string]error{
		fmt.Sprintf(`{"v":%d,"epoch":7}`, state.NewestFormat+1): event.ErrVersion, `{"epoch":7}`: event.ErrVersion, `{"v":1,`: event.ErrCorrupt, ``: event.ErrCorrupt,
	} {
		apply(t, s, 1, []state.Change{{Key: []byte{state.KeyProgress}, Value: []byte(text)}})
		if _, ok, err := state.ReadProgress(s); ok || !errors.Is(err, want) {
			t.Errorf("%s: %v, %v, want %v", text, ok, err, want)
		}
	}
}

// A block is a record that no broker refuses, however many ids an epoch saw; an
// id that is too large alone still goes somewhere.
func TestIDsAreSplitIntoBlocksOfBoundedSize(t *testing.T) {
	var ids []state.SeenID
	for n := range 30_000 {
		ids = append(ids, state.SeenID{ID: fmt.Sprintf("an event id of some length, number %d", n), Content: uint64(n)})
	}
	ids = append(ids, state.SeenID{ID: strings.Repeat("x", 1<<20)})
	total := 0
	for rest := ids; len(rest) > 0; {
		n := state.IDBlockFit(rest)
		if n < 1 || n > len(rest) {
			t.Fatalf("%d of %d ids fit", n, len(rest))
		}
		if size := len(state.AppendIDBlock(nil, rest[:n])); n > 1 && size > 512<<10 {
			t.Errorf("a block of %d bytes", size)
		}
		total, rest = total+n, rest[n:]
	}
	if total != len(ids) {
		t.Errorf("%d ids, want %d", total, len(ids))
	}
}

func FuzzIDBlock(f *testing.F) {
	f.Add(state.AppendIDBlock(nil, []state.SeenID{{ID: "a", Content: 1}, {ID: "", Content: 1 << 63}}))
	f.Add([]byte{1, 200})
	f.Add([]byte{2})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, block []byte) {
		s := state.NewMemory()
		err := s.Apply(&state.Batch{Changes: []state.Change{{Key: state.IDBlockKey(1, 1, 0), Value: append([]byte{}, block...)}}, Position: 1})
		if err != nil && !errors.Is(err, event.ErrCorrupt) && !errors.Is(err, event.ErrVersion) {
			t.Fatal(err)
		}
	})
}
