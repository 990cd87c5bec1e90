// Command strom runs pipelines and asks their ontology. `strom help` lists its
// commands, docs/cli.md describes them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
)

// version is set by the linker: -ldflags "-X main.version=...".
var version = "dev"

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// A terminal that is closed stops us as SIGTERM does, except below nohup.
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	// Whoever reads us may stop reading, as head does. That is an error of a
	// write then, and what we have started is still put away.
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		<-signals
		cancel(errInterrupted)
		// The second signal does not wait for anything. What we started for
		// ourselves (PostgreSQL) ends with this process.
		<-signals
		os.Exit(int(exitInterrupted))
	}()
	a := &app{stdout: os.Stdout, stderr: ui.NewConsole(os.Stderr), env: os.LookupEnv}
	os.Exit(int(a.main(ctx, os.Args[1:])))
}
