package kafka_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Every window closes at one barrier: the epoch is larger than what the sink
// applies at once, so a part of it stands in the database before its marker.
func TestAnEpochLargerThanAChunkIsAppliedWhole(t *testing.T) {
	const keys = 12_000
	s := newSteady(t, 1)
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	records := make([]*kgo.Record, 0, 2*keys)
	for round := range int64(2) {
		for k := range int64(keys) {
			records = append(records, &kgo.Record{
				Topic: "ticks", Timestamp: time.UnixMilli(at), Value: fmt.Appendf(nil, `{"k":"k%05d","at":%d}`, k, at+round),
			})
		}
	}
	s.produce(t, records...)
	c := s.config(t, fmt.Sprintf(ticks, "wall", "partitioned_by: key"))
	c.UntilEnd = true
	if err := within(t, c, time.Minute); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(believedCounts(t, s.postgres), "\n")
	if len(lines) != keys {
		t.Fatalf("%d windows, want %d", len(lines), keys)
	}
	for _, line := range lines {
		if !strings.HasSuffix(line, " n=2") {
			t.Fatalf("%s, want 2", line)
		}
	}
}
