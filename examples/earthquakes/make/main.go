// Command make writes quakes.ndjson from the earthquake catalogue of the npm
// package vega-datasets.
//
//	go run ./examples/earthquakes/make PATH/TO/data/earthquakes.json > quakes.ndjson
//
// Its promises:
//
//  1. One line for each feature, ordered by (`updated`, `id`).
//  2. Every value that is kept has the bytes that it has in the source: no
//     number is read as a float and printed again.
//  3. A field that is neither kept nor dropped by name is an error, so a new
//     edition of the source cannot lose a field unseen.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "make:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("give one argument: the path of data/earthquakes.json of vega-datasets")
	}
	source, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	return convert(bytes.NewReader(source), out)
}

// kept lists the properties that a line carries between `id` and the
// coordinates, in the source's order.
func kept() []string {
	return []string{
		"mag", "place", "time", "updated", "tz", "felt", "cdi", "mmi", "alert",
		"status", "tsunami", "sig", "net", "code", "nst", "dmin", "rms", "gap",
		"magType", "type", "title",
	}
}

// dropped lists the properties that a line leaves out: two addresses that
// follow from `id`, and three comma-separated lists of the catalogue's own
// bookkeeping.
func dropped() []string {
	return []string{"url", "detail", "ids", "sources", "types"}
}

type feature struct {
	Type       string                     `json:"type"`
	Properties map[string]json.RawMessage `json:"properties"`
	Geometry   struct {
		Type        string            `json:"type"`
		Coordinates []json.RawMessage `json:"coordinates"`
	} `json:"geometry"`
	ID json.RawMessage `json:"id"`
}

// line is one feature ready to be written, with what it is ordered by.
type line struct {
	updated int64
	id      string
	text    []byte
}

// convert reads a GeoJSON feature collection and writes it as NDJSON.
func convert(in io.Reader, out io.Writer) error {
	var collection struct {
		Features []feature `json:"features"`
	}
	if err := json.NewDecoder(in).Decode(&collection); err != nil {
		return fmt.Errorf("the input is not the GeoJSON that was expected: %w", err)
	}
	lines := make([]line, 0, len(collection.Features))
	for i, f := range collection.Features {
		l, err := flatten(f)
		if err != nil {
			return fmt.Errorf("feature %d (id %s): %w", i, f.ID, err)
		}
		lines = append(lines, l)
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.updated, b.updated), cmp.Compare(a.id, b.id))
	})
	var text bytes.Buffer
	for _, l := range lines {
		text.Write(l.text)
		text.WriteByte('\n')
	}
	_, err := out.Write(text.Bytes())
	return err
}

// flatten renders one feature as a flat JSON object on one line.
func flatten(f feature) (line, error) {
	if f.Type != "Feature" || f.Geometry.Type != "Point" || len(f.Geometry.Coordinates) != 3 {
		return line{}, fmt.Errorf("not a Feature with a Point of three coordinates")
	}
	if err := checkFields(f.Properties); err != nil {
		return line{}, err
	}
	var l line
	var err error
	if err = json.Unmarshal(f.ID, &l.id); err != nil {
		return line{}, fmt.Errorf("id: %w", err)
	}
	if l.updated, err = strconv.ParseInt(string(f.Properties["updated"]), 10, 64); err != nil {
		return line{}, fmt.Errorf("updated: %w", err)
	}
	var b bytes.Buffer
	field := func(name string, value []byte) {
		b.WriteByte(',')
		fmt.Fprintf(&b, "%q:", name)
		b.Write(value)
	}
	field("id", f.ID)
	for _, name := range kept() {
		field(name, f.Properties[name])
	}
	for i, name := range []string{"lon", "lat", "depth"} {
		field(name, f.Geometry.Coordinates[i])
	}
	b.WriteByte('}')
	l.text = b.Bytes()
	l.text[0] = '{'
	if bytes.ContainsAny(l.text, "\r\n") {
		return line{}, fmt.Errorf("a value has a line break in it and cannot stand on one line")
	}
	return l, nil
}

// checkFields makes sure that the properties are exactly the kept and the
// dropped ones.
func checkFields(properties map[string]json.RawMessage) error {
	known := append(kept(), dropped()...)
	for _, name := range known {
		if _, ok := properties[name]; !ok {
			return fmt.Errorf("property %q is missing", name)
		}
	}
	for name := range properties {
		if !slices.Contains(known, name) {
			return fmt.Errorf("property %q is not known here: keep or drop it by name", name)
		}
	}
	return nil
}
