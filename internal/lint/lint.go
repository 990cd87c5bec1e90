package lint

import (
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strings"
)

// Finding is one broken rule: where, and what to do about it.
type Finding struct {
	// Path is relative to the root of the tree, with slashes.
	Path string
	// Line counts from 1; 0 means the whole file or directory.
	Line int
	// Text says what is wrong and what to do.
	Text string
}

// String returns "path:line: text", or "path: text" for a whole file.
func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s", f.Path, f.Text)
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Text)
}

// Rule looks at a tree and returns its findings in any order. The error is for
// a tree that cannot be read.
type Rule func(tree fs.FS) ([]Finding, error)

// Rules returns every rule, by name.
func Rules() map[string]Rule {
	return map[string]Rule{
		"package names":     PackageNames,
		"file lengths":      FileLengths,
		"layout":            Layout,
		"document links":    DocumentLinks,
		"makefile help":     MakefileHelp,
		"container images":  ContainerImages,
		"written decisions": Decisions,
	}
}

// Run applies every rule and returns the findings sorted by place.
func Run(tree fs.FS) ([]Finding, error) {
	var all []Finding
	for name, rule := range Rules() {
		found, err := rule(tree)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", name, err)
		}
		all = append(all, found...)
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		if a.Path != b.Path {
			return a.Path < b.Path
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Text < b.Text
	})
	return all, nil
}

// walk calls visit for every file whose name ends in suffix. It leaves out
// what is not ours to judge: hidden and test data directories,
// built output, and what other package managers own.
func walk(tree fs.FS, suffix string, visit func(name string, content []byte) error) error {
	return fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped(name) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !strings.HasSuffix(name, suffix) {
			return nil
		}
		content, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		return visit(name, content)
	})
}

func skipped(dir string) bool {
	base := path.Base(dir)
	switch {
	case dir == ".":
		return false
	case strings.HasPrefix(base, "."), base == "testdata", base == "vendor", base == "node_modules":
		return true
	default:
		return dir == "bin"
	}
}
