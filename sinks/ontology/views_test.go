package ontology

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/mapping"
)

func typed(name string, properties ...mapping.PropertyDef) Pipeline {
	return Pipeline{
		Name: "p", Generation: 1, ResultsPartitions: 1,
		Types: []*mapping.ObjectType{{Name: name, Properties: properties}},
	}
}

func TestViewsAreTypedAndTheirNamesNeedNoQuotes(t *testing.T) {
	url := pgtest.New(t)
	long := strings.Repeat("Übermaß", 12)
	s := openPostgres(t, url, typed("Order",
		mapping.PropertyDef{Name: "Count", Kind: event.KindInteger},
		mapping.PropertyDef{Name: "id", Kind: event.KindText},
		mapping.PropertyDef{Name: "paid", Kind: event.KindBoolean},
		mapping.PropertyDef{Name: "paid at", Kind: event.KindTimestamp},
		mapping.PropertyDef{Name: `quo"te'; --`, Kind: event.KindLink, LinkTo: "Order"},
		mapping.PropertyDef{Name: long, Kind: event.KindDecimal},
	))
	r := event.Result{
		Kind: event.RowPut, Epoch: 1, Recorded: 1, Type: "Order", ID: "a", ValidTo: event.OpenEnd, Cause: event.CauseOnTime,
		Properties: []event.Property{
			prop("Count", "123456789012345678901234567890"), prop("id", "x"), prop("paid", "true"),
			prop("paid at", "0001-01-01T00:00:00.000001Z"), prop(`quo"te'; --`, "b"), prop(long, "1.50"),
		},
	}
	ch := Chunk{To: Progress{Epoch: 1, Recorded: 1, Offset: 1}, Rows: []Row{{Result: r}}}
	if err := s.Apply(t.Context(), []Chunk{ch}); err != nil {
		t.Fatal(err)
	}
	conn := sqlConn(t, url)
	exec(t, conn, "SET timezone = 'UTC'")
	got := ask(t, conn, `SELECT id, Count + 1 AS count, id_, NOT paid AS unpaid, "paid at", "quo""te'; --" AS link FROM ontology."order"`, false)
	if want := "id | count                          | id_ | unpaid | paid at                     | link\n" +
		"a  | 123456789012345678901234567891 | x   | false  | 0001-01-01T00:00:00.000001Z | b\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	name := identifier(long)
	if len(name) > maxIdentifier || !utf8.ValidString(name) {
		t.Errorf("%q", name)
	}
	if got := ask(t, conn, "SELECT "+quote(name)+" AS n FROM ontology.\"order\"", false); got != "n\n1.50\n" {
		t.Errorf("got %s", got)
	}
}

func TestNamesThatMeetInSQLAreRefused(t *testing.T) {
	url := pgtest.New(t)
	text := func(name string) mapping.PropertyDef { return mapping.PropertyDef{Name: name, Kind: event.KindText} }
	for _, p := range []Pipeline{
		typed("Order", text("status"), text("Status")),
		typed("Order", text("id"), text("id_")),
		{Name: "p", Generation: 1, ResultsPartitions: 1, Types: []*mapping.ObjectType{
			{Name: "Order", Properties: []mapping.PropertyDef{{Name: "daily.n", Windowed: true}}},
			{Name: "order_daily", Properties: []mapping.PropertyDef{text("n")}},
		}},
	} {
		if _, err := Open(t.Context(), connection(url), p, Options{}); !errors.Is(err, ErrNames) {
			t.Errorf("%+v: %v", p.Types[0], err)
		}
	}
}

func TestViewsFollowTheMapping(t *testing.T) {
	url := pgtest.New(t)
	conn := sqlConn(t, url)
	text := func(name string) mapping.PropertyDef { return mapping.PropertyDef{Name: name, Kind: event.KindText} }
	columns := func() string {
		return strings.TrimSpace(ask(t, sqlConn(t, url), "SELECT * FROM ontology.order_", false))
	}
	open := func(properties ...mapping.PropertyDef) error {
		s, err := Open(t.Context(), connection(url), typed("Order_", properties...), Options{})
		if err == nil {
			s.Close()
		}
		return err
	}
	for _, c := range []struct {
		properties []mapping.PropertyDef
		want       string
	}{
		{[]mapping.PropertyDef{text("b")}, "id | b"},
		{[]mapping.PropertyDef{text("b"), text("a")}, "id | b | a"}, // a new one comes last: nobody's view breaks
		{[]mapping.PropertyDef{text("b"), text("a")}, "id | b | a"},
		{[]mapping.PropertyDef{text("a")}, "id | a"},
		{[]mapping.PropertyDef{text("b"), text("a")}, "id | b | a"},
	} {
		if err := open(c.properties...); err != nil {
			t.Fatal(err)
		}
		if got := columns(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
	exec(t, conn, "CREATE VIEW theirs AS SELECT b FROM ontology.order_")
	if err := open(text("a")); err == nil || !strings.Contains(err.Error(), "theirs depends on") {
		t.Errorf("got %v", err)
	}
	if err := open(text("a"), text("b"), text("c")); err != nil {
		t.Errorf("adding a property below somebody's view: %v", err)
	}
}
