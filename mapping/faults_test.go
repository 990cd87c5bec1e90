package mapping

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files again")

// TestFaultsAreReportedWithTheirPlace holds testdata/faults/*.yaml against the
// reports beside them. After a change that is meant: go test ./mapping -run
// Faults -rewrite, and read the difference.
func TestFaultsAreReportedWithTheirPlace(t *testing.T) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := Parse(filepath.Base(file), data, nil)
			bad, ok := errors.AsType[*Error](err)
			if !ok || plan != nil {
				t.Fatalf("a plan, or no *Error: %v", err)
			}
			if strings.Contains(bad.Error(), "hunter2") {
				t.Error("a secret is shown")
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			got := []byte(bad.Error() + "\n")
			if *rewrite {
				if err := os.WriteFile(golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v\ngot:\n%s\nwant:\n%s", err, got, want)
			}
		})
	}
}
