package processors_test

import (
	"testing"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// A record format that was announced is announced for ever, whatever the members
// of today read; and none that one of them does not read.
func TestTheRecordFormatNeverGoesBackAndNeverPassesAMember(t *testing.T) {
	for was, want := range map[state.Format]state.Format{0: state.FormatOldest, 1: state.FormatOldest, 2: 2} {
		c, p0, p1 := logCoordinator(t, false)
		c.Restore(processors.Announcement{Epoch: 5, Recorded: 1_700_000_000_000_000, Format: was, Watermarks: map[string]event.Watermark{}})
		next := processors.Next{Known: true, Timestamp: 1_700_000_100_000_000}
		c.Acked(processors.Ack{Task: p0, Epoch: 5, Next: next, Reads: 9})
		c.Acked(processors.Ack{Task: p1, Epoch: 5, Next: next})
		if a, ok := c.Next(0); !ok || a.Format != want {
			t.Errorf("behind format %d: announced %v, format %d, want %d", was, ok, a.Format, want)
		}
	}
}
