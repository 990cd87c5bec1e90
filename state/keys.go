package state

// The first byte of a key says what it holds. The letters are stored, so they
// never change their meaning.
const (
	// KeyProgress is the key of the progress record, see Progress.
	KeyProgress byte = 'P'
	// KeyOrigin is the key of a changelog's first record, see Origin.
	KeyOrigin byte = 'o'
	// KeyPane holds a window of an aggregate.
	KeyPane byte = 'w'
	// KeyParked holds late events of a window whose state is gone.
	KeyParked byte = 'p'
	// KeyIDBlock holds the event ids that one epoch added to one time bucket,
	// packed: in the changelog as this one record, in a store as one KeyID
	// entry each.
	KeyIDBlock byte = 'b'
	// KeyID holds one event id; only in stores, never in a changelog.
	KeyID byte = 'i'
	// KeySequence holds the sequence numbers that have been counted of one key.
	KeySequence byte = 's'
	// keyMeta holds what only the local store knows; never in a changelog.
	keyMeta byte = 'M'
)

func positionKey() []byte { return []byte{keyMeta, 'p'} }

func markKey() []byte { return []byte{keyMeta, 'm'} }

func numbersKey() []byte { return []byte{keyMeta, 'n'} }
