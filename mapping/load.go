package mapping

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Load reads and checks the mapping file at path, see Parse. A file that
// cannot be read is an error of the operating system, not an *Error.
func Load(path string, env func(string) (string, bool)) (*Plan, error) {
	data, err := readBounded(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("mapping file: %w", err)
	}
	return Parse(path, data, env)
}

// readBounded reads a regular file, and one byte more than limit at most, so
// that what is too long shows.
func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a directory", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return io.ReadAll(io.LimitReader(f, limit+1))
}

// Parse checks the mapping in data and gives its plan, or an *Error with every
// fault. The name stands in the faults, and relative paths in the file start
// from its directory.
//
// Secrets are read here, from env (nil: there are no variables) and from
// files. One that cannot be read is no fault of Parse: a mapping can be
// checked and tried where it cannot connect. See Plan.CheckConnections.
func Parse(name string, data []byte, env func(string) (string, bool)) (*Plan, error) {
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	r := &reader{file: name, env: env}
	l := &loader{r: r, plan: &Plan{file: name}, streams: map[string]*streamEntry{}}
	root := r.document(data)
	if root != nil {
		l.load(root)
	}
	if len(r.faults) > 0 {
		sortFaults(r.faults)
		if extra := len(r.faults) - maxFaults; extra > 0 {
			r.faults = append(r.faults[:maxFaults], Fault{File: name, Message: fmt.Sprintf("%d more faults", extra)})
		}
		return nil, &Error{Faults: r.faults}
	}
	l.finish()
	if len(r.faults) > 0 {
		return nil, &Error{Faults: r.faults}
	}
	l.plan.text = textOf(root)
	return l.plan, nil
}

// loader builds the plan from the file's sections.
type loader struct {
	r       *reader
	plan    *Plan
	streams map[string]*streamEntry
	names   []string // of the streams, in the file's order
}

// streamEntry is a stream while expressions are still added to it.
type streamEntry struct {
	stream *Stream
	paths  pathSet
}

func (l *loader) load(root *yaml.Node) {
	s := l.r.section(root, "", topKeys())
	if s == nil {
		return
	}
	if s.require("pipeline", "give the pipeline a name, as in pipeline: orders") {
		if name, ok := s.text("pipeline"); ok {
			l.plan.Pipeline = name
			if !pipelineName.MatchString(name) {
				s.fault("pipeline", "lower-case letters, digits and -, at most 60, a letter first", "%s is not a pipeline name", quoteShort(name))
			}
		}
	}
	l.kafka(s)
	l.ontology(s)
	l.epoch(s)
	if s.require("streams", "a pipeline reads at least one stream") {
		l.allStreams(s)
	}
	if s.require("objects", "a pipeline writes at least one type of object") {
		l.allObjects(s)
	}
}

// finish derives what needs every expression: decoders, types, the version.
func (l *loader) finish() {
	for _, name := range l.names {
		e := l.streams[name]
		e.buildDecoder(l.r)
		l.plan.Streams = append(l.plan.Streams, e.stream)
	}
	// In one order, whatever the file's: nothing then depends on that but the
	// rank of streams.
	slices.SortFunc(l.plan.Types, func(a, b *ObjectType) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(l.plan.Puts, func(a, b *Put) int { return strings.Compare(a.Type, b.Type) })
	slices.SortFunc(l.plan.Aggregates, func(a, b *Aggregate) int {
		return strings.Compare(a.StageName(), b.StageName())
	})
	l.plan.Version = version(l.plan)
	l.plan.missing = l.r.missing
}

func (l *loader) epoch(top *section) {
	e := &l.plan.Epoch
	*e = EpochSettings{Interval: defaultInterval, Step: defaultStep}
	s := top.sub("epoch", epochKeys())
	if s == nil {
		return
	}
	e.Interval = s.durationFrom("interval", defaultInterval, minInterval)
	e.Step = s.durationFrom("step", defaultStep, minStep)
	if s.oneOf("clock", "wall", "wall", "log") == "log" {
		e.Clock = ClockLog
	} else if s.has("step") {
		s.faultAtKey("step", "add clock: log, or leave step out", "step belongs to clock: log")
	}
}

// The forms of names.
var (
	pipelineName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,59}$`)
	// plainName is for streams, types, properties, aggregates and their values.
	plainName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,59}$`)
	topicName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
)

// nameOf checks a key that is a name of the user's.
func (s *section) nameOf(name, what string) {
	if !plainName.MatchString(name) {
		s.faultAtKey(name, "letters, digits and _, at most 60, a letter first", "%s is not a name for %s", quoteShort(name), what)
	}
}

// dir is the directory from which relative paths in the file start.
func (r *reader) dir() string { return filepath.Dir(r.file) }
