package datadir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/cmd/strom/internal/datadir"
)

func claim(t *testing.T, path, pipeline string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Claim(path, pipeline)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func release(t *testing.T, d *datadir.Dir) {
	t.Helper()
	if err := d.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestADirectoryIsOnePipelinesAndOneProcesss(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	d := claim(t, path, "shop")
	if d.Path("state") != filepath.Join(path, "state") {
		t.Errorf("path %s", d.Path("state"))
	}
	var inUse *datadir.InUseError
	if _, err := datadir.Claim(path, "shop"); !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("a second claim: %v", err)
	}
	release(t, d)
	release(t, d)
	release(t, claim(t, path, "shop"))
	var foreign *datadir.ForeignError
	if _, err := datadir.Claim(path, "other"); !errors.As(err, &foreign) || foreign.Owner != "shop" {
		t.Errorf("another pipeline's claim: %v", err)
	}
}

func TestWhatIsNotStromsIsLeftAlone(t *testing.T) {
	path := t.TempDir()
	for _, name := range []string{"a", "b", "c", "d"} {
		if err := os.WriteFile(filepath.Join(path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var foreign *datadir.ForeignError
	if _, err := datadir.Claim(path, "shop"); !errors.As(err, &foreign) || len(foreign.Files) != 3 {
		t.Fatalf("claim: %v", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 4 {
		t.Errorf("the directory now holds %v, %v", entries, err)
	}
}

// What the error says to remove must hold nobody else's data.
func TestADirectoryHoldsNoOther(t *testing.T) {
	path := t.TempDir()
	release(t, claim(t, filepath.Join(path, "dev"), "shop"))
	var foreign *datadir.ForeignError
	if _, err := datadir.Claim(path, "other"); !errors.As(err, &foreign) || foreign.Owner != "" {
		t.Errorf("a directory around another: %v", err)
	}
	dev := filepath.Join(path, "dev")
	if _, err := datadir.Claim(dev, "other"); err == nil || !strings.HasSuffix(err.Error(), "nothing above it: "+dev) {
		t.Errorf("error %v", err)
	}
}

func TestADirectoryThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "STROM.json"), []byte(`{"v":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below"), newer} {
		var unusable *datadir.UnusableError
		if _, err := datadir.Claim(path, "shop"); !errors.As(err, &unusable) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestTemporaryDirectoriesOfKilledProcessesAreSwept(t *testing.T) {
	parent := t.TempDir()
	t.Setenv("TMPDIR", parent)
	held, err := datadir.Temp()
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(parent, "strom-demo-dead")
	young := filepath.Join(parent, "strom-demo-young") // not locked yet
	old := filepath.Join(parent, "strom-demo-old")     // never was
	for _, dir := range []string{dead, young, old} {
		if err := os.MkdirAll(filepath.Join(dir, "state"), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	next, err := datadir.Temp()
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{held.Path(): true, next.Path(): true, young: true, dead: false, old: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", dir, err, want)
		}
	}
	release(t, held)
	release(t, next)
	if _, err := os.Stat(held.Path()); err == nil {
		t.Error("a released temporary directory is still there")
	}
}
