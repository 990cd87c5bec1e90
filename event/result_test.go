package event

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event/wire"
)

func drawText(t *rapid.T, name string) string {
	return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x00", "\xff\xfe", "ключ"})).Draw(t, name)
}

func drawTie(t *rapid.T) Tie {
	return Tie{
		Sequence: rapid.Int64().Draw(t, "sequence"), Rank: rapid.Int32().Draw(t, "rank"),
		Partition: Partition(rapid.Int32().Draw(t, "partition")), Offset: Offset(rapid.Int64().Draw(t, "offset")),
		Index: rapid.Int32().Draw(t, "index"),
	}
}

func drawPlace(t *rapid.T) Place {
	return Place{
		Topic: drawText(t, "topic"), Partition: Partition(rapid.Int32().Draw(t, "partition")),
		Offset: Offset(rapid.Int64().Draw(t, "offset")), Timestamp: EventTime(rapid.Int64().Draw(t, "timestamp")),
	}
}

func drawResult(t *rapid.T) Result {
	r := Result{
		Kind:  rapid.SampledFrom([]RowKind{RowPut, RowWindow}).Draw(t, "kind"),
		Epoch: Epoch(rapid.Int64().Draw(t, "epoch")), Recorded: RecordedTime(rapid.Int64().Draw(t, "recorded")),
		KeyID: rapid.Uint32().Draw(t, "key id"), Type: drawText(t, "type"), ID: drawText(t, "id"), Aggregate: drawText(t, "aggregate"),
		ValidFrom: EventTime(rapid.Int64().Draw(t, "from")), ValidTo: EventTime(rapid.Int64().Draw(t, "to")),
		Version: rapid.Uint32().Draw(t, "version"), Cause: Cause(rapid.IntRange(0, 7).Draw(t, "cause")),
		Lateness: rapid.Int64().Draw(t, "lateness"), Tie: drawTie(t), Place: drawPlace(t),
	}
	for range rapid.IntRange(0, 3).Draw(t, "properties") {
		p := Property{Name: drawText(t, "name"), Value: Value{Null: rapid.Bool().Draw(t, "null")}}
		if !p.Value.Null {
			p.Value.Text = drawText(t, "text")
		}
		if state := rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "state"); len(state) > 0 {
			p.State = state
		}
		r.Properties = append(r.Properties, p)
	}
	return r
}

func drawContribution(t *rapid.T) Contribution {
	c := Contribution{
		ID: drawText(t, "id"), Time: EventTime(rapid.Int64().Draw(t, "time")), Tie: drawTie(t), Place: drawPlace(t),
	}
	for range rapid.IntRange(0, 3).Draw(t, "values") {
		s := Scalar{Type: ScalarType(rapid.IntRange(0, int(ScalarJSON)).Draw(t, "type"))}
		switch s.Type {
		case ScalarText, ScalarJSON:
			s.Text = drawText(t, "text")
		case ScalarNumber:
			s.Num = FromInt64(rapid.Int64().Draw(t, "number"))
		case ScalarBool:
			s.Bool = rapid.Bool().Draw(t, "bool")
		case ScalarAbsent, ScalarNull:
		}
		c.Values = append(c.Values, s)
	}
	return c
}

// refused asserts that an error says what the caller must do: nothing is guessed.
func refused(t fataler, what string, err error) {
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
		t.Fatalf("%s: %v, want ErrCorrupt or ErrVersion", what, err)
	}
}

func TestAResultSurvivesItsRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawResult(t)
		row := AppendResult([]byte("before"), &want)[len("before"):]
		got, err := DecodeResult(row)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
		if kind, err := RowKindOf(row); kind != want.Kind || err != nil {
			t.Fatalf("kind %d, %v", kind, err)
		}
		// A row that was cut, or has something behind it, is no row.
		cut := rapid.IntRange(0, len(row)-1).Draw(t, "cut")
		_, err = DecodeResult(row[:cut])
		refused(t, "a row cut short", err)
		_, err = DecodeResult(append(row, 0))
		refused(t, "a row with a tail", err)
	})
}

func TestAContributionSurvivesItsRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawContribution(t)
		row := AppendContribution(nil, &want)
		got, err := DecodeContribution([]byte(want.ID), row)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
		cut := rapid.IntRange(0, len(row)-1).Draw(t, "cut")
		_, err = DecodeContribution(nil, row[:cut])
		refused(t, "a row cut short", err)
		_, err = DecodeContribution(nil, append(row, 0))
		refused(t, "a row with a tail", err)
	})
}

func TestAMarkerSurvivesItsRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Marker{
			V: MarkerVersion, Stage: rapid.String().Draw(t, "stage"), Member: rapid.String().Draw(t, "member"),
			Epoch: Epoch(rapid.Int64().Draw(t, "epoch")), Recorded: RecordedTime(rapid.Int64().Draw(t, "recorded")),
		}
		for range rapid.IntRange(1, 3).Draw(t, "tasks") {
			want.Tasks = append(want.Tasks, Partition(rapid.Int32().Draw(t, "task")))
		}
		row, err := AppendMarker(nil, &want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeMarker(row)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
		_, err = DecodeMarker(row[:rapid.IntRange(0, len(row)-1).Draw(t, "cut")])
		refused(t, "a marker cut short", err)
	})
}

func TestARowOfANewerVersionIsRefusedByAll(t *testing.T) {
	r, c, m := Result{Kind: RowPut}, Contribution{}, Marker{V: MarkerVersion, Tasks: []Partition{1}}
	marker, err := AppendMarker(nil, &m)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string][]byte{
		"result": AppendResult(nil, &r), "contribution": AppendContribution(nil, &c), "marker": marker,
	} {
		for _, version := range []byte{0, RowVersion + 1, 255} {
			row := append([]byte{version}, row[1:]...)
			_, result := DecodeResult(row)
			_, contribution := DecodeContribution(nil, row)
			_, marker := DecodeMarker(row)
			_, kind := RowKindOf(row)
			for _, err := range []error{result, contribution, marker, kind} {
				if !errors.Is(err, ErrVersion) {
					t.Errorf("a %s of version %d: %v, want ErrVersion", name, version, err)
				}
			}
		}
	}
	m.V = MarkerVersion + 1
	if marker, err = AppendMarker(nil, &m); err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeMarker(marker); !errors.Is(err, ErrVersion) {
		t.Errorf("a marker of version %d: %v, want ErrVersion", m.V, err)
	}
}

func TestARowOfAnotherKindIsRefused(t *testing.T) {
	r, c, m := Result{Kind: RowWindow}, Contribution{}, Marker{V: MarkerVersion}
	result, contribution := AppendResult(nil, &r), AppendContribution(nil, &c)
	marker, err := AppendMarker(nil, &m)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range [][]byte{contribution, marker, {RowVersion, 0}, {RowVersion, 99}} {
		_, err := DecodeResult(row)
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%x as a result: %v, want ErrCorrupt", row, err)
		}
	}
	for _, row := range [][]byte{result, marker, {RowVersion, 99}} {
		if _, err := DecodeContribution(nil, row); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%x as a contribution: %v, want ErrCorrupt", row, err)
		}
	}
	for _, row := range [][]byte{result, contribution, {RowVersion, 99}} {
		if _, err := DecodeMarker(row); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%x as a marker: %v, want ErrCorrupt", row, err)
		}
	}
}

// A number that does not fit its field is not cut to fit: two rows that differ
// would read alike.
func TestARowWhoseNumberDoesNotFitIsCorrupt(t *testing.T) {
	head := AppendResultHead(nil, RowWindow, 1, 1)
	body := func(keyID, version uint64, presence byte, partition int64) []byte {
		b := wire.AppendUint(append([]byte(nil), head...), keyID)
		for range 3 {
			b = wire.AppendString(b, "x")
		}
		b = wire.AppendInt(wire.AppendInt(b, 0), 10)
		b = wire.AppendString(wire.AppendUint(b, 1), "n")
		b = wire.AppendString(append(b, presence), "5")
		b = wire.AppendBytes(b, nil)
		b = append(wire.AppendUint(b, version), byte(CauseOnTime))
		b = wire.AppendInt(b, 0)
		b = AppendTie(b, Tie{})
		b = wire.AppendInt(wire.AppendString(b, "t"), partition)
		return wire.AppendInt(wire.AppendInt(b, 0), 0)
	}
	if _, err := DecodeResult(body(1, 1, 1, 1)); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string][]byte{
		"key id":       body(1<<32, 1, 1, 1),
		"version":      body(1, 1<<32+1, 1, 1),
		"presence":     body(1, 1, 7, 1),
		"partition":    body(1, 1, 1, math.MaxInt32+1),
		"far negative": body(1, 1, 1, math.MinInt64),
	} {
		if r, err := DecodeResult(row); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %+v, %v, want ErrCorrupt", name, r, err)
		}
	}
}

func TestABooleanIsWrittenOneWay(t *testing.T) {
	c := Contribution{Values: []Scalar{{Type: ScalarBool, Bool: true}}}
	row := AppendContribution(nil, &c)
	at := 4 // version, kind, time, count
	if row[at] != byte(ScalarBool) || row[at+1] != 1 {
		t.Fatalf("the row is another than this test thinks: %x", row)
	}
	row[at+1] = 5
	if got, err := DecodeContribution(nil, row); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a boolean of 5: %+v, %v, want ErrCorrupt", got, err)
	}
}

func FuzzDecodeResult(f *testing.F) {
	r := Result{Kind: RowWindow, ID: "x", Properties: []Property{{Name: "n", Value: Value{Text: "1"}, State: []byte{1}}}}
	f.Add(AppendResult(nil, &r))
	f.Add([]byte{RowVersion, byte(RowPut), 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 127})
	f.Fuzz(func(t *testing.T, row []byte) {
		r, err := DecodeResult(row)
		if err != nil {
			refused(t, "result", err)
			return
		}
		again, err := DecodeResult(AppendResult(nil, &r))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v, %v, want %+v", again, err, r)
		}
	})
}

func FuzzDecodeContribution(f *testing.F) {
	c := Contribution{Values: []Scalar{
		{Type: ScalarText, Text: "x"}, {Type: ScalarBool, Bool: true}, {Type: ScalarNumber, Num: mustDecimal(f, "-123456789012345678901234567890.5")},
	}}
	f.Add([]byte("id"), AppendContribution(nil, &c))
	f.Fuzz(func(t *testing.T, key, row []byte) {
		c, err := DecodeContribution(key, row)
		if err != nil {
			refused(t, "contribution", err)
			return
		}
		encoded := AppendContribution(nil, &c)
		again, err := DecodeContribution(key, encoded)
		if err != nil || string(AppendContribution(nil, &again)) != string(encoded) {
			t.Fatalf("%+v, %v, want %+v", again, err, c)
		}
	})
}

func FuzzDecodeMarker(f *testing.F) {
	m := Marker{V: MarkerVersion, Stage: "s", Epoch: 3, Tasks: []Partition{0, 1}}
	row, err := AppendMarker(nil, &m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(row)
	f.Fuzz(func(t *testing.T, row []byte) {
		m, err := DecodeMarker(row)
		if err != nil {
			refused(t, "marker", err)
			return
		}
		encoded, err := AppendMarker(nil, &m)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := DecodeMarker(encoded); err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v, %v, want %+v", again, err, m)
		}
	})
}
