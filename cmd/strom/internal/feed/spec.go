// Package feed reads records from files, for `strom try` and for loading
// topics.
//
// A file holds one record a line. A line is either the record's value, byte for
// byte, or an envelope: a JSON object that has `value` and whose other keys are
// all among partition, timestamp, key and headers.
//
//	{"partition":0,"timestamp":1517365391235,"key":"ak18247005","value":{"mag":2.3},"headers":{"source":"usgs"}}
//
// In an envelope `value` is taken as it stands in the line, except that a text
// gives its characters (so a value that is no JSON can be written) and null is
// a record without a value. `timestamp` is a number of milliseconds, or
// RFC 3339. Empty lines are no records.
package feed

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/forge-platform/strom/formats"
)

// Spec says what to read, and for which stream.
type Spec struct {
	Stream, File string
	// Timestamp is the path of the field that holds a record's timestamp in
	// the log; empty: only envelopes have one. Unit says how it is written:
	// s, ms, us or ns; empty: milliseconds, or RFC 3339 where it is a text.
	Timestamp, Unit string
	// Key is the path of the field that holds the record's key; empty: only
	// envelopes have one.
	Key string
}

// Form is how ParseSpec wants a Spec written.
const Form = "STREAM=FILE[,timestamp=FIELD[:s|ms|us|ns]][,key=FIELD]"

// ParseSpec reads a Spec in the form Form.
func ParseSpec(text string) (Spec, error) {
	var s Spec
	stream, rest, ok := strings.Cut(text, "=")
	if !ok || stream == "" {
		return s, fmt.Errorf("%q is not of the form %s", text, Form)
	}
	s.Stream = stream
	given := map[string]bool{}
	for {
		name, value, before, found := lastOption(rest)
		if !found {
			break
		}
		rest = before
		field, _, _ := strings.Cut(value, ":")
		switch {
		case field == "":
			return s, fmt.Errorf("%q: %s= names no field; write %s", text, name, Form)
		case given[name]:
			return s, fmt.Errorf("%q: %s= stands there twice", text, name)
		}
		given[name] = true
		switch name {
		case "timestamp":
			s.Timestamp, s.Unit, _ = strings.Cut(value, ":")
		case "key":
			s.Key = value
		}
	}
	s.File = rest
	err := s.validate(text)
	return s, err
}

// strange finds what looks like an option and is none. That a file's name may
// not look so is the price of telling a misspelt option.
var strange = regexp.MustCompile(`,([A-Za-z_-]+)=`)

// lastOption cuts the last option off; file names may hold commas.
func lastOption(text string) (name, value, before string, found bool) {
	at := -1
	for _, option := range []string{"timestamp", "key"} {
		if i := strings.LastIndex(text, ","+option+"="); i > at {
			at, name = i, option
		}
	}
	if at < 0 {
		return "", "", text, false
	}
	return name, text[at+len(name)+2:], text[:at], true
}

func (s *Spec) validate(text string) error {
	if s.File == "" {
		return fmt.Errorf("%q names no file; write %s", text, Form)
	}
	if m := strange.FindStringSubmatch(s.File); m != nil {
		return fmt.Errorf("%q: unknown option %s=; write %s", text, m[1], Form)
	}
	switch s.Unit {
	case "", "s", "ms", "us", "ns":
	default:
		return fmt.Errorf("%q: %q is not a unit of time; write s, ms, us or ns", text, s.Unit)
	}
	for _, field := range []string{s.Timestamp, s.Key} {
		if field == "" {
			continue
		}
		if _, err := formats.ParsePath(field); err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
	}
	return nil
}
