package event

import (
	"math"
	"math/bits"
	"strconv"

	"github.com/cockroachdb/apd/v3"
)

// Decimal is an exact decimal number: a coefficient times a power of ten. It
// is what numbers of events are read as, and what sums are made of.
//
// Contract
//
//  1. Add, Sub, Neg and MulInt are exact: they never wrap, saturate or round.
//     What does not fit 64 bits widens to a coefficient of any size, and
//     narrows again when a result fits. Only Div rounds, and says how.
//  2. A Decimal is always in lowest terms (see the invariants at the fields),
//     so equal numbers have one representation and one text: 5.50 is 5.5, -0
//     is 0, 1e2 is 100.
//  3. A Decimal is a value that is never changed in place: copies may be kept,
//     shared and read by many goroutines. It does not alias the text that it
//     was parsed from.
//  4. As long as coefficients fit 64 bits nothing allocates but text.
//
// Compare with Equal or Cmp: == compares the address of a wide coefficient.
// The zero value is the number 0.
type Decimal struct {
	// The number is coefficient × 10^-scale, where the coefficient is wide if
	// that is not nil, else coef.
	//
	//	scale >= 0
	//	scale == 0  ||  coefficient % 10 != 0
	//	wide == nil ||  coef == 0 && wide does not fit an int64
	wide  *apd.BigInt
	coef  int64
	scale int32
}

// divDigits is the number of significant digits that Div rounds to.
const divDigits = 20

// The powers of ten that fit an int64.
var pow10 = [...]int64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9,
	1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
}

// FromInt64 returns the number n.
func FromInt64(n int64) Decimal { return Decimal{coef: n} }

// Int64 returns the number as an int64; exact is false, and the value 0, when
// it has digits after the point or does not fit.
func (d Decimal) Int64() (v int64, exact bool) {
	if d.wide != nil || d.scale != 0 {
		return 0, false
	}
	return d.coef, true
}

// Float64 returns the nearest float64, ties to even; ±Inf beyond its range.
func (d Decimal) Float64() float64 {
	// A quotient of two floats that are exact is rounded once, so it is right.
	const exact = 1 << 53
	if d.wide == nil && d.coef > -exact && d.coef < exact && int(d.scale) < len(pow10) {
		return float64(d.coef) / float64(pow10[d.scale])
	}
	// The only error is a range error, and its value is the right infinity.
	f, _ := strconv.ParseFloat(d.String(), 64)
	return f
}

// Sign returns -1, 0 or +1.
func (d Decimal) Sign() int {
	switch {
	case d.wide != nil:
		return d.wide.Sign()
	case d.coef < 0:
		return -1
	case d.coef > 0:
		return 1
	}
	return 0
}

// IsZero reports whether the number is 0.
func (d Decimal) IsZero() bool { return d.wide == nil && d.coef == 0 }

// IsInteger reports whether nothing stands after the point; 2.0 is an integer.
func (d Decimal) IsInteger() bool { return d.scale == 0 }

// Equal reports whether d and e are the same number.
func (d Decimal) Equal(e Decimal) bool {
	if d.scale != e.scale || d.coef != e.coef {
		return false
	}
	if d.wide == nil || e.wide == nil {
		return d.wide == e.wide
	}
	return d.wide.Cmp(e.wide) == 0
}

// Cmp returns -1, 0 or +1 as d is less than, equal to or greater than e.
func (d Decimal) Cmp(e Decimal) int {
	if d.wide != nil || e.wide != nil {
		return cmpWide(d, e)
	}
	if d.scale == e.scale {
		return cmpInt64(d.coef, e.coef)
	}
	if s, t := d.Sign(), e.Sign(); s != t {
		return cmpInt64(int64(s), int64(t))
	}
	// Equal signs, and neither is 0: 0 has scale 0 and no sign of its own.
	c := cmpMagnitude(magnitude(d.coef), d.scale, magnitude(e.coef), e.scale)
	if d.coef < 0 {
		return -c
	}
	return c
}

func cmpInt64(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// cmpMagnitude compares a×10^-s with b×10^-t for different scales and a, b > 0.
func cmpMagnitude(a uint64, s int32, b uint64, t int32) int {
	if s < t {
		return -cmpMagnitude(b, t, a, s)
	}
	// b stands s-t places further left.
	if int(s-t) >= len(pow10) {
		if s-t > 19 {
			return -1 // b×10^20 > 2^64 > a
		}
		hi, lo := bits.Mul64(b, 1e19)
		return cmpUint128(0, a, hi, lo)
	}
	hi, lo := bits.Mul64(b, uint64(pow10[s-t]))
	return cmpUint128(0, a, hi, lo)
}

func cmpUint128(aHi, aLo, bHi, bLo uint64) int {
	if aHi != bHi {
		if aHi < bHi {
			return -1
		}
		return 1
	}
	switch {
	case aLo < bLo:
		return -1
	case aLo > bLo:
		return 1
	}
	return 0
}

func cmpWide(d, e Decimal) int {
	if s, t := d.Sign(), e.Sign(); s != t {
		return cmpInt64(int64(s), int64(t))
	}
	scale := max(d.scale, e.scale)
	return d.coefAt(scale).Cmp(e.coefAt(scale))
}

// Add returns d + e.
func (d Decimal) Add(e Decimal) Decimal {
	if d.wide == nil && e.wide == nil {
		if d.scale == e.scale {
			if s, ok := addInt64(d.coef, e.coef); ok {
				return narrow(s, d.scale)
			}
		} else if r, ok := addAligned(d, e); ok {
			return r
		}
	}
	scale := max(d.scale, e.scale)
	return lowest(new(apd.BigInt).Add(d.coefAt(scale), e.coefAt(scale)), scale)
}

// addAligned adds numbers of different scales, if that fits 64 bits.
func addAligned(d, e Decimal) (Decimal, bool) {
	if d.scale < e.scale {
		d, e = e, d
	}
	diff := d.scale - e.scale
	if e.coef == 0 {
		return d, true
	}
	if int(diff) >= len(pow10) {
		return Decimal{}, false
	}
	m, ok := mulInt64(e.coef, pow10[diff])
	if !ok {
		return Decimal{}, false
	}
	s, ok := addInt64(d.coef, m)
	// Already in lowest terms: the last digit is that of d, which is not 0.
	return Decimal{coef: s, scale: d.scale}, ok
}

// Sub returns d - e.
func (d Decimal) Sub(e Decimal) Decimal { return d.Add(e.Neg()) }

// Neg returns -d.
func (d Decimal) Neg() Decimal {
	if d.wide == nil && d.coef != math.MinInt64 {
		d.coef = -d.coef
		return d
	}
	// -(2^63) narrows and 2^63 widens: both are decided by lowest.
	return lowest(new(apd.BigInt).Neg(d.coefAt(d.scale)), d.scale)
}

// MulInt returns d × n.
func (d Decimal) MulInt(n int64) Decimal {
	if d.wide == nil {
		if p, ok := mulInt64(d.coef, n); ok {
			return narrow(p, d.scale)
		}
	}
	return lowest(new(apd.BigInt).Mul(d.coefAt(d.scale), apd.NewBigInt(n)), d.scale)
}

// Div returns d / n, rounded half to even at 20 significant digits; a quotient
// that ends within 20 digits is exact. The result is a function of the two
// numbers alone, however d came about. n must not be 0; as for integers, a
// division by 0 panics.
func (d Decimal) Div(n int64) Decimal {
	if d.wide == nil {
		if q, ok := divExact(d, n); ok {
			return q
		}
	}
	return divWide(d, n)
}

// divExact divides where the quotient ends before it outgrows 64 bits.
func divExact(d Decimal, n int64) (Decimal, bool) {
	den := magnitude(n)
	num := magnitude(d.coef)
	q, r := num/den, num%den
	scale := d.scale
	for r != 0 {
		if q >= uint64(pow10[18]) {
			return Decimal{}, false
		}
		hi, lo := bits.Mul64(r, 10)
		var digit uint64
		digit, r = bits.Div64(hi, lo, den)
		q = q*10 + digit
		scale++
	}
	if q > math.MaxInt64 {
		return Decimal{}, false
	}
	v := int64(q)
	if (d.coef < 0) != (n < 0) {
		v = -v
	}
	return narrow(v, scale), true
}

func divWide(d Decimal, n int64) Decimal {
	num, den := new(apd.BigInt).Abs(d.coefAt(d.scale)), new(apd.BigInt).Abs(apd.NewBigInt(n))
	if num.Sign() == 0 {
		return Decimal{}
	}
	// num × 10^shift / den has divDigits digits or one more.
	shift := divDigits - (decimalDigits(num) - decimalDigits(den))
	q, r, by := quotient(num, den, shift)
	if decimalDigits(q) > divDigits {
		shift--
		q, r, by = quotient(num, den, shift)
	}
	switch r.Lsh(r, 1).Cmp(by) {
	case 1:
		q.Add(q, apd.NewBigInt(1))
	case 0:
		q.Add(q, apd.NewBigInt(int64(q.Bit(0))))
	}
	if (d.Sign() < 0) != (n < 0) {
		q.Neg(q)
	}
	return lowest(q, d.scale+int32(shift))
}

// quotient divides num × 10^shift by den; by is what was divided by.
func quotient(num, den *apd.BigInt, shift int) (q, r, by *apd.BigInt) {
	by = den
	if shift >= 0 {
		num = new(apd.BigInt).Mul(num, bigPow10(shift))
	} else {
		by = new(apd.BigInt).Mul(den, bigPow10(-shift))
	}
	q, r = new(apd.BigInt).QuoRem(num, by, new(apd.BigInt))
	return q, r, by
}

// coefAt returns the coefficient that the number has at a scale that is at
// least its own. The result may be d's own: it is not to be changed.
func (d Decimal) coefAt(scale int32) *apd.BigInt {
	x := d.wide
	if x == nil {
		x = apd.NewBigInt(d.coef)
	}
	if scale == d.scale {
		return x
	}
	return new(apd.BigInt).Mul(x, bigPow10(int(scale-d.scale)))
}

// narrow builds a number from 64 bits.
func narrow(coef int64, scale int32) Decimal {
	if coef == 0 {
		return Decimal{}
	}
	for scale > 0 && coef%10 == 0 {
		coef /= 10
		scale--
	}
	return Decimal{coef: coef, scale: scale}
}

// lowest builds a number from any coefficient and scale; it takes x over.
func lowest(x *apd.BigInt, scale int32) Decimal {
	if x.Sign() == 0 {
		return Decimal{}
	}
	if scale < 0 {
		x, scale = x.Mul(x, bigPow10(int(-scale))), 0
	}
	// Steps of nine digits first, so that a long run of zeros costs little.
	// What 10^n divides, 2^n divides: most coefficients end the loop at once.
	for _, step := range [...]int32{9, 1} {
		for scale >= step && x.TrailingZeroBits() >= uint(step) {
			q, r := new(apd.BigInt).QuoRem(x, apd.NewBigInt(pow10[step]), new(apd.BigInt))
			if r.Sign() != 0 {
				break
			}
			x, scale = q, scale-step
		}
	}
	if x.IsInt64() {
		return Decimal{coef: x.Int64(), scale: scale}
	}
	return Decimal{wide: x, scale: scale}
}

func bigPow10(n int) *apd.BigInt {
	if n < len(pow10) {
		return apd.NewBigInt(pow10[n])
	}
	return new(apd.BigInt).Exp(apd.NewBigInt(10), apd.NewBigInt(int64(n)), nil)
}

func decimalDigits(x *apd.BigInt) int { return len(x.Append(nil, 10)) }

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

func addInt64(a, b int64) (int64, bool) {
	s := a + b
	return s, (s > a) == (b > 0)
}

func mulInt64(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	if hi != 0 {
		return 0, false
	}
	if (a < 0) != (b < 0) {
		return -int64(lo), lo <= 1<<63
	}
	return int64(lo), lo < 1<<63
}
