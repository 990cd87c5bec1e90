// Command goka is the workload aggregate on stock goka: sarama, LevelDB, at
// least once. README.md beside it says what is configured and why.
//
// It runs until it is asked to stop (SIGTERM, or the end of its standard input). On standard output it says
// `started N` at the first event, N in microseconds since 1970.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/storage"

	"github.com/forge-platform/strom/event"
)

type options struct {
	brokers, input, output, group, stateDir string
	windowMs, latenessMs, commitMs          int64
	partitions                              int
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	config := configuration(o)
	goka.ReplaceGlobalConfig(config)
	// One broker: nothing can be replicated.
	topics := goka.NewTopicManagerConfig()
	topics.Table.Replication, topics.Stream.Replication = 1, 1
	j := &job{options: *o}
	graph := goka.DefineGroup(goka.Group(o.group),
		goka.Input(goka.Stream(o.input), eventCodec{}, j.process),
		goka.Output(goka.Stream(o.output), panesCodec{}),
		goka.Persist(panesCodec{}),
	)
	p, err := goka.NewProcessor(strings.Split(o.brokers, ","), graph,
		goka.WithTopicManagerBuilder(goka.TopicManagerBuilderWithConfig(config, topics)),
		goka.WithStorageBuilder(storage.DefaultBuilder(o.stateDir)),
		goka.WithHasher(func() hash.Hash32 { return &partitioner{partitions: int32(o.partitions)} }),
	)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return p.Run(ctx)
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("goka", flag.ContinueOnError)
	f.StringVar(&o.brokers, "brokers", "", "addresses of brokers")
	f.StringVar(&o.input, "input", "", "topic of events")
	f.StringVar(&o.output, "output", "", "topic of results")
	f.StringVar(&o.group, "group", "", "name of the group")
	f.StringVar(&o.stateDir, "state-dir", "", "directory of LevelDB")
	f.Int64Var(&o.windowMs, "window-ms", 0, "length of windows")
	f.Int64Var(&o.latenessMs, "lateness-ms", 0, "how late events come at most")
	f.Int64Var(&o.commitMs, "commit-ms", 0, "how often offsets are committed")
	f.IntVar(&o.partitions, "partitions", 0, "of the input, the table and the output")
	f.Int("threads", 0, "not used: goka has a goroutine for each partition")
	f.Int64("cache-bytes", 0, "not used: goka has no cache in front of LevelDB")
	return o, f.Parse(args)
}

// configuration is goka's own, but for what the job needs.
func configuration(o *options) *sarama.Config {
	c := goka.DefaultConfig()
	c.Version = sarama.V2_8_0_0
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = time.Duration(o.commitMs) * time.Millisecond
	return c
}

// job counts. Its table holds the open windows of each key.
type job struct {
	options

	begun sync.Once
}

// process counts an event for its window. A window that no event can reach any
// more leaves the table and is a result.
func (j *job) process(ctx goka.Context, msg any) {
	j.begun.Do(func() { fmt.Fprintf(os.Stdout, "started %d\n", time.Now().UnixMicro()) })
	e, ok := msg.(*click)
	if !ok {
		ctx.Fail(fmt.Errorf("%T is no event", msg))
	}
	var open panes
	if v := ctx.Value(); v != nil {
		if open, ok = v.(panes); !ok {
			ctx.Fail(fmt.Errorf("%T is no value of the table", v))
		}
	}
	open = open.add(e.At-e.At%j.windowMs, e.Amount)
	kept, closed := open.split(e.At - j.latenessMs - j.windowMs)
	if len(closed) > 0 {
		ctx.Emit(goka.Stream(j.output), ctx.Key(), closed)
	}
	ctx.SetValue(kept)
}

// click is what the job reads of an event.
type click struct {
	At     int64 `json:"at"`
	Amount int64 `json:"amount"`
}

type eventCodec struct{}

var errNotRead = errors.New("the job does not do that")

// Encode implements goka.Codec.
func (eventCodec) Encode(any) ([]byte, error) { return nil, errNotRead }

// Decode implements goka.Codec.
func (eventCodec) Decode(data []byte) (any, error) {
	e := &click{}
	return e, json.Unmarshal(data, e)
}

// pane holds the totals of one window: its start, count, sum, least, largest.
type pane [5]int64

const paneSize = 5 * 8

type panes []pane

func (p panes) add(start, amount int64) panes {
	for i := range p {
		if w := &p[i]; w[0] == start {
			w[1]++
			w[2] += amount
			w[3], w[4] = min(w[3], amount), max(w[4], amount)
			return p
		}
	}
	return append(p, pane{start, 1, amount, amount, amount})
}

// split gives the windows that start after a time, and the others.
func (p panes) split(after int64) (kept, closed panes) {
	kept = p[:0]
	for _, w := range p {
		if w[0] > after {
			kept = append(kept, w)
		} else {
			closed = append(closed, w)
		}
	}
	return kept, closed
}

// panesCodec writes panes one behind the other, as big-endian integers of 8 bytes.
type panesCodec struct{}

// Encode implements goka.Codec.
func (panesCodec) Encode(v any) ([]byte, error) {
	p, ok := v.(panes)
	if !ok {
		return nil, fmt.Errorf("%T are no panes", v)
	}
	out := make([]byte, 0, len(p)*paneSize)
	for _, w := range p {
		for _, v := range w {
			out = binary.BigEndian.AppendUint64(out, uint64(v))
		}
	}
	return out, nil
}

// Decode implements goka.Codec.
func (panesCodec) Decode(data []byte) (any, error) {
	if len(data)%paneSize != 0 {
		return nil, fmt.Errorf("%d bytes are no panes", len(data))
	}
	p := make(panes, len(data)/paneSize, len(data)/paneSize+1)
	for i := range p {
		for j := range p[i] {
			p[i][j] = int64(binary.BigEndian.Uint64(data[i*paneSize+j*8:]))
		}
	}
	return p, nil
}

// partitioner puts a key where Kafka's Java producers, and those of the input,
// put it: goka's own (FNV-1a) would put the table elsewhere than the input. It
// implements hash.Hash32; its sum is the partition itself.
type partitioner struct {
	partitions int32
	key        []byte
}

func (p *partitioner) Write(b []byte) (int, error) { p.key = append(p.key, b...); return len(b), nil }
func (p *partitioner) Reset()                      { p.key = p.key[:0] }
func (p *partitioner) Size() int                   { return 4 }
func (p *partitioner) BlockSize() int              { return 1 }
func (p *partitioner) Sum32() uint32               { return uint32(event.PartitionOf(p.key, p.partitions)) }
func (p *partitioner) Sum(b []byte) []byte         { return binary.BigEndian.AppendUint32(b, p.Sum32()) }
