package state

import (
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
)

// Mark says which changelog a store copies, and since when it may have missed
// something of it. A batch that has one writes it with the rest.
type Mark struct {
	// Log is the id of the changelog topic: a topic that is deleted and made
	// again has another.
	Log string
	// CaughtUp is a moment, by this machine's clock, at which the store lacked
	// nothing that the changelog held; an empty store that is about to read all
	// of it lacks nothing either.
	CaughtUp event.RecordedTime
}

const markVersion = 1

func (m *Mark) encode() []byte {
	dst := wire.AppendInt([]byte{markVersion}, int64(m.CaughtUp))
	return wire.AppendString(dst, m.Log)
}

// ReadMark reads a store's mark; one that has none gives RecordedUnknown.
func ReadMark(r Reader) (Mark, error) {
	m := Mark{CaughtUp: event.RecordedUnknown}
	b, ok, err := r.Get(markKey())
	if err != nil || !ok {
		return m, err
	}
	if len(b) == 0 || b[0] != markVersion {
		return m, fmt.Errorf("%w: the store's mark", event.ErrVersion)
	}
	rd := wire.NewReader(b[1:])
	m.CaughtUp, m.Log = event.RecordedTime(rd.Int()), rd.String()
	if err := rd.Close(); err != nil {
		return m, fmt.Errorf("%w: the store's mark: %w", event.ErrCorrupt, err)
	}
	return m, nil
}

const originVersion = 1

// OriginChange is the first record that a task ever writes to its changelog,
// see Origin.
func OriginChange() Change {
	return Change{Key: []byte{KeyOrigin}, Value: []byte{originVersion}}
}

// FindOrigin looks for that record in a store.
func FindOrigin(r Reader) (Origin, error) {
	_, ok, err := r.Get([]byte{KeyOrigin})
	if err != nil || !ok {
		return OriginMissing, err
	}
	return OriginHeld, nil
}
