package formats

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParentMark stands before a path that leads from the whole record and not
// from the element of the array that a stream explodes.
const ParentMark = "$parent"

// Step is one step of a Path: into the member Name of an object or, where
// IsIndex, to the element Index of an array.
type Step struct {
	Name    string
	Index   int
	IsIndex bool
}

// Path leads to one value in a record: `a.b[0].c`. The empty path is the whole
// event.
type Path struct {
	// Parent: the path starts at the record although the stream explodes an
	// array. In a stream that explodes none it makes no difference.
	Parent bool
	Steps  []Step
}

// String writes the path as ParsePath reads it. Equal paths have equal
// strings, so a string serves as the key of a path.
func (p Path) String() string {
	var b strings.Builder
	switch {
	case p.Parent:
		b.WriteString(ParentMark)
	case len(p.Steps) == 0 || p.Steps[0].IsIndex || !plainName(p.Steps[0].Name):
		b.WriteByte('$')
	}
	for i, s := range p.Steps {
		switch {
		case s.IsIndex:
			b.WriteByte('[')
			b.WriteString(strconv.Itoa(s.Index))
			b.WriteByte(']')
		case plainName(s.Name) && (i > 0 || p.Parent):
			b.WriteByte('.')
			b.WriteString(s.Name)
		case plainName(s.Name):
			b.WriteString(s.Name)
		default:
			b.WriteByte('[')
			b.WriteString(strconv.Quote(s.Name))
			b.WriteByte(']')
		}
	}
	return b.String()
}

// ParsePath reads a path: names joined by dots, `[0]` for an element of an
// array, `["odd name"]` for a member whose name is no plain name (`$["odd
// name"]` at the start), `$parent.x` for the record around an exploded array.
func ParsePath(s string) (Path, error) {
	var p Path
	rest := s
	switch {
	case rest == ParentMark || strings.HasPrefix(rest, ParentMark+".") || strings.HasPrefix(rest, ParentMark+"["):
		p.Parent = true
		rest = rest[len(ParentMark):]
	case strings.HasPrefix(rest, "$"):
		rest = rest[1:]
	default:
		rest = "." + rest
	}
	for rest != "" {
		step, tail, err := parseStep(rest)
		if err != nil {
			return Path{}, fmt.Errorf("path %q: %w", s, err)
		}
		p.Steps = append(p.Steps, step)
		rest = tail
	}
	return p, nil
}

func parseStep(s string) (Step, string, error) {
	if s[0] == '.' {
		n := 1
		for n < len(s) && s[n] != '.' && s[n] != '[' {
			n++
		}
		if name := s[1:n]; plainName(name) {
			return Step{Name: name}, s[n:], nil
		}
		return Step{}, "", fmt.Errorf("%q is not a name; write [%q]", s[1:n], s[1:n])
	}
	if s[0] != '[' {
		return Step{}, "", fmt.Errorf("expected '.' or '[' before %q", s)
	}
	if strings.HasPrefix(s, `["`) {
		quoted, err := strconv.QuotedPrefix(s[1:])
		if err != nil || !strings.HasPrefix(s[1+len(quoted):], "]") {
			return Step{}, "", fmt.Errorf("expected a quoted name and ']' at %q", s)
		}
		name, err := strconv.Unquote(quoted)
		if err != nil {
			return Step{}, "", fmt.Errorf("quoted name %s: %w", quoted, err)
		}
		return Step{Name: name}, s[len(quoted)+2:], nil
	}
	end := strings.IndexByte(s, ']')
	if end < 0 {
		return Step{}, "", fmt.Errorf("no ']' after %q", s)
	}
	n, err := strconv.ParseUint(s[1:end], 10, 31)
	if err != nil {
		return Step{}, "", fmt.Errorf("%q is not an index", s[1:end])
	}
	return Step{Index: int(n), IsIndex: true}, s[end+1:], nil
}

// Within reports whether p leads to something inside of what q leads to, both
// from one start.
func (p Path) Within(q Path) bool {
	return len(p.Steps) > len(q.Steps) && slices.Equal(p.Steps[:len(q.Steps)], q.Steps)
}

// plainName reports whether a name can stand in a path without quotes.
func plainName(s string) bool {
	for i, r := range s {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
