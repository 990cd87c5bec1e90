package wire_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event/wire"
)

func TestWhatIsAppendedIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := rapid.OneOf(rapid.Uint64(), rapid.Just(uint64(math.MaxUint64))).Draw(t, "uint")
		i := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64})).Draw(t, "int")
		s, b := rapid.String().Draw(t, "string"), rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		encoded := wire.AppendBytes(wire.AppendString(wire.AppendInt(wire.AppendUint(nil, u), i), s), b)
		share := rapid.Bool().Draw(t, "share texts")
		reader := func(b []byte) *wire.Reader {
			rd := wire.NewReader(b)
			if share {
				rd.ShareTexts()
			}
			return rd
		}
		rd := reader(append(encoded, 7))
		if gu, gi, gs, gb := rd.Uint(), rd.Int(), rd.String(), rd.Bytes(); gu != u || gi != i || gs != s || !bytes.Equal(gb, b) {
			t.Fatalf("got %d %d %q %x, want %d %d %q %x", gu, gi, gs, gb, u, i, s, b)
		}
		if rd.Len() != 1 || rd.Err() != nil || rd.Close() == nil {
			t.Fatalf("%d bytes are left, %v, close: %v", rd.Len(), rd.Err(), rd.Close())
		}
		if rd.Byte() != 7 || rd.Close() != nil {
			t.Fatalf("close: %v", rd.Close())
		}
		// Cut anywhere, the end of the input is an error that stays.
		rd = reader(encoded[:rapid.IntRange(0, len(encoded)-1).Draw(t, "cut")])
		rd.Uint()
		rd.Int()
		_, _ = rd.String(), rd.Bytes()
		if !errors.Is(rd.Err(), wire.ErrTruncated) || !errors.Is(rd.Close(), wire.ErrTruncated) {
			t.Fatalf("error %v, close %v, want ErrTruncated", rd.Err(), rd.Close())
		}
		if rd.Uint() != 0 || rd.Int() != 0 || rd.Byte() != 0 || rd.String() != "" || rd.Bytes() != nil || rd.Count() != 0 || rd.Len() != 0 {
			t.Fatal("a reader that has failed gives something")
		}
	})
}

func TestOrderedNumbersSortAsNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ends := rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, math.MaxInt64})
		a := rapid.OneOf(rapid.Int64(), ends).Draw(t, "a")
		b := rapid.OneOf(rapid.Int64(), ends).Draw(t, "b")
		ka, kb := wire.AppendOrdered64(nil, a), wire.AppendOrdered64(nil, b)
		if wire.Ordered64(ka) != a || (bytes.Compare(ka, kb) < 0) != (a < b) || bytes.Equal(ka, kb) != (a == b) {
			t.Fatalf("%d is %x, %d is %x", a, ka, b, kb)
		}
	})
}

// A corrupt length or count cannot make anybody allocate more than the input
// holds, nor reach behind it.
func TestALengthBeyondTheInputIsRefused(t *testing.T) {
	for _, n := range []uint64{4, 1 << 31, 1 << 32, 1 << 63, math.MaxUint64} {
		encoded := append(wire.AppendUint(nil, n), 1, 2, 3)
		rd := wire.NewReader(encoded)
		if b := rd.Bytes(); b != nil || !errors.Is(rd.Err(), wire.ErrTruncated) {
			t.Errorf("a string of %d bytes: %x, %v", n, b, rd.Err())
		}
		rd = wire.NewReader(encoded)
		if c := rd.Count(); c != 0 || !errors.Is(rd.Err(), wire.ErrTruncated) {
			t.Errorf("%d elements: %d, %v", n, c, rd.Err())
		}
	}
	rd := wire.NewReader(append(wire.AppendUint(nil, 3), 1, 2, 3))
	if c := rd.Count(); c != 3 || rd.Err() != nil {
		t.Errorf("3 elements: %d, %v", c, rd.Err())
	}
}

func TestBytesDoNotReachIntoTheirNeighbour(t *testing.T) {
	encoded := wire.AppendString(wire.AppendBytes(nil, []byte("ab")), "cd")
	rd := wire.NewReader(encoded)
	b := append(rd.Bytes(), 'X', 'Y', 'Z')
	if s := rd.String(); s != "cd" || string(b) != "abXYZ" {
		t.Errorf("%q, then %q", b, s)
	}
}

func TestTheZeroReaderReadsNothing(t *testing.T) {
	var rd wire.Reader
	if err := rd.Close(); err != nil || rd.Len() != 0 {
		t.Errorf("%d bytes, %v", rd.Len(), err)
	}
	rd.Byte()
	if !errors.Is(rd.Err(), wire.ErrTruncated) {
		t.Errorf("error %v", rd.Err())
	}
}

// FuzzReader reads anything in any order: it must not panic, gives nothing once
// it has failed, and never more than its input holds.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5}, []byte{1, 2, 3, 'a', 'b', 'c', 0xff})
	f.Add([]byte{1, 2}, bytes.Repeat([]byte{0xff}, 11))
	f.Add([]byte{3, 5}, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01})
	f.Fuzz(func(t *testing.T, calls, input []byte) {
		rd := wire.NewReader(input)
		for _, call := range calls {
			before, failed := rd.Len(), rd.Err()
			n := 0
			switch call % 6 {
			case 0:
				rd.Byte()
			case 1:
				rd.Uint()
			case 2:
				rd.Int()
			case 3:
				n = len(rd.Bytes())
			case 4:
				n = len(rd.String())
			case 5:
				n = rd.Count()
			}
			if n > before || rd.Len() > before || (failed != nil && !errors.Is(rd.Err(), failed)) {
				t.Fatalf("call %d: %d of %d bytes, then %d, error %v after %v", call, n, before, rd.Len(), rd.Err(), failed)
			}
			if rd.Err() != nil && rd.Len() != 0 {
				t.Fatalf("%d bytes after %v", rd.Len(), rd.Err())
			}
		}
	})
}
