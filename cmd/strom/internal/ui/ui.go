// Package ui writes what people read: tables, headings, and progress on long
// work.
//
// Colours and moving lines appear on a terminal only, and colours never where
// NO_COLOR is set (https://no-color.org). What a table or a heading says is the
// same without them.
package ui

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// IsTerminal says whether w writes to a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// width of the terminal behind w, in columns.
func width(w io.Writer) int {
	const usual = 80
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return usual
}

// Style marks words. The zero value marks nothing.
type Style struct{ Colours bool }

// StyleFor gives colours where w is a terminal and the environment allows them.
func StyleFor(w io.Writer, env func(string) (string, bool)) Style {
	if no, _ := env("NO_COLOR"); no != "" {
		return Style{}
	}
	if kind, _ := env("TERM"); kind == "dumb" {
		return Style{}
	}
	return Style{Colours: IsTerminal(w)}
}

func (s Style) mark(code, text string) string {
	if !s.Colours {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bold marks headings.
func (s Style) Bold(text string) string { return s.mark("1", text) }

// Faint marks what matters less.
func (s Style) Faint(text string) string { return s.mark("2", text) }

// Good marks success.
func (s Style) Good(text string) string { return s.mark("32", text) }

// Bad marks failure.
func (s Style) Bad(text string) string { return s.mark("31", text) }

// Count writes a number with a comma between groups of three digits.
func Count[T ~int | ~int32 | ~int64 | ~uint64](n T) string {
	text := strconv.FormatInt(int64(n), 10)
	sign := ""
	if text[0] == '-' {
		sign, text = "-", text[1:]
	}
	var b strings.Builder
	b.WriteString(sign)
	for i, digit := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// Number writes n things, with an s where it is not one.
func Number[T ~int | ~int32 | ~int64 | ~uint64](n T, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return Count(n) + " " + thing + "s"
}
