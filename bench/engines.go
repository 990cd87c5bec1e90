package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/apachekafka"
)

// The engines.
const (
	EngineStrom        = "strom"
	EngineGoka         = "goka"
	EngineKafkaStreams = "kafka-streams"
	EngineFlink        = "flink"
	EngineFetch        = "fetch"
	EngineDecode       = "decode"
)

func enginesOf(w Workload) []string {
	switch w {
	case Aggregate:
		return []string{EngineStrom, EngineGoka, EngineKafkaStreams, EngineFlink}
	case Consume:
		return []string{EngineFetch, EngineDecode}
	case Sink, Latency, Recover, Stall, Nexmark:
		return []string{EngineStrom}
	}
	return nil
}

// engine knows how a job is started, and how its results are read.
type engine interface {
	version() (string, error)
	// command gives the command, not started yet, and makes the topic for its
	// output where the job does not do that itself.
	command(ctx context.Context, s *spec) (*exec.Cmd, error)
	// ends: the job says when it is done, and ends. Else its group's offsets say so.
	ends() bool
	// results reads what the job has published, the last value of each pane.
	results(ctx context.Context, brokers []string, s *spec) (Panes, error)
}

func (h *harness) engine(name string) engine {
	switch name {
	case EngineGoka:
		return &gokaPeer{config: h.config}
	case EngineKafkaStreams:
		return &javaPeer{name: "Kafka Streams", jar: h.config.KafkaStreams, library: "kafka-streams", sources: "bench/peers/kafka-streams"}
	case EngineFlink:
		return &javaPeer{name: "Flink", jar: h.config.Flink, library: "flink-runtime", sources: "bench/peers/flink"}
	case EngineFetch:
		return &ours{config: h.config, part: PartFetch}
	case EngineDecode:
		return &ours{config: h.config, part: PartDecode}
	}
	return &ours{config: h.config, part: PartStrom}
}

// ours are the jobs that this program plays itself.
type ours struct {
	config *Config
	part   Part
}

func (o *ours) version() (string, error) {
	if o.part != PartStrom {
		return "franz-go " + moduleVersion("github.com/twmb/franz-go"), nil
	}
	return "strom " + o.config.Version, nil
}

func (o *ours) ends() bool { return true }

func (o *ours) command(ctx context.Context, s *spec) (*exec.Cmd, error) {
	args := slices.Concat(o.config.Self[1:], []string{string(o.part)}, s.args(),
		[]string{"--shape=" + s.Shape, "--events=" + strconv.FormatInt(s.Events, 10)})
	if o.config.CPUProfile != "" {
		args = append(args, "--cpuprofile="+o.config.CPUProfile)
	}
	return exec.CommandContext(ctx, o.config.Self[0], args...), nil
}

func (o *ours) results(ctx context.Context, brokers []string, s *spec) (Panes, error) {
	topology, err := s.topology()
	if err != nil {
		return nil, err
	}
	out := Panes{}
	return out, readCommitted(ctx, brokers, func(r *kgo.Record) error {
		kind, err := event.RowKindOf(r.Value)
		if err != nil || kind == event.RowMarker {
			return err
		}
		row, err := event.DecodeResult(r.Value)
		if err != nil {
			return err
		}
		return out.addRow(&row)
	}, topology.ResultsTopic())
}

// paneKey reads the id of a row.
func paneKey(id string) (int64, error) {
	if id == everythingID {
		return everything, nil
	}
	return parseKey(id)
}

func (p Panes) addRow(row *event.Result) error {
	key, err := paneKey(row.ID)
	if err != nil {
		return err
	}
	var t Totals
	for i := range row.Properties {
		v := &row.Properties[i]
		to, ok := t.value(v.Name)
		if !ok {
			return fmt.Errorf("a value %q", v.Name)
		}
		if *to, err = strconv.ParseInt(v.Value.Text, 10, 64); err != nil {
			return err
		}
	}
	p[Pane{Key: key, Start: int64(row.ValidFrom) / 1000}] = t
	return nil
}

// addPacked adds what a peer writes for a key: for each window five big-endian
// integers of 8 bytes, its start, count, sum, least, largest.
func (p Panes) addPacked(key, value []byte) error {
	const size = 5 * 8
	k, err := parseKey(string(key))
	if err != nil {
		return err
	}
	if len(value)%size != 0 {
		return fmt.Errorf("%d bytes hold no whole number of panes", len(value))
	}
	for ; len(value) > 0; value = value[size:] {
		var v [5]int64
		for i := range v {
			v[i] = int64(binary.BigEndian.Uint64(value[8*i:]))
		}
		p[Pane{Key: k, Start: v[0]}] = Totals{N: v[1], Sum: v[2], Least: v[3], Most: v[4]}
	}
	return nil
}

// gokaPeer is stock goka.
type gokaPeer struct{ config *Config }

func (g *gokaPeer) version() (string, error) {
	if _, err := exec.LookPath(g.config.Goka); err != nil {
		return "", fmt.Errorf("its program is not there (%w): build it with `go build -o %s ./bench/peers/goka`", err, g.config.Goka)
	}
	return "goka " + moduleVersion("github.com/lovoo/goka"), nil
}

func (g *gokaPeer) ends() bool { return false }

func (g *gokaPeer) command(ctx context.Context, s *spec) (*exec.Cmd, error) {
	if err := createTopic(ctx, strings.Split(s.Brokers, ","), s.Output, int32(s.Partitions)); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, g.config.Goka, s.args()...), nil
}

// results: windows that are closed are in the output, the others in the table,
// of which the last value of each key holds.
func (g *gokaPeer) results(ctx context.Context, brokers []string, s *spec) (Panes, error) {
	out := Panes{}
	err := readCommitted(ctx, brokers, func(r *kgo.Record) error { return out.addPacked(r.Key, r.Value) }, s.Output)
	if err != nil {
		return nil, err
	}
	table := map[string][]byte{}
	err = readCommitted(ctx, brokers, func(r *kgo.Record) error {
		table[string(r.Key)] = r.Value
		return nil
	}, s.Group+"-table")
	if err != nil {
		return nil, err
	}
	for key, value := range table {
		if err := out.addPacked([]byte(key), value); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// javaPeer is a peer in Java: a jar, and its libraries in lib/ beside it.
type javaPeer struct {
	name string // for the report
	jar  string
	// library, among those in lib/, has the peer's version.
	library string
	sources string // where Maven builds it
}

func (j *javaPeer) version() (string, error) {
	prefix := j.library + "-"
	found, err := filepath.Glob(filepath.Join(filepath.Dir(j.jar), "lib", prefix+"*.jar"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s and its lib/ are not there: build them with `mvn -f %s clean package`", j.jar, j.sources)
	}
	return j.name + " " + strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), prefix), ".jar"), nil
}

func (j *javaPeer) ends() bool { return false }

func (j *javaPeer) command(ctx context.Context, s *spec) (*exec.Cmd, error) {
	if err := createTopic(ctx, strings.Split(s.Brokers, ","), s.Output, int32(s.Partitions)); err != nil {
		return nil, err
	}
	java, err := apachekafka.FindJava(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{"-Xms1g", "-Xmx3g", "-jar", j.jar}, s.args()...)
	return exec.CommandContext(ctx, java, args...), nil
}

func (j *javaPeer) results(ctx context.Context, brokers []string, s *spec) (Panes, error) {
	out := Panes{}
	return out, readCommitted(ctx, brokers, func(r *kgo.Record) error { return out.addPacked(r.Key, r.Value) }, s.Output)
}
