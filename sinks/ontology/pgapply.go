package ontology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

// errUnknownOutcome marks a COMMIT that was sent and not answered.
var errUnknownOutcome = errors.New("outcome of the commit is unknown")

// errStored says that what is stored is not what was read in the same
// transaction, though nobody else may write it.
var errStored = errors.New("the stored assertions changed under the writer")

// Apply applies the chunks as Store says.
func (s *Postgres) Apply(ctx context.Context, chunks []Chunk) error {
	if len(chunks) == 0 {
		return nil
	}
	chunks = slices.Clone(chunks)
	slices.SortFunc(chunks, func(a, b Chunk) int { return int(a.Partition - b.Partition) })
	unknown := false // a commit of this call may have taken effect
	err := s.retry(ctx, "apply", func(conn *pgx.Conn) error {
		err := s.attempt(ctx, conn, chunks)
		var fenced *FencedError
		switch {
		case errors.Is(err, errUnknownOutcome):
			unknown = true
		case unknown && errors.As(err, &fenced):
			// Decided by what is stored, never by what the broken connection
			// seemed to say. All chunks are of one transaction: if one was
			// applied by that commit, all were.
			applied, readErr := s.appliedAlready(ctx, conn, chunks)
			if readErr != nil {
				return readErr
			}
			if applied {
				return nil
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("apply to the ontology: %w", err)
	}
	return nil
}

func (s *Postgres) appliedAlready(ctx context.Context, conn *pgx.Conn, chunks []Chunk) (bool, error) {
	stored, err := s.progress(ctx, conn, stmtProgress, nil)
	if err != nil {
		return false, err
	}
	for i := range chunks {
		to, found := chunks[i].To, stored[chunks[i].Partition]
		if to.Epoch != found.Epoch || to.Offset != found.Offset {
			return false, nil
		}
	}
	return true, nil
}

// attempt is one transaction.
func (s *Postgres) attempt(ctx context.Context, conn *pgx.Conn, chunks []Chunk) error {
	w, err := newWork(&s.pipeline, s.catalog, chunks)
	if err != nil {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	s.options.At("db.begun")
	if err := s.compare(ctx, conn, chunks); err != nil {
		return err
	}
	a := &applying{s: s, conn: conn, w: w}
	if len(w.rows) > 0 {
		if err := a.run(ctx); err != nil {
			return err
		}
	}
	if err := s.setProgress(ctx, conn, chunks); err != nil {
		return err
	}
	s.options.At("db.written")
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnknownOutcome, err)
	}
	s.options.At("db.committed")
	s.learn(a.newTopics)
	return nil
}

// compare locks the progress of the chunks' partitions and checks that each
// goes on from it.
func (s *Postgres) compare(ctx context.Context, conn *pgx.Conn, chunks []Chunk) error {
	partitions := newArrays(oidInt4)
	for i := range chunks {
		partitions.next()[0].int4(int32(chunks[i].Partition))
	}
	stored, err := s.progress(ctx, conn, stmtLockProgress, partitions.params()[0])
	if err != nil {
		return err
	}
	for i := range chunks {
		ch := &chunks[i]
		found, ok := stored[ch.Partition]
		if !ok || found.Epoch != ch.From.Epoch || found.Offset != ch.From.Offset {
			return &FencedError{
				Pipeline: s.pipeline.Name, Generation: s.pipeline.Generation,
				Partition: ch.Partition, Expected: ch.From, Found: found, Gone: !ok,
			}
		}
	}
	return nil
}

func (s *Postgres) setProgress(ctx context.Context, conn *pgx.Conn, chunks []Chunk) error {
	cols := newArrays(oidInt4, oidInt8, oidInstant, oidInt8, oidInt8, oidText)
	for i := range chunks {
		to := &chunks[i].To
		c := cols.next()
		c[0].int4(int32(chunks[i].Partition))
		c[1].int8(int64(to.Epoch))
		c[2].instant(storedRecorded(to))
		c[3].int8(int64(to.Offset))
		c[4].int8(int64(to.UnderWay))
		if len(to.Seen) == 0 {
			c[5].null()
			continue
		}
		seen, err := json.Marshal(to.Seen)
		if err != nil {
			return fmt.Errorf("encode progress: %w", err)
		}
		c[5].bytes(seen)
	}
	params := append([][]byte{int4Param(s.pipelineID), int4Param(int32(s.pipeline.Generation))}, cols.params()...)
	n, err := query(ctx, conn, stmtSetProgress, params, nil)
	if err == nil && n != int64(len(chunks)) {
		err = fmt.Errorf("%w: %d of %d rows of progress", errStored, n, len(chunks))
	}
	return err
}

// applying is the rows of one transaction on their way into the tables.
type applying struct {
	s    *Postgres
	conn *pgx.Conn
	w    *work

	objects   []storedObject // by object of w
	newTopics map[string]int32
	facts     []storedFact // in the order of w.facts
	stored    []timeline.Assertion
}

// storedObject is what the database has of an object.
type storedObject struct {
	no      int64 // 0: not found yet
	known   bool  // it was there before this transaction
	applied number
}

type storedFact struct {
	key   factKey
	items []item
	heads []timeline.Head // slots are indexes into applying.stored
}

func (a *applying) run(ctx context.Context) error {
	if err := a.findObjects(ctx); err != nil {
		return err
	}
	applied := make([]number, len(a.objects))
	for i := range a.objects {
		applied[i] = a.objects[i].applied
	}
	if err := a.w.discard(applied); err != nil {
		return err
	}
	if err := a.w.facts(func(key factKey, items []item) error {
		a.facts = append(a.facts, storedFact{key: key, items: items})
		return nil
	}); err != nil {
		return err
	}
	if err := a.findTopics(ctx); err != nil {
		return err
	}
	if err := a.readHeads(ctx); err != nil {
		return err
	}
	if err := a.writeFacts(ctx); err != nil {
		return err
	}
	a.s.options.At("db.half")
	if err := a.writeApplied(ctx); err != nil {
		return err
	}
	return a.writeEpochs(ctx)
}

// findObjects reads the objects with their applied numbers, and creates those
// that are new.
func (a *applying) findObjects(ctx context.Context) error {
	a.objects = make([]storedObject, len(a.w.objects))
	for i := range a.objects {
		a.objects[i].applied.offset = event.OffsetNone
	}
	if err := a.lookUp(ctx, true); err != nil {
		return err
	}
	missing := newArrays(oidInt4, oidText)
	create := func() error {
		_, err := query(ctx, a.conn, stmtNewObjects, missing.params(), nil)
		missing.reset()
		return err
	}
	created := false
	for i, o := range a.w.objects {
		if a.objects[i].no != 0 {
			continue
		}
		created = true
		c := missing.next()
		c[0].int4(a.s.typeIDs[o.typ])
		c[1].text(o.id)
		if missing.len() >= a.s.options.RowsPerStatement {
			if err := create(); err != nil {
				return err
			}
		}
	}
	if !created {
		return nil
	}
	if missing.len() > 0 {
		if err := create(); err != nil {
			return err
		}
	}
	// Read them again instead of taking what the INSERT returns: another
	// pipeline may have created some of them meanwhile.
	return a.lookUp(ctx, false)
}

// lookUp reads the objects that have no number yet.
func (a *applying) lookUp(ctx context.Context, first bool) error {
	asked := newArrays(oidInt4, oidText, oidInt4)
	ask := func() error {
		params := append([][]byte{int4Param(a.s.pipelineID)}, asked.params()...)
		asked.reset()
		_, err := query(ctx, a.conn, stmtFindObjects, params, func(c *columns) error {
			o := &a.objects[c.int4()]
			o.no = c.int8()
			o.known = first
			generation := c.field(4)
			if generation == nil {
				return c.err
			}
			o.applied.generation = event.Generation(int32FromField(generation))
			o.applied.offset = event.Offset(c.int8())
			return c.err
		})
		return err
	}
	for i, o := range a.w.objects {
		if a.objects[i].no != 0 {
			continue
		}
		typeID, ok := a.s.typeIDs[o.typ]
		if !ok {
			return &UnknownNameError{Type: o.typ}
		}
		c := asked.next()
		c[0].int4(typeID)
		c[1].text(o.id)
		c[2].int4(int32(i))
		if asked.len() >= a.s.options.RowsPerStatement {
			if err := ask(); err != nil {
				return err
			}
		}
	}
	if asked.len() == 0 {
		return nil
	}
	if err := ask(); err != nil {
		return err
	}
	if first {
		return nil
	}
	for i := range a.objects {
		if a.objects[i].no == 0 {
			return fmt.Errorf("%w: object %+v was not created", errStored, a.w.objects[i])
		}
	}
	return nil
}

// findTopics makes sure that every topic named by a row has an id.
func (a *applying) findTopics(ctx context.Context) error {
	var missing []string
	a.s.mu.Lock()
	for i := range a.w.rows {
		name := a.w.rows[i].row.Result.Place.Topic
		if _, ok := a.s.topics[name]; !ok && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	a.s.mu.Unlock()
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	names := newArrays(oidText)
	for _, name := range missing {
		names.next()[0].text(name)
	}
	if _, err := query(ctx, a.conn, stmtNewTopics, names.params(), nil); err != nil {
		return err
	}
	var err error
	a.newTopics, err = allTopics(ctx, a.conn)
	return err
}

func allTopics(ctx context.Context, conn *pgx.Conn) (map[string]int32, error) {
	topics := make(map[string]int32)
	_, err := query(ctx, conn, stmtFindTopics, nil, func(c *columns) error {
		id, name := c.int4(), c.text()
		topics[name] = id
		return c.err
	})
	return topics, err
}

// learn keeps topics that a commit has made lasting.
func (s *Postgres) learn(topics map[string]int32) {
	if len(topics) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics = topics
}

// topicIDs gives the topics as this transaction sees them.
func (a *applying) topicIDs() map[string]int32 {
	if a.newTopics != nil {
		return a.newTopics
	}
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.s.topics // replaced as a whole, never changed
}
