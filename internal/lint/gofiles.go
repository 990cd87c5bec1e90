package lint

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// MaxFileLines is how long a Go file may be, tests included.
const MaxFileLines = 800

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// PackageNames refuses packages whose name tells nothing, and packages named
// otherwise than their directory.
func PackageNames(tree fs.FS) ([]Finding, error) {
	vague := []string{
		"base", "common", "commons", "helper", "helpers", "lib", "misc",
		"shared", "tools", "types", "util", "utils",
	}
	var found []Finding
	err := walk(tree, ".go", func(name string, content []byte) error {
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.PackageClauseOnly)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test")
		dir := path.Base(path.Dir(name))
		switch {
		case slices.Contains(vague, pkg):
			found = append(found, Finding{name, 0, fmt.Sprintf("package name %q tells nothing: name it for what it provides", pkg)})
		case pkg != "main" && dir != "." && pkg != dir:
			found = append(found, Finding{name, 0, fmt.Sprintf("package %s is in a directory named %s: give both one name", pkg, dir)})
		}
		return nil
	})
	return found, err
}

// FileLengths refuses Go files of more than MaxFileLines lines, unless they
// are generated.
func FileLengths(tree fs.FS) ([]Finding, error) {
	var found []Finding
	err := walk(tree, ".go", func(name string, content []byte) error {
		lines := bytes.Count(content, []byte("\n"))
		if lines > MaxFileLines && !generated.Match(content) {
			found = append(found, Finding{name, 0, fmt.Sprintf("%d lines: split it, the limit is %d", lines, MaxFileLines)})
		}
		return nil
	})
	return found, err
}

// Layout refuses Go files outside the directories that have a place in the
// order of imports (see .golangci.yml), so that no package escapes its layer
// by being new.
func Layout(tree fs.FS) ([]Finding, error) {
	layers := []string{
		"bench", "cmd", "event", "examples", "formats", "internal", "kafka",
		"mapping", "processors", "sinks", "state", "windows",
	}
	var found []Finding
	err := walk(tree, ".go", func(name string, _ []byte) error {
		top, _, nested := strings.Cut(name, "/")
		if !nested || !slices.Contains(layers, top) {
			found = append(found, Finding{name, 0, "not in a directory with a place in the import layers: see .golangci.yml and internal/lint"})
		}
		return nil
	})
	return found, err
}
