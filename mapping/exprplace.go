package mapping

import (
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/forge-platform/strom/formats"
)

// expr compiles the value of name over a stream's fields; nil with a fault.
func (s *section) expr(name string, e *streamEntry) *Expr {
	text, ok := s.text(name)
	if !ok {
		return nil
	}
	return s.r.compile(s.value[name], s.path(name), text, 0, e)
}

// idExpr compiles the value of name, which must be an id: a text or a number.
func (s *section) idExpr(name string, e *streamEntry) *Expr {
	x := s.expr(name, e)
	if x != nil && x.static != typeText && x.static != typeNumber && x.static != typeAny {
		s.fault(name, "an id is a text or a number", "this is a %s and not an id", x.static)
		return nil
	}
	return x
}

// condition compiles the value of name, which must be a condition.
func (s *section) condition(name string, e *streamEntry) *Expr {
	x := s.expr(name, e)
	if x != nil && x.static != typeBool && x.static != typeAny {
		s.fault(name, `write a condition, as in type == "OrderPlaced"`, "this is a %s and not a condition", x.static)
		return nil
	}
	return x
}

// compile compiles text, which stands in the scalar n from its skip-th
// character on, and puts its faults where they are in the file.
func (r *reader) compile(n *yaml.Node, key, text string, skip int, e *streamEntry) *Expr {
	if e == nil {
		// Its stream is unknown, which is a fault already: check it all the same.
		e = &streamEntry{stream: &Stream{}}
		e.paths.each = &formats.Path{Steps: []formats.Step{{}}}
	}
	x, faults := compileExpr(text, &e.paths)
	for _, f := range faults {
		line, column := r.place(n, skip+f.at)
		r.fault(&yaml.Node{Line: line, Column: column}, key, f.advice, "%s", f.message)
	}
	return x
}

// place gives line and column of the at-th character of a scalar's value. Where
// the value does not stand in the file as it is (escapes, folded lines) it is
// the scalar's start.
func (r *reader) place(n *yaml.Node, at int) (line, column int) {
	value := []rune(n.Value)
	before := string(value[:min(at, len(value))])
	row := strings.Count(before, "\n")
	inRow := len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))
	if n.Style&yaml.LiteralStyle != 0 {
		line = n.Line + 1 + row
		source, wanted := r.line(line), strings.Split(n.Value, "\n")[row]
		if indent, ok := strings.CutSuffix(source, wanted); ok {
			return line, len([]rune(indent)) + inRow + 1
		}
		return n.Line, n.Column
	}
	start := n.Column - 1
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		start++
	}
	source := []rune(r.line(n.Line))
	if row == 0 && start <= len(source) && strings.HasPrefix(string(source[start:]), n.Value) {
		return n.Line, start + inRow + 1
	}
	return n.Line, n.Column
}

func (r *reader) line(number int) string {
	if number < 1 || number > len(r.lines) {
		return ""
	}
	return r.lines[number-1]
}
