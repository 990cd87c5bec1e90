package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// changelog is what is known of a stage's changelog before it is read.
type changelog struct {
	topic string
	id    string        // of the topic: one that is made again has another
	keep  time.Duration // delete.retention.ms
	// asked is when all this was found out, by this machine's clock; began is
	// the same moment by a clock that is never set.
	asked  event.RecordedTime
	began  time.Time
	bounds map[event.Partition]bounds
}

// mark says of a store that it lacked nothing of the changelog at a moment.
func (c *changelog) mark(at event.RecordedTime) *state.Mark {
	return &state.Mark{Log: c.id, CaughtUp: at}
}

// defaultKeep is Kafka's default of delete.retention.ms.
const defaultKeep = 24 * time.Hour

// changelogOf finds out about a stage's changelog.
func (e *Engine) changelogOf(ctx context.Context, adm *kadm.Client, stage *processors.Stage) (*changelog, error) {
	c := &changelog{topic: e.topology.Changelog(stage), keep: defaultKeep, asked: wallClock(), began: time.Now()}
	topic, err := lookUpTopic(ctx, e.client, c.topic)
	if err != nil {
		return nil, fmt.Errorf("look up topic %s: %w", c.topic, err)
	}
	c.id = fmt.Sprintf("%x", topic.TopicID)
	configs, err := adm.DescribeTopicConfigs(ctx, c.topic)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of %s: %w", c.topic, err)
	}
	for _, topic := range configs {
		if topic.Err != nil {
			return nil, fmt.Errorf("read the configuration of %s: %w", c.topic, topic.Err)
		}
		for _, v := range topic.Configs {
			if v.Key != "delete.retention.ms" {
				continue
			}
			ms, err := strconv.ParseInt(v.MaybeValue(), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("topic %s: delete.retention.ms: %w", c.topic, err)
			}
			c.keep = time.Duration(min(ms, int64(maxKeep/time.Millisecond))) * time.Millisecond
		}
	}
	c.bounds, err = topicBounds(ctx, adm, c.topic)
	return c, err
}

// maxKeep is long enough for any purpose, and short enough to be a Duration.
const maxKeep = 100 * 365 * 24 * time.Hour

// recovery is what is known of a session's tasks while they are taken over.
type recovery struct {
	session   *session
	adm       *kadm.Client
	committed map[event.Partition]event.Offset
	log       *changelog

	// after the changelog has been read
	reading state.Reading
	member  state.Member
	heads   map[event.Partition]bounds // of the changelog, again
	input   map[event.Partition]bounds
	// begun are the tasks that have never run before.
	begun map[event.Partition]bool
}

// observe finds out what can be known only when the tables are recovered.
func (r *recovery) observe(ctx context.Context) (err error) {
	s := r.session
	r.reading = state.ReadingOf(time.Since(r.log.began), r.log.keep)
	if r.heads, err = topicBounds(ctx, r.adm, r.log.topic); err != nil {
		return err
	}
	if r.input, err = topicBounds(ctx, r.adm, s.member.stage.Input); err != nil {
		return err
	}
	r.member = s.askGroup(ctx)
	return ctx.Err()
}

// history says whether a barrier has ever been announced to a stage.
func (e *Engine) history(stage string) state.History {
	if max(e.begun, e.hub.newest().Epoch) > e.course.begins(stage).Epoch {
		return state.HistoryBegun
	}
	return state.HistoryNone
}

// askGroup asks the group's coordinator whether this session's generation is
// the current one.
func (s *session) askGroup(ctx context.Context) state.Member {
	err := s.engine.heartbeat(ctx, s.engine.topology.Group(s.member.stage), s.memberID, s.generation)
	switch {
	case err == nil:
		return state.MemberCurrent
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedInstanceID):
		return state.MemberOld
	}
	s.engine.log.Debug("ask the group whether this member is current", "stage", s.member.stage.Name, "answer", err)
	return state.MemberUnsure
}

// restore makes a task from its recovered state.
func (r *recovery) restore(t *task) error {
	progress, known, err := state.ReadProgress(t.store)
	if err != nil {
		return err
	}
	origin, err := state.FindOrigin(t.store)
	if err != nil {
		return err
	}
	b := barrierFacts{progress: event.OffsetNone, committed: event.OffsetNone, epoch: progress.Epoch}
	if known {
		b.progress = progress.Offsets[t.claim.topic]
	}
	if o, ok := r.committed[t.id.Partition]; ok {
		b.committed = o
	}
	head, input := r.heads[t.id.Partition], r.input[t.id.Partition]
	v, err := r.session.engine.decide(t.id, state.Facts{
		Barrier: state.BarrierOf(b.progress, b.committed), Member: r.member, History: r.session.engine.history(t.id.Stage), Reading: r.reading,
		Origin: origin, Log: state.LogOf(head.start, head.high), Input: state.InputOf(b.committed, input.start, input.high),
	}, nil)
	if err != nil {
		return err
	}
	switch v.Decision {
	case state.Begin:
		r.begun[t.id.Partition] = true
		begins := r.session.engine.course.begins(t.id.Stage)
		progress.Epoch, progress.Recorded = begins.Epoch, begins.Recorded
		return t.startAt(progress, input.start, input)
	case state.Continue:
		return t.startAt(progress, b.committed, input)
	case state.BackToGroup:
		return &errReset{fmt.Errorf("stage %s, partition %s: back to the group: %s", t.id.Stage, t.id.Partition, v.Why)}
	case state.Refuse:
		return r.refusal(t, v, b)
	case state.Undecided, state.CatchUp, state.Rebuild:
	}
	return fmt.Errorf("a bug in Strom: a task is not to be decided upon by %q", v.Decision)
}

// barrierFacts are the offsets of a task's last barrier, as its progress record
// and its group have them.
type barrierFacts struct {
	progress, committed event.Offset
	epoch               event.Epoch
}

// startAt lets the task go on at an offset of its input.
func (t *task) startAt(progress state.Progress, offset event.Offset, input bounds) error {
	progress.Offsets = map[string]event.Offset{t.claim.topic: offset}
	t.start = offset
	t.barrier = barrierState{epoch: progress.Epoch, offsets: progress.Offsets, progress: progress}
	t.committed.Store(int64(progress.Epoch))
	return t.makeRunner(progress, input)
}

// first is what a task that begins writes before anything else.
func (r *recovery) first(t *task) []state.Change {
	if !r.begun[t.id.Partition] {
		return nil
	}
	return []state.Change{state.OriginChange()}
}

// refusal says why a task must not run.
func (r *recovery) refusal(t *task, v state.Verdict, b barrierFacts) error {
	head, input := r.heads[t.id.Partition], r.input[t.id.Partition]
	switch v.Reason {
	case state.ReasonDisagree, state.ReasonPreset:
		d := &DisagreementError{Task: t.id, Progress: "nothing", Offsets: "none", Verdict: v}
		if b.progress != event.OffsetNone {
			d.Progress = fmt.Sprintf("epoch %s at offset %s", b.epoch, b.progress)
		}
		if b.committed != event.OffsetNone {
			d.Offsets = b.committed.String()
		}
		return d
	case state.ReasonLost, state.ReasonChangelog, state.ReasonSlow:
		return &ChangelogError{Task: t.id, Topic: r.log.topic, Start: head.start, End: head.high, Verdict: v}
	case state.ReasonExpired:
		return &RetentionError{Topic: t.claim.topic, Partition: t.id.Partition, Committed: b.committed, Start: input.start}
	case state.ReasonCutShort:
		return &TruncatedError{Topic: t.claim.topic, Partition: t.id.Partition, Committed: b.committed, End: input.high}
	case state.ReasonNone, state.ReasonForeign:
	}
	return fmt.Errorf("a bug in Strom: a task refuses to run without a reason: %s", v.Why)
}

// decide asks state.Decide and says so in the log: loudly where more is done
// than to go on. found is what is wrong with the local store, if anything is.
func (e *Engine) decide(t processors.TaskID, f state.Facts, found error) (state.Verdict, error) {
	v, err := state.Decide(f)
	if err != nil {
		return v, fmt.Errorf("stage %s, partition %s: %w", t.Stage, t.Partition, err)
	}
	level := slog.LevelInfo
	if v.Decision == state.Continue || v.Decision == state.CatchUp {
		level = slog.LevelDebug
	}
	with := []any{"stage", t.Stage, "partition", t.Partition, "decision", v.Decision.String(), "why", v.Why}
	if f.Barrier == state.BarrierUnread {
		with = append(with, "store", f.Local.String(), "changelog", f.Log.String(), "age", f.Age.String())
	} else {
		with = append(with, "barrier", f.Barrier.String(), "origin", f.Origin.String(), "changelog", f.Log.String(), "input", f.Input.String())
	}
	if found != nil {
		with = append(with, "found", found.Error())
	}
	e.log.Log(context.Background(), level, "recovery", with...)
	return v, nil
}
