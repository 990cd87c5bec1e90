package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
)

// rewriting says whether the flag of the datadriven library is set: it serves
// the documents too.
func rewriting() bool {
	f := flag.Lookup("rewrite")
	return f != nil && f.Value.String() == "true"
}

// testDocuments runs the commands of docs/cli.md.
// What a console block shows is what its commands print, stdout first;
// -rewrite puts that there. The commands of a sh block have only to succeed;
// one that runs until it is stopped is interrupted.
func testDocuments(t *testing.T, w *world) {
	t.Helper()
	path := filepath.Join(repo(t), "docs/cli.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &documents{world: w}
	d.enterExamples(t)
	var out strings.Builder
	for rest := string(text); rest != ""; {
		before, block, after := cutBlock(rest)
		out.WriteString(before)
		switch {
		case strings.HasPrefix(block, "```console\n"):
			block = d.console(t, block)
		case strings.HasPrefix(block, "```sh\n"):
			d.shell(t, block)
		}
		out.WriteString(block)
		rest = after
	}
	if out.String() == string(text) {
		return
	}
	if !rewriting() {
		t.Fatalf("docs/cli.md shows something else than the commands print; the first difference:\n%s", firstDifference(string(text), out.String()))
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func firstDifference(shown, printed string) string {
	a, b := strings.Split(shown, "\n"), strings.Split(printed, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d shown:   %s\nline %d printed: %s", i+1, a[i], i+1, b[i])
		}
	}
	return "one has more lines than the other"
}

// cutBlock cuts at the first fenced block.
func cutBlock(text string) (before, block, after string) {
	i := strings.Index(text, "\n```")
	if i < 0 {
		return text, "", ""
	}
	end := strings.Index(text[i+4:], "\n```\n")
	if end < 0 {
		return text, "", ""
	}
	end += i + 4 + len("\n```\n")
	return text[:i+1], text[i+1 : end], text[end:]
}

type documents struct{ world *world }

// enterExamples makes a directory with the example the working directory, as
// the root of the repository is to a reader.
func (d *documents) enterExamples(t *testing.T) {
	t.Helper()
	dir := pgtest.Dir(t)
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join(repo(t), "examples"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	// What the page says of hourly.yaml.
	text, err := os.ReadFile("examples/earthquakes/mapping.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{{"{calendar: day, zone: UTC}", "{tumbling: 1h}"}, {"max_ahead: 1h", "max_ahead: 2h"}} {
		if !strings.Contains(string(text), change[0]) {
			t.Fatalf("the example has no %s", change[0])
		}
		text = []byte(strings.Replace(string(text), change[0], change[1], 1))
	}
	if err := os.WriteFile("hourly.yaml", text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// console gives a console block with what its commands print.
func (d *documents) console(t *testing.T, block string) string {
	t.Helper()
	var out strings.Builder
	out.WriteString("```console\n")
	for line := range strings.Lines(block) {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		out.WriteString(line)
		command, filter, _ := strings.Cut(strings.TrimSpace(command), " | ")
		o := strom(t, d.world.env(), words(command)[1:]...)
		printed, err := filtered(o.stdout, filter)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		out.WriteString(steady(printed + o.stderr))
		if o.code != exitOK {
			fmt.Fprintf(&out, "[exit code %d]\n", o.code)
		}
	}
	out.WriteString("```\n")
	return out.String()
}

// filtered does what a reader's shell does behind the pipe.
func filtered(text, filter string) (string, error) {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	switch filter {
	case "":
		return text, nil
	case "tail -n 1":
		return lines[len(lines)-1] + "\n", nil
	case "wc -l":
		return fmt.Sprintln(len(lines)), nil
	}
	return "", fmt.Errorf("no filter %q", filter)
}

func (d *documents) shell(t *testing.T, block string) {
	t.Helper()
	for line := range strings.Lines(block) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			continue
		}
		args, ok := strings.CutPrefix(line, "strom ")
		if !ok {
			t.Fatalf("no command of ours: %s", line)
		}
		d.interrupted(t, words(args)...).want(t, exitOK)
	}
}

// interrupted runs a command line, and interrupts it once its pipeline runs.
func (d *documents) interrupted(t *testing.T, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var printed buffer
	a := newTestApp(&printed)
	a.env = environment(d.world.env())
	ended := make(chan exitCode, 1)
	go func() { ended <- a.main(ctx, args) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case code := <-ended:
			return outcome{stdout: printed.String(), code: code}
		case <-tick.C:
			if strings.Contains(printed.String(), "took over") {
				cancel(errInterrupted)
			}
		}
	}
}

func TestEveryCommandAndFlagIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repo(t), "docs/cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Runnable() && !strings.Contains(document, "`"+c.Name()) {
			t.Errorf("docs/cli.md does not name the command %s", c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !strings.Contains(document, "`--"+f.Name+"`") {
				t.Errorf("docs/cli.md does not name the flag --%s of %s", f.Name, c.CommandPath())
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newTestApp(&buffer{}).root())
}
