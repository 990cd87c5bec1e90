package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// testScripts runs the command lines of testdata/scripts. Each directive is a
// command line that begins with strom; what follows is what it prints, stderr
// marked by 2>, and how it ends. `go test ./cmd/strom -run
// TestTheEarthquakes -rewrite` writes them anew.
//
//	file NAME      writes the input into the script's directory, $DIR
//	strom ARGS...  runs a command line from the root of the repository;
//	               `first=N` as its own last line of input prints N lines only
func testScripts(t *testing.T, asked *world) {
	t.Helper()
	names, err := filepath.Glob("testdata/scripts/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, name := range names {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			s := &script{dir: t.TempDir(), world: asked}
			t.Chdir(repo(t))
			datadriven.RunTest(t, path, s.run)
		})
	}
}

type script struct {
	dir   string
	world *world
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	if d.Cmd == "file" {
		name := filepath.Join(s.dir, d.CmdArgs[0].Key)
		if err := os.WriteFile(name, []byte(d.Input+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return ""
	}
	if d.Cmd != "strom" {
		t.Fatalf("%s: unknown directive %s", d.Pos, d.Cmd)
	}
	lines := strings.Split(d.Input, "\n")
	first := 0
	if n := len(lines); strings.HasPrefix(lines[n-1], "first=") {
		if _, err := fmt.Sscanf(lines[n-1], "first=%d", &first); err != nil {
			t.Fatal(err)
		}
		lines = lines[:n-1]
	}
	env := map[string]string{}
	var args []string
	for _, word := range words(strings.Join(lines, " ")) {
		word = s.expand(word)
		if name, value, ok := strings.Cut(word, "="); ok && len(args) == 0 && strings.ToUpper(name) == name {
			env[name] = value
			continue
		}
		args = append(args, word)
	}
	return s.text(strom(t, env, args...), first)
}

var space = regexp.MustCompile(`'[^']*'|\S+`)

// words splits a command line; a word with spaces stands in single quotes.
func words(line string) []string {
	out := space.FindAllString(line, -1)
	for i := range out {
		out[i] = strings.Trim(out[i], "'")
	}
	return out
}

func (s *script) expand(word string) string {
	return strings.NewReplacer(
		"$DIR", s.dir, "$POSTGRES", s.world.postgres, "$BROKERS", s.world.brokers[0],
	).Replace(word)
}

// text is what a command line printed, free of what differs between runs.
func (s *script) text(o outcome, first int) string {
	var b strings.Builder
	out := strings.SplitAfter(o.stdout, "\n")
	for i, line := range out {
		if first > 0 && i == first {
			fmt.Fprintf(&b, "[%d more lines]\n", len(out)-1-i)
			break
		}
		b.WriteString(line)
	}
	for line := range strings.Lines(o.stderr) {
		b.WriteString("2> " + line)
	}
	if o.code != exitOK {
		fmt.Fprintf(&b, "exit %d\n", o.code)
	}
	return steady(strings.NewReplacer(
		s.dir, "$DIR", s.world.postgres, "$POSTGRES", s.world.brokers[0], "$BROKERS",
	).Replace(b.String()))
}

// steady puts placeholders where two runs differ.
func steady(text string) string {
	for _, r := range [][2]string{
		{`(?m)^\[[#·]+\] .*\n`, ""}, // progress of a slow machine
		{`127\.0\.0\.1:\d{4,5}`, "127.0.0.1:PORT"},
		{`(ready in|events in|after) \d+\.\d s`, "$1 N.N s"},
		{`(version"?:?"?,? ?"?)[0-9a-f]{16}`, "${1}VERSION"},
		{`-repartition \d+ of \d+`, "-repartition N of N"},
		{`(\d+ +nobody +166 +2018-02-07T03:00:00Z +)\d+`, "${1}NNNN"},
		{`((announced|acknowledged)_at":")[^"]*`, "${1}TIME"},
		{`(age_seconds":)[\d.]+`, "${1}AGE"},
		{`((announced|acknowledged)_by":")r[0-9a-f]{8}`, "${1}REPLICA"},
		{`process \d+`, "process PID"},
		{`go1\.\d+(\.\d+)?`, "goVERSION"},
		{`(linux|darwin|freebsd)/(amd64|arm64)`, "OS/ARCH"},
		{`host=%2F[^&']*`, "host=SOCKET"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	return text
}
