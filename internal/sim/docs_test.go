package sim_test

import (
	"os"
	"strings"
	"testing"

	"github.com/forge-platform/strom/internal/sim"
)

// docs/testing.md names every invariant and every bug, and no other.
func TestTheDocumentNamesInvariantsAndBugs(t *testing.T) {
	content, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(content), "\n## The simulator\n")
	want := map[string]bool{}
	for _, i := range sim.Invariants() {
		want[string(i)] = true
	}
	for _, b := range sim.Bugs() {
		want[b.String()] = true
	}
	found := 0
	for line := range strings.Lines(text) {
		name, _, row := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if !row || !strings.HasPrefix(line, "| `") {
			continue
		}
		found++
		if !want[name] {
			t.Errorf("the document has %q twice, or it is neither an invariant nor a bug", name)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("the document does not name %q", name)
	}
	if found == 0 {
		t.Error("the document has no table")
	}
}
