package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/forge-platform/strom/cmd/strom/internal/datadir"
	"github.com/forge-platform/strom/cmd/strom/internal/feed"
	"github.com/forge-platform/strom/cmd/strom/internal/serve"
	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
	"github.com/forge-platform/strom/state"
)

// exitCode is how the program ends. The numbers are documented; they never
// change their meaning.
type exitCode int

const (
	exitOK          exitCode = 0
	exitFailure     exitCode = 1
	exitUsage       exitCode = 2
	exitMapping     exitCode = 3
	exitKafka       exitCode = 4
	exitPostgres    exitCode = 5
	exitPort        exitCode = 6
	exitDataDir     exitCode = 7
	exitQuestion    exitCode = 8
	exitPipeline    exitCode = 9
	exitInput       exitCode = 10
	exitChange      exitCode = 12
	exitInterrupted exitCode = 130
)

// exitMeaning says what a code means.
type exitMeaning struct {
	Code    exitCode
	Meaning string
}

// exitCodes gives the meaning of each code, in order.
func exitCodes() []exitMeaning {
	return []exitMeaning{
		{exitOK, "done; also a run that was stopped by SIGINT, SIGTERM or SIGHUP and has committed its epoch"},
		{exitFailure, "failed for a reason that has no code of its own, or the demo's comparison was not equal"},
		{exitUsage, "the command line is not right: unknown command or flag, missing or malformed argument"},
		{exitMapping, "the mapping file cannot be read, has faults, or lacks a connection"},
		{exitKafka, "Kafka cannot be reached or refuses, or a topic is missing or does not fit"},
		{exitPostgres, "PostgreSQL cannot be reached, or none is to be had on this machine"},
		{exitPort, "a port is in use"},
		{exitDataDir, "a data directory belongs to another pipeline, is in use, or cannot be used"},
		{exitQuestion, "the ontology cannot answer: above the horizon, below the floor, unknown type or object"},
		{exitPipeline, "the pipeline must not go on: a changed mapping, a property of another pipeline, lost state, a halted partition"},
		{exitInput, "an input file cannot be read, or lacks what its records need"},
		{exitChange, "check --against: the mapping has a change that is not in place, and run would refuse it"},
		{exitInterrupted, "interrupted before the work was done, or nobody reads the output any more"},
	}
}

// usageError is a mistake on the command line.
type usageError struct {
	err error
	// command is the command that was meant, where that is known.
	command string
}

// Error gives the mistake.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// mappingFileError is a mapping file that cannot be read.
type mappingFileError struct{ err error }

// Error gives the cause.
func (e *mappingFileError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *mappingFileError) Unwrap() error { return e.err }

// nothingError says that nothing is believed of what was asked for.
type nothingError struct{ what string }

// Error says what was asked for.
func (e *nothingError) Error() string { return e.what }

var (
	// errInterrupted is the cause of a context that a signal has ended.
	errInterrupted = errors.New("interrupted")
	// errReported says that everything about a failure has been printed.
	errReported = errors.New("reported")
)

// reported is a failure of which nothing is left to print.
func reported(code exitCode) error { return &codedError{code, errReported} }

// codedError gives an error its exit code where its type does not.
type codedError struct {
	code exitCode
	err  error
}

// Error gives the cause.
func (e *codedError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *codedError) Unwrap() error { return e.err }

// is tells whether a T is in err's chain.
func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// codeOf classes an error.
func codeOf(err error) exitCode {
	var coded *codedError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled), errors.Is(err, syscall.EPIPE):
		return exitInterrupted
	case is[*usageError](err), is[*serve.AddressError](err):
		return exitUsage
	case is[*mapping.Error](err), is[*mappingFileError](err):
		return exitMapping
	case is[*embedded.PortInUseError](err), is[*localpg.PortInUseError](err), is[*serve.PortInUseError](err):
		return exitPort
	case dataDirTrouble(err):
		return exitDataDir
	case is[*kafka.UnreachableError](err), is[*kafka.MissingTopicError](err), is[*embedded.TopicError](err),
		is[*kafka.NeverRanError](err):
		return exitKafka
	case errors.Is(err, ontology.ErrConnect), is[*localpg.NotFoundError](err), is[*localpg.StartError](err):
		return exitPostgres
	case is[*ontology.HorizonError](err), is[*ontology.UnknownNameError](err), is[*nothingError](err):
		return exitQuestion
	case pipelineTrouble(err):
		return exitPipeline
	case is[*feed.Error](err):
		return exitInput
	case is[*kerr.Error](err):
		return exitKafka
	}
	return exitFailure
}

func dataDirTrouble(err error) bool {
	return is[*datadir.ForeignError](err) || is[*datadir.InUseError](err) || is[*datadir.UnusableError](err) ||
		is[*state.ForeignError](err) ||
		is[*embedded.DataDirInUseError](err) || is[*localpg.DataDirInUseError](err) ||
		is[*localpg.VersionError](err) || is[*localpg.AccessError](err) || is[*localpg.PathTooLongError](err)
}

func pipelineTrouble(err error) bool {
	for _, class := range []error{
		ontology.ErrOwner, ontology.ErrKind, ontology.ErrLostState, ontology.ErrNewerSchema,
		ontology.ErrPipeline, ontology.ErrNames, ontology.ErrFenced, event.ErrVersion, event.ErrCorrupt,
		processors.ErrOvertaken,
	} {
		if errors.Is(err, class) {
			return true
		}
	}
	return is[*kafka.DisagreementError](err) || is[*kafka.MappingError](err) || is[*kafka.RetentionError](err) ||
		is[*kafka.TruncatedError](err) || is[*kafka.ChangelogError](err) || is[*kafka.ReplacedError](err) ||
		is[*processors.HaltedError](err)
}

// errorText is what stderr says of an error: what, where, why, what to do.
func errorText(err error) string {
	var faults *mapping.Error
	var beyond *ontology.HorizonError
	code := codeOf(err)
	switch {
	case errors.As(err, &faults):
		return faults.Error() // each line begins with its place, as editors want it
	case errors.As(err, &beyond):
		return "strom: " + err.Error() + "; " + horizonAdvice(beyond)
	case is[*ontology.UnknownNameError](err):
		return "strom: " + err.Error() + "; strom ontology list shows what there is"
	case code == exitUsage:
		return "strom: " + err.Error() + "\n       see: " + helpFor(err)
	case code == exitInterrupted:
		return "strom: interrupted"
	case code == exitMapping && errors.Is(err, fs.ErrNotExist):
		return "strom: " + err.Error() + "; check the path"
	}
	return "strom: " + strings.TrimSpace(err.Error())
}

func helpFor(err error) string {
	var usage *usageError
	if errors.As(err, &usage) && usage.command != "" {
		return usage.command + " --help"
	}
	return "strom help"
}

func horizonAdvice(e *ontology.HorizonError) string {
	switch {
	case errors.Is(e, ontology.ErrBelowFloor):
		return fmt.Sprintf("ask as of %s or later", e.Floor)
	case e.Horizon == event.RecordedUnknown:
		return "run the pipeline first, or wait with --wait 30s"
	}
	return fmt.Sprintf("ask as of %s or earlier, or wait with --wait 30s", e.Horizon)
}
