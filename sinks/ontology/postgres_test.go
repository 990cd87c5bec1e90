package ontology

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/mapping"
)

func TestClosedAssertionsCannotBeChanged(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	s := postgresSubject(t, url, l.p)
	l.put("a0", 1, prop("status", "x"))
	l.end()
	l.put("a0", 2, prop("status", "y"))
	l.end()
	s.apply(t, l.all()...)
	_, err := sqlConn(t, url).Exec(t.Context(), "UPDATE strom.history SET value = 'z'")
	if err == nil || !strings.Contains(err.Error(), "ST004") {
		t.Errorf("got %v", err)
	}
}

func TestOpenIsSafeFromSeveralMembersAtOnce(t *testing.T) {
	url := pgtest.New(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := Open(t.Context(), connection(url), testPipeline(""), Options{})
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
			s.Close()
		})
	}
	wg.Wait()
}

func TestAPropertyHasOneWritingPipeline(t *testing.T) {
	url := pgtest.New(t)
	openPostgres(t, url, testPipeline(""))
	other := testPipeline("")
	other.Name = "other"
	_, err := Open(t.Context(), connection(url), other, Options{})
	var owner *OwnerError
	if !errors.Is(err, ErrOwner) || !errors.As(err, &owner) || owner.Owner != "orders" || owner.Pipeline != "other" {
		t.Fatalf("got %v", err)
	}
	// What was refused has left nothing.
	pipelines, err := openReader(t, url).Pipelines(t.Context())
	if err != nil || len(pipelines) != 1 {
		t.Errorf("%v, %v", pipelines, err)
	}
	other.Types = []*mapping.ObjectType{{Name: "Order", Properties: []mapping.PropertyDef{{Name: "weight", Kind: event.KindDecimal}}}}
	openPostgres(t, url, other)
}

func TestAChangedKindIsRefused(t *testing.T) {
	url := pgtest.New(t)
	openPostgres(t, url, testPipeline(""))
	p := testPipeline("")
	p.Types[1].Properties[3].Kind = event.KindText
	if _, err := Open(t.Context(), connection(url), p, Options{}); !errors.Is(err, ErrKind) {
		t.Errorf("got %v", err)
	}
}

func TestNewerTablesAreRefused(t *testing.T) {
	url := pgtest.New(t)
	openPostgres(t, url, testPipeline(""))
	exec(t, sqlConn(t, url), "INSERT INTO strom.schema_version VALUES ($1)", SchemaVersion+1)
	if _, err := Open(t.Context(), connection(url), testPipeline(""), Options{}); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("open: %v", err)
	}
	if _, err := OpenReader(t.Context(), connection(url), Options{}); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("open reader: %v", err)
	}
}

func TestANewerGenerationTakesOverAndTheHorizonStays(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	old := postgresSubject(t, url, l.p)
	l.window("a0", 0, 1, event.CauseOnTime, 3)
	l.window("a0", 0, 2, event.CauseCorrection, 4)
	l.end()
	old.apply(t, l.all()...)

	again := newLog("")
	again.p.Generation, again.p.ResultsPartitions = 2, 2
	again.epoch, again.r = 1, second(5)
	s := postgresSubject(t, url, again.p)
	b, err := openReader(t, url).Bounds(t.Context(), "Order")
	if err != nil || b.Horizon != second(1) {
		t.Errorf("horizon %s, %v", b.Horizon, err)
	}
	l.put("a0", 1, prop("status", "x"))
	l.end()
	var fenced *FencedError
	if err := old.Apply(t.Context(), l.all()); !errors.As(err, &fenced) || !fenced.Gone {
		t.Errorf("the older generation: %v", err)
	}
	if _, err := old.Progress(t.Context()); !errors.Is(err, ErrFenced) {
		t.Errorf("the older generation's progress: %v", err)
	}
	if _, err := Open(t.Context(), connection(url), l.p, Options{}); !errors.Is(err, ErrPipeline) {
		t.Errorf("opening the older generation: %v", err)
	}
	again.window("a0", 0, 1, event.CauseReplay, 4)
	ch := again.chunk(0, -1)
	ch.To = Progress{Epoch: 1, Recorded: second(5), Offset: 2}
	other := again.chunk(1, -1)
	other.To = Progress{Epoch: 1, Recorded: second(5), Offset: 1}
	s.apply(t, ch, other)
	s.believed(t, 5, "a0 hourly.avg=8 [0,10) replay", "a0 hourly.count=4 [0,10) replay")
	p := again.p
	p.ResultsPartitions = 3
	if _, err := Open(t.Context(), connection(url), p, Options{}); !errors.Is(err, ErrPipeline) {
		t.Errorf("other partitions: %v", err)
	}
}

func TestRecordedTimeBeforeWhatIsBelievedStopsTheSink(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	old := postgresSubject(t, url, l.p)
	l.r = second(100)
	l.put("a0", 1, prop("status", "x"))
	ch := l.chunk(0, -1)
	old.apply(t, ch)
	again := newLog("")
	again.p.Generation = 2
	s := postgresSubject(t, url, again.p)
	again.put("a0", 2, prop("status", "y"))
	if err := s.Apply(t.Context(), []Chunk{again.chunk(0, -1)}); err == nil || !strings.Contains(err.Error(), "backwards") {
		t.Errorf("got %v", err)
	}
}

func TestTwoPipelinesOnTheSameObjectsDoNotDeadlock(t *testing.T) {
	url := pgtest.New(t)
	a, b := newLog(""), newLog("")
	a.p.Types = []*mapping.ObjectType{{Name: "Order", Properties: []mapping.PropertyDef{{Name: "status", Kind: event.KindText}}}}
	b.p.Name, b.p.Types = "other", []*mapping.ObjectType{{Name: "Order", Properties: []mapping.PropertyDef{{Name: "total", Kind: event.KindDecimal}}}}
	const n, epochs = 300, 5
	var wg sync.WaitGroup
	for i, l := range []*log{a, b} {
		s := openPostgres(t, url, l.p)
		wg.Go(func() {
			for epoch := range epochs {
				for j := range n {
					id := j
					if i == 1 {
						id = n - 1 - j // the other way round
					}
					l.put(fmt.Sprintf("o%04d", epoch*n+id), 1, prop([]string{"status", "total"}[i], "1"))
				}
				l.end()
				if err := s.Apply(t.Context(), l.all()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	st, err := openReader(t, url).Stats(t.Context(), "")
	if err != nil || st.Objects != n*epochs || st.Believed != 2*n*epochs {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestEmptyEpochsFillNoTable(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	s := postgresSubject(t, url, l.p)
	for epoch := range 50 {
		if epoch == 20 {
			l.put("a0", 1, prop("status", "x"))
		}
		l.end()
		s.apply(t, l.all()...)
	}
	var epochs, progress int
	conn := sqlConn(t, url)
	if err := conn.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM strom.epoch), (SELECT count(*) FROM strom.progress)").Scan(&epochs, &progress); err != nil {
		t.Fatal(err)
	}
	if epochs != 1 || progress != 2 {
		t.Errorf("%d epochs, %d rows of progress", epochs, progress)
	}
	s.believed(t, 50, "a0 status=x [1,open) on_time")
}

func TestErrorsSayWhatWhereWhyAndNeverThePassword(t *testing.T) {
	good := pgtest.New(t)
	const secret = "hunter2hunter2"
	for name, c := range map[string]struct{ url, want string }{
		"refused":       {"postgres://strom:" + secret + "@127.0.0.1:1/forge?sslmode=disable", "127.0.0.1:1/forge"},
		"no database":   {strings.Replace(good, "///test_", "///missing_", 1), "createdb"},
		"bad port":      {"postgres://strom:" + secret + "@localhost:port/forge", "unreadable setting"},
		"bad escape":    {"postgres://strom:" + secret + "%zz@localhost/forge", "unreadable setting"},
		"bad sslmode":   {"host=localhost password='" + secret + "' sslmode=perhaps", "unreadable setting"},
		"not a setting": {"postgres//" + secret, "unreadable setting"},
		"no ca":         {"host=localhost password=" + secret + " sslmode=verify-full sslrootcert=/nowhere/ca.pem", "ca.pem"},
		"nothing":       {"", "ontology.postgres"},
	} {
		var logged bytes.Buffer
		o := Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))}
		_, err := Open(t.Context(), mapping.Ontology{Postgres: mapping.NewSecret(c.url), Password: mapping.NewSecret(secret + "!")}, testPipeline(""), o)
		if !errors.Is(err, ErrConnect) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if strings.Contains(err.Error()+logged.String(), secret) {
			t.Errorf("%s: the password is in %v", name, err)
		}
		t.Logf("%s: %v", name, err)
	}
}

func TestAReaderNeedsAnOntology(t *testing.T) {
	if _, err := OpenReader(t.Context(), connection(pgtest.New(t)), Options{}); !errors.Is(err, ErrConnect) {
		t.Errorf("got %v", err)
	}
}

func TestAReaderRefusesNamesAndTimesThatItCannotAnswer(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	s := postgresSubject(t, url, l.p)
	l.put("a0", 1, prop("status", "x"))
	l.end()
	s.apply(t, l.all()...)
	r := openReader(t, url)
	for _, err := range r.Get(t.Context(), "Nothing", "a0") {
		if !errors.Is(err, ErrUnknownName) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := s.asOf(Question{Type: "Order", Recorded: second(2)}); !errors.Is(err, ErrAboveHorizon) {
		t.Errorf("got %v", err)
	}
	exec(t, sqlConn(t, url), "UPDATE strom.pipeline SET floor = '1970-01-01 00:00:01Z'")
	if _, err := s.asOf(Question{Type: "Order", Recorded: second(0)}); !errors.Is(err, ErrBelowFloor) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := r.WaitHorizon(ctx, "Order", second(3), time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrAboveHorizon) {
		t.Errorf("got %v", err)
	}
	done := make(chan error)
	go func() { done <- r.WaitHorizon(t.Context(), "Order", second(2), time.Millisecond) }()
	l.end()
	s.apply(t, l.all()...)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestListAndGet(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	s := postgresSubject(t, url, l.p)
	for _, id := range []string{"b0", "a0", "c1"} {
		l.put(id, 1, prop("status", "x"))
	}
	l.window("w0", 0, 1, event.CauseOnTime, 1)
	l.put("gone0", 1, prop("status", "x"))
	l.put("gone0", 2, prop("status", ""))
	l.put("a0", 9, prop("status", "y"))
	l.end()
	s.apply(t, l.all()...)
	r := openReader(t, url)
	list := func(after string, limit int) string {
		var ids []string
		for id, err := range r.List(t.Context(), "Order", after, limit) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		return strings.Join(ids, " ")
	}
	if got := list("", 0); got != "a0 b0 c1 w0" {
		t.Errorf("got %s", got)
	}
	if got := list("a0", 2); got != "b0 c1" {
		t.Errorf("got %s", got)
	}
	var facts []Fact
	for f, err := range r.Get(t.Context(), "Order", "a0") {
		if err != nil {
			t.Fatal(err)
		}
		facts = append(facts, f)
	}
	if diff := equal(factText(facts), []string{"a0 status=y [9,open) on_time"}); diff != "" {
		t.Error(diff)
	}
	for range r.Get(t.Context(), "Order", "a0") {
		break // leaving early gives the connection back
	}
	types, err := r.Types(t.Context())
	if err != nil || len(types) != 2 || types[1].Properties[0].Aggregate != "hourly" {
		t.Errorf("%+v, %v", types, err)
	}
	pipelines, err := r.Pipelines(t.Context())
	if err != nil || len(pipelines) != 1 || pipelines[0].Bounds.Horizon != second(1) || len(pipelines[0].Partitions) != 2 {
		t.Errorf("%+v, %v", pipelines, err)
	}
}

func TestDiffSaysWhichIntervalChangedFromWhatToWhat(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	s := postgresSubject(t, url, l.p)
	l.put("a0", 10, prop("status", "placed"))
	l.put("b0", 10, prop("status", "same"))
	l.window("w0", 0, 1, event.CauseOnTime, 1)
	l.window("w0", 10, 1, event.CauseOnTime, 1)
	l.end()
	l.put("a0", 20, prop("status", "paid"))
	l.put("a0", 15, prop("status", "placed"))
	l.put("b0", 20, prop("status", "same"))
	l.window("w0", 0, 2, event.CauseCorrection, 2)
	l.window("w0", 10, 2, event.CauseCorrection, 1)
	l.end()
	l.put("a0", 30, prop("status", ""))
	l.end()
	s.apply(t, l.all()...)
	r := openReader(t, url)
	diff := func(from, to int) []string {
		var out []string
		for c, err := range r.Diff(t.Context(), "Order", second(from), second(to)) {
			if err != nil {
				t.Fatal(err)
			}
			end := "open"
			if c.ValidTo != nil {
				end = (*c.ValidTo)[len("1970-01-01T00:00:00."):]
			}
			out = append(out, fmt.Sprintf("%s %s [%s,%s) %s to %s", c.ID, c.Property, strings.TrimPrefix(c.ValidFrom, "1970-01-01T00:00:00"), end, sideText(c.Before), sideText(c.After)))
		}
		return out
	}
	if d := equal(diff(1, 2), []string{
		"a0 status [.00002Z,open) placed to paid",
		"w0 hourly.avg [Z,00001Z) 2 to 4",
		"w0 hourly.count [Z,00001Z) 1 to 2",
	}); d != "" {
		t.Error(d)
	}
	if d := equal(diff(1, 3), []string{
		"a0 status [.00002Z,00003Z) placed to paid",
		"a0 status [.00003Z,open) placed to nothing",
		"w0 hourly.avg [Z,00001Z) 2 to 4",
		"w0 hourly.count [Z,00001Z) 1 to 2",
	}); d != "" {
		t.Error(d)
	}
	if d := diff(2, 2); len(d) != 0 {
		t.Errorf("no time passed: %q", d)
	}
}

func sideText(s *Side) string {
	if s == nil {
		return "nothing"
	}
	return *s.Value
}
