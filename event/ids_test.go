package event

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event/wire"
)

// Known answers of org.apache.kafka.common.utils.Utils.murmur2, from Kafka's
// own tests.
func TestMurmur2GivesWhatKafkaGives(t *testing.T) {
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
		// Java: Utils.toPositive(murmur2(key)) % partitions.
		if got, want := PartitionOf([]byte(key), 7), Partition((want&0x7fffffff)%7); got != want {
			t.Errorf("%q is in partition %s of 7, want %s", key, got, want)
		}
	}
}

func TestAKeyHasOnePartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		n := rapid.Int32Range(-1, 1000).Draw(t, "partitions")
		p := PartitionOf(key, n)
		if p < 0 || (p > 0 && int32(p) >= n) || p != PartitionOf(slices.Clone(key), n) {
			t.Fatalf("partition %s of %d", p, n)
		}
	})
}

// Ties are ordered by sequence, then the stream's rank, partition, offset and
// index, each as a number.
func TestTiesHaveOneOrder(t *testing.T) {
	ordered := []Tie{
		{Sequence: -1, Rank: 9, Partition: 9, Offset: 9, Index: 9},
		{Rank: -1, Partition: 9, Offset: 9, Index: 9},
		{Partition: -1, Offset: 9, Index: 9},
		{Offset: -1, Index: 9},
		{Index: -1}, {}, {Index: 1}, {Offset: 1}, {Offset: 10}, {Partition: 1}, {Rank: 1}, {Sequence: 1},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			want := 0
			if i != j {
				want = 1
				if i < j {
					want = -1
				}
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%+v to %+v: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestTiesAndPlacesSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tie, place := drawTie(t), drawPlace(t)
		rd := wire.NewReader(AppendPlace(AppendTie(nil, tie), place))
		if got := ReadTie(rd); got != tie {
			t.Fatalf("got %+v, want %+v", got, tie)
		}
		if got := ReadPlace(rd); got != place {
			t.Fatalf("got %+v, want %+v", got, place)
		}
		if err := rd.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Two objects never share a key: a type has no zero byte in its name.
func TestObjectKeysAreApart(t *testing.T) {
	seen := map[string]string{}
	for _, typ := range []string{"", "A", "AB"} {
		for _, id := range []string{"", "A", "B", "\x00", "\x00B"} {
			k := string(ObjectKey(typ, id))
			if other, twice := seen[k]; twice {
				t.Errorf("%s/%q and %s have one key", typ, id, other)
			}
			seen[k] = typ + "/" + id
		}
	}
}

func TestNumbersWithANameOfTheirOwnPrintIt(t *testing.T) {
	for got, want := range map[string]string{
		OffsetNone.String(): "none", Offset(0).String(): "0", Epoch(7).String(): "7", Generation(2).String(): "2",
		Partition(3).String(): "3", Place{Topic: "t", Partition: 1, Offset: 5}.String(): "t/1/5",
		WatermarkUnknown.String(): "unknown", WatermarkEnd.String(): "end", Watermark(0).String(): "1970-01-01T00:00:00Z",
		RecordedNever.String(): "never", RecordedUnknown.String(): "unknown", OpenEnd.String(): "open",
		CauseLateCorrection.String(): "late_correction", Cause(99).String(): "cause(99)",
		KindLink.String(): "link", Kind(99).String(): "kind(99)", ScalarType(99).String(): "scalar(99)",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
