package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The README's commands work, and what it shows of the demo is what the demo
// prints: docs/cli.md has that output, and a test compares it.
func TestTheREADMEKeepsItsWord(t *testing.T) {
	readme := readFile(t, "README.md")
	makefile := readFile(t, "Makefile")
	manual := "\n" + readFile(t, "docs/cli.md")
	root := repo(t)
	ran := 0
	for block := range blocks(readme) {
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			command, isCommand := strings.CutPrefix(line, "$ ")
			command, _, _ = strings.Cut(command, "  #")
			switch {
			case isCommand && strings.HasPrefix(command, "make "):
				if target := strings.Fields(command)[1]; !strings.Contains(makefile, "\n"+target+":") {
					t.Errorf("%s: the Makefile has no such target", command)
				}
			case isCommand:
				t.Chdir(root)
				if o := strom(t, nil, words(command)[1:]...); o.code != exitOK {
					t.Errorf("%s: exit code %d\n%s", command, o.code, o.stderr)
				}
				ran++
			}
		}
		if strings.HasPrefix(block, "```text\nWhen the events came") {
			for line := range strings.Lines(strings.TrimPrefix(block, "```text\n")) {
				if !strings.HasPrefix(line, "```") && !strings.Contains(manual, "\n"+line) {
					t.Errorf("the demo does not print %q", line)
				}
			}
		}
	}
	if ran < 2 {
		t.Errorf("%d commands were run", ran)
	}
}

// blocks gives the fenced blocks of a document.
func blocks(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		var block strings.Builder
		open := false
		for line := range strings.Lines(text) {
			fence := strings.HasPrefix(strings.TrimPrefix(line, "  "), "```") // also in a list
			if open || fence {
				block.WriteString(line)
			}
			if fence && open {
				if !yield(block.String()) {
					return
				}
				block.Reset()
			}
			open = open != fence
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
