package formats

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/forge-platform/strom/event"
)

// jsonScanner reads one JSON text in one pass.
//
// Its methods take the position of the first byte of what they read, and give
// the position after it, or failed: then err says why, and they are not called
// again. The text is known to be UTF-8.
type jsonScanner struct {
	b      []byte
	opts   JSONOptions
	root   *jsonNode
	width  int
	fields Fields // where values go: the event's, or the row of an element
	err    *event.Reject
	// escaped: the string that str read last held an escape.
	escaped bool
	scratch []byte // unescaped names

	// The exploded array.
	rows      Fields // one row of width scalars for each element
	elements  int
	exploded  bool // an array was found
	eachFound event.ScalarType
}

const failed = -1

func (s *jsonScanner) reset(b []byte, p *jsonPlan, fields Fields) {
	s.b, s.root, s.width, s.opts, s.fields, s.err = b, p.root, p.width, p.opts, fields, nil
	s.noArray(event.ScalarAbsent)
}

// release lets go of the record and of buffers that one record made large.
func (s *jsonScanner) release() {
	s.b, s.fields = nil, nil
	if cap(s.rows) > maxKeptRows {
		s.rows = nil
	}
	if cap(s.scratch) > maxKeptRows {
		s.scratch = nil
	}
}

func (s *jsonScanner) noArray(found event.ScalarType) {
	s.rows, s.elements, s.exploded, s.eachFound = s.rows[:0], 0, false, found
}

func (s *jsonScanner) document() error {
	i := s.value(s.space(0), s.root, 0)
	if i == failed {
		return s.err
	}
	if i = s.space(i); i < len(s.b) {
		s.fail(i, "the end of the record")
		return s.err
	}
	return nil
}

func (s *jsonScanner) fail(i int, expected string) int {
	found := "the end of the record"
	if i < len(s.b) {
		r, _ := utf8.DecodeRune(s.b[i:])
		found = strconv.QuoteRune(r)
	}
	return s.refuse(i, "expected "+expected+", found "+found)
}

func (s *jsonScanner) refuse(i int, why string) int {
	s.err = event.Rejectf(event.ReasonNotJSON, "offset %d: %s", i, why)
	return failed
}

// space skips white space.
func (s *jsonScanner) space(i int) int {
	for i < len(s.b) {
		switch s.b[i] {
		case ' ', '\n', '\t', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

// value reads any value; n is nil where nothing in it is asked for.
func (s *jsonScanner) value(i int, n *jsonNode, depth int) int {
	if i >= len(s.b) {
		return s.fail(i, "a value")
	}
	if n != nil && !n.leaf() {
		s.forget(n)
	}
	start := i
	switch c := s.b[i]; c {
	case '"':
		if i = s.str(i + 1); i != failed && n != nil {
			s.set(n, event.Scalar{Type: event.ScalarText, Text: s.text(start+1, i-1)})
		}
	case '{':
		if i = s.object(i, n, depth); i != failed && n != nil {
			s.set(n, event.Scalar{Type: event.ScalarJSON, Text: alias(s.b[start:i])})
		}
	case '[':
		if n != nil && n.each != nil {
			i = s.explode(i, n, depth)
		} else {
			i = s.array(i, n, depth)
		}
		if i != failed && n != nil {
			s.set(n, event.Scalar{Type: event.ScalarJSON, Text: alias(s.b[start:i])})
		}
	case 't', 'f':
		if i = s.literal(i, c); i != failed && n != nil {
			s.set(n, event.Scalar{Type: event.ScalarBool, Bool: c == 't'})
		}
	case 'n':
		if i = s.literal(i, c); i != failed && n != nil {
			s.set(n, event.Scalar{Type: event.ScalarNull})
		}
	default:
		if i = s.number(i); i != failed && n != nil {
			i = s.setNumber(n, start, i)
		}
	}
	return i
}

// forget clears what an earlier member of the same name has left at n or below.
func (s *jsonScanner) forget(n *jsonNode) {
	for _, slot := range n.under {
		s.fields[slot] = event.Scalar{}
	}
	if n.explodes {
		s.noArray(event.ScalarAbsent)
	}
}

func (s *jsonScanner) set(n *jsonNode, v event.Scalar) {
	for _, slot := range n.slots {
		s.fields[slot] = v
	}
	if n.each != nil && v.Type != event.ScalarJSON {
		s.eachFound = v.Type
	} else if n.each != nil && !s.exploded {
		s.eachFound = event.ScalarJSON
	}
}

func (s *jsonScanner) setNumber(n *jsonNode, start, end int) int {
	v := event.Scalar{Type: event.ScalarNumber}
	if len(n.slots) > 0 {
		var err error
		if v.Num, err = event.ParseDecimal(alias(s.b[start:end])); err != nil {
			return s.refuse(start, "number beyond the limits: "+err.Error())
		}
	}
	s.set(n, v)
	return end
}

func (s *jsonScanner) object(i int, n *jsonNode, depth int) int {
	if depth >= s.opts.MaxDepth {
		return s.tooDeep(i)
	}
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(s.b) || s.b[i] != '"' {
			return s.fail(i, "a name in quotes")
		}
		start := i + 1
		if i = s.str(start); i == failed {
			return failed
		}
		var member *jsonNode
		if n != nil {
			member = n.find(s.name(start, i-1))
		}
		if i = s.space(i); i >= len(s.b) || s.b[i] != ':' {
			return s.fail(i, "':' after a name")
		}
		if i = s.value(s.space(i+1), member, depth+1); i == failed {
			return failed
		}
		i = s.space(i)
		switch {
		case i < len(s.b) && s.b[i] == ',':
			i = s.space(i + 1)
		case i < len(s.b) && s.b[i] == '}':
			return i + 1
		default:
			return s.fail(i, "',' or '}' after a member")
		}
	}
}

func (s *jsonScanner) array(i int, n *jsonNode, depth int) int {
	if depth >= s.opts.MaxDepth {
		return s.tooDeep(i)
	}
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == ']' {
		return i + 1
	}
	var elems []jsonElem
	if n != nil {
		elems = n.elems
	}
	for index := 0; ; index++ {
		var element *jsonNode
		if len(elems) > 0 && elems[0].index == index {
			element, elems = elems[0].node, elems[1:]
		}
		if i = s.value(i, element, depth+1); i == failed {
			return failed
		}
		var done bool
		if i, done = s.afterElement(i); done {
			return i
		}
	}
}

// explode reads the array whose elements are events, a row for each.
func (s *jsonScanner) explode(i int, n *jsonNode, depth int) int {
	if depth >= s.opts.MaxDepth {
		return s.tooDeep(i)
	}
	s.exploded = true
	parent := s.fields
	defer func() { s.fields = parent }()
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == ']' {
		return i + 1
	}
	for {
		if s.elements == s.opts.MaxElements {
			return s.refuse(i, "more than "+strconv.Itoa(s.opts.MaxElements)+" elements in the array of events")
		}
		s.fields = s.row()
		if i = s.value(i, n.each, depth+1); i == failed {
			return failed
		}
		var done bool
		if i, done = s.afterElement(i); done {
			return i
		}
	}
}

// row appends a row of absent values. What it returns holds until the next
// call, which may move the rows.
func (s *jsonScanner) row() Fields {
	from := s.elements * s.width
	s.elements++
	for range s.width {
		s.rows = append(s.rows, event.Scalar{})
	}
	return s.rows[from : from+s.width]
}

// afterElement reads what follows an element of an array: done, then the
// position is after the array or failed; or the position of the next element.
func (s *jsonScanner) afterElement(i int) (next int, done bool) {
	i = s.space(i)
	switch {
	case i < len(s.b) && s.b[i] == ',':
		return s.space(i + 1), false
	case i < len(s.b) && s.b[i] == ']':
		return i + 1, true
	}
	return s.fail(i, "',' or ']' after an element"), true
}

func (s *jsonScanner) tooDeep(i int) int {
	return s.refuse(i, "nested deeper than "+strconv.Itoa(s.opts.MaxDepth))
}

func (s *jsonScanner) literal(i int, c byte) int {
	word := "null"
	switch c {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	}
	for k := range len(word) {
		if i+k >= len(s.b) || s.b[i+k] != word[k] {
			return s.fail(i+k, word)
		}
	}
	return i + len(word)
}

func (s *jsonScanner) number(i int) int {
	start := i
	if s.b[i] == '-' {
		i++
	}
	switch {
	case i < len(s.b) && s.b[i] == '0':
		i++
	case i < len(s.b) && s.b[i] >= '1' && s.b[i] <= '9':
		i = s.digits(i)
	case i > start:
		return s.fail(i, "a digit")
	default:
		return s.fail(i, "a value")
	}
	if i < len(s.b) && s.b[i] == '.' {
		first := i + 1
		if i = s.digits(first); i == first {
			return s.fail(i, "a digit")
		}
	}
	if i < len(s.b) && s.b[i]|0x20 == 'e' {
		i++
		if i < len(s.b) && (s.b[i] == '+' || s.b[i] == '-') {
			i++
		}
		first := i
		if i = s.digits(first); i == first {
			return s.fail(i, "a digit")
		}
	}
	if i-start > s.opts.MaxNumber {
		return s.refuse(start, "a number longer than "+strconv.Itoa(s.opts.MaxNumber)+" bytes")
	}
	return i
}

func (s *jsonScanner) digits(i int) int {
	for i < len(s.b) && s.b[i]-'0' <= 9 {
		i++
	}
	return i
}

// Bytes repeated over a word.
const (
	everyByte = 0x0101010101010101
	highBits  = 0x8080808080808080
)

// str reads the rest of a string whose opening quote stands before i, and
// gives the position after its closing quote.
func (s *jsonScanner) str(i int) int {
	s.escaped = false
	for {
		// Eight bytes at a time: the lowest bit of stop marks the first byte
		// that is a quote, a backslash or a control character (bits above it
		// may be wrong, through borrows).
		for i+8 <= len(s.b) {
			w := binary.LittleEndian.Uint64(s.b[i:])
			quote, slash := w^(everyByte*'"'), w^(everyByte*'\\')
			stop := ((w-everyByte*0x20)&^w | (quote-everyByte)&^quote | (slash-everyByte)&^slash) & highBits
			if stop != 0 {
				i += bits.TrailingZeros64(stop) >> 3
				break
			}
			i += 8
		}
		if i >= len(s.b) {
			return s.fail(i, "'\"' at the end of a string")
		}
		switch c := s.b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			s.escaped = true
			if i = s.escape(i); i == failed {
				return failed
			}
		case c < 0x20:
			return s.fail(i, "no control character in a string")
		default:
			i++
		}
	}
}

// escape reads one escape; a pair of surrogates is one.
func (s *jsonScanner) escape(i int) int {
	if i+1 >= len(s.b) {
		return s.fail(i+1, "an escape")
	}
	switch s.b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
	default:
		return s.fail(i+1, `one of " \ / b f n r t u after '\'`)
	}
	r := s.hex(i + 2)
	switch {
	case r < 0:
		return s.fail(i+2, `four hexadecimal digits after \u`)
	case !utf16.IsSurrogate(r):
		return i + 6
	}
	low := rune(-1)
	if i+7 < len(s.b) && s.b[i+6] == '\\' && s.b[i+7] == 'u' {
		low = s.hex(i + 8)
	}
	if utf16.DecodeRune(r, low) == utf8.RuneError {
		return s.refuse(i, "a surrogate without its other half")
	}
	return i + 12
}

// hex reads four hexadecimal digits, or gives a negative number.
func (s *jsonScanner) hex(i int) rune {
	if i+4 > len(s.b) {
		return -1
	}
	var r rune
	for _, c := range s.b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// text gives the string that str read last, without its quotes.
func (s *jsonScanner) text(start, end int) string {
	if s.escaped {
		return string(s.unescape(make([]byte, 0, end-start), start, end))
	}
	return alias(s.b[start:end])
}

// name gives the bytes of the name that str read last; they hold until the
// next call.
func (s *jsonScanner) name(start, end int) []byte {
	if s.escaped {
		s.scratch = s.unescape(s.scratch[:0], start, end)
		return s.scratch
	}
	return s.b[start:end]
}

// unescape appends a string that str has checked.
func (s *jsonScanner) unescape(dst []byte, start, end int) []byte {
	for i := start; i < end; {
		c := s.b[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		c = s.b[i+1]
		i += 2
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := s.hex(i)
			i += 4
			if utf16.IsSurrogate(r) {
				r = utf16.DecodeRune(r, s.hex(i+2))
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// alias gives b as a string without copying it. Nobody writes to a record's
// value, and the contract of Fields says how long texts hold.
func alias(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // the copy is what the hot path must not pay; see the comment above
}
