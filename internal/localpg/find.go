package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// installation is a PostgreSQL that can be run.
type installation struct {
	bin     string // directory of postgres and initdb
	major   int
	version string // as it calls itself
}

func (i installation) String() string { return fmt.Sprintf("PostgreSQL %s in %s", i.version, i.bin) }

// finder knows where to look. It is a value so that tests can look elsewhere.
type finder struct {
	path  []string // directories of PATH
	globs []string // directories of binaries, by pattern; within one, newest first
	acct  *account // who must be able to run them
}

func newFinder(acct *account) finder {
	return finder{
		path: filepath.SplitList(os.Getenv("PATH")),
		globs: []string{
			"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
			"/usr/pgsql-*/bin",                                   // postgresql.org's packages for Red Hat
			"/usr/libexec/postgresql*",                           // Alpine
			"/usr/lib/postgresql*/bin",                           // SUSE
			"/usr/local/pgsql/bin",                               // from source
			"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew, Apple silicon
			"/usr/local/opt/postgresql@*/bin",                    // Homebrew, Intel
			"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",    // Homebrew, Linux
			"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
			"/opt/local/lib/postgresql*/bin",                     // MacPorts
		},
		acct: acct,
	}
}

// candidates are the directories to try, each once, the preferred first: PATH,
// then what pg_config says (in PATH it may stand for a server that does not),
// then the usual places. Links are resolved: initdb looks for postgres beside
// itself.
func (f finder) candidates(ctx context.Context) []string {
	var dirs []string
	add := func(dir string) {
		if !executable(filepath.Join(dir, "postgres")) {
			return
		}
		if target, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil && executable(filepath.Join(filepath.Dir(target), "initdb")) {
			dir = filepath.Dir(target)
		}
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range f.path {
		if filepath.IsAbs(dir) { // never run what happens to lie in the working directory
			add(dir)
		}
	}
	for _, dir := range f.path {
		config := filepath.Join(dir, "pg_config")
		if !filepath.IsAbs(dir) || !executable(config) {
			continue
		}
		if out, err := f.run(ctx, config, "--bindir"); err == nil {
			add(strings.TrimSpace(out))
		}
	}
	for _, glob := range f.globs {
		found, _ := filepath.Glob(glob) // the patterns are well formed
		slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(versionInPath(b), versionInPath(a)) })
		for _, dir := range found {
			add(dir)
		}
	}
	return dirs
}

// find returns the first installation that is new enough and, if major is not
// zero, of that major version. Otherwise usable holds the others that would run,
// and seen says what was wrong with the rest.
func (f finder) find(ctx context.Context, major int) (inst installation, usable []installation, seen []string, ok bool) {
	for _, dir := range f.candidates(ctx) {
		got, err := f.inspect(ctx, dir)
		switch {
		case err != nil:
			seen = append(seen, fmt.Sprintf("%s: %v", dir, err))
		case got.major < MinMajor:
			seen = append(seen, fmt.Sprintf("%s: version %s is older than %d", dir, got.version, MinMajor))
		case major != 0 && got.major != major:
			usable = append(usable, got)
		default:
			return got, usable, seen, true
		}
	}
	return installation{}, usable, seen, false
}

// inspect runs the binaries, as the user who will run the server: being there is
// not enough.
func (f finder) inspect(ctx context.Context, dir string) (installation, error) {
	if !executable(filepath.Join(dir, "initdb")) {
		return installation{}, errors.New("there is a postgres but no initdb")
	}
	out, err := f.run(ctx, filepath.Join(dir, "postgres"), "--version")
	if err != nil {
		return installation{}, fmt.Errorf("postgres --version fails: %w", err)
	}
	version, major, err := parseVersion(out)
	return installation{bin: dir, major: major, version: version}, err
}

func (f finder) run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = serverEnv()
	cmd.SysProcAttr = sysProcAttr(f.acct, false)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return "", errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

// parseVersion reads "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", also
// "17rc1" and "18devel".
func parseVersion(out string) (version string, major int, err error) {
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return "", 0, fmt.Errorf("postgres --version says %q", strings.TrimSpace(out))
	}
	major, err = strconv.Atoi(m[2])
	return m[1], major, err
}

var lastNumber = regexp.MustCompile(`(\d+)(\.\d+)*\D*$`)

// versionInPath is the last number in a path: 16 in ".../postgresql@16/bin".
// Postgres.app's "latest" has none and counts as newest.
func versionInPath(path string) int {
	m := lastNumber.FindStringSubmatch(path)
	if m == nil {
		return 1 << 30
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return n
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// locate finds or downloads an installation for a cluster of the given major
// version (0: any).
func locate(ctx context.Context, o Options, acct *account, data string, major int) (installation, error) {
	if major != 0 && major < MinMajor {
		return installation{}, &VersionError{Dir: filepath.Dir(data), Major: major}
	}
	f := newFinder(acct)
	if o.BinDir != "" {
		f.path, f.globs = []string{o.BinDir}, nil
	}
	inst, usable, seen, ok := f.find(ctx, major)
	if ok {
		return inst, nil
	}
	if err := ctx.Err(); err != nil {
		return installation{}, fmt.Errorf("looking for PostgreSQL: %w", err)
	}
	if len(usable) > 0 {
		e := &VersionError{Dir: filepath.Dir(data), Major: major}
		for _, u := range usable {
			e.Found = append(e.Found, u.String())
		}
		return installation{}, e
	}
	if o.BinDir != "" || o.NoDownload {
		return installation{}, &NotFoundError{Seen: seen, OS: runtime.GOOS}
	}
	inst, err := download(ctx, o, f, major)
	if err != nil {
		return installation{}, &NotFoundError{Seen: seen, Download: err, OS: runtime.GOOS}
	}
	return inst, nil
}
