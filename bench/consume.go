package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/formats"
)

// tally is the result of the workload consume: nothing was left out.
type tally struct{ n, amounts, times int64 }

func (t *tally) add(o tally) { t.n, t.amounts, t.times = t.n+o.n, t.amounts+o.amounts, t.times+o.times }

func (t *tally) String() string { return fmt.Sprintf("%d:%x:%x", t.n, t.amounts, t.times) }

// tallyOf is what consume must come to.
func tallyOf(in *Input, decode bool) string {
	var t tally
	for i := range in.Events {
		e := in.Event(i)
		one := tally{n: 1}
		if decode {
			one.amounts, one.times = e.Amount, e.At
		}
		t.add(one)
	}
	return t.String()
}

// consume fetches the input with franz-go, without a group and without
// transactions, and reads the three fields of every event where decode says so,
// one goroutine for each partition.
func consume(ctx context.Context, s *spec, decode bool, out io.Writer) error {
	starts := map[int32]kgo.Offset{}
	for p := range int32(s.Partitions) {
		starts[p] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.Brokers, ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.Input: starts}))
	if err != nil {
		return err
	}
	defer client.Close()
	parts := make([]*part, s.Partitions)
	var work sync.WaitGroup
	for i := range parts {
		if parts[i], err = newPart(decode); err != nil {
			return err
		}
		work.Go(parts[i].run)
	}
	say(out, "started", time.Now())
	err = fetchAll(ctx, client, s.Events, parts)
	var total tally
	for _, p := range parts {
		close(p.in)
	}
	work.Wait()
	ended := time.Now()
	for _, p := range parts {
		total.add(p.tally)
		err = errors.Join(err, p.err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "result %s\n", &total)
	say(out, "ended", ended)
	return nil
}

func fetchAll(ctx context.Context, client *kgo.Client, events int64, parts []*part) error {
	for events > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if n := len(p.Records); n > 0 {
				events -= int64(n)
				parts[p.Partition].in <- p.Records
			}
		})
	}
	return nil
}

// part consumes one partition.
type part struct {
	in      chan []*kgo.Record
	decoder formats.Decoder // nil: count only
	tally   tally
	err     error
}

func newPart(decode bool) (*part, error) {
	p := &part{in: make(chan []*kgo.Record, 4)}
	if !decode {
		return p, nil
	}
	var paths []formats.Path
	for _, name := range [...]string{"user", "at", "amount"} {
		path, err := formats.ParsePath(name)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	var err error
	p.decoder, err = formats.NewJSON(paths, nil, formats.JSONOptions{})
	return p, err
}

func (p *part) run() {
	for records := range p.in {
		for _, r := range records {
			if p.err != nil {
				break
			}
			if p.decoder == nil {
				p.tally.n++
				continue
			}
			p.err = p.decoder.Decode(r.Value, p.count)
		}
	}
}

func (p *part) count(_ int32, f formats.Fields) error {
	at, exactTime := f[1].Num.Int64()
	amount, exactAmount := f[2].Num.Int64()
	if !exactTime || !exactAmount {
		return fmt.Errorf("%v is no event of the input", f)
	}
	p.tally.add(tally{n: 1, amounts: amount, times: at})
	return nil
}
