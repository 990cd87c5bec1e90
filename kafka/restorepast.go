package kafka

import (
	"context"
	"maps"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state"
)

// past is what the control topic of the generation before says of the epochs
// behind a savepoint.
type past struct {
	// newest is the newest announcement, applied the newest that all tasks have
	// committed, repeats the newest that some have.
	newest, applied, repeats event.Epoch
	// recorded is the recorded time of applied.
	recorded event.RecordedTime
	// format is the record format of the newest announcement, and mappingAt where
	// the mapping stands that it names; OffsetNone where no build recorded it.
	format    state.Format
	mappingAt event.Offset
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
	// A savepoint is whole: all tasks had committed its barrier.
	own := &r.manifest.Barrier
	w := &pastReader{restore: r, each: each, tasks: len(e.savedTasks()), mappingAt: event.OffsetNone}
	w.past = past{newest: own.Epoch, applied: own.Epoch, repeats: own.Epoch, recorded: own.Recorded}
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
//
// What was repeated when the generation itself was restored stands at the head
// of the topic, with where all tasks stood; the announcements of the same epochs
// say nothing new. Only the last of them may have been committed by some of the
// tasks before (half), and by others since.
type pastReader struct {
	restore *restore
	each    func(processors.Announcement) error
	tasks   int

	past past
	// found: the savepoint's own barrier is there.
	found bool
	// known is the last epoch of which the head of the topic says all.
	known event.Epoch
	half  *processors.Announcement
	// open is the newest announcement, with where the tasks stood that have
	// committed it; its Epoch is 0 before the first behind the savepoint.
	open processors.Announcement
	// format and mappingAt are those of the newest announcement.
	format    state.Format
	mappingAt event.Offset
}

func (w *pastReader) take(rec *controlRecord) error {
	switch rec.Kind {
	case kindOrigin:
		w.known = rec.Applied
	case kindRepeat:
		return w.repeat(rec.announcement())
	case kindBarrier:
		w.format, w.mappingAt = rec.Format, event.OffsetNone
		if rec.MappingAt != nil {
			w.mappingAt = *rec.MappingAt
		}
		return w.barrier(rec.announcement())
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

// repeat takes one of the epochs at the head of the topic.
func (w *pastReader) repeat(a processors.Announcement) error {
	if a.Epoch > w.known {
		w.half = &a
		return nil
	}
	if behind, err := w.behind(&a); !behind || err != nil {
		return err
	}
	w.past = past{newest: a.Epoch, applied: a.Epoch, repeats: a.Epoch, recorded: a.Recorded}
	return w.pass(a)
}

func (w *pastReader) barrier(a processors.Announcement) error {
	if a.Epoch <= w.known {
		w.find(&a)
		return nil
	}
	if behind, err := w.behind(&a); !behind || err != nil {
		return err
	}
	if err := w.close(); err != nil {
		return err
	}
	a.Savepoint, a.Repeated = "", map[processors.TaskID]event.Offset{}
	if w.half != nil && w.half.Epoch == a.Epoch {
		maps.Copy(a.Repeated, w.half.Repeated)
	}
	w.past.newest, w.open = a.Epoch, a
	return nil
}

// find looks whether an announcement is the savepoint's own.
func (w *pastReader) find(a *processors.Announcement) {
	b := &w.restore.manifest.Barrier
	w.found = w.found || (a.Epoch == b.Epoch && a.Recorded == b.Recorded)
}

// behind reports whether an epoch lies behind the savepoint; it must then be the
// next one, and of the same mapping.
func (w *pastReader) behind(a *processors.Announcement) (bool, error) {
	w.find(a)
	m := w.restore.manifest
	switch {
	case a.Epoch <= m.Barrier.Epoch:
		return false, nil
	case a.Epoch != w.past.newest+1:
		return false, w.restore.refuse("the control topic does not hold barrier %s, which came behind it", w.past.newest+1)
	case a.Mapping != m.Pipeline.Mapping:
		return false, w.restore.refuse("at barrier %s the pipeline changed to mapping version %s: what followed cannot be repeated with the mapping of the savepoint", a.Epoch, a.Mapping)
	}
	return true, nil
}

func (w *pastReader) pass(a processors.Announcement) error {
	if w.each == nil {
		return nil
	}
	return w.each(a)
}

// close takes the open announcement, of which all acknowledgements are known.
func (w *pastReader) close() error {
	if w.open.Epoch == 0 || len(w.open.Repeated) == 0 {
		return nil
	}
	w.past.repeats = w.open.Epoch
	if len(w.open.Repeated) == w.tasks {
		w.past.applied, w.past.recorded = w.open.Epoch, w.open.Recorded
	}
	return w.pass(w.open)
}

func (w *pastReader) end() (past, error) {
	m := w.restore.manifest
	if !w.found {
		return past{}, w.restore.refuse("the control topic does not hold its barrier, %s at %s: it was made again or set back, or the savepoint is of another history of the pipeline", m.Barrier.Epoch, m.Barrier.Recorded)
	}
	// The epoch that was committed in part may not have been announced again yet.
	if w.half != nil && w.past.newest < w.half.Epoch && w.half.Epoch > m.Barrier.Epoch {
		w.open, w.past.newest = *w.half, w.half.Epoch
	}
	if err := w.close(); err != nil {
		return past{}, err
	}
	w.past.format, w.past.mappingAt = w.format, w.mappingAt
	return w.past, nil
}
