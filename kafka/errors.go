package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// Errors are classed by what is to be done:
//
//	permanent   the engine stops: somebody must change something
//	errReset    the session throws away what is in memory and joins again
//	others      of the infrastructure: the same, with backoff

// errReset ends a session that can go on only after everything in memory has
// been thrown away.
type errReset struct{ err error }

func (e *errReset) Error() string { return "start again from Kafka: " + e.err.Error() }
func (e *errReset) Unwrap() error { return e.err }

// permanent reports whether an error comes again however often one tries.
func permanent(err error) bool {
	if errors.Is(err, state.ErrDamaged) {
		return false // rebuilt
	}
	for _, class := range permanentErrors() {
		if errors.Is(err, class) {
			return true
		}
	}
	return refusal(err)
}

// refusal reports whether a task, or the engine, has refused to run.
func refusal(err error) bool {
	_, foreign := errors.AsType[*state.ForeignError](err)
	_, retention := errors.AsType[*RetentionError](err)
	_, truncated := errors.AsType[*TruncatedError](err)
	_, changelog := errors.AsType[*ChangelogError](err)
	_, missing := errors.AsType[*MissingTopicError](err)
	_, disagrees := errors.AsType[*DisagreementError](err)
	_, ended := errors.AsType[*EndedError](err)
	_, unknown := errors.AsType[*UnknownGenerationError](err)
	_, undecided := errors.AsType[*state.UndecidedError](err)
	return foreign || retention || truncated || changelog || missing || disagrees || undecided || ended || unknown
}

func permanentErrors() []error {
	return []error{
		event.ErrCorrupt, event.ErrVersion,
		kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism,
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidTimestamp, kerr.InvalidRecord,
		kerr.InvalidTopicException, kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat,
		kerr.InvalidTransactionTimeout, kerr.PolicyViolation, kerr.FencedInstanceID, kerr.InvalidSessionTimeout,
	}
}

// retriable reports whether an error of the infrastructure is worth another try.
func retriable(err error) bool {
	if permanent(err) {
		return false
	}
	if protocol, ok := errors.AsType[*kerr.Error](err); ok {
		return protocol.Retriable || errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.UnknownMemberID) ||
			errors.Is(err, kerr.RebalanceInProgress) ||
			errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.ProducerFenced) ||
			errors.Is(err, kerr.InvalidProducerIDMapping)
	}
	_, lost := errors.AsType[*kgo.ErrGroupSession](err)
	return lost || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || kgo.IsRetryableBrokerErr(err)
}

// RetentionError says that the broker has deleted records which were not read yet.
type RetentionError struct {
	Topic            string
	Partition        event.Partition
	Committed, Start event.Offset
}

// Error says what to do as well.
func (e *RetentionError) Error() string {
	return fmt.Sprintf("%s/%s: the next record to read is at offset %s, but the broker's log now starts at %s: "+
		"its retention has deleted records that were not read. Nothing is skipped silently: %s",
		e.Topic, e.Partition, e.Committed, e.Start, state.ReasonExpired.Advice())
}

// TruncatedError says that an input no longer holds what was read of it.
type TruncatedError struct {
	Topic          string
	Partition      event.Partition
	Committed, End event.Offset
}

// Error says what to do as well.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("%s/%s: the next record to read is at offset %s, but the broker's log ends at %s: "+
		"the topic was made again, or has lost records. What comes at those offsets now would be skipped: %s",
		e.Topic, e.Partition, e.Committed, e.End, state.ReasonCutShort.Advice())
}

// DisagreementError says that a task's progress record and the committed
// offsets do not belong to one barrier: its state cannot be trusted.
type DisagreementError struct {
	Task     processors.TaskID
	Progress string
	Offsets  string
	Verdict  state.Verdict
}

// Error says what to do as well.
func (e *DisagreementError) Error() string {
	return fmt.Sprintf("stage %s, partition %s refuses to run: its progress record says %s, but the group's committed offset is %s. %s: %s",
		e.Task.Stage, e.Task.Partition, e.Progress, e.Offsets, sentence(e.Verdict.Why), e.Verdict.Reason.Advice())
}

// ChangelogError says that a task's changelog does not hold its state any more.
type ChangelogError struct {
	Task       processors.TaskID
	Topic      string
	Start, End event.Offset
	Verdict    state.Verdict
}

// Error says what to do as well.
func (e *ChangelogError) Error() string {
	return fmt.Sprintf("stage %s, partition %s refuses to run: its changelog %s/%s, which holds offsets %s up to %s, does not give its state. %s: %s",
		e.Task.Stage, e.Task.Partition, e.Topic, e.Task.Partition, e.Start, e.End, sentence(e.Verdict.Why), e.Verdict.Reason.Advice())
}

// sentence begins a text as a sentence begins.
func sentence(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// ReplacedError says that another process has joined as the static member that
// this one was.
type ReplacedError struct {
	Replica string
	Err     error
}

// Error says what to do as well.
func (e *ReplacedError) Error() string {
	return fmt.Sprintf("another process runs as replica %q and has taken this one's place; nothing is lost; "+
		"stop one of the two, or give each its own --replica", e.Replica)
}

// Unwrap gives the cause.
func (e *ReplacedError) Unwrap() error { return e.Err }

// MappingError says that a mapping cannot take the place of the one that a
// pipeline has run under.
type MappingError struct {
	Pipeline   string
	Have, Want string
	Epoch      event.Epoch
	// Changes are all that differs, and at least one of them is not in place; nil
	// where the mapping that the pipeline runs under is not recorded.
	Changes []mapping.Change
}

// Error says what to do as well.
func (e *MappingError) Error() string {
	text := fmt.Sprintf("pipeline %q has run under mapping version %s up to epoch %s, and this file is version %s; ",
		e.Pipeline, e.Have, e.Epoch, e.Want)
	if e.Changes == nil {
		return text + "what differs is not known, for an earlier build ran it: run it once more with the old file, which records that, " +
			"then the new one may take effect; or undo the change, or replay (" + replayAdvice + ")"
	}
	lines := []string{text + "these changes cannot take effect in place:"}
	for i := range e.Changes {
		if c := &e.Changes[i]; c.Class != mapping.InPlace {
			lines = append(lines, fmt.Sprintf("  %s: %s, %s: %s", c.Path, c.What, c.Class, c.Why))
		}
	}
	return strings.Join(append(lines, "undo them, or replay: "+replayAdvice), "\n")
}

// replayAdvice says how a mapping is replayed.
const replayAdvice = "run the file under another pipeline name, with an empty database and another --data-dir"
