package mapping

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// The limits of a mapping file.
const (
	maxFile   = 1 << 20 // bytes
	maxLevels = 32      // of nesting
	maxFaults = 200     // reported; the rest is only counted
)

// reader reads one file and gathers its faults.
type reader struct {
	file   string
	lines  []string
	faults []Fault
	env    func(string) (string, bool)
	// missing are the faults that matter only to who connects.
	missing []Fault
	// places says where each key stands, by its path.
	places map[string]place
	// repeated counts the faults of keys that are given twice.
	repeated int
}

func (r *reader) fault(n *yaml.Node, key, advice, format string, args ...any) {
	f := Fault{File: r.file, Key: key, Message: fmt.Sprintf(format, args...), Advice: advice}
	if n != nil {
		f.Line, f.Column = n.Line, n.Column
	}
	r.faults = append(r.faults, f)
}

// document parses data into its one document's root, or nil with faults.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > maxFile {
		r.fault(nil, "", "", "the file has %d bytes, the most is %d", len(data), maxFile)
		return nil
	}
	r.lines = splitLines(strings.TrimPrefix(string(data), "\ufeff"))
	doc, err := decodeYAML(data)
	switch {
	case errors.Is(err, io.EOF):
		r.fault(nil, "", "start with pipeline: NAME", "the file is empty")
		return nil
	case err != nil:
		r.syntax(data, err)
		return nil
	case len(doc.Content) != 1:
		r.fault(nil, "", "", "the file is empty")
		return nil
	}
	root := doc.Content[0]
	before := len(r.faults)
	r.check(root, "", 1)
	// Behind an alias, an anchor or a tag nothing means what it seems to. A key
	// that is given twice hinders nothing: the first one counts.
	if len(r.faults)-r.repeated > before {
		return nil
	}
	return root
}

// splitLines splits where YAML counts a new line, which is at more than \n.
func splitLines(s string) []string {
	return strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(s), "\n")
}

// decodeYAML reads one document and refuses a second one.
func decodeYAML(data []byte) (doc *yaml.Node, err error) {
	defer func() {
		// The parser is a library's: its bugs are faults of the file here.
		if p := recover(); p != nil {
			doc, err = nil, errors.New("the file cannot be parsed")
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	doc = &yaml.Node{}
	if err := dec.Decode(doc); err != nil {
		return nil, err
	}
	switch err := dec.Decode(&yaml.Node{}); {
	case errors.Is(err, io.EOF):
		return doc, nil
	case err != nil:
		return nil, err
	}
	return nil, errors.New("a second document; a mapping is one")
}

var syntaxLine = regexp.MustCompile(`^line (\d+): `)

// syntax turns the parser's error into a fault. The line in its text is that
// of the section around the fault, or one beside it, so it is looked for.
func (r *reader) syntax(data []byte, err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, syntaxLine.FindString(text))
	at := &yaml.Node{Line: r.firstBadLine(data)}
	line := r.line(at.Line)
	at.Column = 1 + len(line) - len(strings.TrimLeft(line, " "))
	advice := ""
	switch {
	case strings.Contains(text, "cannot start any token") || strings.Contains(text, "found character"):
		advice = "indent with spaces, and put quotes around a value that starts with a sign"
	case strings.Contains(text, "mapping values are not allowed") || strings.Contains(text, "did not find expected"):
		advice = "check the indentation; a value that holds ': ', or in {} or [] a comma, needs quotes"
	}
	r.fault(at, "", advice, "not YAML: %s", text)
}

// firstBadLine gives the line that data cannot be parsed beyond: the lines
// before it are a document, and with it they are none, nor with any of the
// next lines (which is how a list over several lines differs from a fault).
func (r *reader) firstBadLine(data []byte) int {
	const further = 64 // lines of a list or a quoted text that is not closed yet
	ends := make([]int, 0, len(r.lines)+1)
	for i, c := range data {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	ends = append(ends, len(data))
	parses := func(lines int) bool {
		_, err := decodeYAML(data[:ends[lines-1]])
		return err == nil || errors.Is(err, io.EOF)
	}
	good, bad := 0, len(ends)
	for {
		for bad-good > 1 {
			if middle := (good + bad) / 2; parses(middle) {
				good = middle
			} else {
				bad = middle
			}
		}
		closed := 0
		for lines := min(bad+further, len(ends)-1); lines > bad && closed == 0; lines-- {
			if parses(lines) {
				closed = lines
			}
		}
		if closed == 0 {
			return bad
		}
		good, bad = closed, len(ends)
	}
}

// check refuses what a mapping does not use of YAML, and keys given twice.
func (r *reader) check(n *yaml.Node, key string, level int) {
	switch {
	case level > maxLevels:
		r.fault(n, key, "", "nested deeper than %d levels", maxLevels)
		return
	case n.Kind == yaml.AliasNode:
		r.fault(n, key, "write the value out", "aliases are not supported")
		return
	case n.Anchor != "":
		r.fault(n, key, "write the value out, or put quotes around it if & belongs to it", "anchors are not supported")
	case n.Style&yaml.TaggedStyle != 0:
		r.fault(n, key, "put quotes around a value that starts with !", "tags are not supported")
	}
	if n.Kind != yaml.MappingNode {
		for i, c := range n.Content {
			r.check(c, fmt.Sprintf("%s[%d]", key, i), level+1)
		}
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		r.check(k, key, level+1)
		if k.Kind != yaml.ScalarNode {
			continue
		}
		name := join(key, k.Value)
		if line, again := seen[k.Value]; again {
			r.fault(k, name, "keep one of them", "the key stands in line %d already", line)
			r.repeated++
		} else {
			seen[k.Value] = k.Line
			r.places[name] = place{k.Line, k.Column}
		}
		r.check(v, name, level+1)
	}
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// section is a YAML mapping whose keys are read one by one.
type section struct {
	r     *reader
	node  *yaml.Node
	key   string
	order []string
	keys  map[string]*yaml.Node
	value map[string]*yaml.Node
	// misspelt are the keys that unknown ones were probably meant to be: that
	// they are missing is no second fault.
	misspelt []string
}

// section opens n as a mapping. With known, every other key is a fault. It is
// nil, with a fault, where n is no mapping.
func (r *reader) section(n *yaml.Node, key string, known []string) *section {
	if n.Kind != yaml.MappingNode {
		advice := ""
		if len(known) > 0 {
			advice = "the keys are " + strings.Join(known, ", ")
		}
		r.fault(n, key, advice, "this must hold keys and values, it is %s", describe(n))
		return nil
	}
	s := &section{r: r, node: n, key: key, keys: map[string]*yaml.Node{}, value: map[string]*yaml.Node{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			r.fault(k, key, "", "a key must be a text")
			continue
		}
		if known != nil && !slices.Contains(known, k.Value) {
			r.fault(k, join(key, k.Value), r.adviseOneOf(k.Value, known), "unknown key %s", k.Value)
			s.misspelt = append(s.misspelt, nearest(k.Value, known))
			continue
		}
		if s.has(k.Value) {
			continue // check has reported it
		}
		s.order = append(s.order, k.Value)
		s.keys[k.Value], s.value[k.Value] = k, v
	}
	return s
}

// describe says what a node is, for a message.
func describe(n *yaml.Node) string {
	switch {
	case isNull(n):
		return "empty"
	case n.Kind == yaml.MappingNode:
		return "a group of keys"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	return quoteShort(n.Value)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func (s *section) has(name string) bool { return s.value[name] != nil }

func (s *section) path(name string) string { return join(s.key, name) }

// fault reports at the value of name.
func (s *section) fault(name, advice, format string, args ...any) {
	n := s.value[name]
	if n == nil {
		n = s.node
	}
	s.r.fault(n, s.path(name), advice, format, args...)
}

// faultAtKey reports at the key itself.
func (s *section) faultAtKey(name, advice, format string, args ...any) {
	s.r.fault(s.keys[name], s.path(name), advice, format, args...)
}

// require reports name as missing, and whether it is there.
func (s *section) require(name, advice string) bool {
	if s.has(name) {
		return true
	}
	if !slices.Contains(s.misspelt, name) {
		s.r.fault(s.node, s.key, advice, "%s is missing", name)
	}
	return false
}

// sub opens the value of name as a section; nil where there is none.
func (s *section) sub(name string, known []string) *section {
	if !s.has(name) {
		return nil
	}
	return s.r.section(s.value[name], s.path(name), known)
}

// text gives the value of name as a text that is not empty.
func (s *section) text(name string) (string, bool) {
	n := s.value[name]
	switch {
	case n == nil:
		return "", false
	case n.Kind != yaml.ScalarNode || isNull(n) || n.Value == "":
		s.fault(name, "", "this must be a text, it is %s", describe(n))
		return "", false
	}
	return n.Value, true
}

// oneOf gives the value of name, which must be one of allowed.
func (s *section) oneOf(name, byDefault string, allowed ...string) string {
	v, ok := s.text(name)
	if !ok {
		return byDefault
	}
	if !slices.Contains(allowed, v) {
		s.fault(name, s.r.adviseOneOf(v, allowed), "%s is not a value of %s", quoteShort(v), name)
		return byDefault
	}
	return v
}
