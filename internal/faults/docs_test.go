package faults

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/forge-platform/strom/kafka"
)

const testingDoc = "../../docs/testing.md"

// documented gives the first column of the table under a heading.
func documented(t *testing.T, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(testingDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n### "+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", testingDoc, heading)
	}
	part, _, _ = strings.Cut(part, "\n### ")
	var out []string
	for line := range strings.Lines(part) {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ := strings.Cut(rest, "`")
			out = append(out, name)
		}
	}
	return out
}

func TestTheDocumentNamesEveryPoint(t *testing.T) {
	if got, want := documented(t, "The points"), kafka.Points(); !slices.Equal(got, want) {
		t.Errorf("%s names the points\n%q, want\n%q", testingDoc, got, want)
	}
}

func TestTheDocumentNamesEveryWayAndFault(t *testing.T) {
	var ways, faults []string
	for _, w := range Ways() {
		ways = append(ways, string(w))
	}
	for _, f := range brokerFaults() {
		faults = append(faults, "broker."+f.name)
	}
	if got := documented(t, "A case"); !slices.Equal(got, ways) {
		t.Errorf("%s names the ways %q, want %q", testingDoc, got, ways)
	}
	if got := documented(t, "Faults of the broker"); !slices.Equal(got, faults) {
		t.Errorf("%s names the faults %q, want %q", testingDoc, got, faults)
	}
}
