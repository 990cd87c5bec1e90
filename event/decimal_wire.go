package event

import (
	"fmt"

	"github.com/cockroachdb/apd/v3"

	"github.com/forge-platform/strom/event/wire"
)

// The two lowest bits of the head of an encoded Decimal; the others hold the
// scale. The numbers are stored; they never change their meaning.
const (
	decimalNarrow   = 0 // a zigzag varint follows
	decimalWide     = 1 // the magnitude follows, big-endian, with its length
	decimalWideLess = 2 // the same of a negative number
)

// AppendDecimal appends the binary encoding of d. It is shorter than the text
// and reads faster; equal numbers have equal bytes.
func AppendDecimal(dst []byte, d Decimal) []byte {
	head := uint64(d.scale) << 2
	if d.wide == nil {
		dst = wire.AppendUint(dst, head|decimalNarrow)
		return wire.AppendInt(dst, d.coef)
	}
	if d.wide.Sign() < 0 {
		head |= decimalWideLess
	} else {
		head |= decimalWide
	}
	dst = wire.AppendUint(dst, head)
	return wire.AppendBytes(dst, d.wide.Bytes())
}

// ReadDecimal reads what AppendDecimal wrote. It refuses, with ErrCorrupt,
// whatever AppendDecimal would not have written, so that equal numbers keep
// one representation.
func ReadDecimal(rd *wire.Reader) (Decimal, error) {
	head := rd.Uint()
	scale := head >> 2
	var d Decimal
	switch head & 3 {
	case decimalNarrow:
		d = Decimal{coef: rd.Int(), scale: int32(min(scale, maxCanonical))}
		if d.scale > 0 && d.coef%10 == 0 && rd.Err() == nil {
			return Decimal{}, fmt.Errorf("%w: a decimal that is not in lowest terms", ErrCorrupt)
		}
	case decimalWide, decimalWideLess:
		b := rd.Bytes()
		if len(b) > maxCanonical/2 { // a byte holds more than two digits
			return Decimal{}, fmt.Errorf("%w: a decimal of %d bytes", ErrCorrupt, len(b))
		}
		x := new(apd.BigInt).SetBytes(b)
		if head&3 == decimalWideLess {
			x.Neg(x)
		}
		d = lowest(x, int32(min(scale, maxCanonical)))
		if (d.wide == nil || uint64(d.scale) != scale || b[0] == 0) && rd.Err() == nil {
			return Decimal{}, fmt.Errorf("%w: a decimal that is not in lowest terms", ErrCorrupt)
		}
	default:
		return Decimal{}, fmt.Errorf("%w: a decimal of kind %d", ErrCorrupt, head&3)
	}
	if err := rd.Err(); err != nil {
		return Decimal{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if scale > maxCanonical {
		return Decimal{}, fmt.Errorf("%w: a decimal with %d digits after the point", ErrCorrupt, scale)
	}
	return d, nil
}
