package oracle

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// maxExponent bounds what canonicalDecimal writes out: a number such as
// 1e999999999 is refused, not turned into a gigabyte of zeros.
const maxExponent = 1000

// canonicalDecimal writes the text of a JSON number as exact decimal text with
// no exponent, no leading or trailing zeros and no plus sign; zero is "0",
// whatever its sign.
func canonicalDecimal(number string) (string, error) {
	mantissa, exponent := number, 0
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		mantissa = number[:i]
		e, err := strconv.Atoi(number[i+1:])
		if err != nil || e < -maxExponent || e > maxExponent {
			return "", fmt.Errorf("the exponent of %q is not within ±%d", number, maxExponent)
		}
		exponent = e
	}
	negative := strings.HasPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	digits := whole + fraction
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return "", fmt.Errorf("%q is not a decimal number", number)
	}
	point := len(whole) + exponent // the point stands before digits[point]
	if point < 0 {
		digits, point = strings.Repeat("0", -point)+digits, 0
	}
	if point > len(digits) {
		digits += strings.Repeat("0", point-len(digits))
	}
	whole = strings.TrimLeft(digits[:point], "0")
	fraction = strings.TrimRight(digits[point:], "0")
	if whole == "" {
		whole = "0"
	}
	text := whole
	if fraction != "" {
		text += "." + fraction
	}
	if negative && text != "0" {
		text = "-" + text
	}
	return text, nil
}

// magnitude is an exact number; one without text is none at all.
type magnitude struct {
	text  string // canonical decimal
	value *big.Rat
}

// parseMagnitude reads the text of a JSON number.
func parseMagnitude(number string) (magnitude, error) {
	text, err := canonicalDecimal(number)
	if err != nil {
		return magnitude{}, err
	}
	value, ok := new(big.Rat).SetString(text)
	if !ok {
		return magnitude{}, fmt.Errorf("%q is not a decimal number", text)
	}
	return magnitude{text, value}, nil
}

// larger gives the larger of two magnitudes; none is smaller than any.
func (m magnitude) larger(other magnitude) magnitude {
	if m.value == nil || other.value != nil && other.value.Cmp(m.value) > 0 {
		return other
	}
	return m
}

// plus adds two magnitudes that are decimals.
func (m magnitude) plus(other magnitude) magnitude {
	sum := new(big.Rat).Add(m.value, other.value)
	// Of finite decimals the sum is one: it has as many places as the denominator
	// has factors of ten, at most as many digits as it has bits.
	text := sum.FloatString(sum.Denom().BitLen())
	canonical, err := canonicalDecimal(text)
	if err != nil {
		canonical = text // FloatString writes nothing else than decimals
	}
	return magnitude{canonical, sum}
}
