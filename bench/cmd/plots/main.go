// The command plots draws what `strom bench` has measured: rates beside the
// peers', and what an event costs as the number of keys grows. It is a program of
// its own so that strom does not carry a library for drawing.
//
//	go run ./bench/cmd/plots -out bench/plots bench/results/*.json
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forge-platform/strom/bench"
)

func main() {
	out := flag.String("out", "bench/plots", "directory for the plots")
	flag.Parse()
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

func run(dir string, paths []string) error {
	var results []*bench.Result
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r := &bench.Result{}
		if err := json.Unmarshal(data, r); err != nil {
			return fmt.Errorf("%s is not a result of strom bench: %w", path, err)
		}
		results = append(results, r)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, draw := range map[string]func([]*bench.Result) (*canvas, error){"rates.svg": rates, "cost.svg": cost} {
		c, err := draw(results)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if c == nil {
			continue // nothing was measured that it shows
		}
		if err := c.save(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
