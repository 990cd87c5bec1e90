package state

import (
	"encoding/json"
	"fmt"

	"github.com/forge-platform/strom/event"
)

// ProgressVersion is the oldest version of the progress record's format. Its
// version is the Format that it is written in.
const ProgressVersion = int(FormatOldest)

// Progress is what a task knows of itself at a barrier, besides its state. It
// is the last record of the task in every changelog transaction.
type Progress struct {
	V        int                `json:"v"`
	Epoch    event.Epoch        `json:"epoch"`
	Recorded event.RecordedTime `json:"recorded"`
	// Offsets holds the next offset to read of each input topic.
	Offsets map[string]event.Offset `json:"offsets"`
	// Watermark is the one that the task's own input justifies; a source
	// task's only.
	Watermark event.Watermark `json:"watermark"`
	// Announced is the watermark of the task's stream as announced with
	// Epoch: by it windows were closed.
	Announced event.Watermark `json:"announced"`
	// LastStamp is the greatest timestamp of a record read: under the log
	// clock idleness is measured from it.
	LastStamp event.EventTime `json:"last_stamp"`
	// Hold says that the task takes no input before the next barrier.
	Hold bool `json:"hold,omitempty"`
	// Parked is the number of the last window ever parked.
	Parked uint64 `json:"parked"`
	// Counters is the task's own, kept as it wrote it.
	Counters json.RawMessage `json:"counters,omitempty"`
	// Mapping is the version of the mapping that the epoch ran under.
	Mapping string `json:"mapping"`
	// Member is the transactional id that committed the epoch.
	Member string `json:"member"`
	// Next is what the next format holds; only builds for tests write it.
	Next string `json:"next,omitempty"`
}

// InitialProgress is where a task stands before its first barrier.
func InitialProgress() Progress {
	return Progress{
		V: ProgressVersion, Recorded: event.RecordedUnknown,
		Watermark: event.WatermarkUnknown, Announced: event.WatermarkUnknown, LastStamp: event.MinEventTime,
	}
}

// Encode gives the progress record's value in the oldest format.
func (p *Progress) Encode() ([]byte, error) { return p.EncodeAs(FormatOldest) }

// EncodeAs gives the progress record's value in a format that this build knows.
func (p *Progress) EncodeAs(f Format) ([]byte, error) {
	if err := CheckFormat(f); err != nil {
		return nil, err
	}
	p.V = int(max(f, FormatOldest))
	p.upgrade(f)
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode progress: %w", err)
	}
	return b, nil
}

// ReadProgress reads the progress record from a store; ok is false for a store
// that has none.
func ReadProgress(r Reader) (p Progress, ok bool, err error) {
	raw, ok, err := r.Get([]byte{KeyProgress})
	if err != nil || !ok {
		return InitialProgress(), false, err
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, false, fmt.Errorf("%w: progress record: %w", event.ErrCorrupt, err)
	}
	if p.V < ProgressVersion || p.V > int(NewestFormat) {
		return p, false, fmt.Errorf("%w: progress record version %d, this build knows %d to %d", event.ErrVersion, p.V, ProgressVersion, NewestFormat)
	}
	return p, true, nil
}
