package processors

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/state"
)

// TestScripts plays the scripts in testdata/script: each shows one behaviour of
// tasks, runners or the coordinator. `go test ./processors -run TestScripts
// -rewrite` writes what happens now as what is expected.
//
// Times are in seconds since 1970. The commands:
//
//	mapping [STREAM=PARTITIONS]...   the pipeline; the aggregate stages have one
//	                                 task unless AGGREGATE=PARTITIONS says more
//	task NAME STAGE/PARTITION        takes a task over, from an empty store;
//	                                 budget=BYTES bounds an epoch's outputs
//	write STAGE/PARTITION            appends records to the log of a source,
//	                                 a line each: TIMESTAMP FIELD=VALUE...
//	                                 (TIMESTAMP - for none), or TIMESTAMP JSON
//	fetch NAME [to=OFFSET]           delivers a slab: what the log has behind the last
//	push NAME                        write and fetch
//	log-end NAME...                  tells where the log ends now
//	control NAME                     appends a control record and delivers it
//	marker NAME epoch= tasks=(...)   appends a marker to the task's input
//	announce NAME... epoch= at= ...  announces a barrier; without epoch= the
//	                                 newest one of the coordinator
//	advance NAME...                  lets a task go on; prints what it hands over
//	barrier NAME... at= ...          announces the next barrier, lets the task
//	                                 go on and commits, in one
//	answer NAME                      answers read-backs, a line each: NUMBER
//	                                 version=N VALUE=X..., or NUMBER unknown; of
//	                                 no lines, from what has been committed
//	commit NAME...                   commits what was handed over
//	restart NAME                     a new task from the store, as after a crash
//	state NAME                       prints the store
//	counters NAME                    prints what the task has counted
//	coordinator [until-end]          a coordinator for all tasks; tasks acknowledge
//	                                 with their commit
//	ack STAGE/PARTITION ...          acknowledges by hand
//	notice STAGE/PARTITION ...       tells of a next record between barriers
//	restore epoch= at= ...           gives the coordinator an announcement of the log
//	next                             prints the next announcement
//	local [every=N]                  a whole local run over the records given,
//	                                 a line each: STREAM/PARTITION and a record
//
// `now=T` with any command sets the clock on the wall.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "script", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			s := &script{}
			datadriven.RunTest(t, f, func(t *testing.T, d *datadriven.TestData) string {
				t.Helper()
				out, err := s.run(d)
				if err != nil {
					return out + "error: " + err.Error() + "\n"
				}
				return out
			})
		})
	}
}

// script is what a script has built so far.
type script struct {
	topology   *Topology
	partitions map[string]int32
	now        event.RecordedTime
	// logs holds the records of every topic by partition.
	logs        map[string]map[event.Partition][]Record
	tasks       map[string]*scripted
	coordinator *Coordinator
	// believed holds the last committed result of every window, as an ontology would.
	believed map[string]event.Result
}

// scripted is a task with its store and what it has handed over.
type scripted struct {
	id       TaskID
	stage    *Stage
	store    *state.Memory
	view     *state.View
	runner   *Runner
	progress state.Progress
	budget   int
	fetched  event.Offset
	handed   *Reached
	outputs  []Output
}

func (s *script) run(d *datadriven.TestData) (string, error) {
	if d.Cmd != "mapping" && s.topology == nil {
		return "", fmt.Errorf("%s before mapping", d.Cmd)
	}
	if at, ok := arg(d, "now"); ok {
		s.now = event.RecordedTime(seconds(at))
	}
	commands := map[string]func(*datadriven.TestData) (string, error){
		"mapping": s.mapping, "write": s.write, "coordinator": s.coordinate, "ack": s.ack, "notice": s.notice,
		"restore": s.restore, "next": s.next, "local": s.local, "task": s.task,
	}
	if run := commands[d.Cmd]; run != nil {
		return run(d)
	}
	perTask := map[string]func(*scripted, *datadriven.TestData) (string, error){
		"fetch": s.fetch, "push": s.push, "log-end": s.logEnd, "control": s.control, "marker": s.marker, "announce": s.announce, "advance": s.advance,
		"barrier": s.barrier, "answer": s.answer, "commit": s.commit, "restart": s.restart, "state": s.state, "counters": s.count,
	}
	run := perTask[d.Cmd]
	if run == nil {
		return "", fmt.Errorf("unknown command %q", d.Cmd)
	}
	var out strings.Builder
	names := words(d)
	for _, name := range names {
		t := s.tasks[name]
		if t == nil {
			return "", fmt.Errorf("no task %q", name)
		}
		text, err := run(t, d)
		if len(names) > 1 && text != "" {
			text = name + ": " + text
		}
		out.WriteString(text)
		if err != nil {
			return out.String(), err
		}
	}
	return out.String(), nil
}

// words are the arguments that have no value and no meaning of their own.
func words(d *datadriven.TestData) []string {
	var out []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 && a.Key != "hold" && a.Key != "end" && a.Key != "idle" && a.Key != "at-end" && a.Key != "quiet" {
			out = append(out, a.Key)
		}
	}
	return out
}

func arg(d *datadriven.TestData, key string) (string, bool) {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return strings.Join(a.Vals, ","), true
		}
	}
	return "", false
}

func number(d *datadriven.TestData, key string) int64 {
	text, _ := arg(d, key)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (s *script) mapping(d *datadriven.TestData) (string, error) {
	plan, err := mapping.Parse("mapping.yaml", []byte(d.Input), os.LookupEnv)
	if err != nil {
		return "", err
	}
	*s = script{
		topology: NewTopology(plan, 1), partitions: map[string]int32{}, tasks: map[string]*scripted{},
		logs: map[string]map[event.Partition][]Record{}, believed: map[string]event.Result{},
	}
	var out strings.Builder
	for _, g := range s.topology.Stages {
		s.partitions[g.Name] = 1
		for _, a := range d.CmdArgs {
			if strings.HasSuffix(g.Name, "."+a.Key) {
				s.partitions[g.Name] = int32(number(d, a.Key))
			}
		}
		fmt.Fprintf(&out, "%s reads %s, %d partitions\n", g.Name, g.Input, s.partitions[g.Name])
	}
	return out.String(), nil
}

func (s *script) logClock() bool { return s.topology.Plan.Epoch.Clock == mapping.ClockLog }

func (s *script) clock() Clock { return Clock{ByRecord: s.logClock(), Now: s.now} }

func (s *script) taskID(text string) (TaskID, *Stage, error) {
	name, p, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(p)
	g := s.topology.Stage(name)
	if g == nil || err != nil {
		return TaskID{}, nil, fmt.Errorf("no task %q", text)
	}
	return TaskID{name, event.Partition(n)}, g, nil
}

func (s *script) task(d *datadriven.TestData) (string, error) {
	w := words(d)
	if len(w) != 2 {
		return "", fmt.Errorf("task NAME STAGE/PARTITION")
	}
	id, g, err := s.taskID(w[1])
	if err != nil {
		return "", err
	}
	t := &scripted{id: id, stage: g, store: state.NewMemory(), budget: int(number(d, "budget"))}
	s.tasks[w[0]] = t
	return "", s.start(t)
}

// start makes the task from its store, as a new owner does.
func (s *script) start(t *scripted) error {
	progress, _, err := state.ReadProgress(t.store)
	if err != nil {
		return err
	}
	t.progress, t.view, t.handed, t.outputs = progress, state.NewView(t.store), nil, nil
	logic, err := NewTask(TaskConfig{
		Stage: t.stage, Partition: t.id.Partition, Partitions: s.partitions[t.stage.Name], State: t.view, Progress: progress,
		BudgetBytes: t.budget,
	})
	if err != nil {
		return err
	}
	upstream := int32(0)
	if !t.stage.Source() {
		upstream = s.partitions[t.stage.Upstream.Name]
	}
	t.fetched = progress.Offsets[t.stage.Input]
	t.runner = NewRunner(RunnerConfig{
		Task: logic, Stage: t.stage, Epoch: progress.Epoch, Offsets: []event.Offset{t.fetched},
		Upstream: upstream, Log: s.logClock(), Started: s.now, LastStamp: progress.LastStamp,
	})
	return nil
}

func (s *script) restart(t *scripted, _ *datadriven.TestData) (string, error) {
	if err := s.start(t); err != nil {
		return "", err
	}
	out := fmt.Sprintf("at barrier %s, reads on at %s\n", t.progress.Epoch, t.fetched)
	for _, rb := range t.runner.Task().Waiting() {
		out += "asks " + showReadBack(rb)
	}
	return out, nil
}

func (s *script) append(topic string, p event.Partition, r Record) {
	if s.logs[topic] == nil {
		s.logs[topic] = map[event.Partition][]Record{}
	}
	r.Offset = event.Offset(len(s.logs[topic][p]))
	s.logs[topic][p] = append(s.logs[topic][p], r)
}

func (s *script) write(d *datadriven.TestData) (string, error) {
	id, g, err := s.taskID(strings.Join(words(d), " "))
	if err != nil {
		return "", err
	}
	return "", s.writeLines(d.Input, g.Input, id.Partition)
}

func (s *script) writeLines(lines, topic string, p event.Partition) error {
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line != "" {
			r, err := parseRecord(line)
			if err != nil {
				return err
			}
			s.append(topic, p, r)
		}
	}
	return nil
}

// fetch delivers what the log has behind the last slab.
func (s *script) fetch(t *scripted, d *datadriven.TestData) (string, error) {
	records := s.logs[t.stage.Input][t.id.Partition]
	to := event.Offset(len(records))
	if _, ok := arg(d, "to"); ok {
		to = event.Offset(number(d, "to"))
	}
	s.deliver(t, to)
	return "", nil
}

// deliver pushes the slab of records that ends before the offset to.
func (s *script) deliver(t *scripted, to event.Offset) {
	records := s.logs[t.stage.Input][t.id.Partition]
	slab := &Slab{Next: to, AtEnd: int(to) == len(records)}
	for _, r := range records[t.fetched:to] {
		if r.Headers == nil {
			slab.Records = append(slab.Records, r)
		}
	}
	t.runner.Push(slab, s.clock())
	t.fetched = to
}

// logEnd asks the broker where the log ends, as an owner does now and then.
func (s *script) logEnd(t *scripted, _ *datadriven.TestData) (string, error) {
	t.runner.LogEnd(0, event.Offset(len(s.logs[t.stage.Input][t.id.Partition])), s.clock())
	return "", nil
}

// control appends a record that no task sees. In the script's logs it is told
// by its header.
func (s *script) control(t *scripted, d *datadriven.TestData) (string, error) {
	s.append(t.stage.Input, t.id.Partition, Record{Headers: []Header{{Key: "control"}}})
	return s.fetch(t, d)
}

func (s *script) push(t *scripted, d *datadriven.TestData) (string, error) {
	if err := s.writeLines(d.Input, t.stage.Input, t.id.Partition); err != nil {
		return "", err
	}
	return s.fetch(t, d)
}

func (s *script) marker(t *scripted, d *datadriven.TestData) (string, error) {
	m := event.Marker{V: event.MarkerVersion, Stage: t.stage.Upstream.Name, Member: "a", Epoch: event.Epoch(number(d, "epoch"))}
	tasks, _ := arg(d, "tasks")
	for p := range strings.SplitSeq(tasks, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(p))
		if err != nil {
			return "", err
		}
		m.Tasks = append(m.Tasks, event.Partition(n))
	}
	value, err := event.AppendMarker(nil, &m)
	if err != nil {
		return "", err
	}
	s.append(t.stage.Input, t.id.Partition, Record{Value: value})
	return s.fetch(t, d)
}

// announcement reads what the arguments of announce and restore say.
func announcement(d *datadriven.TestData) Announcement {
	a := Announcement{
		Epoch: event.Epoch(number(d, "epoch")), Watermarks: map[string]event.Watermark{},
		Granted: event.Epoch(number(d, "granted")),
	}
	at, _ := arg(d, "at")
	a.Recorded = event.RecordedTime(seconds(at))
	for _, kv := range d.CmdArgs {
		if stream, ok := strings.CutPrefix(kv.Key, "W."); ok {
			a.Watermarks[stream] = watermark(kv.Vals[0])
		}
	}
	a.Hold, a.End = d.HasArg("hold"), d.HasArg("end")
	return a
}

func (s *script) announce(t *scripted, d *datadriven.TestData) (string, error) {
	if d.HasArg("epoch") {
		a := announcement(d)
		return "", t.runner.Announce(a.Barrier())
	}
	a := s.coordinator.Last()
	return "", t.runner.Announce(a.Barrier())
}

func (s *script) advance(t *scripted, _ *datadriven.TestData) (string, error) {
	tombstones, err := s.step(t)
	if err != nil {
		return "", err
	}
	if t.handed == nil {
		out := fmt.Sprintf("no barrier, has read to %s", t.runner.position[0])
		if reject := t.runner.Task().Halted(); reject != nil {
			out += ", halted: " + reject.Error()
		}
		return out + "\n", nil
	}
	return s.showReached(t, tombstones)
}

// step lets the task go on; what it hands over is in t.handed and t.outputs.
func (s *script) step(t *scripted) (tombstones [][]byte, err error) {
	r, err := t.runner.Advance(s.clock())
	if err != nil || r == nil {
		return nil, err
	}
	t.handed, t.outputs = r, nil
	t.view.Begin(r.Layer)
	err = r.Stream(r.Layer.Over(t.store), func(o Output) error {
		t.outputs = append(t.outputs, o)
		return nil
	}, func(key []byte) error {
		tombstones = append(tombstones, slices.Clone(key))
		return nil
	})
	return tombstones, err
}

// barrier announces the task's next barrier, which it must reach, and commits it.
func (s *script) barrier(t *scripted, d *datadriven.TestData) (string, error) {
	a := announcement(d)
	a.Epoch = t.runner.Epoch() + 1
	if err := t.runner.Announce(a.Barrier()); err != nil {
		return "", err
	}
	out, err := s.advance(t, d)
	if err != nil || t.handed == nil {
		return out, err
	}
	_, err = s.commit(t, d)
	return out, err
}

// answer answers read-backs, by hand or from what has been committed.
func (s *script) answer(t *scripted, d *datadriven.TestData) (string, error) {
	var answers []Answer
	for line := range strings.Lines(d.Input) {
		a, err := parseAnswer(line)
		if err != nil {
			return "", err
		}
		answers = append(answers, a)
	}
	if d.Input == "" {
		answers = s.believe(t.runner.Task().Waiting())
	}
	if err := t.runner.Task().Answer(answers); err != nil {
		return "", err
	}
	return fmt.Sprintf("answered up to epoch %s\n", showEpoch(t.runner.Task().Answered())), nil
}

// believe answers read-backs from what has been committed.
func (s *script) believe(asked []ReadBack) []Answer {
	var out []Answer
	for _, rb := range asked {
		r, ok := s.believed[fmt.Sprint(rb.Type, rb.ID, rb.Aggregate, rb.Start)]
		out = append(out, Answer{Number: rb.Number, Found: ok, Version: r.Version, Properties: r.Properties})
	}
	return out
}

func (s *script) state(t *scripted, _ *datadriven.TestData) (string, error) {
	var out strings.Builder
	err := t.store.Scan(state.Range{}, func(k, v []byte) (bool, error) {
		text, err := s.showEntry(k, v)
		out.WriteString(text)
		return true, err
	})
	return out.String(), err
}

func (s *script) count(t *scripted, _ *datadriven.TestData) (string, error) {
	c, err := DecodeCounters(t.progress.Counters)
	return showCounters(c) + "\n", err
}
