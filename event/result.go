package event

import (
	"fmt"

	"github.com/forge-platform/strom/event/wire"
)

// RowVersion is the version of the binary formats in the results and
// repartition topics: the first byte of every value there.
const RowVersion = 1

// RowKind is the second byte of a value in a results or repartition topic.
type RowKind uint8

// The kinds of rows. The numbers are stored; they never change their meaning.
const (
	// RowPut: an event sets properties of an object from its valid time on.
	RowPut RowKind = 1
	// RowWindow: the absolute values of one window of an aggregate.
	RowWindow RowKind = 2
	// RowMarker: a barrier's marker, see Marker.
	RowMarker RowKind = 3
	// RowContribution: what one event adds to an aggregate, in a repartition
	// topic, see Contribution.
	RowContribution RowKind = 4
)

// Property is one named value in a Result.
type Property struct {
	Name  string
	Value Value
	// State is the accumulator behind Value where Value alone does not
	// suffice to go on counting (avg: sum and count); empty otherwise.
	State []byte
}

// Result is one row of a results topic: what an epoch says about one object.
//
// A put asserts each of its properties from ValidFrom until the next put in
// valid time; ValidTo is OpenEnd. A window asserts its properties over
// [ValidFrom, ValidTo), absolutely: it replaces what was believed of that
// window before.
type Result struct {
	Kind  RowKind
	Epoch Epoch
	// Recorded is R(Epoch), so that a row can be applied before its marker.
	Recorded RecordedTime
	// KeyID is reserved for the key that personal data in this row is
	// encrypted with; 0 means none.
	KeyID uint32

	Type string // object type
	ID   string // object id
	// Aggregate is the aggregate's name for a window, empty for a put. A
	// window's property is known in the ontology as "<aggregate>.<name>".
	Aggregate string

	ValidFrom  EventTime
	ValidTo    EventTime
	Properties []Property

	// Version counts a window's published results from 1, without a gap; 0
	// for a put.
	Version uint32
	Cause   Cause
	// Lateness says by how much the event that caused this row came after the
	// watermark, in microseconds; 0 for on time.
	Lateness int64
	Tie      Tie
	// Place is where the event that caused this row stood: the event itself
	// for a put, the last one counted for a window.
	Place Place
}

// AppendResult appends the encoding of r.
func AppendResult(dst []byte, r *Result) []byte {
	return AppendResultBody(AppendResultHead(dst, r.Kind, r.Epoch, r.Recorded), r)
}

// AppendResultHead appends the part of a result that is known only at the
// barrier; AppendResultBody appends the rest, which does not depend on it.
func AppendResultHead(dst []byte, kind RowKind, n Epoch, at RecordedTime) []byte {
	dst = append(dst, RowVersion, byte(kind))
	dst = wire.AppendInt(dst, int64(n))
	return wire.AppendInt(dst, int64(at))
}

// AppendResultBody appends what follows the head.
func AppendResultBody(dst []byte, r *Result) []byte {
	dst = wire.AppendUint(dst, uint64(r.KeyID))
	dst = wire.AppendString(dst, r.Type)
	dst = wire.AppendString(dst, r.ID)
	dst = wire.AppendString(dst, r.Aggregate)
	dst = wire.AppendInt(dst, int64(r.ValidFrom))
	dst = wire.AppendInt(dst, int64(r.ValidTo))
	dst = wire.AppendUint(dst, uint64(len(r.Properties)))
	for i := range r.Properties {
		p := &r.Properties[i]
		dst = wire.AppendString(dst, p.Name)
		if p.Value.Null {
			dst = append(dst, 0)
		} else {
			dst = append(dst, 1)
			dst = wire.AppendString(dst, p.Value.Text)
		}
		dst = wire.AppendBytes(dst, p.State)
	}
	dst = wire.AppendUint(dst, uint64(r.Version))
	dst = append(dst, byte(r.Cause))
	dst = wire.AppendInt(dst, r.Lateness)
	dst = appendTie(dst, r.Tie)
	return appendPlace(dst, r.Place)
}

// DecodeResult decodes a put or a window row.
func DecodeResult(b []byte) (Result, error) {
	var r Result
	kind, rd, err := openRow(b)
	if err != nil {
		return r, err
	}
	if kind != RowPut && kind != RowWindow {
		return r, fmt.Errorf("%w: row kind %d is not a result", ErrCorrupt, kind)
	}
	r.Kind = kind
	r.Epoch = Epoch(rd.Int())
	r.Recorded = RecordedTime(rd.Int())
	r.KeyID = rd.Uint32()
	rd.ShareTexts()
	r.Type, r.ID, r.Aggregate = rd.String(), rd.String(), rd.String()
	r.ValidFrom, r.ValidTo = EventTime(rd.Int()), EventTime(rd.Int())
	if n := rd.Count(); n > 0 {
		r.Properties = make([]Property, n)
	}
	for i := range r.Properties {
		p := &r.Properties[i]
		p.Name = rd.String()
		if rd.Bool() {
			p.Value.Text = rd.String()
		} else {
			p.Value.Null = true
		}
		if s := rd.Bytes(); len(s) > 0 {
			p.State = append([]byte(nil), s...)
		}
	}
	r.Version = rd.Uint32()
	r.Cause = Cause(rd.Byte())
	r.Lateness = rd.Int()
	r.Tie = readTie(rd)
	r.Place = readPlace(rd)
	return r, closeRow(rd)
}

// RowKindOf returns the kind of a row without decoding the rest of it.
func RowKindOf(b []byte) (RowKind, error) {
	kind, _, err := openRow(b)
	return kind, err
}

// ObjectKey is the Kafka key of a result row, and what decides its results
// partition: all rows of one object go to one partition.
func ObjectKey(objectType, id string) []byte {
	return AppendObjectKey(make([]byte, 0, len(objectType)+1+len(id)), objectType, id)
}

// AppendObjectKey appends what ObjectKey gives.
func AppendObjectKey(dst []byte, objectType, id string) []byte {
	dst = append(dst, objectType...)
	dst = append(dst, 0)
	return append(dst, id...)
}

// Contribution is what one event adds to one aggregate: the row of a
// repartition topic, and what an aggregate task counts. Its Kafka key is ID.
type Contribution struct {
	ID   string // id of the object that the aggregate belongs to
	Time EventTime
	// Values are the inputs of the aggregate's functions, in the order of the
	// plan; a function without an input (count()) has none here.
	Values []Scalar
	Tie    Tie
	Place  Place
}

// AppendContribution appends the encoding of c without its ID, which is the
// record's key.
func AppendContribution(dst []byte, c *Contribution) []byte {
	dst = append(dst, RowVersion, byte(RowContribution))
	dst = wire.AppendInt(dst, int64(c.Time))
	dst = wire.AppendUint(dst, uint64(len(c.Values)))
	for i := range c.Values {
		dst = appendScalar(dst, &c.Values[i])
	}
	dst = appendTie(dst, c.Tie)
	return appendPlace(dst, c.Place)
}

// DecodeContribution decodes a row of a repartition topic.
func DecodeContribution(key, b []byte) (Contribution, error) {
	c := Contribution{ID: string(key)}
	kind, rd, err := openRow(b)
	if err != nil {
		return c, err
	}
	if kind != RowContribution {
		return c, fmt.Errorf("%w: row kind %d is not a contribution", ErrCorrupt, kind)
	}
	c.Time = EventTime(rd.Int())
	if n := rd.Count(); n > 0 {
		c.Values = make([]Scalar, n)
	}
	for i := range c.Values {
		if c.Values[i], err = readScalar(rd); err != nil {
			return c, err
		}
	}
	c.Tie = readTie(rd)
	c.Place = readPlace(rd)
	return c, closeRow(rd)
}

func appendScalar(dst []byte, s *Scalar) []byte {
	dst = append(dst, byte(s.Type))
	switch s.Type {
	case ScalarText, ScalarJSON:
		return wire.AppendString(dst, s.Text)
	case ScalarNumber:
		return AppendDecimal(dst, s.Num)
	case ScalarBool:
		if s.Bool {
			return append(dst, 1)
		}
		return append(dst, 0)
	case ScalarAbsent, ScalarNull:
	}
	return dst
}

func readScalar(rd *wire.Reader) (Scalar, error) {
	s := Scalar{Type: ScalarType(rd.Byte())}
	switch s.Type {
	case ScalarText, ScalarJSON:
		s.Text = rd.String()
	case ScalarNumber:
		n, err := ReadDecimal(rd)
		if err != nil && rd.Err() == nil {
			return s, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		s.Num = n
	case ScalarBool:
		s.Bool = rd.Bool()
	case ScalarAbsent, ScalarNull:
	default:
		return s, fmt.Errorf("%w: scalar type %d", ErrCorrupt, s.Type)
	}
	return s, nil
}

func appendTie(dst []byte, t Tie) []byte {
	dst = wire.AppendInt(dst, t.Sequence)
	dst = wire.AppendInt(dst, int64(t.Rank))
	dst = wire.AppendInt(dst, int64(t.Partition))
	dst = wire.AppendInt(dst, int64(t.Offset))
	return wire.AppendInt(dst, int64(t.Index))
}

func readTie(rd *wire.Reader) Tie {
	return Tie{
		Sequence:  rd.Int(),
		Rank:      rd.Int32(),
		Partition: Partition(rd.Int32()),
		Offset:    Offset(rd.Int()),
		Index:     rd.Int32(),
	}
}

func appendPlace(dst []byte, p Place) []byte {
	dst = wire.AppendString(dst, p.Topic)
	dst = wire.AppendInt(dst, int64(p.Partition))
	dst = wire.AppendInt(dst, int64(p.Offset))
	return wire.AppendInt(dst, int64(p.Timestamp))
}

func readPlace(rd *wire.Reader) Place {
	return Place{
		Topic:     rd.String(),
		Partition: Partition(rd.Int32()),
		Offset:    Offset(rd.Int()),
		Timestamp: EventTime(rd.Int()),
	}
}

// AppendPlace and AppendTie, with their readers, serve the other formats of
// Strom that carry a place or a tie (state entries).
func AppendPlace(dst []byte, p Place) []byte { return appendPlace(dst, p) }

// ReadPlace reads what AppendPlace wrote.
func ReadPlace(rd *wire.Reader) Place { return readPlace(rd) }

// AppendTie appends the encoding of t.
func AppendTie(dst []byte, t Tie) []byte { return appendTie(dst, t) }

// ReadTie reads what AppendTie wrote.
func ReadTie(rd *wire.Reader) Tie { return readTie(rd) }

func openRow(b []byte) (RowKind, *wire.Reader, error) {
	if len(b) < 2 {
		return 0, nil, fmt.Errorf("%w: a row of %d bytes", ErrCorrupt, len(b))
	}
	if b[0] != RowVersion {
		return 0, nil, fmt.Errorf("%w: row version %d, this build knows %d", ErrVersion, b[0], RowVersion)
	}
	return RowKind(b[1]), wire.NewReader(b[2:]), nil
}

func closeRow(rd *wire.Reader) error {
	if err := rd.Close(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}
