package feed

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
)

// Record is one record of a file.
type Record struct {
	Line int // from 1
	// Partition is nil where the line names none.
	Partition *event.Partition
	// Timestamp is the record's timestamp in the log; Timed is false where it
	// has none.
	Timestamp event.EventTime
	Timed     bool
	// Key and Value are nil where there is none.
	Key, Value []byte
	Headers    []Header
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Error says what is wrong with an input file, and what to do.
type Error struct {
	File string
	Line int // 0: the file as a whole
	Err  error
	// Advice may be empty.
	Advice string
}

// Error gives the whole.
func (e *Error) Error() string {
	text := "input file " + e.File
	if e.Line > 0 {
		text = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	text += ": " + e.Err.Error()
	if e.Advice != "" {
		text += "; " + e.Advice
	}
	return text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

const (
	// maxLine bounds a line, in bytes.
	maxLine = 64 << 20
	// maxLeading bounds the lines without a timestamp that wait at the
	// beginning of a file for one that has one.
	maxLeading = 1000
)

// Summary says what a reading met.
type Summary struct {
	Records int
	// Borrowed counts the lines from which no timestamp could be read though a
	// field for it is named. They took that of the record before them, or at
	// the beginning of the file that of the first record that has one: so a
	// line that is no JSON still has its place in the log.
	Borrowed int
}

// Read opens the file and calls take for each record, in the file's order. An
// error of take ends the reading and is returned as it is; others are *Error.
func (s Spec) Read(take func(Record) error) (Summary, error) {
	f, err := os.Open(s.File)
	if err != nil {
		return Summary{}, s.noFile(err)
	}
	defer f.Close()
	return s.Parse(f, take)
}

// Check reads the file as Read does, before Read does. A pipe can be read only
// once: of that, Check sees no more than that it is there.
func (s Spec) Check(take func(Record) error) error {
	info, err := os.Stat(s.File)
	if err != nil {
		return s.noFile(err)
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil
	}
	_, err = s.Read(take)
	return err
}

func (s Spec) noFile(err error) error {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		err = path.Err
	}
	return &Error{File: s.File, Err: err, Advice: "check the path"}
}

// Parse reads as Read does, from r; File stands in its errors.
func (s Spec) Parse(r io.Reader, take func(Record) error) (Summary, error) {
	rd, err := s.newReader(take)
	if err != nil {
		return Summary{}, &Error{File: s.File, Err: err}
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	line := 0
	for lines.Scan() {
		line++
		text := bytes.TrimSuffix(lines.Bytes(), []byte("\r"))
		if len(text) == 0 {
			continue
		}
		if err := rd.line(line, bytes.Clone(text)); err != nil {
			return rd.summary, err
		}
	}
	if err := lines.Err(); err != nil {
		return rd.summary, &Error{File: s.File, Line: line + 1, Err: err}
	}
	if len(rd.leading) > 0 {
		return rd.summary, rd.noTimestamps()
	}
	return rd.summary, nil
}

// reader turns lines into records.
type reader struct {
	spec    Spec
	take    func(Record) error
	decoder formats.Decoder // nil: no field is named
	summary Summary
	last    event.EventTime
	timed   bool // last is set
	leading []Record
}

func (s Spec) newReader(take func(Record) error) (*reader, error) {
	rd := &reader{spec: s, take: take}
	if s.Timestamp == "" && s.Key == "" {
		return rd, nil
	}
	var paths []formats.Path
	for _, field := range []string{s.Timestamp, s.Key} {
		if field == "" {
			field = "$"
		}
		p, err := formats.ParsePath(field)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	var err error
	rd.decoder, err = formats.NewJSON(paths, nil, formats.JSONOptions{})
	return rd, err
}

func (rd *reader) line(n int, text []byte) error {
	r := Record{Line: n, Value: text}
	if err := r.envelope(text); err != nil {
		return &Error{File: rd.spec.File, Line: n, Err: err, Advice: "see the forms of input in docs/cli.md"}
	}
	if decoded := rd.fields(&r); decoded && rd.spec.Key != "" && r.Key == nil && r.Partition == nil {
		return &Error{
			File: rd.spec.File, Line: n, Err: fmt.Errorf("this record has no field %s for its key", rd.spec.Key),
			Advice: "correct ,key=FIELD, or give the key in an envelope",
		}
	}
	rd.summary.Records++
	if rd.spec.Timestamp == "" {
		return rd.take(r)
	}
	switch {
	case r.Timed:
		rd.last, rd.timed = r.Timestamp, true
		for _, early := range rd.leading {
			early.Timestamp, early.Timed = r.Timestamp, true
			if err := rd.take(early); err != nil {
				return err
			}
		}
		rd.leading = nil
	case rd.timed:
		rd.summary.Borrowed++
		r.Timestamp, r.Timed = rd.last, true
	default:
		rd.summary.Borrowed++
		rd.leading = append(rd.leading, r)
		if len(rd.leading) >= maxLeading {
			return rd.noTimestamps()
		}
		return nil
	}
	return rd.take(r)
}

func (rd *reader) noTimestamps() error {
	return &Error{
		File: rd.spec.File, Line: rd.leading[0].Line,
		Err:    fmt.Errorf("no line up to %d has a timestamp in the field %s", rd.leading[len(rd.leading)-1].Line, rd.spec.Timestamp),
		Advice: "name the field and its unit with timestamp=FIELD:ms (or s, us, ns)",
	}
}

// fields reads timestamp and key from the value where the line itself names
// none, and says whether there is a value that can be read.
func (rd *reader) fields(r *Record) bool {
	if rd.decoder == nil || r.Value == nil {
		return false
	}
	// A value that cannot be decoded has neither: that is for the pipeline to
	// reject.
	err := rd.decoder.Decode(r.Value, func(_ int32, f formats.Fields) error {
		if !r.Timed && rd.spec.Timestamp != "" {
			r.Timestamp, r.Timed = instant(f[0], rd.spec.Unit)
		}
		if r.Key == nil && rd.spec.Key != "" {
			r.Key = keyText(f[1])
		}
		return nil
	})
	return err == nil
}

func keyText(s event.Scalar) []byte {
	switch s.Type {
	case event.ScalarText, event.ScalarJSON:
		return []byte(s.Text)
	case event.ScalarNumber:
		return []byte(s.Num.String())
	case event.ScalarBool:
		return fmt.Append(nil, s.Bool)
	case event.ScalarAbsent, event.ScalarNull:
	}
	return nil
}

// envelope unpacks a line that is one; other lines are left as they are.
func (r *Record) envelope(text []byte) error {
	if text[0] != '{' || !bytes.Contains(text, []byte(`"value"`)) {
		return nil
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil || keys["value"] == nil {
		return nil //nolint:nilerr // a value that is no JSON is for the pipeline to reject
	}
	for key := range keys {
		if !slices.Contains([]string{"partition", "timestamp", "key", "value", "headers"}, key) {
			return nil
		}
	}
	r.Value = bytesOf(keys["value"])
	r.Key = bytesOf(keys["key"])
	if raw := keys["partition"]; present(raw) {
		var p int32
		if err := json.Unmarshal(raw, &p); err != nil || p < 0 {
			return fmt.Errorf("partition %s is not a number from 0", raw)
		}
		r.Partition = (*event.Partition)(&p)
	}
	if raw := keys["timestamp"]; present(raw) {
		s, err := scalarOf(raw)
		if err != nil {
			return err
		}
		if r.Timestamp, r.Timed = instant(s, ""); !r.Timed {
			return fmt.Errorf("timestamp %s is neither a number of milliseconds nor RFC 3339", raw)
		}
	}
	return r.headers(keys["headers"])
}

func (r *Record) headers(raw json.RawMessage) error {
	if !present(raw) {
		return nil
	}
	// A list keeps the order of the line, which a map would lose.
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("headers must be an object of texts")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var value string
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("header %q must be a text", name)
		}
		key, _ := name.(string) // the name of a member is a text
		r.Headers = append(r.Headers, Header{Key: key, Value: []byte(value)})
	}
	return nil
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// bytesOf gives a text's characters, nothing for null, and else the JSON itself.
func bytesOf(raw json.RawMessage) []byte {
	if !present(raw) {
		return nil
	}
	var text string
	if raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
		return []byte(text)
	}
	return raw
}

func scalarOf(raw json.RawMessage) (event.Scalar, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return event.Scalar{Type: event.ScalarText, Text: text}, nil
	}
	n, err := event.ParseDecimal(string(raw))
	return event.Scalar{Type: event.ScalarNumber, Num: n}, err
}
