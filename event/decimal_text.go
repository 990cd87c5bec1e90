package event

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"
)

// The limits of a number that an event may carry. They bound the memory that
// one number, and any sum of them, can take: a sum of numbers within these
// limits has fewer than 2,300 digits.
const (
	// MaxDigits is the largest number of significant digits: leading and
	// trailing zeros do not count.
	MaxDigits = 128
	// MaxExponent is the largest exponent that may be written, either sign.
	MaxExponent = 1000
	// MaxPlaces is how many digits may stand before the point, and how many
	// after it, once the number is written out without an exponent.
	MaxPlaces = MaxDigits + MaxExponent
)

// maxNumberText bounds the text that ParseDecimal looks at: sign, digits and
// point of the longest number written out, and an exponent, with room for
// zeros that do not count.
const maxNumberText = 2*MaxPlaces + 64

// maxCanonical bounds the digits of a number that Strom wrote itself. It lies
// above what sums and integer multiples of accepted numbers can reach.
const maxCanonical = 4096

// ParseDecimal reads a number in the syntax of JSON (RFC 8259 section 6), as
// it stands: no blanks, no plus sign, no leading zeros, no NaN. It fails for
// other text and for a number beyond MaxDigits, MaxExponent or MaxPlaces. The
// text of a number that it returned is always accepted again. It allocates
// nothing when the coefficient fits 64 bits. It does not keep s, not in
// errors either, so that ParseDecimal(string(b)) of a short b allocates nothing.
func ParseDecimal(s string) (Decimal, error) {
	if d, ok := parseShort(s); ok {
		return d, nil
	}
	if len(s) > maxNumberText {
		return Decimal{}, fmt.Errorf("a number of %d characters is too long, the limit is %d", len(s), maxNumberText)
	}
	n, ok := scanNumber(s)
	if !ok {
		return Decimal{}, fmt.Errorf("%s is not a number", quoted(s))
	}
	if n.exp > MaxExponent || n.exp < -MaxExponent {
		return Decimal{}, fmt.Errorf("the exponent of %s is not within ±%d", quoted(s), MaxExponent)
	}
	n = n.trim()
	digits := len(n.whole) + len(n.frac)
	switch {
	case digits == 0:
		return Decimal{}, nil
	case digits > MaxDigits:
		return Decimal{}, fmt.Errorf("%s has %d significant digits, the limit is %d", quoted(s), digits, MaxDigits)
	case n.scale > MaxPlaces:
		return Decimal{}, fmt.Errorf("%s has more than %d digits after the point", quoted(s), MaxPlaces)
	case digits-n.scale > MaxPlaces:
		return Decimal{}, fmt.Errorf("%s has more than %d digits before the point", quoted(s), MaxPlaces)
	}
	return n.decimal(), nil
}

// ParseCanonical reads what String wrote and nothing else: "5.50" and "1e2"
// are refused. Its limit is 4,096 digits, so it reads sums, which may outgrow
// what ParseDecimal accepts from an event.
func ParseCanonical(s string) (Decimal, error) {
	if len(s) > maxCanonical+2 { // sign and point
		return Decimal{}, fmt.Errorf("a number of %d characters is too long, the limit is %d", len(s), maxCanonical)
	}
	d, ok := parseShort(s)
	if !ok {
		var n number
		if n, ok = scanNumber(s); !ok || n.exp != 0 {
			return Decimal{}, fmt.Errorf("%s is not a canonical number", quoted(s))
		}
		d = n.trim().decimal()
	}
	var buf [64]byte
	if string(d.AppendText(buf[:0])) != s {
		return Decimal{}, fmt.Errorf("%s is not a canonical number", quoted(s))
	}
	return d, nil
}

// parseShort reads numbers of up to 18 digits without an exponent. It leaves
// everything else, wrong text too, to the slower way.
func parseShort(s string) (Decimal, bool) {
	i := 0
	if len(s) > 0 && s[0] == '-' {
		i = 1
	}
	first := i
	if len(s)-first > 19 { // 18 digits and a point
		return Decimal{}, false
	}
	var v int64
	for ; i < len(s) && s[i]-'0' <= 9; i++ {
		v = v*10 + int64(s[i]-'0')
	}
	whole := i - first
	if whole == 0 || whole > 1 && s[first] == '0' {
		return Decimal{}, false
	}
	places := 0
	if i < len(s) && s[i] == '.' {
		for i++; i < len(s) && s[i]-'0' <= 9; i++ {
			v = v*10 + int64(s[i]-'0')
			places++
		}
		if places == 0 {
			return Decimal{}, false
		}
	}
	if i != len(s) || whole+places > 18 {
		return Decimal{}, false
	}
	if first == 1 {
		v = -v
	}
	return narrow(v, int32(places)), true
}

// number is the text of a number in its parts. After trim the number is the
// digits of whole and frac, one after the other, times 10^-scale.
type number struct {
	neg         bool
	whole, frac string
	exp         int
	scale       int
}

// scanNumber splits a JSON number; ok is false where s is none.
func scanNumber(s string) (n number, ok bool) {
	if strings.HasPrefix(s, "-") {
		n.neg, s = true, s[1:]
	}
	n.whole, s = cutDigits(s)
	if n.whole == "" || len(n.whole) > 1 && n.whole[0] == '0' {
		return n, false
	}
	if strings.HasPrefix(s, ".") {
		n.frac, s = cutDigits(s[1:])
		if n.frac == "" {
			return n, false
		}
	}
	if s == "" {
		return n, true
	}
	if s[0] != 'e' && s[0] != 'E' {
		return n, false
	}
	s = s[1:]
	sign := 1
	if s != "" && (s[0] == '+' || s[0] == '-') {
		if s[0] == '-' {
			sign = -1
		}
		s = s[1:]
	}
	digits, rest := cutDigits(s)
	for i := range len(digits) {
		// Held at a value that is out of bounds: more digits cannot wrap it.
		n.exp = min(n.exp*10+int(digits[i]-'0'), 10*MaxExponent)
	}
	n.exp *= sign
	return n, digits != "" && rest == ""
}

// cutDigits cuts the digits off the front of s.
func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && s[i]-'0' <= 9 {
		i++
	}
	return s[:i], s[i:]
}

// trim cuts off the zeros that do not count.
func (n number) trim() number {
	n.scale = len(n.frac) - n.exp
	frac := strings.TrimRight(n.frac, "0")
	n.scale -= len(n.frac) - len(frac)
	n.frac = frac
	if frac == "" {
		whole := strings.TrimRight(n.whole, "0")
		n.scale -= len(n.whole) - len(whole)
		n.whole = whole
	}
	n.whole = strings.TrimLeft(n.whole, "0")
	if n.whole == "" {
		n.frac = strings.TrimLeft(n.frac, "0")
	}
	return n
}

// decimal builds the number from its trimmed parts.
func (n number) decimal() Decimal {
	digits := len(n.whole) + len(n.frac)
	if digits <= 19 && digits-n.scale <= 19 { // 19 digits always fit a uint64
		var v uint64
		for _, part := range [...]string{n.whole, n.frac} {
			for i := range len(part) {
				v = v*10 + uint64(part[i]-'0')
			}
		}
		scale := n.scale
		for ; scale < 0; scale++ {
			v *= 10
		}
		switch {
		case v <= math.MaxInt64 && n.neg:
			return Decimal{coef: -int64(v), scale: int32(scale)}
		case v <= math.MaxInt64:
			return Decimal{coef: int64(v), scale: int32(scale)}
		}
	}
	x, _ := new(apd.BigInt).SetString(n.whole+n.frac, 10) // nothing but digits: cannot fail
	if n.neg {
		x.Neg(x)
	}
	return lowest(x, int32(n.scale))
}

// String gives the canonical text, see AppendText.
func (d Decimal) String() string {
	if d.scale == 0 && d.wide == nil {
		return strconv.FormatInt(d.coef, 10)
	}
	var buf [64]byte
	return string(d.AppendText(buf[:0]))
}

// AppendText appends the canonical text: no exponent, no zeros at the end of a
// fraction, no point without digits after it, "0" and never "-0". Equal
// numbers have equal text.
func (d Decimal) AppendText(dst []byte) []byte {
	if d.wide == nil && d.scale == 0 {
		return strconv.AppendInt(dst, d.coef, 10)
	}
	if d.Sign() < 0 {
		dst = append(dst, '-')
	}
	var buf [20]byte
	digits := buf[:0]
	if d.wide == nil {
		digits = strconv.AppendUint(digits, magnitude(d.coef), 10)
	} else if digits = d.wide.Append(digits, 10); digits[0] == '-' {
		digits = digits[1:]
	}
	point := len(digits) - int(d.scale)
	if point <= 0 {
		dst = append(dst, '0', '.')
		for ; point < 0; point++ {
			dst = append(dst, '0')
		}
		return append(dst, digits...)
	}
	dst = append(dst, digits[:point]...)
	if d.scale > 0 {
		dst = append(dst, '.')
		dst = append(dst, digits[point:]...)
	}
	return dst
}

// quoted shows the start of a text in an error.
func quoted(s string) string {
	const limit = 40
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "..."
	}
	return strconv.Quote(s)
}
