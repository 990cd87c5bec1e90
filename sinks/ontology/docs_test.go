package ontology

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/mapping"
)

var update = flag.Bool("update", false, "write the answers into docs/ontology.md")

const docsFile = "../../docs/ontology.md"

var example = regexp.MustCompile("(?s)```sql( error)?\n(.*?)```\n```text\n(.*?)```\n")

func TestEverySQLExampleOfTheDocsGivesTheAnswerThere(t *testing.T) {
	doc, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.New(t)
	quakes(t, url)
	conn := sqlConn(t, url)
	exec(t, conn, "SET timezone = 'UTC'")
	found := 0
	out := example.ReplaceAllStringFunc(string(doc), func(block string) string {
		m := example.FindStringSubmatch(block)
		found++
		answer := ask(t, conn, m[2], m[1] != "")
		if answer != m[3] && !*update {
			t.Errorf("%s\ngives\n%s\nnot\n%s", m[2], answer, m[3])
		}
		return "```sql" + m[1] + "\n" + m[2] + "```\n```text\n" + answer + "```\n"
	})
	if all := strings.Count(string(doc), "```sql"); found != all {
		t.Errorf("%d of %d SQL examples have an answer", found, all)
	}
	if *update {
		if err := os.WriteFile(docsFile, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// quakes plays the docs' example.
func quakes(t *testing.T, url string) {
	t.Helper()
	decimal := func(name string) mapping.PropertyDef { return mapping.PropertyDef{Name: name, Kind: event.KindDecimal} }
	s := openPostgres(t, url, Pipeline{
		Name: "quakes", Generation: 1, ResultsPartitions: 1,
		Types: []*mapping.ObjectType{
			{Name: "Quake", Properties: []mapping.PropertyDef{decimal("magnitude"), {Name: "status", Kind: event.KindText}}},
			{Name: "Region", Properties: []mapping.PropertyDef{
				{Name: "daily.quakes", Kind: event.KindInteger, Windowed: true}, {Name: "daily.strongest", Kind: event.KindDecimal, Windowed: true},
			}},
		},
	})
	instant := func(s string) int64 {
		at, err := time.Parse("2006-01-02 15:04", s)
		if err != nil {
			t.Fatal(err)
		}
		return at.UnixMicro()
	}
	var from Progress
	apply := func(r string, results ...event.Result) {
		to := Progress{Epoch: from.Epoch + 1, Recorded: event.RecordedTime(instant(r)), Offset: from.Offset + event.Offset(len(results)) + 1}
		ch := Chunk{From: from, To: to}
		for i, res := range results {
			res.Epoch, res.Recorded = to.Epoch, to.Recorded
			ch.Rows = append(ch.Rows, Row{Offset: from.Offset + event.Offset(i), Result: res})
		}
		if err := s.Apply(t.Context(), []Chunk{ch}); err != nil {
			t.Fatal(err)
		}
		from = to
	}
	quake := func(id, at string, offset int, cause event.Cause, props ...event.Property) event.Result {
		o := event.Offset(offset)
		return event.Result{
			Kind: event.RowPut, Type: "Quake", ID: id, ValidFrom: event.EventTime(instant(at)), ValidTo: event.OpenEnd, Properties: props,
			Cause: cause, Tie: event.Tie{Offset: o}, Place: event.Place{Topic: "quakes", Offset: o, Timestamp: event.EventTime(instant(at))},
		}
	}
	day := func(version uint32, offset int, cause event.Cause, n, strongest string) event.Result {
		return event.Result{
			Kind: event.RowWindow, Type: "Region", ID: "california", Aggregate: "daily", Version: version, Cause: cause,
			ValidFrom: event.EventTime(instant("2026-03-01 00:00")), ValidTo: event.EventTime(instant("2026-03-02 00:00")),
			Properties: []event.Property{prop("quakes", n), prop("strongest", strongest)},
			Place:      event.Place{Topic: "quakes", Offset: event.Offset(offset)},
		}
	}
	apply("2026-03-01 10:00", quake("nc71", "2026-03-01 09:12", 17, event.CauseOnTime, prop("magnitude", "4.1"), prop("status", "automatic")))
	apply("2026-03-02 00:05", day(1, 17, event.CauseOnTime, "1", "4.1"))
	apply("2026-03-02 06:00",
		quake("nc72", "2026-03-01 20:40", 30, event.CauseCorrection, prop("magnitude", "5.0"), prop("status", "automatic")),
		day(2, 30, event.CauseCorrection, "2", "5.0"))
	apply("2026-03-03 00:00", quake("nc71", "2026-03-01 15:00", 41, event.CauseLateCorrection, prop("magnitude", "4.3"), prop("status", "reviewed")))
}

// ask gives an answer as the docs show it.
func ask(t *testing.T, conn *pgx.Conn, sql string, wantError bool) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer rows.Close()
	var lines [][]string
	var head []string
	for _, f := range rows.FieldDescriptions() {
		head = append(head, f.Name)
	}
	lines = append(lines, head)
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			t.Fatal(err)
		}
		var line []string
		for _, v := range values {
			line = append(line, cell(v))
		}
		lines = append(lines, line)
	}
	var pg *pgconn.PgError
	switch err := rows.Err(); {
	case wantError && errors.As(err, &pg):
		return pg.Code + ": " + pg.Message + "\n"
	case err != nil || wantError:
		t.Fatalf("%s: %v", sql, err)
	}
	return table(lines)
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case time.Time:
		return v.UTC().Format(event.Layout)
	case pgtype.InfinityModifier:
		return v.String()
	case pgtype.Numeric:
		text, _ := v.Value()
		return fmt.Sprint(text)
	}
	return fmt.Sprint(v)
}

func table(lines [][]string) string {
	width := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, c := range line {
			width[i] = max(width[i], len(c))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		for i, c := range line {
			line[i] = c + strings.Repeat(" ", width[i]-len(c))
		}
		b.WriteString(strings.TrimRight(strings.Join(line, " | "), " ") + "\n")
	}
	return b.String()
}
