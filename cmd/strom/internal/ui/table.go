package ui

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table lines up rows under their headings.
type Table struct {
	// Heads are the headings. One that begins with > has its column aligned to
	// the right, for numbers.
	Heads  []string
	Indent string
	Style  Style

	rows [][]string
}

// gap stands between two columns.
const gap = "  "

// Row adds a row; cells that are missing are empty.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(t.Heads))
	for i := range min(len(cells), len(row)) {
		row[i] = Printable(cells[i])
	}
	t.rows = append(t.rows, row)
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write writes the table, in one call of w.
func (t *Table) Write(w io.Writer) error { return t.write(w, true) }

// WriteBare writes the table without its headings.
func (t *Table) WriteBare(w io.Writer) error { return t.write(w, false) }

func (t *Table) write(w io.Writer, headed bool) error {
	heads := make([]string, len(t.Heads))
	right := make([]bool, len(t.Heads))
	widths := make([]int, len(t.Heads))
	for i, h := range t.Heads {
		heads[i], right[i] = strings.CutPrefix(h, ">")
		if headed {
			widths[i] = utf8.RuneCountInString(heads[i])
		}
	}
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(cells []string) string {
		var l strings.Builder
		for i, cell := range cells {
			if i > 0 {
				l.WriteString(gap)
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if right[i] {
				l.WriteString(pad + cell)
			} else {
				l.WriteString(cell + pad)
			}
		}
		return strings.TrimRight(l.String(), " ")
	}
	if headed {
		b.WriteString(t.Indent + t.Style.Faint(line(heads)) + "\n")
	}
	for _, row := range t.rows {
		b.WriteString(strings.TrimRight(t.Indent+line(row), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Printable makes a text from outside safe to show: what would move the cursor
// or change colours is written as an escape, and a long text is cut.
func Printable(text string) string {
	const longest = 200
	clean := true
	for _, r := range text {
		clean = clean && unicode.IsPrint(r)
	}
	if clean && len(text) <= longest {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if b.Len() >= longest {
			b.WriteString("…")
			break
		}
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString("�")
		}
	}
	return b.String()
}
