package event

import "fmt"

// Cause says why an assertion was recorded. The numbers are stored; they never
// change their meaning.
type Cause uint8

// The causes.
const (
	CauseUnknown        Cause = 0
	CauseOnTime         Cause = 1
	CauseProvisional    Cause = 2
	CauseCorrection     Cause = 3
	CauseLateCorrection Cause = 4
	CauseRetraction     Cause = 5
	CauseSettled        Cause = 6
	CauseReplay         Cause = 7
)

var causeNames = [...]string{
	"unknown", "on_time", "provisional", "correction", "late_correction", "retraction", "settled", "replay",
}

// String gives the cause's name as documents and tables write it.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return fmt.Sprintf("cause(%d)", uint8(c))
}
