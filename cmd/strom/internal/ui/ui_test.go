package ui_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
)

func TestCountsAndNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -12: "-12"} {
		if got := ui.Count(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	if one, two := ui.Number(1, "row"), ui.Number(2000, "row"); one != "1 row" || two != "2,000 rows" {
		t.Errorf("%s, %s", one, two)
	}
}

func TestTablesLineUp(t *testing.T) {
	tab := &ui.Table{Heads: []string{"NAME", ">N", "NOTE"}, Indent: "  "}
	tab.Row("Zürich", "7")
	tab.Row("x", "1,000", "a\x1b[31mb\n")
	var b bytes.Buffer
	if err := tab.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "  NAME        N  NOTE\n  Zürich      7\n  x       1,000  a�[31mb\\n\n"
	if b.String() != want {
		t.Errorf("got\n%q\nwant\n%q", b.String(), want)
	}
}

func TestTextsFromOutsideCannotMoveTheCursor(t *testing.T) {
	got := ui.Printable("\x1b[2J\r" + strings.Repeat("é", 300))
	if strings.ContainsAny(got, "\x1b\r") || len(got) > 220 || !strings.HasSuffix(got, "…") {
		t.Errorf("%q", got)
	}
}

// Off a terminal there is neither colour nor a moving line.
func TestProgressOffATerminalIsALineNowAndThen(t *testing.T) {
	var b bytes.Buffer
	c := ui.NewConsole(&b)
	p := c.Progress(false, 0)
	p.Show(func() string { return "half" })
	p.Clear()
	c.Progress(true, 0).Show(func() string { return "quiet" })
	c.Progress(false, time.Hour).Show(func() string { return "too soon" })
	if b.String() != "half\n" {
		t.Errorf("%q", b.String())
	}
	s := ui.StyleFor(&b, func(string) (string, bool) { return "", false })
	if s.Bold("x")+s.Faint("x")+s.Good("x")+s.Bad("x") != "xxxx" {
		t.Error("colours off a terminal")
	}
	if got := (ui.Style{Colours: true}).Bold("x"); got != "\x1b[1mx\x1b[0m" {
		t.Errorf("%q", got)
	}
}

func TestBars(t *testing.T) {
	if got := ui.Bar(1, 4, 8); got != "[##······]" {
		t.Errorf("%s", got)
	}
	if ui.Bar(9, 4, 2) != "[##]" || ui.Bar(1, 0, 2) != "" {
		t.Error("a bar past its end, or of nothing")
	}
}
