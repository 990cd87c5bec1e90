package lint

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

var (
	phony     = regexp.MustCompile(`(?m)^\.PHONY:(.*)$`)
	image     = regexp.MustCompile(`^\s*image:\s*(\S+)`)
	pinned    = regexp.MustCompile(`:[^:@/]*\d[^:@/]*(@sha256:[0-9a-f]{64})?$`)
	published = regexp.MustCompile(`^\s*-\s*"?((?:[^"\s:]+:)?(?:\$\{[^}]+\}|\d+):\d+)"?\s*$`)
)

const (
	onLoopback  = "127.0.0.1:"
	makefile    = "Makefile"
	composeFile = "docker-compose.yml"
)

// MakefileHelp refuses a target that `make help` would not show.
func MakefileHelp(tree fs.FS) ([]Finding, error) {
	content, err := fs.ReadFile(tree, makefile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	declared := phony.FindSubmatch(content)
	if declared == nil {
		return []Finding{{makefile, 0, "no .PHONY line: list the targets there"}}, nil
	}
	var found []Finding
	for target := range strings.FieldsSeq(string(declared[1])) {
		shown := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:.*## \S`)
		if !shown.Match(content) {
			found = append(found, Finding{makefile, 0, fmt.Sprintf("target %s has no help: write it after ## on the target's line", target)})
		}
	}
	return found, nil
}

// ContainerImages refuses images without a version, and ports that are open
// to more than this machine.
func ContainerImages(tree fs.FS) ([]Finding, error) {
	content, err := fs.ReadFile(tree, composeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []Finding
	for i, line := range strings.Split(string(content), "\n") {
		if m := image.FindStringSubmatch(line); len(m) > 1 && !pinned.MatchString(m[1]) {
			found = append(found, Finding{composeFile, i + 1, fmt.Sprintf("image %s has no version: pin it", m[1])})
		}
		if m := published.FindStringSubmatch(line); len(m) > 1 && !strings.HasPrefix(m[1], onLoopback) {
			found = append(found, Finding{composeFile, i + 1, fmt.Sprintf("port %s is open to the network: publish it on 127.0.0.1", m[1])})
		}
	}
	return found, nil
}
