package kafka_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
)

// protocolLog is what a pipeline's control and results topics say, in order.
type protocolLog struct {
	control, results string
	client           *kgo.Client
	stop             context.CancelFunc
	stopped          chan struct{}

	mu        sync.Mutex // guards all below
	err       error
	next      map[string]map[int32]int64
	acks      []loggedAck
	announced []loggedBarrier
	notices   []loggedNotice
	markers   map[int32][]event.Marker // by results partition
	// begun are the members whose first transaction has ended: it takes over.
	begun  map[string]bool
	member map[int64]string // by producer id
}

type loggedAck struct {
	epoch    event.Epoch
	member   member
	task     event.Partition
	offset   event.Offset
	takeover bool
}

type loggedBarrier struct {
	epoch    event.Epoch
	recorded event.RecordedTime
	by       string
}

type loggedNotice struct {
	task event.Partition
	some bool // a record comes next
}

// member is what a transactional id says.
type member struct {
	replica    string
	generation int32
}

// controlJSON is as much of a control record as the scripts need.
type controlJSON struct {
	Kind        string             `json:"kind"`
	Epoch       event.Epoch        `json:"epoch"`
	Recorded    event.RecordedTime `json:"recorded"`
	Coordinator string             `json:"coordinator"`
	Member      string             `json:"member"`
	Tasks       []struct {
		Partition event.Partition         `json:"partition"`
		Offsets   map[string]event.Offset `json:"offsets"`
		Next      *event.EventTime        `json:"next"`
	} `json:"tasks"`
}

func followProtocol(brokers []string, control, results string, partitions int32) (*protocolLog, error) {
	from := map[string]map[int32]kgo.Offset{control: {0: kgo.NewOffset().At(0)}, results: {}}
	for p := range partitions {
		from[results][p] = kgo.NewOffset().At(0)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumePartitions(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &protocolLog{
		control: control, results: results, client: client, stop: stop, stopped: make(chan struct{}),
		next: map[string]map[int32]int64{control: {}, results: {}}, markers: map[int32][]event.Marker{},
		begun: map[string]bool{}, member: map[int64]string{},
	}
	go l.run(ctx)
	return l, nil
}

func (l *protocolLog) close() {
	l.stop()
	<-l.stopped
	l.client.Close()
}

func (l *protocolLog) run(ctx context.Context) {
	defer close(l.stopped)
	for ctx.Err() == nil {
		fetches := l.client.PollFetches(ctx)
		l.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			if err := l.take(r); err != nil && l.err == nil {
				l.err = err
			}
			l.next[r.Topic][r.Partition] = r.Offset + 1
		})
		l.mu.Unlock()
	}
}

func (l *protocolLog) take(r *kgo.Record) error {
	switch {
	case r.Attrs.IsControl():
		if r.Topic == l.control {
			l.begun[l.member[r.ProducerID]] = true
		}
		return nil
	case r.Topic == l.control:
		return l.takeControl(r)
	}
	kind, err := event.RowKindOf(r.Value)
	if err != nil || kind != event.RowMarker {
		return err
	}
	m, err := event.DecodeMarker(r.Value)
	l.markers[r.Partition] = append(l.markers[r.Partition], m)
	return err
}

func (l *protocolLog) takeControl(r *kgo.Record) error {
	var c controlJSON
	if err := json.Unmarshal(r.Value, &c); err != nil {
		return err
	}
	switch c.Kind {
	case "barrier":
		l.announced = append(l.announced, loggedBarrier{c.Epoch, c.Recorded, c.Coordinator})
	case "ack":
		l.member[r.ProducerID] = c.Member
		for _, t := range c.Tasks {
			a := loggedAck{epoch: c.Epoch, member: memberNamed(c.Member), task: t.Partition, takeover: !l.begun[c.Member]}
			for _, o := range t.Offsets {
				a.offset = o
			}
			l.acks = append(l.acks, a)
		}
	case "next":
		for _, t := range c.Tasks {
			l.notices = append(l.notices, loggedNotice{t.Partition, t.Next != nil})
		}
	}
	return nil
}

// memberNamed reads a transactional id: GROUP.REPLICA.GENERATION.
func memberNamed(id string) member {
	parts := strings.Split(id, ".")
	if len(parts) < 2 {
		return member{replica: id}
	}
	n, err := strconv.ParseInt(parts[len(parts)-1], 10, 32)
	if err != nil {
		return member{replica: id}
	}
	return member{parts[len(parts)-2], int32(n)}
}

// catchUp waits until everything has been read that is committed at the call.
func (l *protocolLog) catchUp(ctx context.Context) error {
	ends, err := kadm.NewClient(l.client).ListCommittedOffsets(ctx, l.control, l.results)
	if err == nil {
		err = ends.Error()
	}
	for behind := true; behind && err == nil; err = errors.Join(err, rest(ctx)) {
		behind = false
		l.mu.Lock()
		ends.Each(func(o kadm.ListedOffset) { behind = behind || l.next[o.Topic][o.Partition] < o.Offset })
		err = l.err
		l.mu.Unlock()
	}
	return err
}

// rest waits a little, between two looks at a condition.
func rest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}
