package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
)

// app is what the commands have of the process, and the flags that all of them
// know. It serves one command line.
type app struct {
	stdout io.Writer
	stderr *ui.Console
	env    func(string) (string, bool)

	format, logLevel, logFormat string
	quiet                       bool
	// begun says that the command line was right, and the command has begun.
	begun bool
	log   *slog.Logger
}

const rootLong = `Strom turns Kafka event streams into a bitemporal ontology in PostgreSQL.

A mapping file describes a pipeline: which topics it reads, what an event is,
which objects and aggregates come of it. Late events are never dropped: they
correct what was believed, and what was believed before can still be asked.

Begin with:
  strom demo                     real earthquakes, from a topic to answers
  strom check MAPPING            find every fault of a mapping file
  strom try MAPPING --input ...  run a mapping over a file, with nothing else
  strom dev MAPPING              run it with a Kafka and a PostgreSQL of its own`

// main runs one command line and says how the program ends.
func (a *app) main(ctx context.Context, args []string) exitCode {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	called, err := root.ExecuteContextC(ctx)
	if err != nil && !a.begun {
		err = &usageError{err: err}
	}
	if usage := (*usageError)(nil); errors.As(err, &usage) && usage.command == "" && called != nil && called.HasParent() {
		usage.command = called.CommandPath()
	}
	code := codeOf(err)
	if err != nil && !errors.Is(err, errReported) && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintln(a.stderr, errorText(err))
	}
	return code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "strom", Short: "Kafka event streams into a bitemporal ontology", Long: rootLong,
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.begin() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	flags := root.PersistentFlags()
	flags.StringVar(&a.format, "format", "table", "how data is printed: table or json")
	flags.StringVar(&a.logLevel, "log-level", "", "least level that is logged to stderr: debug, info, warn or error (default: info for run and dev, else warn)")
	flags.StringVar(&a.logFormat, "log-format", "text", "how logs are written: text or json")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "show no progress")
	root.AddCommand(
		a.demoCommand(), a.devCommand(), a.runCommand(), a.checkCommand(), a.tryCommand(),
		a.statusCommand(), a.checkpointsCommand(), a.ontologyCommand(), a.benchCommand(), a.versionCommand(), exitCodesTopic(),
	)
	return root
}

// begin checks the flags that every command has, and starts the log.
func (a *app) begin() error {
	if !slices.Contains([]string{"table", "json"}, a.format) {
		return usagef("--format %q is neither table nor json", a.format)
	}
	if !slices.Contains([]string{"text", "json"}, a.logFormat) {
		return usagef("--log-format %q is neither text nor json", a.logFormat)
	}
	level := slog.LevelWarn
	if a.logLevel != "" {
		if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
			return usagef("--log-level %q is none of debug, info, warn, error", a.logLevel)
		}
	}
	a.startLog(level)
	a.begun = true
	return nil
}

func (a *app) startLog(level slog.Level) {
	o := &slog.HandlerOptions{Level: level}
	if a.logFormat == "json" {
		a.log = slog.New(slog.NewJSONHandler(a.stderr, o))
		return
	}
	a.log = slog.New(slog.NewTextHandler(a.stderr, o))
}

// talkative makes info the level of a command that runs for long, where no
// level is named.
func (a *app) talkative() {
	if a.logLevel == "" {
		a.startLog(slog.LevelInfo)
	}
}

func (a *app) json() bool { return a.format == "json" }

// style is for what goes to stdout.
func (a *app) style() ui.Style { return ui.StyleFor(a.stdout, a.env) }

// progress is for long work.
func (a *app) progress(every time.Duration) *ui.Progress {
	return a.stderr.Progress(a.quiet, every)
}

// printJSON prints one value on one line.
func (a *app) printJSON(v any) error { return printJSON(a.stdout, v) }

func printJSON(to io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = to.Write(append(text, '\n'))
	return err
}

// interrupted says what has ended ctx: errInterrupted where it was a signal.
func interrupted(ctx context.Context) error { return context.Cause(ctx) }

// arguments wants between least and most of them.
func arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch n := len(args); {
		case n < least:
			return usagef("an argument is missing; write: %s", c.UseLine())
		case n > most:
			return usagef("%q is one argument too many; write: %s", args[most], c.UseLine())
		}
		return nil
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if a.json() {
				return a.printJSON(map[string]string{
					"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(a.stdout, "strom %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// exitCodesTopic is a help topic: it has no action.
func exitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("How strom ends:\n\n")
	for _, c := range exitCodes() {
		fmt.Fprintf(&b, "%5d  %s\n", c.Code, c.Meaning)
	}
	b.WriteString("\ndocs/errors.md lists the errors behind each code, and what to do.")
	return &cobra.Command{Use: "exit-codes", Short: "How strom ends, and what each exit code means", Long: b.String()}
}
