package faults

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// wantFault makes sure that a check refuses what it is given, and says why.
func wantFault(t *testing.T, name string, err error, text string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: nothing was found", name)
	case !strings.Contains(err.Error(), text):
		t.Errorf("%s: %v, want something of %q", name, err, text)
	}
}

func wantNone(t *testing.T, name string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

func TestResultsThatDifferAreFound(t *testing.T) {
	want := []string{"a 1", "b 2"}
	wantNone(t, "equal", checkResults("x", []string{"a 1", "b 2"}, want))
	wantFault(t, "another value", checkResults("x", []string{"a 1", "b 3"}, want), "want b 2")
	wantFault(t, "one too few", checkResults("x", []string{"a 1"}, want), "got  (nothing)")
	wantFault(t, "one too many", checkResults("x", []string{"a 1", "b 2", "c"}, want), "got  c")
}

func row(offset int, version uint32) resultRow {
	return resultRow{Offset: event.Offset(offset), Result: event.Result{
		Kind: event.RowWindow, Type: "T", ID: "x", Aggregate: "a", ValidFrom: 0, ValidTo: 10, Version: version,
	}}
}

func put(offset, of int) resultRow {
	return resultRow{Offset: event.Offset(offset), Result: event.Result{
		Kind: event.RowPut, Type: "T", ID: "x", Place: event.Place{Topic: "in", Offset: event.Offset(of)},
	}}
}

func TestWhatIsPublishedTwiceIsFound(t *testing.T) {
	wantNone(t, "in order", checkVersions([]resultRow{row(3, 1), row(5, 2), put(6, 0), put(7, 1)}))
	wantFault(t, "a version twice", checkVersions([]resultRow{row(3, 1), row(5, 1)}), "2 is next")
	wantFault(t, "a version left out", checkVersions([]resultRow{row(3, 1), row(5, 3)}), "2 is next")
	wantFault(t, "not from 1", checkVersions([]resultRow{row(3, 2)}), "1 is next")
	wantFault(t, "out of order", checkVersions([]resultRow{row(5, 1), row(3, 2)}), "1 is next")
	wantFault(t, "a put twice", checkVersions([]resultRow{put(6, 0), put(7, 0)}), "stands twice")
	elsewhere := row(4, 2)
	elsewhere.Partition = 1
	wantFault(t, "another partition", checkVersions([]resultRow{row(3, 1), elsewhere}), "stand in the partitions")
}

func TestDeadLettersThatAreTwiceOrMissingAreFound(t *testing.T) {
	a, b := letter{"not_json", "{", "in/0 offset 1"}, letter{"ahead", "{}", "in/0 offset 2"}
	want := []string{"ahead {}", "not_json {"}
	wantNone(t, "as they should be", checkLetters([]letter{a, b}, want))
	wantFault(t, "twice", checkLetters([]letter{a, b, a}, want), "twice")
	wantFault(t, "missing", checkLetters([]letter{a}, want), "want")
	b.Reason = "conflict"
	wantFault(t, "another reason", checkLetters([]letter{a, b}, want), "want ahead {}")
}

func TestAHangingTransactionIsFound(t *testing.T) {
	ends := []partitionEnds{{"a", 0, 5, 5}, {"b", 0, 5, 6}}
	wantNone(t, "none", checkNoHanging(ends[:1]))
	wantFault(t, "one", checkNoHanging(ends), "b/0: a transaction hangs")
	wantFault(t, "nothing looked at", checkNoHanging(nil), "no partition")
}

func TestOffsetsThatDoNotAgreeAreFound(t *testing.T) {
	good := durable{Task: processors.TaskID{Stage: "s"}, Committed: 5, Progress: 5, Acked: 5, ProgressEpoch: 2, AckedEpoch: 2}
	wantNone(t, "equal", checkDurable([]durable{good}))
	for name, change := range map[string]func(*durable){
		"committed beyond": func(d *durable) { d.Committed = 6 },
		"committed behind": func(d *durable) { d.Committed = 4 },
		"another ack":      func(d *durable) { d.Acked = 6 },
		"another epoch":    func(d *durable) { d.AckedEpoch = 3 },
		"no progress":      func(d *durable) { d.Progress = event.OffsetNone },
	} {
		bad := good
		change(&bad)
		wantFault(t, name, checkDurable([]durable{good, bad}), "is committed")
	}
	wantFault(t, "nothing looked at", checkDurable(nil), "no task")
	ahead, behind := good, good
	ahead.Committed, behind.Committed = 6, 4
	wantNone(t, "behind what is durable", checkNotAhead([]durable{good, behind}))
	wantFault(t, "ahead of what is durable", checkNotAhead([]durable{good, ahead}), "up to 5 only")
}

func TestAnnouncementsThatAreNoSequenceAreFound(t *testing.T) {
	wantNone(t, "a sequence", checkAnnouncements([]barrier{{1, 10}, {2, 11}}))
	wantFault(t, "one twice", checkAnnouncements([]barrier{{1, 10}, {1, 11}}), "is of epoch 1")
	wantFault(t, "one missing", checkAnnouncements([]barrier{{1, 10}, {3, 11}}), "is of epoch 3")
	wantFault(t, "time stands", checkAnnouncements([]barrier{{1, 10}, {2, 10}}), "does not lie after")
	wantFault(t, "none", checkAnnouncements(nil), "nothing")
}

func TestAnAnswerThatChangesIsFound(t *testing.T) {
	wantNone(t, "the same", checkAnswers(answers{1: "a"}, answers{1: "a", 2: "b"}))
	wantFault(t, "another", checkAnswers(answers{1: "a"}, answers{1: "b"}), "is b now")
	wantFault(t, "none any more", checkAnswers(answers{1: "a"}, answers{}), "was a")
}

func TestAHorizonThatFallsIsFound(t *testing.T) {
	wantNone(t, "rising", checkHorizon([]event.RecordedTime{1, 1, 2}))
	wantFault(t, "falling", checkHorizon([]event.RecordedTime{1, 3, 2}), "has fallen")
	wantFault(t, "falling at last", checkHorizon([]event.RecordedTime{3, 2}), "has fallen")
	wantFault(t, "not seen", checkHorizon(nil), "no horizon")
}

// tables is an ontology with nothing in it but what a test writes by hand.
type tables struct {
	t    *testing.T
	conn *pgx.Conn
}

func newTables(t *testing.T) *tables {
	t.Helper()
	url := pgtest.New(t)
	store, err := ontology.Open(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(url)}, ontology.Pipeline{
		Name: "p", Generation: 1, MappingVersion: "1", ResultsPartitions: 1,
		Types: []*mapping.ObjectType{{Name: "T", Properties: []mapping.PropertyDef{{Name: "x", Kind: event.KindInteger}}}},
	}, ontology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store.Close()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &tables{t, conn}
}

// assert writes one assertion: valid and recorded days of January 2020, 99 for
// no end.
func (x *tables) assert(validFrom, validTo, recordedFrom, recordedTo int) {
	x.t.Helper()
	const day = `CASE WHEN %s = 99 THEN 'infinity' ELSE timestamptz '2020-01-01' + %s * interval '1 day' END`
	at := func(p string) string { return strings.ReplaceAll(strings.Replace(day, "%s", p, 1), "%s", p) }
	columns := `object_no, property_id, valid_from, valid_to, recorded_from, epoch, lateness, place_offset, place_timestamp,
		pipeline_id, generation, version, place_topic, place_partition, cause, reasserted, value`
	values := "1, 1, " + at("$1::int") + ", " + at("$2::int") + ", " + at("$3::int") + ", 1, 0, 0, '-infinity', 1, 1, 1, 1, 0, 1, false, '5'"
	sql, args := "INSERT INTO strom.head ("+columns+") VALUES ("+values+")", []any{validFrom, validTo, recordedFrom}
	if recordedTo != 99 {
		sql = "INSERT INTO strom.history (" + columns + ", recorded_to) VALUES (" + values + ", " + at("$4::int") + ")"
		args = append(args, recordedTo)
	}
	if _, err := x.conn.Exec(x.t.Context(), sql, args...); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tables) ask(sql string) error {
	x.t.Helper()
	rows, err := x.conn.Query(x.t.Context(), sql)
	if err != nil {
		x.t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		x.t.Fatal(err)
	}
	return checkEmpty("found", found)
}

func TestAssertionsThatOverlapAreFound(t *testing.T) {
	x := newTables(t)
	x.assert(0, 10, 1, 2) // closed, and replaced by two parts
	x.assert(0, 5, 2, 99)
	x.assert(5, 10, 2, 4)
	x.assert(5, 10, 4, 4) // superseded within its epoch: outside of every answer
	x.assert(5, 10, 4, 99)
	wantNone(t, "neither overlap", x.ask(overlapQuery))
	wantNone(t, "nor gap", x.ask(gapQuery))
	x.assert(4, 6, 1, 2)
	wantFault(t, "two at once", x.ask(overlapQuery), "1 times")
}

func TestGapsOfRecordedTimeAreFound(t *testing.T) {
	x := newTables(t)
	x.assert(0, 10, 1, 2)
	wantFault(t, "nothing follows", x.ask(gapQuery), "believed no longer")
	x.assert(0, 9, 2, 99)
	wantFault(t, "a part follows", x.ask(gapQuery), "believed no longer")
	x.assert(9, 10, 3, 99)
	wantFault(t, "the rest follows later", x.ask(gapQuery), "believed no longer")
}

func TestASnapshotWithHalfOfAnEventIsFound(t *testing.T) {
	x := newTables(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := x.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO strom.object_type (name) VALUES ('Meter'), ('Street')`)
	exec(`INSERT INTO strom.property (type_id, name, kind, pipeline_id) SELECT type_id, 'ever.n', 1, 1 FROM strom.object_type WHERE name <> 'T'`)
	exec(`INSERT INTO strom.epoch SELECT 1, 1, n, timestamptz '2020-01-01' + n * interval '1 day' FROM generate_series(1, 3) n`)
	exec(`UPDATE strom.progress SET epoch = 3, recorded = '2020-01-04'`)
	x.assert(0, 99, 1, 2) // of the first property
	x.assert(0, 99, 2, 99)
	exec(`INSERT INTO strom.head SELECT o.object_no, o.valid_from, o.valid_to, timestamptz '2020-01-02', o.epoch, o.lateness, o.place_offset,
		o.place_timestamp, p.property_id, o.pipeline_id, o.generation, o.version, o.place_topic, o.place_partition, o.cause, o.reasserted,
		NULL, NULL, NULL, NULL, NULL, NULL, o.value, NULL
		FROM strom.head o, strom.property p WHERE p.name = 'ever.n'`)
	wantNone(t, "balanced", x.ask(metersBalance))
	exec(`UPDATE strom.head h SET value = '6' FROM strom.property p JOIN strom.object_type t USING (type_id)
		WHERE h.property_id = p.property_id AND t.name = 'Street'`)
	wantFault(t, "one too many", x.ask(metersBalance), "5 readings of meters, 6 of streets")
}
