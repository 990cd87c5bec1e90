package ui

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Console is stderr: lines that stay, and on a terminal one line that moves
// below them. Its methods may be called from any goroutine.
type Console struct {
	w    io.Writer
	live bool

	mu    sync.Mutex // guards w, and what follows
	shown bool       // a moving line stands there
}

// NewConsole returns a console that writes to w.
func NewConsole(w io.Writer) *Console { return &Console{w: w, live: IsTerminal(w)} }

// Write implements io.Writer for lines that stay: a moving line makes way.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.clear(); err != nil {
		return 0, err
	}
	return c.w.Write(p)
}

func (c *Console) clear() error {
	if !c.shown {
		return nil
	}
	c.shown = false
	_, err := io.WriteString(c.w, "\r\x1b[K")
	return err
}

// move replaces the moving line; an empty text takes it away.
func (c *Console) move(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.clear() // stderr is gone: there is nobody to tell
	if text == "" {
		return
	}
	if limit := width(c.w) - 1; utf8.RuneCountInString(text) > limit {
		text = string([]rune(text)[:max(limit, 0)])
	}
	_, _ = io.WriteString(c.w, text)
	c.shown = true
}

// Progress shows how far long work is: a line that moves on a terminal, a line
// now and then elsewhere, and nothing when quiet. It is for one goroutine.
type Progress struct {
	console *Console
	quiet   bool
	every   time.Duration
	last    time.Time
}

// Progress returns one that is shown on the console. Off a terminal it writes
// a line each time that the interval has passed.
func (c *Console) Progress(quiet bool, every time.Duration) *Progress {
	return &Progress{console: c, quiet: quiet, every: every, last: time.Now()}
}

// Show shows the text that line gives, if it is time to.
func (p *Progress) Show(line func() string) {
	const redraw = 80 * time.Millisecond
	every := p.every
	if p.console.live {
		every = redraw
	}
	if p.quiet || time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	if p.console.live {
		p.console.move(line())
		return
	}
	_, _ = fmt.Fprintln(p.console, line())
}

// Clear takes the moving line away.
func (p *Progress) Clear() { p.console.move("") }

// Bar draws done of total as a bar of the given width.
func Bar(done, total int64, columns int) string {
	if total <= 0 {
		return ""
	}
	filled := int(min(done, total) * int64(columns) / total)
	return "[" + strings.Repeat("#", filled) + strings.Repeat("·", columns-filled) + "]"
}
