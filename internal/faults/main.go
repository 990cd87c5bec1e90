package faults

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/internal/localpg"
)

// Options are what Main runs.
type Options struct {
	Case string // name of a case, or the beginning of some; "": all
	Seed uint64
	// Apache runs cases on an Apache Kafka; those that disturb the broker are
	// left out.
	Apache   bool
	Parallel int
	Repeat   int
	Lines    int // as in Harness
	Readings int
	List     bool
	Debug    bool
	Dir      string // for the replicas' directories
}

// Main runs cases and writes a line for each, and at last the sum. It gives how
// many have failed, or were not run because ctx has ended; an error says that
// none could be run.
func Main(ctx context.Context, o Options, out io.Writer) (failed int, err error) {
	var cases []seeded
	for i := range max(o.Repeat, 1) {
		seed := o.Seed + uint64(i)
		list := Matrix(seed)
		if o.Case != "" {
			if list, err = Select(list, o.Case); err != nil {
				return 0, err
			}
		}
		for _, c := range list {
			if c.Fault != "" && o.Apache {
				continue // only the embedded broker can be disturbed
			}
			cases = append(cases, seeded{c, seed})
		}
	}
	if o.List {
		for _, c := range cases {
			fmt.Fprintln(out, c)
		}
		return 0, nil
	}
	server, err := localpg.Start(ctx, localpg.Options{Settings: map[string]string{"max_connections": "300"}})
	if err != nil {
		return 0, err
	}
	defer func() { _ = server.Stop() }()
	t := &table{out: out, total: len(cases), databases: &databases{server: server}, newBroker: NewEmbedded, options: o}
	if o.Apache {
		newBroker, stop, err := ApacheKafka(ctx)
		if err != nil {
			return 0, err
		}
		defer func() { _ = stop() }()
		t.newBroker = newBroker
	}
	t.run(ctx, cases)
	if t.left > 0 {
		fmt.Fprintf(out, "interrupted: %d cases were not run to their end\n", t.left)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", t.passed, t.failed)
	return t.failed + t.left, nil
}

// on is what the Makefile's variable ON says.
func (o *Options) on() string {
	if o.Apache {
		return " ON=apache"
	}
	return ""
}

type seeded struct {
	Case
	seed uint64
}

// table runs cases, several at the same time.
type table struct {
	options   Options
	databases *databases
	newBroker func(context.Context) (Broker, func(), error)
	total     int

	mu                   sync.Mutex // guards all below
	out                  io.Writer
	passed, failed, left int
}

func (t *table) run(ctx context.Context, cases []seeded) {
	queue := make(chan seeded)
	var workers sync.WaitGroup
	h := &Harness{
		NewBroker: t.newBroker, NewDatabase: t.databases.create, Dir: t.options.Dir, Debug: t.options.Debug,
		Lines: t.options.Lines, Readings: t.options.Readings,
	}
	for range max(t.options.Parallel, 1) {
		workers.Go(func() {
			for c := range queue {
				t.one(ctx, h, c)
			}
		})
	}
	for _, c := range cases {
		queue <- c
	}
	close(queue)
	workers.Wait()
}

func (t *table) one(ctx context.Context, h *Harness, c seeded) {
	started := time.Now()
	var err error
	if ctx.Err() == nil {
		err = h.Run(ctx, c.Case)
	}
	took := time.Since(started).Round(100 * time.Millisecond)
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		t.left++
		return
	}
	if err == nil {
		t.passed++
		fmt.Fprintf(t.out, "%3d/%d  pass  %-32s %-8s %s\n", t.passed+t.failed, t.total, c, c.about(), took)
		return
	}
	t.failed++
	fmt.Fprintf(t.out, "%3d/%d  FAIL  %-32s %-8s %s\n%v\nrepeat with: make faults CASE=%s SEED=%d%s\n",
		t.passed+t.failed, t.total, c, c.about(), took, err, c, c.seed, t.options.on())
}

func (c Case) about() string {
	if c.Fault != "" {
		return ""
	}
	text := fmt.Sprintf("%s #%d", c.Workload, c.N)
	if c.Static {
		text += " static"
	}
	return text
}

// brokerNodes is the number of brokers of an embedded Kafka: leaders and
// coordinators are several.
const brokerNodes = 3

// NewEmbedded is a Harness's NewBroker: an embedded broker for each case.
func NewEmbedded(ctx context.Context) (Broker, func(), error) {
	b, err := StartEmbedded(ctx, brokerNodes)
	if err != nil {
		return nil, nil, err
	}
	return b, func() { _ = b.Stop() }, nil // it keeps nothing
}

// databases makes databases in one server.
type databases struct {
	server *localpg.Server
	made   atomic.Int64
}

func (d *databases) create(ctx context.Context) (url string, drop func(), err error) {
	name := fmt.Sprintf("case_%d", d.made.Add(1))
	if err := d.exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", nil, fmt.Errorf("make a database: %w", err)
	}
	config, err := pgx.ParseConfig(d.server.URL())
	if err != nil {
		return "", nil, err
	}
	url = fmt.Sprintf("host=%s port=%d user=%s dbname=%s", config.Host, config.Port, config.User, name)
	return url, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_ = d.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") // the server ends soon anyway
	}, nil
}

func (d *databases) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, d.server.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	return err
}
