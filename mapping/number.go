package mapping

import (
	"bytes"
	"fmt"
	"math/big"
	"strings"

	"github.com/forge-platform/strom/event"
)

// calculate gives a op b exactly. Its error says that the result has more
// digits than a number of an event may have.
func calculate(op string, a, b event.Decimal) (event.Decimal, error) {
	var d event.Decimal
	switch op {
	case "+":
		d = a.Add(b)
	case "-":
		d = a.Sub(b)
	default:
		return multiply(a, b)
	}
	return d, checkPlaces(d)
}

func multiply(a, b event.Decimal) (event.Decimal, error) {
	if n, ok := b.Int64(); ok {
		d := a.MulInt(n)
		return d, checkPlaces(d)
	}
	if n, ok := a.Int64(); ok {
		d := b.MulInt(n)
		return d, checkPlaces(d)
	}
	x, xs := digitsOf(a)
	y, ys := digitsOf(b)
	return fromDigits(x.Mul(x, y), xs+ys)
}

// digitsOf gives a number as a coefficient and how many of its digits stand
// after the point.
func digitsOf(d event.Decimal) (coef *big.Int, scale int) {
	whole, frac, _ := strings.Cut(d.String(), ".")
	coef, ok := new(big.Int).SetString(whole+frac, 10)
	if !ok {
		coef = new(big.Int) // the text of a number is digits
	}
	return coef, len(frac)
}

func fromDigits(coef *big.Int, scale int) (event.Decimal, error) {
	text := new(big.Int).Abs(coef).String()
	if len(text) <= scale {
		text = strings.Repeat("0", scale-len(text)+1) + text
	}
	whole, frac := text[:len(text)-scale], strings.TrimRight(text[len(text)-scale:], "0")
	if frac != "" {
		whole += "." + frac
	}
	if coef.Sign() < 0 {
		whole = "-" + whole
	}
	d, err := event.ParseCanonical(whole)
	if err != nil {
		return event.Decimal{}, err
	}
	return d, checkPlaces(d)
}

// checkPlaces bounds the digits of a result to what a number of an event may
// have, so that neither expressions nor sums of their results grow on.
func checkPlaces(d event.Decimal) error {
	var buf [64]byte
	text := d.AppendText(buf[:0])
	if len(text) <= len(buf) {
		return nil
	}
	text = bytes.TrimPrefix(text, []byte("-"))
	whole, frac, _ := bytes.Cut(text, []byte("."))
	if len(whole) > event.MaxPlaces || len(frac) > event.MaxPlaces {
		return fmt.Errorf("the result has more than %d digits on one side of the point", event.MaxPlaces)
	}
	return nil
}
