package event

import (
	"encoding/json"
	"fmt"
)

// Marker says, in one partition of an output topic, that the rows of an epoch
// which the named tasks wrote all stand before it. A reader has the barrier in
// a partition when the markers for the epoch name every upstream task.
type Marker struct {
	V        int          `json:"v"`
	Stage    string       `json:"stage"`
	Member   string       `json:"member"`
	Epoch    Epoch        `json:"epoch"`
	Recorded RecordedTime `json:"recorded"`
	Tasks    []Partition  `json:"tasks"`
}

// MarkerVersion is the version of the marker format.
const MarkerVersion = 1

// AppendMarker appends the row that holds m.
func AppendMarker(dst []byte, m *Marker) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return dst, fmt.Errorf("encode marker: %w", err)
	}
	dst = append(dst, RowVersion, byte(RowMarker))
	return append(dst, body...), nil
}

// DecodeMarker decodes a RowMarker row.
func DecodeMarker(b []byte) (Marker, error) {
	var m Marker
	kind, _, err := openRow(b)
	if err != nil {
		return m, err
	}
	if kind != RowMarker {
		return m, fmt.Errorf("%w: row kind %d is not a marker", ErrCorrupt, kind)
	}
	if err := json.Unmarshal(b[2:], &m); err != nil {
		return m, fmt.Errorf("%w: marker: %w", ErrCorrupt, err)
	}
	if m.V != MarkerVersion {
		return m, fmt.Errorf("%w: marker version %d, this build knows %d", ErrVersion, m.V, MarkerVersion)
	}
	return m, nil
}
