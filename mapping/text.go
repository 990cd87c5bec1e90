package mapping

import (
	"slices"

	"gopkg.in/yaml.v3"
)

// Text gives the mapping as YAML that Parse reads to a plan of the same
// Version: without comments, and without connections, so that it may be kept
// where others read it. The caller must not change it.
func (p *Plan) Text() []byte { return p.text }

// textOf writes a document without comments and connections; nil where the
// library cannot.
func textOf(root *yaml.Node) []byte {
	top := *root
	top.Content = nil
	for i := 0; i+1 < len(root.Content); i += 2 {
		if k := root.Content[i]; !slices.Contains([]string{"kafka", "ontology"}, k.Value) {
			top.Content = append(top.Content, plain(k), plain(root.Content[i+1]))
		}
	}
	text, err := yaml.Marshal(plain(&top))
	if err != nil {
		return nil
	}
	return text
}

// plain copies a node without comments.
func plain(n *yaml.Node) *yaml.Node {
	out := &yaml.Node{Kind: n.Kind, Style: n.Style, Tag: n.Tag, Value: n.Value}
	for _, c := range n.Content {
		out.Content = append(out.Content, plain(c))
	}
	return out
}
