package ontology

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/internal/oracle"
)

// chance is where random runs take their choices from.
type chance interface{ intN(n int) int }

type rapidChance struct{ t *rapid.T }

func (c rapidChance) intN(n int) int { return rapid.IntRange(0, n-1).Draw(c.t, "n") }

type seeded struct{ *rand.Rand }

func (c seeded) intN(n int) int { return c.IntN(n) }

// play writes epochs of random rows and applies them in random chunks, some of
// them twice; after each epoch check looks at the stores.
func play(t testing.TB, c chance, l *log, epochs int, check func(epoch int), subjects ...*subject) {
	t.Helper()
	versions := make(map[string]uint32)
	for epoch := range epochs {
		for range c.intN(12) {
			id := fmt.Sprint("o", c.intN(4))
			switch c.intN(3) {
			case 0:
				start := int64(c.intN(3) * 5) // windows overlap, as hopping ones do
				key := fmt.Sprint(id, start)
				versions[key]++
				cause := event.CauseCorrection
				if versions[key] == 1 {
					cause = event.CauseOnTime
				}
				if versions[key] > 1 && c.intN(5) == 0 {
					l.retract(id, start, versions[key])
					continue
				}
				l.window(id, start, versions[key], cause, c.intN(5))
			default:
				value := []string{"", "1", "2.5", "-3"}[c.intN(4)]
				props := []event.Property{prop([]string{"status", "total"}[c.intN(2)], value)}
				if c.intN(4) == 0 {
					props = []event.Property{prop("status", value), prop("total", value)}
				}
				l.put(id, int64(c.intN(8)), props...)
			}
		}
		l.end()
		for p := range event.Partition(2) {
			for l.applied[p].Offset < l.next[p] {
				to := l.applied[p].Offset + 1 + event.Offset(c.intN(int(l.next[p]-l.applied[p].Offset)))
				ch := l.chunk(p, to)
				again := c.intN(4) == 0
				for _, s := range subjects {
					s.apply(t, ch)
					if again && ch.To.Offset > ch.From.Offset {
						if err := s.Apply(t.Context(), []Chunk{ch}); !errors.Is(err, ErrFenced) {
							t.Fatalf("a repeated chunk gave %v", err)
						}
					}
				}
			}
		}
		check(epoch + 1)
	}
}

// answerHash is the hash of everything believed at a recorded time, as JSON.
func answerHash(t testing.TB, s *subject, r event.RecordedTime) [32]byte {
	t.Helper()
	facts, err := s.asOf(Question{Recorded: r})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(append([]Fact{}, facts...))
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// keepsItsPast checks that the answers of all earlier recorded times have the
// same bytes as when they could first be asked.
func keepsItsPast(t testing.TB, s *subject, l *log) func(epoch int) {
	t.Helper()
	past := make(map[event.RecordedTime][32]byte)
	return func(epoch int) {
		past[second(epoch)] = answerHash(t, s, second(epoch))
		for r, hash := range past {
			if answerHash(t, s, r) != hash {
				t.Fatalf("after epoch %d the answer as of %s changed", epoch, r)
			}
		}
		pointModel(t, s, l, epoch)
	}
}

// pointModel compares the puts with the oracle at every valid instant, and
// windows with a fold, at one recorded time.
func pointModel(t testing.TB, s *subject, l *log, epoch int) {
	t.Helper()
	r := second(epoch)
	facts, err := s.asOf(Question{Recorded: r})
	if err != nil {
		t.Fatal(err)
	}
	events := make(map[string][]oracle.TimelineEvent)
	windows := make(map[string]string)
	for p := range l.rows {
		for _, row := range l.rows[p] {
			res := &row.Result
			if res.Recorded > r {
				continue
			}
			for _, pr := range res.Properties {
				if res.Kind == event.RowWindow {
					key := fmt.Sprint(res.ID, " hourly.", pr.Name, " ", res.ValidFrom)
					windows[key] = pr.Value.Text
					if res.Cause == event.CauseRetraction {
						delete(windows, key)
					}
					continue
				}
				key := res.ID + " " + pr.Name
				events[key] = append(events[key], oracle.TimelineEvent{
					Recorded: int64(res.Recorded), ValidFrom: int64(res.ValidFrom), Value: pr.Value.Text, Delete: pr.Value.Null,
					Tie: []int64{res.Tie.Sequence, int64(res.Tie.Rank), int64(res.Tie.Partition), int64(res.Tie.Offset), int64(res.Tie.Index)},
				})
			}
		}
	}
	for key, evs := range events {
		for v := int64(-1); v < 10; v++ {
			want, wantOK := oracle.TimelineBelieved(evs, v, int64(r))
			got, ok := at(t, facts, key, event.EventTime(v))
			if got != want || ok != wantOK {
				t.Fatalf("%s at valid %d, recorded %s: %q %v, want %q %v", key, v, r, got, ok, want, wantOK)
			}
		}
	}
	for _, f := range facts {
		if f.Version == 0 {
			continue
		}
		key := fmt.Sprint(f.ID, " ", f.Property, " ", f.ValidFrom)
		if want, ok := windows[key]; !ok || want != f.Value.Text {
			t.Fatalf("%s is %q, want %q %v", key, f.Value, want, ok)
		}
		delete(windows, key)
	}
	if len(windows) > 0 {
		t.Fatalf("windows missing: %v", windows)
	}
}

func at(t testing.TB, facts []Fact, key string, v event.EventTime) (value string, ok bool) {
	t.Helper()
	for _, f := range facts {
		if f.ID+" "+f.Property == key && f.ValidFrom <= v && v < f.ValidTo {
			if ok {
				t.Fatalf("two assertions of %s at %d", key, v)
			}
			value, ok = f.Value.Text, true
		}
	}
	return value, ok
}

// checkIntervals checks contract 1 over every version: of one fact, recorded
// intervals of what overlaps in valid time do not overlap.
func checkIntervals(t testing.TB, as []Assertion) {
	t.Helper()
	byFact := make(map[string][]Assertion)
	for _, a := range as {
		key := fmt.Sprint(a.Type, "/", a.ID, "/", a.Property)
		if a.Version > 0 {
			key += fmt.Sprint("/", a.ValidFrom, "/", a.ValidTo)
		}
		byFact[key] = append(byFact[key], a)
	}
	for key, list := range byFact {
		for i, a := range list {
			for _, b := range list[i+1:] {
				if a.ValidFrom < b.ValidTo && b.ValidFrom < a.ValidTo && a.RecordedFrom < b.RecordedTo && b.RecordedFrom < a.RecordedTo &&
					a.RecordedFrom < a.RecordedTo && b.RecordedFrom < b.RecordedTo {
					t.Fatalf("%s: two are believed at once:\n%+v\n%+v", key, a, b)
				}
			}
		}
	}
}

func TestRandomRunsInMemoryAgreeWithThePointModelAndKeepTheirPast(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newLog("")
		s := memorySubject(l.p)
		play(tb{t, rt}, rapidChance{rt}, l, 5, keepsItsPast(tb{t, rt}, s, l), s)
		checkIntervals(tb{t, rt}, s.history("", "", ""))
	})
}

// tb fails a rapid check by the ways of testing.TB.
type tb struct {
	testing.TB
	rt *rapid.T
}

func (t tb) Helper()                   {}
func (t tb) Fatal(args ...any)         { t.rt.Fatal(args...) }
func (t tb) Fatalf(f string, a ...any) { t.rt.Fatalf(f, a...) }
func (t tb) Errorf(f string, a ...any) { t.rt.Errorf(f, a...) }
func (t tb) Error(args ...any)         { t.rt.Error(args...) }

func TestRandomRunsInPostgresAgreeWithMemoryRowByRow(t *testing.T) {
	url := pgtest.New(t)
	runs := 12
	if testing.Short() {
		runs = 3
	}
	for seed := range runs {
		l := newLog(fmt.Sprint("_", seed))
		pg, mem := postgresSubject(t, url, l.p), memorySubject(l.p)
		typ := l.p.Types[1].Name
		scope := func(s *subject) *subject {
			inner := s.asOf
			s.asOf = func(q Question) ([]Fact, error) {
				q.Type = typ
				return inner(q)
			}
			return s
		}
		check := keepsItsPast(t, scope(pg), l)
		play(t, seeded{rand.New(rand.NewPCG(uint64(seed), 1))}, l, 8, func(epoch int) {
			check(epoch)
			for r := range epoch + 1 {
				if answerHash(t, pg, second(r)) != answerHash(t, scope(mem), second(r)) {
					t.Fatalf("seed %d: the stores differ as of %d", seed, r)
				}
			}
		}, pg, mem)
		got, want := jsonLines(t, pg.history(typ, "", "")), jsonLines(t, mem.history(typ, "", ""))
		if got != want {
			t.Fatalf("seed %d: histories differ:\n%s\nmemory:\n%s", seed, got, want)
		}
		checkIntervals(t, pg.history(typ, "", ""))
		if got, want := fmt.Sprint(pg.stats(typ)), fmt.Sprint(mem.stats(typ)); got != want {
			t.Fatalf("seed %d: %s, memory %s", seed, got, want)
		}
		checkSQL(t, url, l, mem)
		pg.Close()
	}
}

// checkSQL checks that SQL gives the answers that Go gives: strom.as_of at
// every recorded time, and the views.
func checkSQL(t *testing.T, url string, l *log, mem *subject) {
	t.Helper()
	conn, typ := sqlConn(t, url), l.p.Types[1].Name
	exec(t, conn, "SET timezone = 'UTC'")
	last := int(l.epoch) - 1
	for r := range last + 1 {
		at := event.EventTime(r)
		for _, q := range []Question{
			{Type: typ, Recorded: second(r)},
			{Type: typ, Recorded: second(r), Valid: &at},
			{Type: typ, Recorded: second(r), ID: "o1"},
		} {
			facts, err := mem.asOf(q)
			if err != nil {
				t.Fatal(err)
			}
			lines := [][]string{{"id", "property", "value", "valid_from", "valid_to", "recorded_from", "cause", "version"}}
			for _, f := range facts {
				end := "infinity"
				if f.ValidTo != event.OpenEnd {
					end = f.ValidTo.String()
				}
				value := f.Value.Text
				lines = append(lines, []string{f.ID, f.Property, value, f.ValidFrom.String(), end, f.RecordedFrom.String(), f.Cause.String(), fmt.Sprint(f.Version)})
			}
			args := []string{"'" + typ + "'", fmt.Sprintf("'%s'", q.Recorded), "NULL", "NULL"}
			if q.Valid != nil {
				args[2] = fmt.Sprintf("'%s'", *q.Valid)
			}
			if q.ID != "" {
				args[3] = "'" + q.ID + "'"
			}
			if got, want := ask(t, conn, "SELECT * FROM strom.as_of("+strings.Join(args, ", ")+")", false), table(lines); got != want {
				t.Fatalf("strom.as_of(%s) gives\n%s\nwant\n%s", args, got, want)
			}
		}
	}
	facts, err := mem.asOf(Question{Type: typ, Recorded: second(last), Current: true})
	if err != nil {
		t.Fatal(err)
	}
	objects, windows := make(map[string][2]string), make(map[string][2]string)
	set := func(m map[string][2]string, key string, i int, v string) {
		row := m[key]
		row[i] = v
		m[key] = row
	}
	for _, f := range facts {
		switch f.Property {
		case "status":
			set(objects, f.ID, 0, f.Value.Text)
		case "total":
			set(objects, f.ID, 1, f.Value.Text)
		case "hourly.avg":
			set(windows, fmt.Sprint(f.ID, " ", f.ValidFrom, " ", f.ValidTo), 0, f.Value.Text)
		case "hourly.count":
			set(windows, fmt.Sprint(f.ID, " ", f.ValidFrom, " ", f.ValidTo), 1, f.Value.Text)
		}
	}
	lines := func(m map[string][2]string) string {
		var out []string
		for key, v := range m {
			out = append(out, fmt.Sprintf("%s %s %s\n", key, cmp.Or(v[0], "none"), cmp.Or(v[1], "none")))
		}
		slices.Sort(out)
		return strings.Join(out, "")
	}
	got := make(map[string][2]string)
	rows := func(sql string) string {
		clear(got)
		for _, line := range strings.Split(ask(t, conn, sql, false), "\n")[1:] {
			if c := strings.Split(line, " | "); len(c) == 3 {
				got[strings.TrimRight(c[0], " ")] = [2]string{strings.TrimRight(c[1], " "), strings.TrimRight(c[2], " ")}
			}
		}
		return lines(got)
	}
	// In the way that somebody writes who does not quote.
	if got := rows("SELECT id, coalesce(status, 'none') AS status, coalesce(total::text, 'none') AS total FROM ontology." + typ); got != lines(objects) {
		t.Fatalf("the view of the type gives\n%s\nwant\n%s", got, lines(objects))
	}
	const layout = `'YYYY-MM-DD"T"HH24:MI:SS'`
	instant := func(c string) string {
		return fmt.Sprintf(`to_char(%s, %s) || CASE WHEN extract(microseconds FROM %s)::bigint = 0 THEN 'Z'
			ELSE '.' || rtrim(to_char(%s, 'US'), '0') || 'Z' END`, c, layout, c, c)
	}
	if got := rows("SELECT id || ' ' || " + instant("window_start") + " || ' ' || " + instant("window_end") +
		", avg::text, count::text FROM ontology." + typ + "_hourly"); got != lines(windows) {
		t.Fatalf("the view of the aggregate gives\n%s\nwant\n%s", got, lines(windows))
	}
}

func jsonLines(t testing.TB, as []Assertion) string {
	t.Helper()
	var b strings.Builder
	for _, a := range as {
		line, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}
