package lint

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inlineCode   = regexp.MustCompile("`[^`]*`")
	decisionName = regexp.MustCompile(`^\d{4}-[a-z0-9.-]+\.md$`)
	notOurs      = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

const decisionIndex = "docs/decisions/README.md"

// DocumentLinks refuses relative links in Markdown files to what does not
// exist. Links to the web are not followed.
func DocumentLinks(tree fs.FS) ([]Finding, error) {
	var found []Finding
	err := walk(tree, ".md", func(name string, content []byte) error {
		fenced := false
		for i, line := range strings.Split(string(content), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			if fenced {
				continue
			}
			for _, link := range markdownLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
				if !resolves(tree, name, link[1]) {
					found = append(found, Finding{name, i + 1, fmt.Sprintf("link to %q leads nowhere", link[1])})
				}
			}
		}
		return nil
	})
	return found, err
}

// resolves reports whether a link in the file from leads to a file or a
// directory of the tree. Anchors are not checked.
func resolves(tree fs.FS, from, link string) bool {
	target, _, _ := strings.Cut(link, "#")
	if target == "" || notOurs.MatchString(target) {
		return true
	}
	_, err := fs.Stat(tree, path.Join(path.Dir(from), target))
	return err == nil
}

// Decisions refuses decision records that are missing from their index, or
// named otherwise than 0000-words.md.
func Decisions(tree fs.FS) ([]Finding, error) {
	dir := path.Dir(decisionIndex)
	entries, err := fs.ReadDir(tree, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	index, err := fs.ReadFile(tree, decisionIndex)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		switch {
		case name == decisionIndex:
		case !decisionName.MatchString(e.Name()):
			found = append(found, Finding{name, 0, "name it four digits, a dash, the words of the decision: 0001-words.md"})
		case !strings.Contains(string(index), "("+e.Name()+")"):
			found = append(found, Finding{name, 0, "not in " + decisionIndex + ": add a line"})
		}
	}
	return found, nil
}
