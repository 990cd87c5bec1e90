package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
)

// past is what the control topic of the generation before says of the epochs
// behind a savepoint.
type past struct {
	// newest is the newest announcement, applied the newest that all tasks have
	// committed, repeats the newest that some have.
	newest, applied, repeats event.Epoch
	// recorded is the recorded time of applied.
	recorded event.RecordedTime
}

// readPast reads the epochs behind the savepoint, and makes sure that they are
// all there, once and under one mapping. each, where not nil, is given every one
// that is to be repeated, in order.
func (r *restore) readPast(ctx context.Context, each func(processors.Announcement) error) (past, error) {
	e := r.engine
	b, err := partitionBounds(ctx, r.adm, e.topology.ControlTopic(), 0)
	if err != nil {
		return past{}, err
	}
	log, err := e.controlFrom(b.start)
	if err != nil {
		return past{}, err
	}
	defer log.close()
	w := &pastReader{restore: r, each: each, tasks: len(e.savedTasks())}
	for log.next < b.high {
		recs, err := log.poll(ctx)
		if err != nil {
			return past{}, err
		}
		for i := range recs {
			if err := w.take(&recs[i]); err != nil {
				return past{}, err
			}
		}
		r.request.Progress("reading the control topic", int64(log.next-b.start), int64(b.high-b.start))
	}
	return w.end()
}

// pastReader follows a control topic epoch by epoch.
type pastReader struct {
	restore *restore
	each    func(processors.Announcement) error
	tasks   int

	past past
	// open is the newest announcement, with where the tasks stood that have
	// committed it.
	open processors.Announcement
}

var errNoLog = errors.New("the control topic does not hold the epochs behind it")

func (w *pastReader) take(rec *controlRecord) error {
	switch rec.Kind {
	case kindBarrier:
		return w.barrier(rec)
	case kindAck:
		if rec.Epoch != w.open.Epoch || w.open.Epoch == 0 {
			return nil // taken over, or of an epoch that nothing is asked of
		}
		input := w.restore.engine.inputOf(rec.Stage)
		for i := range rec.Tasks {
			t := processors.TaskID{Stage: rec.Stage, Partition: rec.Tasks[i].Partition}
			// A task that is taken over acknowledges again, with the same offset.
			w.open.Repeated[t] = rec.Tasks[i].Offsets[input]
		}
	}
	return nil
}

func (w *pastReader) barrier(rec *controlRecord) error {
	m := w.restore.manifest
	a := rec.announcement()
	switch {
	case a.Epoch < m.Barrier.Epoch:
		return nil
	case a.Epoch == m.Barrier.Epoch && a.Recorded != m.Barrier.Recorded:
		return w.restore.refuse("its barrier %s has recorded time %s, and in the control topic it has %s: it is of another history of the pipeline", a.Epoch, m.Barrier.Recorded, a.Recorded)
	case a.Epoch > m.Barrier.Epoch && a.Epoch != w.past.newest+1:
		return w.restore.refuse("%v: barrier %s is missing", errNoLog, max(w.past.newest+1, m.Barrier.Epoch))
	case a.Mapping != m.Pipeline.Mapping:
		return w.restore.refuse("at barrier %s the pipeline changed to mapping version %s: what followed cannot be repeated with the mapping of the savepoint", a.Epoch, a.Mapping)
	}
	if err := w.close(); err != nil {
		return err
	}
	a.Savepoint, a.Repeated = "", map[processors.TaskID]event.Offset{}
	w.past.newest, w.open = a.Epoch, a
	return nil
}

// close takes the open announcement, of which all acknowledgements are known.
func (w *pastReader) close() error {
	n := w.open.Epoch
	switch {
	case n == 0 || len(w.open.Repeated) == 0:
		return nil
	case len(w.open.Repeated) == w.tasks:
		w.past.applied, w.past.recorded = n, w.open.Recorded
	}
	w.past.repeats = n
	if w.each == nil || n == w.restore.manifest.Barrier.Epoch {
		return nil
	}
	return w.each(w.open)
}

func (w *pastReader) end() (past, error) {
	if w.open.Epoch == 0 {
		return past{}, w.restore.refuse("%v: barrier %s is not there; the topic was made again, or set back", errNoLog, w.restore.manifest.Barrier.Epoch)
	}
	if err := w.close(); err != nil {
		return past{}, err
	}
	if w.past.applied < w.restore.manifest.Barrier.Epoch {
		return past{}, fmt.Errorf("%w: the control topic ends before all tasks have committed epoch %s, of which there is a savepoint", event.ErrCorrupt, w.restore.manifest.Barrier.Epoch)
	}
	return w.past, nil
}
