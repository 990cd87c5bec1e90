package faults

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
)

// What must hold after a case. Every check is a function of what was read from
// Kafka and PostgreSQL, so that it can be shown to fail; checks.All runs them.

// checkResults compares lines with those of the oracle.
func checkResults(what string, got, want []string) error {
	for i := range max(len(got), len(want)) {
		g, w := "(nothing)", "(nothing)"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			return fmt.Errorf("%s: line %d of %d, where %d are wanted:\n  got  %s\n  want %s", what, i+1, len(got), len(want), g, w)
		}
	}
	return nil
}

// resultRow is a row of the results topic, where it stands.
type resultRow struct {
	Partition event.Partition
	Offset    event.Offset
	event.Result
}

// checkVersions makes sure that nothing is published twice: the versions of
// every window are 1, 2, 3, ... in the order of the log, and every event put its
// properties once.
func checkVersions(rows []resultRow) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b resultRow) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	versions := map[string]uint32{}
	places := map[string]event.Partition{}
	for i := range rows {
		r := &rows[i]
		key := fmt.Sprintf("%s %s", r.Type, r.ID)
		if p, known := places[key]; known && p != r.Partition {
			return fmt.Errorf("results of %s stand in the partitions %s and %s", key, p, r.Partition)
		}
		places[key] = r.Partition
		want := uint32(1)
		if r.Kind == event.RowPut {
			key = fmt.Sprintf("%s put by %s/%s offset %s index %d", key, r.Place.Topic, r.Place.Partition, r.Place.Offset, r.Tie.Index)
			if versions[key] > 0 {
				return fmt.Errorf("%s stands twice in the results, the second time at %s/%s", key, r.Partition, r.Offset)
			}
			versions[key] = want
			continue
		}
		key = fmt.Sprintf("%s %s %s..%s", key, r.Aggregate, r.ValidFrom, r.ValidTo)
		if want = versions[key] + 1; r.Version != want {
			return fmt.Errorf("%s: version %d at %s/%s, and %d is next", key, r.Version, r.Partition, r.Offset, want)
		}
		versions[key] = r.Version
	}
	return nil
}

// letter is a dead letter.
type letter struct {
	Reason, Value string
	Place         string // topic/partition offset
}

// checkLetters makes sure that every record that is to be rejected was, once.
func checkLetters(letters []letter, want []string) error {
	places := map[string]bool{}
	var got []string
	for _, l := range letters {
		if places[l.Place] {
			return fmt.Errorf("the record at %s is a dead letter twice", l.Place)
		}
		places[l.Place] = true
		got = append(got, l.Reason+" "+l.Value)
	}
	slices.Sort(got)
	return checkResults("dead letters", got, want)
}

// partitionEnds are the ends of one partition.
type partitionEnds struct {
	Topic        string
	Partition    event.Partition
	Stable, High event.Offset
}

// checkNoHanging makes sure that no transaction is open: the last stable offset
// of every partition is its high watermark.
func checkNoHanging(ends []partitionEnds) error {
	var faults []error
	for _, e := range ends {
		if e.Stable != e.High {
			faults = append(faults, fmt.Errorf("%s/%s: a transaction hangs: the last stable offset is %s, the high watermark %s", e.Topic, e.Partition, e.Stable, e.High))
		}
	}
	if len(ends) == 0 {
		faults = append(faults, errors.New("no partition was looked at"))
	}
	return errors.Join(faults...)
}

// durable is what three places say of one task: the group's committed offset,
// the newest progress record of its changelog, and its newest acknowledgement.
// An offset that is nowhere is OffsetNone.
type durable struct {
	Task                       processors.TaskID
	Committed, Progress, Acked event.Offset
	ProgressEpoch, AckedEpoch  event.Epoch
}

// checkDurable makes sure that the three agree.
func checkDurable(tasks []durable) error {
	var faults []error
	for _, d := range tasks {
		if d.Committed != d.Progress || d.Committed != d.Acked || d.ProgressEpoch != d.AckedEpoch {
			faults = append(faults, fmt.Errorf("%s/%s: offset %s is committed, its progress says epoch %s at %s, its acknowledgement epoch %s at %s",
				d.Task.Stage, d.Task.Partition, d.Committed, d.ProgressEpoch, d.Progress, d.AckedEpoch, d.Acked))
		}
	}
	if len(tasks) == 0 {
		faults = append(faults, errors.New("no task was looked at"))
	}
	return errors.Join(faults...)
}

// checkNotAhead makes sure that no committed offset is beyond what the changelog
// holds. The committed offsets must have been read before the changelogs.
func checkNotAhead(tasks []durable) error {
	var faults []error
	for _, d := range tasks {
		if d.Committed > d.Progress {
			faults = append(faults, fmt.Errorf("%s/%s: offset %s is committed, but the changelog holds progress up to %s only",
				d.Task.Stage, d.Task.Partition, d.Committed, d.Progress))
		}
	}
	return errors.Join(faults...)
}

// barrier is an announcement as the control topic has it.
type barrier struct {
	Epoch    event.Epoch        `json:"epoch"`
	Recorded event.RecordedTime `json:"recorded"`
}

// checkAnnouncements makes sure that the announcements are one sequence: no
// number missing or twice, recorded time strictly increasing.
func checkAnnouncements(all []barrier) error {
	if len(all) == 0 {
		return errors.New("nothing was announced")
	}
	before := event.RecordedUnknown
	for i, b := range all {
		if b.Epoch != event.Epoch(i+1) {
			return fmt.Errorf("announcement %d is of epoch %s", i+1, b.Epoch)
		}
		if b.Recorded <= before {
			return fmt.Errorf("recorded time %s of epoch %s does not lie after %s", b.Recorded, b.Epoch, before)
		}
		before = b.Recorded
	}
	return nil
}

// answers are as-of answers, as hashes, by the recorded time that was asked for.
type answers map[event.RecordedTime]string

// checkAnswers makes sure that answers which were given are given again.
func checkAnswers(before, after answers) error {
	var faults []error
	for _, at := range slices.Sorted(maps.Keys(before)) {
		if after[at] != before[at] {
			faults = append(faults, fmt.Errorf("as of %s: the answer was %s and is %s now", at, before[at], after[at]))
		}
	}
	return errors.Join(faults...)
}

// checkEmpty makes sure that a query for what must not be has found nothing.
func checkEmpty(what string, found []string) error {
	if len(found) == 0 {
		return nil
	}
	const most = 5
	return fmt.Errorf("%s, %d times:\n  %s", what, len(found), strings.Join(found[:min(most, len(found))], "\n  "))
}

// overlapQuery finds assertions of one fact that are believed at one recorded
// instant for one valid instant.
const overlapQuery = `
SELECT format('object %s property %s: valid %s..%s recorded %s..%s, and valid %s..%s recorded %s..%s', a.object_no, a.property_id,
       a.valid_from, a.valid_to, a.recorded_from, a.recorded_to, b.valid_from, b.valid_to, b.recorded_from, b.recorded_to)
FROM (SELECT row_number() OVER () AS n, * FROM strom.assertion_row WHERE recorded_from < recorded_to) a
JOIN (SELECT row_number() OVER () AS n, * FROM strom.assertion_row WHERE recorded_from < recorded_to) b
  ON a.object_no = b.object_no AND a.property_id = b.property_id AND a.n < b.n
 AND a.valid_from < b.valid_to AND b.valid_from < a.valid_to
 AND a.recorded_from < b.recorded_to AND b.recorded_from < a.recorded_to
ORDER BY 1`

// gapQuery finds assertions whose recorded interval has ended though nothing
// took over their whole valid interval at that recorded time. (Nothing of the
// workloads deletes.)
const gapQuery = `
SELECT format('object %s property %s: valid %s..%s is believed no longer from %s on', a.object_no, a.property_id, a.valid_from, a.valid_to, a.recorded_to)
FROM strom.assertion_row a
WHERE a.recorded_to <> 'infinity' AND NOT coalesce((
    SELECT range_agg(tstzrange(b.valid_from, b.valid_to)) @> tstzrange(a.valid_from, a.valid_to)
    FROM strom.assertion_row b
    WHERE b.object_no = a.object_no AND b.property_id = a.property_id
      AND b.recorded_from <= a.recorded_to AND b.recorded_to > a.recorded_to), false)
ORDER BY 1`
