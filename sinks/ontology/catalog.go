package ontology

import (
	"fmt"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
)

// property is one property that the pipeline writes, numbered within the
// pipeline; the database has numbers of its own.
type property struct {
	typ       string
	name      string // with the aggregate's name before it, for a windowed one
	aggregate string
	kind      event.Kind
	linkTo    string
	windowed  bool
}

// catalog numbers a pipeline's properties. It is read-only once built.
type catalog struct {
	properties []property
	types      map[string]map[string]int32 // type → property name → index
}

func newCatalog(p *Pipeline) (*catalog, error) {
	if p.Name == "" || p.Generation < 1 || p.ResultsPartitions < 1 {
		return nil, fmt.Errorf("%w: pipeline %q, generation %s, %d results partitions: each must be given",
			ErrPipeline, p.Name, p.Generation, p.ResultsPartitions)
	}
	c := &catalog{types: make(map[string]map[string]int32)}
	for _, t := range p.Types {
		props := make(map[string]int32)
		if _, twice := c.types[t.Name]; twice {
			return nil, fmt.Errorf("%w: type %q is declared twice", ErrPipeline, t.Name)
		}
		c.types[t.Name] = props
		for _, d := range t.Properties {
			if _, twice := props[d.Name]; twice {
				return nil, fmt.Errorf("%w: property %s.%s is declared twice", ErrPipeline, t.Name, d.Name)
			}
			props[d.Name] = int32(len(c.properties))
			c.properties = append(c.properties, newProperty(t.Name, &d))
		}
	}
	return c, nil
}

func newProperty(typ string, d *mapping.PropertyDef) property {
	p := property{typ: typ, name: d.Name, kind: d.Kind, linkTo: d.LinkTo, windowed: d.Windowed}
	if d.Windowed {
		p.aggregate, _, _ = strings.Cut(d.Name, ".")
	}
	return p
}

// names gives the properties of a type.
func (c *catalog) names(typ string) (map[string]int32, error) {
	names, ok := c.types[typ]
	if !ok {
		return nil, &UnknownNameError{Type: typ}
	}
	return names, nil
}

// find gives the index of a property of a type.
func (c *catalog) find(typ string, names map[string]int32, name string, windowed bool) (int32, error) {
	i, ok := names[name]
	if !ok || c.properties[i].windowed != windowed {
		return 0, &UnknownNameError{Type: typ, Property: name}
	}
	return i, nil
}

// full gives a value's name as a property of its type.
func full(aggregate, name string) string {
	if aggregate == "" {
		return name
	}
	return aggregate + "." + name
}
