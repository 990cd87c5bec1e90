// Command faults runs the crash matrix; see docs/testing.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/forge-platform/strom/internal/faults"
)

func main() {
	if code, ok := faults.Child(os.Stdin, os.Stdout, os.Stderr); ok {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	var o faults.Options
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.Case, "case", "", "run only this case, or those whose names begin with it")
	flags.Uint64Var(&o.Seed, "seed", 1, "decides which workload meets which point, and when")
	flags.IntVar(&o.Parallel, "parallel", 4, "cases at the same time")
	flags.IntVar(&o.Repeat, "repeat", 1, "run everything so often, each time with the next seed")
	flags.IntVar(&o.Lines, "lines", 0, "lines of the earthquakes' file to use; 0: all")
	flags.IntVar(&o.Readings, "readings", 0, "readings of meters; 0: 2,400")
	flags.BoolVar(&o.List, "list", false, "list the cases and end")
	flags.BoolVar(&o.Debug, "debug", false, "let replicas log everything")
	on := flags.String("on", "embedded", "the broker: embedded or apache")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	switch *on {
	case "embedded":
	case "apache":
		o.Apache = true
	default:
		fmt.Fprintf(stderr, "faults: there is no broker %q: embedded or apache\n", *on)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "strom-faults-")
	if err != nil {
		fmt.Fprintln(stderr, "faults:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	o.Dir = filepath.Clean(dir)
	failed, err := faults.Main(ctx, o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "faults:", err)
		return 1
	}
	return min(failed, 1)
}
