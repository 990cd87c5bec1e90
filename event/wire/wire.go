// Package wire is the binary encoding under Strom's record formats: unsigned
// and zigzag varints, and byte strings with their length before them.
//
// A Reader never panics and never allocates more than its input holds: it
// keeps its first error, gives zero values from then on, and Close reports the
// error or bytes left over.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrTruncated says that the input ended inside a value.
var ErrTruncated = errors.New("truncated")

// AppendUint appends v as an unsigned varint.
func AppendUint(dst []byte, v uint64) []byte { return binary.AppendUvarint(dst, v) }

// AppendInt appends v as a zigzag varint.
func AppendInt(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }

// AppendString appends the length of s and its bytes.
func AppendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// AppendBytes appends the length of b and its bytes.
func AppendBytes(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// AppendOrdered64 appends v so that bytewise order is numeric order.
func AppendOrdered64(dst []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(v)^(1<<63))
}

// Ordered64 reads what AppendOrdered64 wrote from the first eight bytes of b.
func Ordered64(b []byte) int64 { return int64(binary.BigEndian.Uint64(b) ^ (1 << 63)) }

// Reader reads one encoded record. Its zero value reads nothing.
type Reader struct {
	buf []byte
	err error
	// text is a copy of all that there is to read; empty: each text is its own.
	text string
}

// NewReader returns a Reader over b. Byte slices that it returns alias b.
func NewReader(b []byte) *Reader { return &Reader{buf: b} }

// ShareTexts makes the texts that are read from now on parts of one copy of
// what is left to read, for records that are mostly text: one allocation
// instead of one for each, and whoever keeps one text keeps all.
func (r *Reader) ShareTexts() { r.text = string(r.buf) }

func (r *Reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.buf = nil
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if len(r.buf) == 0 {
		r.fail(ErrTruncated)
		return 0
	}
	b := r.buf[0]
	r.buf = r.buf[1:]
	return b
}

// Uint reads an unsigned varint.
func (r *Reader) Uint() uint64 {
	v, n := binary.Uvarint(r.buf)
	if n <= 0 {
		r.fail(ErrTruncated)
		return 0
	}
	r.buf = r.buf[n:]
	return v
}

// Int reads a zigzag varint.
func (r *Reader) Int() int64 {
	v, n := binary.Varint(r.buf)
	if n <= 0 {
		r.fail(ErrTruncated)
		return 0
	}
	r.buf = r.buf[n:]
	return v
}

// errRange says that a number does not fit where it stands.
var errRange = errors.New("number out of range")

// Bool reads a byte that is 0 or 1.
func (r *Reader) Bool() bool {
	b := r.Byte()
	if b > 1 {
		r.fail(errRange)
	}
	return b == 1
}

// Uint32 reads an unsigned varint of at most 32 bits.
func (r *Reader) Uint32() uint32 {
	v := r.Uint()
	if v > math.MaxUint32 {
		r.fail(errRange)
		return 0
	}
	return uint32(v)
}

// Int32 reads a zigzag varint of at most 32 bits.
func (r *Reader) Int32() int32 {
	v := r.Int()
	if v != int64(int32(v)) {
		r.fail(errRange)
		return 0
	}
	return int32(v)
}

// Bytes reads a byte string; the result aliases the input.
func (r *Reader) Bytes() []byte {
	n := r.Uint()
	if n > uint64(len(r.buf)) {
		r.fail(ErrTruncated)
		return nil
	}
	b := r.buf[:n:n]
	r.buf = r.buf[n:]
	return b
}

// String reads a byte string as a string of its own, but see ShareTexts.
func (r *Reader) String() string {
	b := r.Bytes()
	if r.text == "" {
		return string(b)
	}
	end := len(r.text) - len(r.buf)
	return r.text[end-len(b) : end]
}

// Count reads a number of elements, each of at least one byte, so that a
// corrupt count cannot make the caller allocate more than the input holds.
func (r *Reader) Count() int {
	n := r.Uint()
	if n > uint64(len(r.buf)) {
		r.fail(ErrTruncated)
		return 0
	}
	return int(n)
}

// Len returns the number of bytes not read yet.
func (r *Reader) Len() int { return len(r.buf) }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Close returns the first error, or an error when bytes are left over.
func (r *Reader) Close() error {
	if r.err != nil {
		return r.err
	}
	if len(r.buf) != 0 {
		return fmt.Errorf("%d bytes left over", len(r.buf))
	}
	return nil
}
