package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/sim/broker"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// recovery is what is known of a session's tasks while they are taken over:
// kafka's recovery.
type recovery struct {
	session   *session
	committed map[event.Partition]broker.OffsetCommit
	// asked is when the changelog's bounds were found out, by the machine's
	// clock; began is the same moment by a clock that is never set.
	asked  event.RecordedTime
	began  span
	bounds map[event.Partition]bounds

	// After the changelog has been read. The group is asked last: only a member
	// that is current then knows that nothing of this has changed meanwhile.
	history state.History
	reading state.Reading
	member  state.Member
	heads   map[event.Partition]bounds
	input   map[event.Partition]bounds
	begun   map[event.Partition]bool
}

// changelogID is the id of every changelog topic: none is ever made again.
const changelogID = "sim"

func mark(at event.RecordedTime) *state.Mark { return &state.Mark{Log: changelogID, CaughtUp: at} }

// keep is delete.retention.ms of the changelogs.
func (s *simulation) keep() time.Duration {
	return time.Duration(s.setup.tombstones) * time.Microsecond
}

// find finds out about the changelog before it is read.
func (r *recovery) find(p *process) (err error) {
	s := r.session
	r.asked, r.began = s.engine.replica.wall(), p.world.now
	r.bounds, err = r.all(p, func(n event.Partition) *broker.Partition { return s.changelog(n) })
	return err
}

// all gives the bounds of the partitions that belong to the session's tasks.
func (r *recovery) all(p *process, of func(event.Partition) *broker.Partition) (map[event.Partition]bounds, error) {
	out := map[event.Partition]bounds{}
	for _, n := range r.session.group.assigned {
		b, err := p.bounds(of(n), r.session.group.goOn)
		if err != nil {
			return nil, err
		}
		out[n] = b
	}
	return out, nil
}

// history says whether a barrier has ever been announced.
func (e *engine) history() state.History {
	if max(e.begun, e.hub.last.Epoch) > 0 {
		return state.HistoryBegun
	}
	return state.HistoryNone
}

// prepare finds out what the local store of a task is worth, and makes it fit to
// be caught up from its changelog.
func (r *recovery) prepare(p *process, id processors.TaskID) (*store, error) {
	s := r.session
	disk := s.engine.replica.disk
	b := r.bounds[id.Partition]
	f := state.Facts{Log: state.LogOf(b.start, b.high), History: s.engine.history()}
	st, err := disk.open(id, s.engine.sim.topology.Plan.Pipeline)
	switch {
	case errors.Is(err, state.ErrDamaged):
		f.Local = state.LocalDamaged
		p.world.meet("store damaged")
	case err != nil:
		return nil, err
	default:
		if f.Local, f.Age, err = r.compare(st, b); err != nil {
			return nil, err
		}
	}
	v, err := state.Decide(f)
	if err != nil {
		return nil, err
	}
	p.world.tracef("%s: the store of %v, %s, changelog %s, age %s: %s: %s", p.name, id, f.Local, f.Log, f.Age, v.Decision, v.Why)
	p.world.meet("recovery: " + v.Decision.String())
	switch v.Decision {
	case state.Continue, state.CatchUp:
		if f.Local == state.LocalAbsent {
			return st, r.lacksNothing(st)
		}
		return st, nil
	case state.Rebuild:
		return r.renew(id, st)
	case state.Undecided, state.Begin, state.BackToGroup, state.Refuse:
	}
	return nil, &refusal{fmt.Sprintf("%v: %s: %s", id, v.Decision, v.Why)}
}

func (r *recovery) compare(st *store, b bounds) (state.Local, state.Age, error) {
	position, err := st.Position()
	if err != nil {
		return 0, 0, err
	}
	m, err := state.ReadMark(st)
	if err != nil {
		return 0, 0, err
	}
	age := state.AgeOf(m.CaughtUp, r.asked, r.session.engine.sim.keep())
	if r.session.engine.sim.bug == AgeForgotten && age == state.AgeStale {
		age = state.AgeFresh
	}
	return state.PlaceOf(position, b.start, b.high), age, nil
}

// renew empties a store; one that is damaged, and so not open, is made anew.
func (r *recovery) renew(id processors.TaskID, st *store) (*store, error) {
	disk := r.session.engine.replica.disk
	if st == nil {
		if err := disk.remove(id); err != nil {
			return nil, err
		}
		var err error
		if st, err = disk.open(id, r.session.engine.sim.topology.Plan.Pipeline); err != nil {
			return nil, err
		}
	}
	if err := st.Wipe(); err != nil {
		return nil, err
	}
	return st, r.lacksNothing(st)
}

// lacksNothing says of an empty store that it lacks nothing from now on.
func (r *recovery) lacksNothing(st *store) error {
	return st.Apply(&state.Batch{Position: event.OffsetNone, Mark: mark(r.asked)})
}

// observe finds out what can be known only when the tables are recovered.
func (r *recovery) observe(p *process) (err error) {
	s := r.session
	r.reading = state.ReadingOf(time.Duration(p.world.now-r.began)*time.Microsecond, s.engine.sim.keep())
	if r.heads, err = r.all(p, func(n event.Partition) *broker.Partition { return s.changelog(n) }); err != nil {
		return err
	}
	if r.input, err = r.all(p, func(n event.Partition) *broker.Partition { return s.tasks[n].source() }); err != nil {
		return err
	}
	r.history = s.engine.history()
	r.member = s.askGroup(p)
	if err := p.reach("recovery.asked"); err != nil {
		return err
	}
	return s.group.goOn()
}

// askGroup asks the group whether this session's generation is the current one.
func (s *session) askGroup(p *process) state.Member {
	_, err := ask(p, "ask the group", always, plain(func() error { return s.group.group.Heartbeat(s.memberID, s.generation) }))
	switch {
	case err == nil:
		return state.MemberCurrent
	case errors.Is(err, broker.ErrIllegalGeneration), errors.Is(err, broker.ErrUnknownMember):
		return state.MemberOld
	}
	return state.MemberUnsure
}

// restore makes a task from its recovered state.
func (r *recovery) restore(t *task) error {
	w := r.session.engine.sim.world
	progress, known, err := state.ReadProgress(t.store)
	if err != nil {
		return err
	}
	origin, err := state.FindOrigin(t.store)
	if err != nil {
		return err
	}
	said, committed := event.OffsetNone, event.OffsetNone
	if known {
		said = progress.Offsets[r.session.member.stage.Input]
	}
	if o, ok := r.committed[t.id.Partition]; ok {
		committed = o.Offset
	}
	head, input := r.heads[t.id.Partition], r.input[t.id.Partition]
	f := state.Facts{
		Barrier: state.BarrierOf(said, committed), Member: r.member, History: r.history, Reading: r.reading,
		Origin: origin, Log: state.LogOf(head.start, head.high), Input: state.InputOf(committed, input.start, input.high),
	}
	v, err := state.Decide(f)
	if err != nil {
		return err
	}
	w.meet("task: " + v.Decision.String())
	switch v.Decision {
	case state.Begin:
		r.begun[t.id.Partition] = true
		return t.startAt(progress, input.start, input)
	case state.Continue:
		return t.startAt(progress, committed, input)
	case state.BackToGroup:
		return &resetError{fmt.Errorf("%v: back to the group: %s", t.id, v.Why)}
	case state.Undecided, state.CatchUp, state.Rebuild, state.Refuse:
	}
	return &refusal{fmt.Sprintf("%v: %s: %s: progress at %s of epoch %s, committed %s, %+v", t.id, v.Decision, v.Why, said, progress.Epoch, committed, f)}
}

// refusal says that a task refuses to run: its state cannot be trusted, or its
// input is gone.
type refusal struct{ text string }

func (e *refusal) Error() string { return "refuses to run: " + e.text }

// startAt lets the task go on at an offset of its input.
func (t *task) startAt(progress state.Progress, offset event.Offset, input bounds) error {
	progress.Offsets = map[string]event.Offset{t.session.member.stage.Input: offset}
	t.start, t.fetched = offset, offset
	t.barrier = barrierState{epoch: progress.Epoch, offset: offset, progress: progress}
	t.committed = progress.Epoch
	return t.makeRunner(progress, input)
}

// first is what a task that begins writes before anything else.
func (r *recovery) first(t *task) []state.Change {
	if !r.begun[t.id.Partition] {
		return nil
	}
	return []state.Change{state.OriginChange()}
}
