package savepoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/state"
)

const version = 1

// Task names a task of a pipeline.
type Task struct {
	Stage     string          `json:"stage"`
	Partition event.Partition `json:"partition"`
}

// String names the task as people write it.
func (t Task) String() string { return t.Stage + "/" + t.Partition.String() }

func compareTasks(a, b Task) int {
	return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Partition, b.Partition))
}

// Barrier is the announcement that carried a savepoint.
type Barrier struct {
	Epoch      event.Epoch                `json:"epoch"`
	Recorded   event.RecordedTime         `json:"recorded"`
	Watermarks map[string]event.Watermark `json:"watermarks,omitempty"`
	Idle       []Task                     `json:"idle,omitempty"`
	Granted    event.Epoch                `json:"granted,omitempty"`
	Hold       bool                       `json:"hold,omitempty"`
	End        bool                       `json:"end,omitempty"`
}

// Pipeline says whose savepoint it is.
type Pipeline struct {
	Name       string           `json:"name"`
	Generation event.Generation `json:"generation"`
	Mapping    string           `json:"mapping"`
	Cluster    string           `json:"cluster"`
	// Formats are the versions of the records that the files hold.
	Formats map[string]int `json:"formats"`
}

// File is one file of a part; its path is relative to the part's directory.
type File struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Part is the checkpoint of one task.
type Part struct {
	V         int    `json:"v"`
	Savepoint string `json:"savepoint"`
	Task
	Epoch    event.Epoch        `json:"epoch"`
	Recorded event.RecordedTime `json:"recorded"`
	// Offsets holds the next offset to read of each input topic.
	Offsets map[string]event.Offset `json:"offsets"`
	Files   []File                  `json:"files"`
}

func (p *Part) bytes() int64 {
	n := int64(0)
	for i := range p.Files {
		n += p.Files[i].Bytes
	}
	return n
}

// PartRef is a part in the manifest.
type PartRef struct {
	Task
	Offsets map[string]event.Offset `json:"offsets"`
	Bytes   int64                   `json:"bytes"`
	// SHA256 is of the part's own file.
	SHA256 string `json:"sha256"`
}

// Manifest makes a savepoint of the parts.
type Manifest struct {
	V        int      `json:"v"`
	Name     string   `json:"savepoint"`
	Pipeline Pipeline `json:"pipeline"`
	Barrier  Barrier  `json:"barrier"`
	// Created is when the manifest was written, by the clock of who did it.
	Created time.Time `json:"created"`
	Tasks   []PartRef `json:"tasks"`
	// Checksum is of the manifest with an empty checksum.
	Checksum string `json:"checksum"`
}

// Bytes is the size of the checkpoints' files.
func (m *Manifest) Bytes() int64 {
	n := int64(0)
	for i := range m.Tasks {
		n += m.Tasks[i].Bytes
	}
	return n
}

// Offsets gives the next offsets to read of a task, nil for one that is not there.
func (m *Manifest) Offsets(t Task) map[string]event.Offset {
	for i := range m.Tasks {
		if m.Tasks[i].Task == t {
			return m.Tasks[i].Offsets
		}
	}
	return nil
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

func (m *Manifest) encode() ([]byte, error) {
	m.V, m.Checksum = version, ""
	raw, err := encode(m)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	m.Checksum = sum(raw)
	return encode(m)
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// decode reads a manifest; what is not byte for byte what encode gives is damaged.
func decode(path string, raw []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := json.Unmarshal(raw, m); err != nil {
		return nil, &DamagedError{File: path, Why: fmt.Sprintf("it is no manifest: %v", err)}
	}
	if m.V != version {
		return nil, fmt.Errorf("%s: %w: savepoint version %d, this build knows %d", path, event.ErrVersion, m.V, version)
	}
	want := m.Checksum
	again, err := m.encode()
	if err != nil {
		return nil, err
	}
	if m.Checksum != want || !bytes.Equal(again, raw) {
		return nil, &DamagedError{File: path, Why: "its content does not match its checksum"}
	}
	return m, nil
}

// DamagedError says which file of a savepoint is damaged, and how. It is a
// state.ErrDamaged.
type DamagedError struct{ File, Why string }

// Error names the file.
func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.File, e.Why) }

// Is makes it a state.ErrDamaged.
func (e *DamagedError) Is(target error) bool { return target == state.ErrDamaged }
