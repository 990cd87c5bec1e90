package formats

import (
	"fmt"
	"unicode/utf8"

	"github.com/forge-platform/strom/event"
)

// JSONOptions are the limits of a JSON decoder. The zero value stands for the
// defaults.
type JSONOptions struct {
	// MaxDepth bounds how deep objects and arrays nest. Default 128.
	MaxDepth int
	// MaxNumber bounds the bytes of one number. Default 2,320, the longest that
	// event.ParseDecimal looks at.
	MaxNumber int
	// MaxElements bounds the elements of the array that is exploded, so the
	// events of one record. Default 10,000.
	MaxElements int
}

// WithDefaults gives the options with every zero replaced by its default.
func (o JSONOptions) WithDefaults() JSONOptions {
	if o.MaxDepth == 0 {
		o.MaxDepth = 128
	}
	if o.MaxNumber == 0 {
		o.MaxNumber = 2*event.MaxPlaces + 64
	}
	if o.MaxElements == 0 {
		o.MaxElements = 10_000
	}
	return o
}

// Validate reports every option that is out of range.
func (o JSONOptions) Validate() error {
	if o.MaxDepth < 0 || o.MaxDepth > 10_000 || o.MaxNumber < 0 || o.MaxElements < 0 {
		return fmt.Errorf("JSON options out of range: %+v", o)
	}
	return nil
}

// NewJSON returns a decoder of JSON (RFC 8259) that gives the values at paths,
// in their order. A path may occur twice.
//
// With each, the record holds an array at that path, and every element of it
// is an event: paths start at the element, and a path with Parent at the
// record. The array may be empty; if there is none, the record is rejected.
//
// What it accepts: one JSON text, UTF-8 throughout, with nothing but white
// space around it. Beyond the grammar it refuses escapes of lone surrogates
// (they stand for no character, so nothing can be written for them) and what
// is over a limit. Of two members with one name the last one holds, as a
// whole. A path that ends at an object or array gives its raw text
// (ScalarJSON).
//
// Texts and numbers alias the value that Decode was given, except texts that
// held an escape, which are copies.
func NewJSON(paths []Path, each *Path, opts JSONOptions) (Decoder, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	p := &jsonPlan{opts: opts.WithDefaults(), width: len(paths)}
	root, element := newJSONNode(), newJSONNode()
	for slot, path := range paths {
		from := root
		if each != nil && !path.Parent {
			from = element
		} else if each != nil {
			p.parents = append(p.parents, slot)
			if path.Within(*each) {
				return nil, fmt.Errorf("the path %s leads into %s, whose elements are events", path, each)
			}
		}
		n := from.descend(path.Steps)
		n.slots = append(n.slots, slot)
	}
	if each != nil {
		p.each = each.String()
		root.descend(each.Steps).each = element
	}
	p.root = root
	for _, n := range [...]*jsonNode{root, element} {
		n.freeze()
	}
	return p.decoder(), nil
}

// jsonPlan is what decoders of one projection share; it is read-only.
type jsonPlan struct {
	root    *jsonNode
	each    string // path of the exploded array, empty: none
	parents []int  // slots read from the record around that array
	width   int
	opts    JSONOptions
}

func (p *jsonPlan) decoder() *jsonDecoder {
	return &jsonDecoder{plan: p, fields: make(Fields, p.width)}
}

// jsonDecoder holds the buffers of one goroutine.
type jsonDecoder struct {
	plan   *jsonPlan
	fields Fields
	scan   jsonScanner
}

// maxKeptRows bounds the scalars that a decoder keeps between records, so that
// one large array does not hold its memory for ever.
const maxKeptRows = 1 << 14

// Decode implements Decoder.
func (d *jsonDecoder) Decode(value []byte, emit func(int32, Fields) error) error {
	if value == nil {
		return event.Rejectf(event.ReasonNullValue, "the record has no value")
	}
	if !utf8.Valid(value) {
		return event.Rejectf(event.ReasonNotJSON, "offset %d: not UTF-8", invalidAt(value))
	}
	clear(d.fields)
	s := &d.scan
	s.reset(value, d.plan, d.fields)
	err := s.document()
	if err == nil {
		if d.plan.each == "" {
			err = emit(0, d.fields)
		} else {
			err = d.emitRows(emit)
		}
	}
	s.release()
	return err
}

func (d *jsonDecoder) emitRows(emit func(int32, Fields) error) error {
	s, w := &d.scan, d.plan.width
	if !s.exploded {
		return event.Rejectf(event.ReasonBadValue, "%s is %s, but an array is declared whose elements are the events",
			d.plan.each, s.eachFound)
	}
	for i := range s.elements {
		row := s.rows[i*w : (i+1)*w : (i+1)*w]
		for _, slot := range d.plan.parents {
			row[slot] = d.fields[slot]
		}
		if err := emit(int32(i), row); err != nil {
			return err
		}
	}
	return nil
}

// Clone implements Decoder.
func (d *jsonDecoder) Clone() Decoder { return d.plan.decoder() }

func invalidAt(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// jsonNode is a node of the trie of paths.
type jsonNode struct {
	slots []int       // fields that take the value here
	names []jsonEdge  // members to follow
	elems []jsonElem  // elements to follow, by rising index
	under []int       // every slot at or below this node, for duplicate names
	each  *jsonNode   // the array here is exploded; its elements start there
	byKey jsonNameMap // set where names are many
	// explodes: the exploded array is here or below.
	explodes bool
}

type jsonNameMap map[string]*jsonNode

type jsonEdge struct {
	name string
	node *jsonNode
}

type jsonElem struct {
	index int
	node  *jsonNode
}

// manyNames is the number of members from which a map beats comparing in turn.
const manyNames = 12

func newJSONNode() *jsonNode { return &jsonNode{} }

func (n *jsonNode) descend(steps []Step) *jsonNode {
	for _, s := range steps {
		n = n.child(s)
	}
	return n
}

func (n *jsonNode) child(s Step) *jsonNode {
	if s.IsIndex {
		at := 0
		for ; at < len(n.elems) && n.elems[at].index <= s.Index; at++ {
			if n.elems[at].index == s.Index {
				return n.elems[at].node
			}
		}
		c := newJSONNode()
		n.elems = append(n.elems[:at], append([]jsonElem{{index: s.Index, node: c}}, n.elems[at:]...)...)
		return c
	}
	for _, e := range n.names {
		if e.name == s.Name {
			return e.node
		}
	}
	c := newJSONNode()
	n.names = append(n.names, jsonEdge{name: s.Name, node: c})
	return c
}

// freeze fills what is derived from the finished trie.
func (n *jsonNode) freeze() []int {
	n.under = append([]int(nil), n.slots...)
	n.explodes = n.each != nil
	for _, c := range n.children() {
		n.under = append(n.under, c.freeze()...)
		n.explodes = n.explodes || c.explodes
	}
	if len(n.names) >= manyNames {
		n.byKey = make(jsonNameMap, len(n.names))
		for _, e := range n.names {
			n.byKey[e.name] = e.node
		}
	}
	return n.under
}

func (n *jsonNode) children() []*jsonNode {
	var all []*jsonNode
	for _, e := range n.names {
		all = append(all, e.node)
	}
	for _, e := range n.elems {
		all = append(all, e.node)
	}
	return all
}

// leaf: nothing below this node is asked for.
func (n *jsonNode) leaf() bool { return len(n.names) == 0 && len(n.elems) == 0 && n.each == nil }

// find gives the node of a member, or nil.
func (n *jsonNode) find(name []byte) *jsonNode {
	if n.byKey != nil {
		return n.byKey[string(name)]
	}
	for i := range n.names {
		if n.names[i].name == string(name) {
			return n.names[i].node
		}
	}
	return nil
}
