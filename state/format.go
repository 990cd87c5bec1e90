package state

import (
	"fmt"

	"github.com/forge-platform/strom/event"
)

// Format numbers the formats of all records that the members of a pipeline
// write for each other, as one: a build that changes any of them counts it up.
// A build reads every format up to NewestFormat, and writes the one that the
// newest barrier announces, which every member reads
// (docs/decisions/0022-a-fleet-writes-what-all-of-it-reads.md).
type Format int

// FormatOldest is the format of builds that announce none.
const FormatOldest Format = 1

// CheckFormat refuses a format that this build does not read.
func CheckFormat(f Format) error {
	if f > NewestFormat {
		return fmt.Errorf("%w: the pipeline writes record format %d, this build reads up to %d; run the newer build here too, as the others do: the format never goes back",
			event.ErrVersion, f, NewestFormat)
	}
	return nil
}
