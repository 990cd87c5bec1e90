package processors

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What docs/windows.md shows of a script stands in the script, as it is.
func TestTheDocumentShowsWhatTheScriptsSay(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "docs", "windows.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```text\n# from ([a-z_]+)\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < 5 {
		t.Fatalf("%d excerpts", len(blocks))
	}
	for _, b := range blocks {
		script, err := os.ReadFile(filepath.Join("testdata", "script", b[1]+".txt"))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(script), b[2]) {
			t.Errorf("%s does not say so any more:\n%s", b[1], b[2])
		}
	}
}
