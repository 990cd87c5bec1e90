package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/kafka/embedded/kafkatest"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// TestProtocolScripts plays the scripts in testdata/protocol: several replicas of
// one pipeline over one broker, stalled, cut off and killed where the protocol is
// most easily wrong. `go test ./kafka -run TestProtocolScripts -rewrite` writes
// what happens now as what is expected. What is printed are relations, so that a
// script says the same in every run.
//
// The pipeline counts records by key and hour, and keeps the last value of each
// key. A task is one partition of its only stage; s0 is the first, or whichever
// `share` says. The commands:
//
//	pipeline [tasks=N] [results=N] [clock=log] [chunk=ROWS] [postgres] [session=D]
//	                        the broker and its topics; the wall clock with an epoch
//	                        every 100 ms, or the log clock with steps of an hour
//	start NAME...           starts replicas
//	stop NAME...            stops them as an operator does
//	kill NAME...            kills them; its groups hear of it at once
//	die NAME at=POINT       kills it when it comes to the point; its groups hear of
//	                        it when its session ends
//	dead NAME               waits for that
//	stall NAME... at=POINT  stops one goroutine of the first of the replicas that
//	                        comes to the point, once
//	stalled NAME... at=POINT  waits for that
//	wake NAME...            lets them go on, wherever they stand
//	part NAME from=GROUP    ends its session in a group (stage, sink, coordinator)
//	                        and does not let it hear of that
//	hear NAME of=GROUP      lets it
//	lose NAME what=reply    the stage's next EndTxn is applied, its reply is lost
//	                        and what the replica sends then waits; what=request
//	                        loses the EndTxn itself
//	lost NAME               waits for that
//	resume NAME             lets what waits through
//	fence NAME              calls InitProducerId on the replica's transactional id
//	cast NAME NAME holds=GROUP  waits until two replicas are in a group with one
//	                        partition; who has it gets the first name
//	share NAME=TASK...      waits until each replica has one task, and calls it so
//	write TASK              appends records: KEY at=TIME v=NUMBER, a line each
//	notices TASK...         waits until the coordinator knows that a record comes
//	reads NAME TASK         waits until the replica has polled the task's whole input
//	call n                  the newest epoch that was announced is called n
//	takes NAME TASK...      waits until the replica has taken the tasks over, once
//	                        more; slack=D: within D after the session of the last
//	                        that died has timed out
//	commits NAME TASK...    waits until it has committed what was written; epoch=n:
//	                        until it has committed n
//	announces NAME...       waits until one of them has announced a barrier, once more
//	completes NAME          waits until it has applied the rest of n to the ontology
//	says NAME TEXT          waits for a line in its log
//	completed               who has applied the rest of n, and how often
//	applied                 how far the ontology has applied the results
//	offsets                 where the group's committed offsets stand
//	epoch n                 who has committed what of n
//	end                     the end of the input, what is believed then, and
//	                        whether a calm run believes the same
//
// Whoever ends by itself fails the command that waits.
func TestProtocolScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "protocol", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			s := &protocolScript{t: t, replicas: map[string]*replica{}, tasks: map[string]event.Partition{}, epochs: map[string]event.Epoch{}}
			datadriven.RunTest(t, f, func(_ *testing.T, d *datadriven.TestData) string {
				out, err := s.run(d)
				if err != nil {
					s.failed = true
					return out + "error: " + err.Error() + "\n"
				}
				return out
			})
		})
	}
}

const protocolMapping = `
pipeline: %s
epoch: {clock: %s}
streams:
  ticks:
    topic: ticks
    key: k
    partitioned_by: key
    event_time: {field: at, format: ms, max_ahead: 24h}
    watermark: {out_of_orderness: 0s, idle_after: 1s}
objects:
  Thing:
    from: ticks
    id: k
    properties:
      level: {value: v, kind: integer}
    aggregates:
      hours:
        from: ticks
        id: k
        window: {tumbling: 1h}
        values: {n: count(), total: {sum: v}}
`

// protocolScript is what a script has built so far.
type protocolScript struct {
	t        *testing.T
	broker   *embedded.Broker
	client   *kgo.Client
	config   kafka.Config // of every replica
	postgres string       // URL; empty: the ontology is in memory
	memory   *ontology.Memory
	opening  sync.Mutex // guards memory until the replicas run
	log      *protocolLog
	inputID  [16]byte

	replicas map[string]*replica
	failed   bool // a command has failed: the rest means nothing
	tasks    map[string]event.Partition
	epochs   map[string]event.Epoch
	// generation is the last one that was printed.
	generation int32
	died       time.Time
}

func (s *protocolScript) run(d *datadriven.TestData) (string, error) {
	switch {
	case s.failed:
		return "", errors.New("a command before has failed")
	case d.Cmd != "pipeline" && s.broker == nil:
		return "", fmt.Errorf("%s before pipeline", d.Cmd)
	}
	commands := map[string]func(*datadriven.TestData) (string, error){
		"pipeline": s.pipeline, "start": s.start, "cast": s.cast, "share": s.share,
		"stall": s.stall, "die": s.stall, "stalled": s.stalled, "write": s.write, "notices": s.notices,
		"announces": s.announces, "call": s.call, "epoch": s.epoch, "offsets": s.offsets, "applied": s.applied, "completed": s.completed, "end": s.end,
	}
	if run := commands[d.Cmd]; run != nil {
		return run(d)
	}
	perReplica := map[string]func(*replica, *datadriven.TestData) (string, error){
		"stop": s.stop, "kill": s.kill, "dead": s.dead, "wake": s.wake,
		"part": s.part, "hear": s.hear, "lose": s.lose, "lost": s.lost, "resume": s.resume, "fence": s.fence, "reads": s.reads,
		"takes": s.takes, "commits": s.commits, "completes": s.completes, "says": s.says,
	}
	run := perReplica[d.Cmd]
	names := words(d)
	if run == nil || len(names) == 0 {
		return "", fmt.Errorf("no command %q, or no name", d.Cmd)
	}
	var out strings.Builder
	for _, name := range names {
		text, err := run(s.replica(name), d)
		out.WriteString(text)
		if err != nil || !s.plural(d.Cmd) {
			return out.String(), err
		}
	}
	return out.String(), nil
}

// plural reports whether the command is for all replicas that are named.
func (s *protocolScript) plural(cmd string) bool {
	return slices.Contains([]string{"stop", "kill", "dead", "wake"}, cmd)
}

// words are the arguments that have no value.
func words(d *datadriven.TestData) []string {
	var out []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			out = append(out, a.Key)
		}
	}
	return out
}

func arg(d *datadriven.TestData, key, otherwise string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return otherwise
}

func number(d *datadriven.TestData, key string, otherwise int) int {
	n, err := strconv.Atoi(arg(d, key, ""))
	if err != nil {
		return otherwise
	}
	return n
}

func (s *protocolScript) pipeline(d *datadriven.TestData) (string, error) {
	s.t.TempDir() // goes after the engines, which are ended by what is registered later
	session, err := time.ParseDuration(arg(d, "session", "3s"))
	if err != nil {
		return "", err
	}
	clock := "wall, interval: 100ms"
	if arg(d, "clock", "wall") == "log" {
		clock = "log, step: 1h"
	}
	s.config = kafka.Config{
		SessionTimeout: session, RebalanceTimeout: 10 * time.Second, SinkRows: number(d, "chunk", 0), OpenOntology: s.open,
	}
	if s.config.Topology, err = protocolTopology("protocol", clock); err != nil {
		return "", err
	}
	tasks := int32(number(d, "tasks", 1))
	results := int32(number(d, "results", int(tasks)))
	top := s.config.Topology
	s.broker = kafkatest.New(s.t, kafkatest.Topic("ticks", tasks), kafkatest.Topic(top.ControlTopic(), 1), kafkatest.Topic(top.ResultsTopic(), results))
	s.config.Kafka = mapping.Kafka{Brokers: s.broker.Brokers()}
	for p := range tasks {
		s.tasks[fmt.Sprintf("s%d", p)] = event.Partition(p)
	}
	if slices.Contains(words(d), "postgres") {
		s.postgres = pgtest.New(s.t)
	}
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(s.broker.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		return "", err
	}
	s.t.Cleanup(s.client.Close)
	details, err := kadm.NewClient(s.client).ListTopics(s.t.Context(), "ticks")
	if err != nil {
		return "", err
	}
	s.inputID = details["ticks"].ID
	s.log, err = followProtocol(s.broker.Brokers(), top.ControlTopic(), top.ResultsTopic(), results)
	s.t.Cleanup(s.close)
	return "", err
}

func protocolTopology(pipeline, clock string) (*processors.Topology, error) {
	plan, err := mapping.Parse("protocol.yaml", fmt.Appendf(nil, protocolMapping, pipeline, clock), os.LookupEnv)
	if err != nil {
		return nil, err
	}
	return processors.NewTopology(plan, 1), nil
}

// open opens the ontology that all replicas share.
func (s *protocolScript) open(ctx context.Context, p ontology.Pipeline) (ontology.Store, error) {
	if s.postgres != "" {
		return openPostgres(s.postgres)(ctx, p)
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.memory == nil {
		s.memory = ontology.NewMemory(p)
	}
	return s.memory, nil
}

func (s *protocolScript) stage() *processors.Stage { return s.config.Topology.Stages[0] }

// replica gives the replica of that name; one that does not run yet can be told
// where to stall.
func (s *protocolScript) replica(name string) *replica {
	if s.replicas[name] == nil {
		s.replicas[name] = newReplica(name, newWire(s.config.Topology.Group(s.stage()), s.stage().Input, s.inputID))
	}
	return s.replicas[name]
}

func (s *protocolScript) start(d *datadriven.TestData) (string, error) {
	for _, name := range words(d) {
		r := s.replica(name)
		if r.cancel != nil {
			return "", fmt.Errorf("there has been a replica %s", name)
		}
		r.start(s.t, s.config)
	}
	return "", nil
}

func (s *protocolScript) stop(r *replica, _ *datadriven.TestData) (string, error) {
	r.stop()
	return "", s.ended(r)
}

func (s *protocolScript) kill(r *replica, _ *datadriven.TestData) (string, error) {
	r.kill()
	s.died, _ = r.isKilled()
	for _, group := range s.groups() {
		if err := s.leave(r, group); err != nil {
			return "", err
		}
	}
	return "", nil
}

// stall arms one trap for all replicas that are named.
func (s *protocolScript) stall(d *datadriven.TestData) (string, error) {
	t := newTrap(arg(d, "at", ""), d.Cmd == "die")
	for _, name := range words(d) {
		s.replica(name).arm(t)
	}
	return "", nil
}

func (s *protocolScript) wake(r *replica, _ *datadriven.TestData) (string, error) {
	r.wake(false)
	return "", nil
}

func (s *protocolScript) groups() map[string]string {
	top := s.config.Topology
	return map[string]string{"stage": top.Group(s.stage()), "sink": top.SinkGroup(), "coordinator": top.CoordinatorGroup()}
}

func (s *protocolScript) part(r *replica, d *datadriven.TestData) (string, error) {
	group := s.groups()[arg(d, "from", "")]
	if err := s.await(r.title+" is a member", func() (bool, error) { return r.wire.beats(group), nil }); err != nil {
		return "", err
	}
	r.wire.setDeaf(group, true)
	return "", s.leave(r, group)
}

// leave takes the replica's member out of a group, as the end of its session does.
func (s *protocolScript) leave(r *replica, group string) error {
	m := r.wire.member(group)
	req := kmsg.NewPtrLeaveGroupRequest()
	member := kmsg.NewLeaveGroupRequestMember()
	req.Group, member.MemberID = group, m.id
	req.Members = append(req.Members, member)
	resp, err := req.RequestWith(s.t.Context(), s.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err == nil && len(resp.Members) == 1 {
		err = kerr.ErrorForCode(resp.Members[0].ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("take %s out of %s: %w", r.name, group, err)
	}
	return nil
}

func (s *protocolScript) hear(r *replica, d *datadriven.TestData) (string, error) {
	r.wire.setDeaf(s.groups()[arg(d, "of", "")], false)
	return "", nil
}

func (s *protocolScript) lose(r *replica, d *datadriven.TestData) (string, error) {
	r.loss = r.wire.lose(arg(d, "what", "") == "request")
	return "", nil
}

func (s *protocolScript) resume(r *replica, _ *datadriven.TestData) (string, error) {
	close(r.loss.resume)
	r.loss = nil
	return "", nil
}

// fence does what a taker does, with an id that it found in a metadata.
func (s *protocolScript) fence(r *replica, _ *datadriven.TestData) (string, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = new(r.wire.lastTransaction()), 60_000
	resp, err := req.RequestWith(s.t.Context(), s.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	return "", err
}

// base is when every script begins.
func scriptBase() time.Time { return time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC) }

// write appends records as a producer does that partitions by key: a name in a
// script stands for a key of the task.
func (s *protocolScript) write(d *datadriven.TestData) (string, error) {
	p := s.tasks[words(d)[0]]
	var records []*kgo.Record
	for line := range strings.Lines(d.Input) {
		var name, after string
		var v int64
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "%s at=%s v=%d", &name, &after, &v); err != nil {
			return "", fmt.Errorf("%q is not KEY at=TIME v=NUMBER: %w", line, err)
		}
		offset, err := time.ParseDuration(after)
		if err != nil {
			return "", err
		}
		at := scriptBase().Add(offset)
		records = append(records, &kgo.Record{Topic: "ticks", Partition: int32(p), Timestamp: at,
			Value: fmt.Appendf(nil, `{"k":%q,"at":%d,"v":%d}`, keyOf(name, p, len(s.tasks)), at.UnixMilli(), v)})
	}
	return "", s.client.ProduceSync(s.t.Context(), records...).FirstErr()
}

// keyOf gives a key that belongs to the partition and begins with the name.
func keyOf(name string, p event.Partition, partitions int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("%s~%d", name, i); event.PartitionOf([]byte(key), int32(partitions)) == p {
			return key
		}
	}
}

// written is the end of the task's input.
func (s *protocolScript) written(task string) (event.Offset, error) {
	ends, err := kadm.NewClient(s.client).ListEndOffsets(s.t.Context(), "ticks")
	if err == nil {
		err = ends.Error()
	}
	o, _ := ends.Lookup("ticks", int32(s.tasks[task]))
	return event.Offset(o.Offset), err
}
