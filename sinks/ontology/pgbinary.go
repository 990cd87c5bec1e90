package ontology

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/forge-platform/strom/event"
)

// The hot statements speak PostgreSQL's binary format directly: array
// parameters, rows of COPY, and the columns of an answer are each a few bytes,
// and a driver's general path costs more than the database.

// pgEpoch is 2000-01-01 in Unix microseconds, where timestamptz counts from.
const pgEpoch = 946684800 * 1_000_000

// pgInstant converts Unix microseconds; the ends of the range are infinities.
func pgInstant(micros int64) uint64 {
	switch micros {
	case math.MaxInt64, math.MinInt64:
		return uint64(micros) // infinity, -infinity
	}
	return uint64(micros - pgEpoch)
}

func fromInstant(v uint64) int64 {
	switch m := int64(v); m {
	case math.MaxInt64, math.MinInt64:
		return m
	default:
		return m + pgEpoch
	}
}

// fields appends the fields of one row, each with its length before it: the
// body of a COPY row, or the elements of one array.
type fields []byte

func (f *fields) null()        { *f = binary.BigEndian.AppendUint32(*f, math.MaxUint32) }
func (f *fields) length(n int) { *f = binary.BigEndian.AppendUint32(*f, uint32(n)) }

func (f *fields) int2(v int16) {
	f.length(2)
	*f = binary.BigEndian.AppendUint16(*f, uint16(v))
}

func (f *fields) int4(v int32) {
	f.length(4)
	*f = binary.BigEndian.AppendUint32(*f, uint32(v))
}

func (f *fields) int8(v int64) {
	f.length(8)
	*f = binary.BigEndian.AppendUint64(*f, uint64(v))
}

func (f *fields) instant(micros int64) {
	f.length(8)
	*f = binary.BigEndian.AppendUint64(*f, pgInstant(micros))
}

func (f *fields) bool(v bool) {
	f.length(1)
	if v {
		*f = append(*f, 1)
		return
	}
	*f = append(*f, 0)
}

func (f *fields) text(s string) {
	f.length(len(s))
	*f = append(*f, s...)
}

func (f *fields) value(v event.Value) {
	if v.Null {
		f.null()
		return
	}
	f.text(v.Text)
}

func (f *fields) bytes(b []byte) {
	if len(b) == 0 {
		f.null()
		return
	}
	f.length(len(b))
	*f = append(*f, b...)
}

// array is one array parameter: add one field, then count it with next.
type array struct {
	fields
	n int
}

// param gives the parameter: one dimension from 1, elements may be null.
func (a *array) param(oid uint32) []byte {
	out := make([]byte, 0, 20+len(a.fields))
	if a.n == 0 {
		out = binary.BigEndian.AppendUint32(out, 0)
		out = binary.BigEndian.AppendUint32(out, 0)
		return binary.BigEndian.AppendUint32(out, oid)
	}
	out = binary.BigEndian.AppendUint32(out, 1)
	out = binary.BigEndian.AppendUint32(out, 1)
	out = binary.BigEndian.AppendUint32(out, oid)
	out = binary.BigEndian.AppendUint32(out, uint32(a.n))
	out = binary.BigEndian.AppendUint32(out, 1)
	return append(out, a.fields...)
}

// arrays are the parallel array parameters of an unnest.
type arrays struct {
	cols []array
	oids []uint32
}

func newArrays(oids ...uint32) *arrays { return &arrays{cols: make([]array, len(oids)), oids: oids} }

// next gives the columns, to which exactly one field each is to be added.
func (a *arrays) next() []array {
	for i := range a.cols {
		a.cols[i].n++
	}
	return a.cols
}

func (a *arrays) len() int { return a.cols[0].n }

func (a *arrays) params() [][]byte {
	out := make([][]byte, len(a.cols))
	for i := range a.cols {
		out[i] = a.cols[i].param(a.oids[i])
	}
	return out
}

func (a *arrays) reset() {
	for i := range a.cols {
		a.cols[i].n = 0
		a.cols[i].fields = a.cols[i].fields[:0]
	}
}

func int4Param(v int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }

// columns reads the fields of one row of an answer, in order. It keeps its
// first error.
type columns struct {
	values [][]byte
	i      int
	err    error
}

func (c *columns) field(size int) []byte {
	if c.err != nil {
		return nil
	}
	if c.i >= len(c.values) {
		c.err = fmt.Errorf("answer has %d columns", len(c.values))
		return nil
	}
	v := c.values[c.i]
	c.i++
	if v != nil && size >= 0 && len(v) != size {
		c.err = fmt.Errorf("column %d has %d bytes, not %d", c.i, len(v), size)
		return nil
	}
	return v
}

func (c *columns) int2() int16 {
	if v := c.field(2); v != nil {
		return int16(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (c *columns) int4() int32 {
	if v := c.field(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

func (c *columns) int8() int64 {
	if v := c.field(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

// nullInt8 also says whether there was a number.
func (c *columns) nullInt8() (int64, bool) {
	v := c.field(8)
	if v == nil {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(v)), true
}

func (c *columns) instant() int64 {
	if v := c.field(8); v != nil {
		return fromInstant(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (c *columns) bool() bool {
	v := c.field(1)
	return len(v) == 1 && v[0] != 0
}

func (c *columns) text() string { return string(c.field(-1)) }

func (c *columns) value() event.Value {
	v := c.field(-1)
	if v == nil {
		return event.Value{Null: true}
	}
	return event.Value{Text: string(v)}
}

// bytes copies: the answer's buffer is used again.
func (c *columns) bytes() []byte {
	v := c.field(-1)
	if len(v) == 0 {
		return nil
	}
	return append([]byte(nil), v...)
}

// The types of array elements.
const (
	oidInt2    = pgtype.Int2OID
	oidInt4    = pgtype.Int4OID
	oidInt8    = pgtype.Int8OID
	oidBool    = pgtype.BoolOID
	oidText    = pgtype.TextOID
	oidBytea   = pgtype.ByteaOID
	oidInstant = pgtype.TimestamptzOID
)
