package ontology

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
)

// Options tune a Postgres. Its zero value is the default.
type Options struct {
	// Logger hears of retries; nil: nobody does.
	Logger *slog.Logger
	Retry  Retry
	// OnRetry, where set, is told of every call that is tried again, by the name
	// of its operation. It must not block.
	OnRetry func(operation string)
	// RowsPerStatement bounds the rows that one statement carries; default 5,000.
	RowsPerStatement int
	// At, where set, is called at the points of an Apply that Points names:
	// tests crash there.
	At func(point string)
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.RowsPerStatement <= 0 {
		o.RowsPerStatement = 5000
	}
	if o.OnRetry == nil {
		o.OnRetry = func(string) {}
	}
	if o.At == nil {
		o.At = func(string) {}
	}
	o.Retry = o.Retry.withDefaults()
	return o
}

// idleInTransaction is how long the server waits for the next statement of a
// transaction. An Apply sends one after the other; a process that was stopped in
// the middle of one (a paused machine, a network that is gone) holds the locks of
// its partitions, and nobody else could write there before it wakes.
const idleInTransaction = "'10s'"

// Postgres is the ontology in PostgreSQL 15 or later.
type Postgres struct {
	pipeline Pipeline
	catalog  *catalog
	options  Options
	conns    *connector

	// What the database calls the pipeline, its types and its properties (by
	// index in the catalog).
	pipelineID  int32
	typeIDs     map[string]int32
	propertyIDs []int32

	mu     sync.Mutex       // guards topics
	topics map[string]int32 // topic name → id, of committed rows
}

var _ Store = (*Postgres)(nil)

// Open connects to the ontology, creates or migrates its tables, and registers
// the pipeline with its types and properties. It does not retry: what fails
// here is told at once, as *ConnectError where the database is the reason.
//
// A generation that is newer than the stored one takes over: the older one is
// fenced, and progress begins anew. An older one is refused.
func Open(ctx context.Context, conn mapping.Ontology, p Pipeline, o Options) (*Postgres, error) {
	c, err := newCatalog(&p)
	if err != nil {
		return nil, err
	}
	conns, err := newConnector(conn, "strom/"+p.Name)
	if err != nil {
		return nil, err
	}
	if err := conns.once(ctx, func(conn *pgx.Conn) error { return migrate(ctx, conn, conns.where) }); err != nil {
		conns.close()
		return nil, err
	}
	s := &Postgres{pipeline: p, catalog: c, options: o.withDefaults(), conns: conns}
	if err := conns.once(ctx, func(conn *pgx.Conn) error { return s.register(ctx, conn) }); err != nil {
		conns.close()
		return nil, err
	}
	// From here on connections are for the hot statements. They are written so
	// that an index leads to every row; a plan made while a table was small
	// must not decide otherwise.
	conns.close()
	hot, err := newConnector(conn, "strom/"+p.Name)
	if err != nil {
		return nil, err
	}
	hot.setup = append(hot.setup,
		"SET plan_cache_mode = force_generic_plan", "SET jit = off", "SET enable_seqscan = off",
		"SET enable_hashjoin = off", "SET enable_mergejoin = off", "SET enable_bitmapscan = off",
		"SET idle_in_transaction_session_timeout = "+idleInTransaction)
	hot.statements = statements()
	if o.At != nil {
		hot.config.DialFunc = watchCommits(hot.config.DialFunc, o.At)
	}
	s.conns = hot
	return s, nil
}

// Close ends the connections; one that is in use ends with its call.
func (s *Postgres) Close() { s.conns.close() }

// String names the store for logs.
func (s *Postgres) String() string {
	return fmt.Sprintf("ontology of pipeline %q at %s", s.pipeline.Name, s.conns.where)
}

func (s *Postgres) retry(ctx context.Context, what string, f func(*pgx.Conn) error) error {
	return s.conns.retry(ctx, &s.options, what, f)
}

// Progress gives one entry for each results partition.
func (s *Postgres) Progress(ctx context.Context) (map[event.Partition]Progress, error) {
	var out map[event.Partition]Progress
	err := s.retry(ctx, "read progress", func(conn *pgx.Conn) error {
		var err error
		out, err = s.progress(ctx, conn, stmtProgress, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the ontology's progress: %w", err)
	}
	if len(out) == 0 {
		return nil, &FencedError{Pipeline: s.pipeline.Name, Generation: s.pipeline.Generation, Gone: true}
	}
	return out, nil
}

// progress reads the stored progress, of all partitions or of those given.
func (s *Postgres) progress(ctx context.Context, conn *pgx.Conn, stmt string, partitions []byte) (map[event.Partition]Progress, error) {
	params := [][]byte{int4Param(s.pipelineID), int4Param(int32(s.pipeline.Generation))}
	if partitions != nil {
		params = append(params, partitions)
	}
	out := make(map[event.Partition]Progress)
	_, err := query(ctx, conn, stmt, params, func(c *columns) error {
		part, p, err := c.progress()
		out[part] = p
		return err
	})
	return out, err
}

// progress reads one row of the stored progress.
func (c *columns) progress() (event.Partition, Progress, error) {
	part := event.Partition(c.int4())
	p := Progress{Epoch: event.Epoch(c.int8()), Recorded: event.RecordedTime(c.instant())}
	p.Offset, p.UnderWay = event.Offset(c.int8()), event.Epoch(c.int8())
	seen := c.bytes()
	if p.Recorded == event.RecordedUnknown {
		p.Recorded = 0
	}
	if seen != nil {
		if err := json.Unmarshal(seen, &p.Seen); err != nil {
			return part, p, fmt.Errorf("stored progress of partition %s: %w", part, err)
		}
	}
	return part, p, c.err
}

// Probe gives progress and horizon. It asks once.
func (s *Postgres) Probe(ctx context.Context) (Standing, error) {
	out := Standing{Progress: map[event.Partition]Progress{}, Horizon: event.RecordedUnknown}
	err := s.conns.once(ctx, func(conn *pgx.Conn) error {
		params := [][]byte{int4Param(s.pipelineID), int4Param(int32(s.pipeline.Generation))}
		_, err := query(ctx, conn, stmtProbe, params, func(c *columns) error {
			part, p, err := c.progress()
			if err != nil {
				return err
			}
			out.Progress[part], out.Horizon = p, event.RecordedTime(c.instant())
			return c.err
		})
		return err
	})
	if err != nil {
		return Standing{}, fmt.Errorf("ask the ontology how far it is: %w", err)
	}
	if len(out.Progress) == 0 {
		return Standing{}, &FencedError{Pipeline: s.pipeline.Name, Generation: s.pipeline.Generation, Gone: true}
	}
	return out, nil
}

// storedRecorded is the recorded time of a progress as it is stored: -infinity
// before the first epoch.
func storedRecorded(p *Progress) int64 {
	if p.Epoch == 0 {
		return math.MinInt64
	}
	return int64(p.Recorded)
}

// ReadBack gives the believed values of windows.
func (s *Postgres) ReadBack(ctx context.Context, refs []WindowRef) ([]WindowState, error) {
	out := make([]*readBack, len(refs))
	for i := range refs {
		out[i] = newReadBack(&refs[i])
	}
	for _, past := range []bool{false, true} {
		if err := s.readBack(ctx, refs, past, out); err != nil {
			return nil, err
		}
	}
	states := make([]WindowState, len(out))
	for i, b := range out {
		states[i] = b.state
	}
	return states, nil
}

// readBack reads those of the refs that ask for the past, or the others.
func (s *Postgres) readBack(ctx context.Context, refs []WindowRef, past bool, out []*readBack) error {
	asked, stmt := newArrays(oidInt4, oidText, oidInt4, oidInstant, oidInstant, oidInt4, oidInt4), stmtReadBack
	if past {
		asked, stmt = newArrays(oidInt4, oidText, oidInt4, oidInstant, oidInstant, oidInt4, oidInt4, oidInstant), stmtReadBackPast
	}
	var batches [][][]byte
	for i := range refs {
		ref := &refs[i]
		if (ref.At != nil) != past {
			continue
		}
		names, err := s.catalog.names(ref.Type)
		if err != nil {
			return err
		}
		for v, name := range ref.Values {
			p, err := s.catalog.find(ref.Type, names, full(ref.Aggregate, name), true)
			if err != nil {
				return err
			}
			cols := asked.next()
			cols[0].int4(s.typeIDs[ref.Type])
			cols[1].text(ref.ID)
			cols[2].int4(s.propertyIDs[p])
			cols[3].instant(int64(ref.Start))
			cols[4].instant(int64(ref.End))
			cols[5].int4(int32(i))
			cols[6].int4(int32(v))
			if past {
				cols[7].instant(int64(*ref.At))
			}
			if asked.len() >= s.options.RowsPerStatement {
				batches = append(batches, asked.params())
				asked.reset()
			}
		}
	}
	if asked.len() > 0 {
		batches = append(batches, asked.params())
	}
	for _, params := range batches {
		err := s.retry(ctx, "read back", func(conn *pgx.Conn) error {
			_, err := query(ctx, conn, stmt, params, func(c *columns) error {
				b, v := out[c.int4()], int(c.int4())
				version, cause := uint32(c.int4()), event.Cause(c.int2())
				value, state := c.value(), c.bytes()
				b.add(v, version, cause, value, state)
				return c.err
			})
			return err
		})
		if err != nil {
			return fmt.Errorf("read back from the ontology: %w", err)
		}
	}
	return nil
}

// query runs a prepared statement with binary parameters and calls each for
// every row; the row's memory is used again after it returns. It gives the
// number of rows affected.
func query(ctx context.Context, conn *pgx.Conn, stmt string, params [][]byte, each func(*columns) error) (int64, error) {
	r := conn.PgConn().ExecPrepared(ctx, stmt, params, []int16{1}, []int16{1})
	var failed error
	for r.NextRow() {
		if failed != nil || each == nil {
			continue
		}
		c := columns{values: r.Values()}
		failed = each(&c)
	}
	tag, err := r.Close()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", stmt, err)
	}
	if failed != nil {
		return 0, fmt.Errorf("%s: %w", stmt, failed)
	}
	return tag.RowsAffected(), nil
}
