//go:build unix

package localpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeInstall makes programs that answer --version like PostgreSQL's.
func fakeInstall(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPathComesBeforeTheUsualPlacesAndThoseNewestFirst(t *testing.T) {
	root := filepath.Dir(lastingDir(t))
	inPath := fakeInstall(t, filepath.Join(root, "path"), "15.2")
	nine := fakeInstall(t, filepath.Join(root, "lib", "9", "bin"), "9.6.24")
	sixteen := fakeInstall(t, filepath.Join(root, "lib", "16", "bin"), "16.1 (Debian 16.1-1)")
	hundred := fakeInstall(t, filepath.Join(root, "lib", "100", "bin"), "100devel")
	f := finder{path: []string{inPath}, globs: []string{filepath.Join(root, "lib", "*", "bin")}}

	got := f.candidates(t.Context())
	if want := []string{inPath, hundred, sixteen, nine}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("candidates\n %v\nwant\n %v", got, want)
	}
	for major, want := range map[int]string{0: inPath, 15: inPath, 16: sixteen, 100: hundred} {
		inst, _, _, ok := f.find(t.Context(), major)
		if !ok || inst.bin != want {
			t.Errorf("find(%d) = %v, %v; want %s", major, inst, ok, want)
		}
	}
	_, usable, seen, ok := f.find(t.Context(), 17)
	if ok || len(usable) != 3 || len(seen) != 1 || !strings.Contains(seen[0], "older than 15") {
		t.Errorf("find(17): usable %v, seen %v, ok %v", usable, seen, ok)
	}
}

func TestLinksInPathLeadToTheRealDirectory(t *testing.T) {
	root := filepath.Dir(lastingDir(t))
	target := fakeInstall(t, filepath.Join(root, "real"), "16.1")
	links := filepath.Join(root, "links")
	if err := os.Mkdir(links, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(target, "postgres"), filepath.Join(links, "postgres")); err != nil {
		t.Fatal(err)
	}
	inst, _, _, ok := finder{path: []string{".", links}}.find(t.Context(), 0)
	if want, _ := filepath.EvalSymlinks(target); !ok || inst.bin != want {
		t.Fatalf("got %v, %v; want %s", inst, ok, want)
	}
}

func TestPgConfigShowsTheWay(t *testing.T) {
	root := filepath.Dir(lastingDir(t))
	bin := fakeInstall(t, filepath.Join(root, "hidden"), "16.1")
	path := filepath.Join(root, "path")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "pg_config"), []byte("#!/bin/sh\necho "+bin+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	inst, _, _, ok := finder{path: []string{path}}.find(t.Context(), 0)
	if !ok || inst.bin != bin {
		t.Fatalf("got %v, %v; want %s", inst, ok, bin)
	}
}

func TestNothingToBeHadIsOneErrorThatSaysWhatToInstall(t *testing.T) {
	dir := filepath.Dir(lastingDir(t))
	_, err := Start(t.Context(), Options{BinDir: fakeInstall(t, filepath.Join(dir, "bin"), "13.4")})
	missing, ok := errors.AsType[*NotFoundError](err)
	if !ok {
		t.Fatalf("got %v, want a NotFoundError", err)
	}
	for goos, want := range map[string]string{"linux": "apt-get install postgresql", "darwin": "brew install", "plan9": "postgresql.org/download"} {
		e := *missing
		e.OS = goos
		for _, part := range []string{want, "13.4", dir, "15 or newer"} {
			if !strings.Contains(e.Error(), part) {
				t.Errorf("%s: %q does not contain %q", goos, e.Error(), part)
			}
		}
	}
}

func TestVersionIsReadAsPostgresWritesIt(t *testing.T) {
	for out, want := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 9.6.24":                           9,
		"postgres (PostgreSQL) 17rc1":                            17,
		"postgres (PostgreSQL) 19devel":                          19,
	} {
		if _, major, err := parseVersion(out); err != nil || major != want {
			t.Errorf("%q: got %d, %v; want %d", out, major, err, want)
		}
	}
	if _, _, err := parseVersion("command not found"); err == nil {
		t.Error("no error for what is no version")
	}
}

func TestVersionInAPath(t *testing.T) {
	for path, want := range map[string]int{
		"/usr/lib/postgresql/15/bin":                            15,
		"/opt/homebrew/opt/postgresql@16/bin":                   16,
		"/usr/pgsql-14/bin":                                     14,
		"/Applications/Postgres.app/Contents/Versions/9.6/bin":  9,
		"/Applications/Postgres.app/Contents/Versions/latest/b": 1 << 30,
	} {
		if got := versionInPath(path); got != want {
			t.Errorf("%s: got %d, want %d", path, got, want)
		}
	}
}
