package quakes

import (
	"bytes"
	"context"
	"fmt"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/oracle"
)

// Comparison says how much of one table is equal to the reading by hand.
type Comparison struct {
	What         string
	Equal, Total int
	// Different are some of the rows that are not equal.
	Different []string
}

// OK says that everything is equal.
func (c Comparison) OK() bool { return c.Equal == c.Total && len(c.Different) == 0 }

// maxDifferent bounds the rows that are shown of a comparison.
const maxDifferent = 10

// compareRows compares two tables by the text of their rows, a key first.
func compareRows(what string, want, have map[string]string, order []string) Comparison {
	c := Comparison{What: what, Total: len(want)}
	note := func(text string) {
		if len(c.Different) < maxDifferent {
			c.Different = append(c.Different, text)
		}
	}
	for _, key := range order {
		w, wanted := want[key]
		h, there := have[key]
		switch {
		case wanted && there && w == h:
			c.Equal++
		case wanted && there:
			note(fmt.Sprintf("%s: the file says %s, the ontology %s", key, w, h))
		case wanted:
			note(fmt.Sprintf("%s: the file says %s, the ontology nothing", key, w))
		case there:
			note(fmt.Sprintf("%s: the file says nothing, the ontology %s", key, h))
		}
	}
	return c
}

// rows gathers tables by key, in the order in which keys are met.
type rows struct {
	want, have map[string]string
	order      []string
}

func newRows() *rows { return &rows{want: map[string]string{}, have: map[string]string{}} }

func (r *rows) add(to map[string]string, key, text string) {
	_, a := r.want[key]
	_, b := r.have[key]
	if !a && !b {
		r.order = append(r.order, key)
	}
	to[key] = text
}

func (r *rows) compare(what string) Comparison { return compareRows(what, r.want, r.have, r.order) }

// Compare compares everything that is believed, and every version that ever
// was, with the reading of the file by hand.
func (s Source) Compare(ctx context.Context, file []byte) ([]Comparison, error) {
	horizon, err := s.Horizon(ctx)
	if err != nil {
		return nil, err
	}
	o := oracle.DemoOptions()
	fold, err := oracle.FoldQuakes(bytes.NewReader(file), o.MaxAhead)
	if err != nil {
		return nil, err
	}
	days, err := s.compareDays(ctx, fold, horizon)
	if err != nil {
		return nil, err
	}
	objects, err := s.compareQuakes(ctx, fold, horizon)
	if err != nil {
		return nil, err
	}
	versions, err := s.compareVersions(ctx, file, o)
	if err != nil {
		return nil, err
	}
	return []Comparison{days, versions, objects}, nil
}

func (s Source) compareDays(ctx context.Context, fold oracle.Fold, horizon event.RecordedTime) (Comparison, error) {
	table, err := s.Table(ctx, "", nil, horizon)
	if err != nil {
		return Comparison{}, err
	}
	r := newRows()
	for _, d := range fold.RegionDays {
		r.add(r.want, d.Region+" on "+d.Day.String(), countAndMax(fmt.Sprint(d.Count), d.MaxMag))
	}
	for _, d := range table {
		r.add(r.have, d.Region+" on "+d.Day.String(), countAndMax(d.Count, d.MaxMag))
	}
	return r.compare("region-days"), nil
}

func countAndMax(count, largest string) string {
	if largest == "" {
		largest = "none"
	}
	return count + " quakes, largest " + largest
}

func (s Source) compareQuakes(ctx context.Context, fold oracle.Fold, horizon event.RecordedTime) (Comparison, error) {
	believed, err := s.Quakes(ctx, horizon)
	if err != nil {
		return Comparison{}, err
	}
	r := newRows()
	for _, q := range fold.Quakes {
		r.add(r.want, q.ID, q.String())
	}
	for _, q := range believed {
		r.add(r.have, q.ID, q.String())
	}
	return r.compare("quakes"), nil
}

func (s Source) compareVersions(ctx context.Context, file []byte, o oracle.Options) (Comparison, error) {
	records, err := oracle.ReadRecords(bytes.NewReader(file))
	if err != nil {
		return Comparison{}, err
	}
	history, err := oracle.QuakeHistory(records, o)
	if err != nil {
		return Comparison{}, err
	}
	versions, err := s.Versions(ctx, "")
	if err != nil {
		return Comparison{}, err
	}
	r := newRows()
	key := func(region string, day oracle.DayNumber, number int) string {
		return fmt.Sprintf("%s on %s, version %d", region, day, number)
	}
	for _, w := range history.Windows {
		for _, v := range w.Versions {
			r.add(r.want, key(w.Region, w.Day, v.Number),
				fmt.Sprintf("%s, recorded %s, %s", countAndMax(fmt.Sprint(v.Count), v.MaxMag), v.R, v.Cause))
		}
	}
	for _, v := range versions {
		r.add(r.have, key(v.Region, v.Day, v.Number),
			fmt.Sprintf("%s, recorded %s, %s", countAndMax(v.Count, v.MaxMag), v.Recorded, v.Cause))
	}
	return r.compare("versions"), nil
}
