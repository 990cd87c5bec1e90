// Package lint holds the rules of this repository that golangci-lint cannot
// see: package names, file sizes, the layout, links in the documentation, the
// Makefile's help and the development containers.
//
// Each rule is a function from a file tree to its findings, so that it can be
// shown to refuse what it should; a test runs all of them over the repository.
package lint
