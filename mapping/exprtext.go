package mapping

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
)

// textNode applies a function to one text.
type textNode struct {
	name  string
	apply func(string) event.Scalar
	of    node
}

func (n textNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	v, err := n.of.eval(f)
	switch {
	case err != nil || v.Missing():
		return v, err
	case v.Type != event.ScalarText:
		return event.Scalar{}, evalFault("%s wants a text, this is %s", n.name, aType(v.Type))
	}
	return n.apply(v.Text), nil
}

func lowerText(s string) event.Scalar { return textScalar(strings.ToLower(s)) }
func upperText(s string) event.Scalar { return textScalar(strings.ToUpper(s)) }
func trimText(s string) event.Scalar  { return textScalar(strings.TrimSpace(s)) }

func lenText(s string) event.Scalar { return countScalar(utf8.RuneCountInString(s)) }

func countScalar(n int) event.Scalar {
	return event.Scalar{Type: event.ScalarNumber, Num: event.FromInt64(int64(n))}
}

// toTextNode is text(x): a number in its canonical form, a boolean as true or
// false, a text as it is.
type toTextNode struct{ of node }

func (n toTextNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	v, err := n.of.eval(f)
	if err != nil {
		return v, err
	}
	switch v.Type {
	case event.ScalarNumber:
		return textScalar(v.Num.String()), nil
	case event.ScalarBool:
		return textScalar(strconv.FormatBool(v.Bool)), nil
	case event.ScalarJSON:
		return event.Scalar{}, evalFault("text wants a single value, this is an %s", v.Type)
	default:
		return v, nil
	}
}

// toNumberNode is number(x): the number that a text writes.
type toNumberNode struct{ of node }

func (n toNumberNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	v, err := n.of.eval(f)
	switch {
	case err != nil || v.Missing() || v.Type == event.ScalarNumber:
		return v, err
	case v.Type != event.ScalarText:
		return event.Scalar{}, evalFault("number wants a text, this is %s", aType(v.Type))
	}
	d, bad := event.ParseDecimal(v.Text)
	if bad != nil {
		return event.Scalar{}, evalFault("%s is not a number", quoteShort(v.Text))
	}
	return event.Scalar{Type: event.ScalarNumber, Num: d}, nil
}

// matchNode is contains, startsWith, endsWith: with an operand that is absent
// or null it is false.
type matchNode struct {
	op          string
	left, right node
}

func (n matchNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n matchNode) test(f formats.Fields) (bool, *evalError) {
	a, err := n.left.eval(f)
	if err != nil {
		return false, err
	}
	b, err := n.right.eval(f)
	switch {
	case err != nil:
		return false, err
	case a.Missing() || b.Missing():
		return false, nil
	case a.Type != event.ScalarText || b.Type != event.ScalarText:
		return false, evalFault("%s wants two texts, these are %s and %s", n.op, aType(a.Type), aType(b.Type))
	}
	switch n.op {
	case "startsWith":
		return strings.HasPrefix(a.Text, b.Text), nil
	case "endsWith":
		return strings.HasSuffix(a.Text, b.Text), nil
	default:
		return strings.Contains(a.Text, b.Text), nil
	}
}

// patternNode is matches: a regular expression (RE2, so linear in the text).
type patternNode struct {
	of      node
	pattern *regexp.Regexp
}

func (n patternNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n patternNode) test(f formats.Fields) (bool, *evalError) {
	v, err := n.of.eval(f)
	switch {
	case err != nil || v.Missing():
		return false, err
	case v.Type != event.ScalarText:
		return false, evalFault("matches wants a text, this is %s", aType(v.Type))
	}
	return n.pattern.MatchString(v.Text), nil
}

// pieceNode is split(of, sep)[index], first(split(of, sep)) and
// last(split(of, sep)). No list is made: it finds the piece in the text.
type pieceNode struct {
	of    node
	sep   string
	index int
	last  bool
}

func (n pieceNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	v, err := n.of.eval(f)
	switch {
	case err != nil || v.Missing():
		return v, err
	case v.Type != event.ScalarText:
		return event.Scalar{}, evalFault("split wants a text, this is %s", aType(v.Type))
	case n.last:
		if at := strings.LastIndex(v.Text, n.sep); at >= 0 {
			return textScalar(v.Text[at+len(n.sep):]), nil
		}
		return v, nil
	}
	piece, rest, more := strings.Cut(v.Text, n.sep)
	for range n.index {
		if !more {
			return event.Scalar{}, nil
		}
		piece, rest, more = strings.Cut(rest, n.sep)
	}
	return textScalar(piece), nil
}

// piecesNode is len(split(of, sep)).
type piecesNode struct {
	of  node
	sep string
}

func (n piecesNode) eval(f formats.Fields) (event.Scalar, *evalError) {
	v, err := n.of.eval(f)
	switch {
	case err != nil || v.Missing():
		return v, err
	case v.Type != event.ScalarText:
		return event.Scalar{}, evalFault("split wants a text, this is %s", aType(v.Type))
	}
	return countScalar(strings.Count(v.Text, n.sep) + 1), nil
}

// inPiecesNode is x in split(of, sep).
type inPiecesNode struct {
	item node
	of   node
	sep  string
}

func (n inPiecesNode) eval(f formats.Fields) (event.Scalar, *evalError) { return truth(n.test(f)) }

func (n inPiecesNode) test(f formats.Fields) (bool, *evalError) {
	v, err := n.item.eval(f)
	if err != nil {
		return false, err
	}
	all, err := n.of.eval(f)
	switch {
	case err != nil:
		return false, err
	case v.Missing() || all.Missing():
		return false, nil
	case v.Type != event.ScalarText || all.Type != event.ScalarText:
		return false, evalFault("in split wants two texts, these are %s and %s", aType(v.Type), aType(all.Type))
	}
	for piece := range strings.SplitSeq(all.Text, n.sep) {
		if piece == v.Text {
			return true, nil
		}
	}
	return false, nil
}

// maxShown bounds a text in a message, in bytes.
const maxShown = 80

// shorten gives the start of a text for a message.
func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// quoteShort quotes the start of a text for a message.
func quoteShort(s string) string {
	return strconv.Quote(shorten(s))
}
