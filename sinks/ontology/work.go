package ontology

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology/timeline"
)

// object names one object.
type object struct{ typ, id string }

func compareObjects(a, b object) int {
	return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.id, b.id))
}

// number is the place of a row in the results of a pipeline; the rows of one
// object have one results partition in a generation, so that its numbers can
// be compared. Offset −1: nothing was applied.
type number struct {
	generation event.Generation
	offset     event.Offset
}

func (n number) before(m number) bool {
	return cmp.Or(cmp.Compare(n.generation, m.generation), cmp.Compare(n.offset, m.offset)) < 0
}

// factKey names a fact within one work: an object by its index, a property by
// its index in the catalog, and for a window its interval.
type factKey struct {
	object   int32
	property int32
	from, to event.EventTime // zero for puts
}

func compareKeys(a, b factKey) int {
	return cmp.Or(
		cmp.Compare(a.object, b.object),
		cmp.Compare(a.property, b.property),
		cmp.Compare(a.from, b.from),
		cmp.Compare(a.to, b.to),
	)
}

// item is one property value of one row.
type item struct {
	key       factKey
	row       *Row
	partition event.Partition
	value     int32 // index in row.Result.Properties
}

// work is one call of Apply, taken apart: checked, repeats discarded, sorted
// by fact. It does the same for every store.
type work struct {
	pipeline *Pipeline
	catalog  *catalog
	objects  []object // distinct, sorted
	last     []number // by object: the newest number among its rows
	rows     []workRow
	items    []item
	epochs   []epochMark // distinct, of the rows that were not discarded
	repeats  int
}

type workRow struct {
	object    int32
	partition event.Partition
	row       *Row
}

type epochMark struct {
	epoch    event.Epoch
	recorded event.RecordedTime
}

// newWork checks the chunks and numbers their objects.
func newWork(p *Pipeline, c *catalog, chunks []Chunk) (*work, error) {
	w := &work{pipeline: p, catalog: c}
	seen := make(map[event.Partition]bool, len(chunks))
	index := make(map[object]int32)
	for i := range chunks {
		ch := &chunks[i]
		if seen[ch.Partition] {
			return nil, fmt.Errorf("%w: two chunks of partition %s", ErrChunk, ch.Partition)
		}
		seen[ch.Partition] = true
		if err := checkChunk(p, ch); err != nil {
			return nil, err
		}
		for j := range ch.Rows {
			row := &ch.Rows[j]
			key := object{row.Result.Type, row.Result.ID}
			n, ok := index[key]
			if !ok {
				n = int32(len(w.objects))
				index[key] = n
				w.objects = append(w.objects, key)
			}
			w.rows = append(w.rows, workRow{object: n, partition: ch.Partition, row: row})
		}
	}
	w.sortObjects()
	return w, nil
}

// sortObjects puts the objects in one order for all, so that two transactions
// never wait for each other in a ring.
func (w *work) sortObjects() {
	perm := make([]int32, len(w.objects))
	for i := range perm {
		perm[i] = int32(i)
	}
	slices.SortFunc(perm, func(a, b int32) int { return compareObjects(w.objects[a], w.objects[b]) })
	sorted := make([]object, len(perm))
	place := make([]int32, len(perm))
	for to, from := range perm {
		sorted[to] = w.objects[from]
		place[from] = int32(to)
	}
	w.objects = sorted
	w.last = make([]number, len(sorted))
	for i := range w.last {
		w.last[i].offset = event.OffsetNone
	}
	for i := range w.rows {
		r := &w.rows[i]
		r.object = place[r.object]
		if n := (number{w.pipeline.Generation, r.row.Offset}); w.last[r.object].before(n) {
			w.last[r.object] = n
		}
	}
}

func checkChunk(p *Pipeline, ch *Chunk) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: partition %s, offsets %s to %s: %s", ErrChunk, ch.Partition,
			ch.From.Offset, ch.To.Offset, fmt.Sprintf(format, args...))
	}
	switch {
	case ch.Partition < 0 || int32(ch.Partition) >= p.ResultsPartitions:
		return bad("the results topic has %d partitions", p.ResultsPartitions)
	case ch.To.Offset < ch.From.Offset || ch.To.Epoch < ch.From.Epoch:
		return bad("progress runs backwards")
	case ch.To.Epoch > ch.From.Epoch && ch.From.Epoch > 0 && ch.To.Recorded <= ch.From.Recorded:
		return bad("epoch %s has recorded time %s, epoch %s has %s", ch.From.Epoch, ch.From.Recorded, ch.To.Epoch, ch.To.Recorded)
	}
	offset, epoch, recorded := ch.From.Offset-1, ch.From.Epoch, ch.From.Recorded
	for i := range ch.Rows {
		row := &ch.Rows[i]
		r := &row.Result
		switch {
		case row.Offset <= offset || row.Offset >= ch.To.Offset:
			return bad("row at offset %s is out of place", row.Offset)
		case r.Epoch <= ch.From.Epoch || r.Epoch < epoch || r.Epoch > ch.To.Epoch+1:
			return bad("row at offset %s is of epoch %s", row.Offset, r.Epoch)
		case r.Epoch == epoch && r.Recorded != recorded, r.Epoch > epoch && epoch > 0 && r.Recorded <= recorded,
			r.Epoch == ch.To.Epoch && r.Recorded != ch.To.Recorded:
			return bad("row at offset %s of epoch %s has recorded time %s", row.Offset, r.Epoch, r.Recorded)
		}
		if err := checkRow(row); err != nil {
			return bad("row at offset %s: %v", row.Offset, err)
		}
		offset, epoch, recorded = row.Offset, r.Epoch, r.Recorded
	}
	return nil
}

func checkRow(row *Row) error {
	r := &row.Result
	switch {
	case r.Kind != event.RowPut && r.Kind != event.RowWindow:
		return fmt.Errorf("row kind %d", r.Kind)
	case r.Kind == event.RowWindow && r.Version == 0:
		return fmt.Errorf("a window's result without a version")
	case r.Kind == event.RowWindow && r.ValidFrom >= r.ValidTo:
		return fmt.Errorf("an empty window")
	}
	if reject := Storable(r); reject != nil {
		return reject
	}
	return nil
}

// discard drops the rows that were applied before: those whose number is not
// after the applied one of their object.
func (w *work) discard(applied []number) error {
	w.items = slices.Grow(w.items, len(w.rows)*2)
	for i := range w.rows {
		r := &w.rows[i]
		if !applied[r.object].before(number{w.pipeline.Generation, r.row.Offset}) {
			w.repeats++
			continue
		}
		res := &r.row.Result
		if err := w.addItems(r, res); err != nil {
			return err
		}
		mark := epochMark{res.Epoch, res.Recorded}
		if n := len(w.epochs); n == 0 || w.epochs[n-1] != mark {
			w.epochs = append(w.epochs, mark)
		}
	}
	slices.SortFunc(w.epochs, func(a, b epochMark) int { return cmp.Compare(a.epoch, b.epoch) })
	w.epochs = slices.Compact(w.epochs)
	// Rows of one fact stay in the order of the log: the sort is stable.
	slices.SortStableFunc(w.items, func(a, b item) int { return compareKeys(a.key, b.key) })
	return nil
}

func (w *work) addItems(r *workRow, res *event.Result) error {
	names, err := w.catalog.names(res.Type)
	if err != nil {
		return err
	}
	windowed := res.Kind == event.RowWindow
	for v := range res.Properties {
		name := full(res.Aggregate, res.Properties[v].Name)
		p, err := w.catalog.find(res.Type, names, name, windowed)
		if err != nil {
			return err
		}
		key := factKey{object: r.object, property: p}
		if windowed {
			key.from, key.to = res.ValidFrom, res.ValidTo
		}
		w.items = append(w.items, item{key: key, row: r.row, partition: r.partition, value: int32(v)})
	}
	return nil
}

// facts calls fn for the items of each fact, in order.
func (w *work) facts(fn func(key factKey, items []item) error) error {
	for i := 0; i < len(w.items); {
		j := i + 1
		for j < len(w.items) && w.items[j].key == w.items[i].key {
			j++
		}
		if err := fn(w.items[i].key, w.items[i:j]); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// apply applies the items of one fact to its line, epoch by epoch.
func (w *work) apply(l *timeline.Line, items []item) error {
	if items[0].row.Result.Kind == event.RowWindow {
		for i := range items {
			if err := w.applyWindow(l, &items[i]); err != nil {
				return err
			}
		}
		return nil
	}
	var puts []timeline.Assertion
	for i := range items {
		it := &items[i]
		if len(puts) > 0 && puts[0].Epoch != it.row.Result.Epoch {
			if err := l.Put(puts); err != nil {
				return w.locate(err, it)
			}
			puts = puts[:0]
		}
		puts = append(puts, w.assertion(it))
	}
	return w.locate(l.Put(puts), &items[len(items)-1])
}

func (w *work) applyWindow(l *timeline.Line, it *item) error {
	r := &it.row.Result
	if len(l.Heads) > 0 {
		h := &l.Heads[0]
		// A newer generation counts its versions from 1 again, unless it continues.
		if (h.Generation == w.pipeline.Generation || w.pipeline.Continues) && r.Version <= h.Version {
			return &LostStateError{
				Type: r.Type, ID: r.ID, Aggregate: r.Aggregate, Start: r.ValidFrom, End: r.ValidTo,
				Row: r.Version, Believed: h.Version, Cause: r.Cause,
				Partition: it.partition, Offset: it.row.Offset, Place: r.Place,
			}
		}
	}
	return w.locate(l.Window(w.assertion(it)), it)
}

func (w *work) locate(err error, it *item) error {
	if err == nil {
		return nil
	}
	r := &it.row.Result
	return fmt.Errorf("row at results partition %s offset %s (%s %q): %w", it.partition, it.row.Offset, r.Type, r.ID, err)
}

func (w *work) assertion(it *item) timeline.Assertion {
	r := &it.row.Result
	p := &r.Properties[it.value]
	a := timeline.Assertion{
		ValidFrom: r.ValidFrom, ValidTo: r.ValidTo, Value: p.Value, State: p.State,
		RecordedFrom: r.Recorded, Epoch: r.Epoch, Generation: w.pipeline.Generation,
		Cause: r.Cause, Lateness: r.Lateness, Place: r.Place, KeyID: r.KeyID,
	}
	if a.Value.Null {
		a.Value.Text = ""
	}
	if r.Kind == event.RowWindow {
		a.Version = r.Version
	} else {
		a.Tie = r.Tie
	}
	return a
}
