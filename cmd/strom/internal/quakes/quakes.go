// Package quakes asks the ontology of the earthquake example, and compares its
// answers with the brute-force reading of the file (internal/oracle), which
// shares nothing with the engine.
package quakes

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/oracle"
	"github.com/forge-platform/strom/sinks/ontology"
)

// The names of the mapping that the demo asks for.
const (
	Topic  = "earthquakes"
	Region = "Region"
	Quake  = "Quake"

	countProperty = "daily.quakes"
	maxProperty   = "daily.max_magnitude"
)

// Source is what is asked: an ontology in PostgreSQL, or one in memory.
type Source struct {
	// AsOf and History answer as the methods of ontology.Reader do.
	AsOf    func(ctx context.Context, q ontology.Question) iter.Seq2[ontology.Fact, error]
	History func(ctx context.Context, typ, id, property string) iter.Seq2[ontology.Assertion, error]
	Horizon func(ctx context.Context) (event.RecordedTime, error)
}

// FromReader asks PostgreSQL.
func FromReader(r *ontology.Reader) Source {
	return Source{AsOf: r.AsOf, History: r.History, Horizon: func(ctx context.Context) (event.RecordedTime, error) {
		b, err := r.Bounds(ctx, "")
		return b.Horizon, err
	}}
}

// FromMemory asks an ontology in memory.
func FromMemory(m *ontology.Memory) Source {
	return Source{
		AsOf: func(_ context.Context, q ontology.Question) iter.Seq2[ontology.Fact, error] {
			facts, err := m.AsOf(q)
			return all(facts, err)
		},
		History: func(_ context.Context, typ, id, property string) iter.Seq2[ontology.Assertion, error] {
			return all(m.History(typ, id, property), nil)
		},
		Horizon: func(context.Context) (event.RecordedTime, error) { return m.Horizon(), nil },
	}
}

func all[T any](list []T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err != nil {
			var zero T
			yield(zero, err)
			return
		}
		for _, v := range list {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// Version is one published result of a region and day.
type Version struct {
	Region   string
	Day      oracle.DayNumber
	Number   int
	Recorded event.RecordedTime
	Until    event.RecordedTime
	Cause    event.Cause
	Lateness int64 // microseconds
	Count    string
	MaxMag   string // empty: none has a magnitude
}

// Versions gives every version of the regions' days, of all regions where none
// is named: by region, day and number.
func (s Source) Versions(ctx context.Context, region string) ([]Version, error) {
	type key struct {
		region string
		day    oracle.DayNumber
		number int
	}
	found := map[key]*Version{}
	for a, err := range s.History(ctx, Region, region, "") {
		if err != nil {
			return nil, err
		}
		k := key{a.ID, dayOf(a.ValidFrom), int(a.Version)}
		v := found[k]
		if v == nil {
			v = &Version{
				Region: k.region, Day: k.day, Number: k.number, Recorded: a.RecordedFrom, Until: a.RecordedTo,
				Cause: a.Cause, Lateness: a.Lateness,
			}
			found[k] = v
		}
		if err := set(a.Property, a.Value, &v.Count, &v.MaxMag); err != nil {
			return nil, err
		}
	}
	out := make([]Version, 0, len(found))
	for _, v := range found {
		out = append(out, *v)
	}
	slices.SortFunc(out, func(a, b Version) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Day, b.Day), cmp.Compare(a.Number, b.Number))
	})
	return out, nil
}

func set(property string, v event.Value, count, largest *string) error {
	switch property {
	case countProperty:
		*count = v.Text
	case maxProperty:
		*largest = v.Text
	default:
		return fmt.Errorf("a region has a property %s, which the example does not declare", property)
	}
	return nil
}

func dayOf(t event.EventTime) oracle.DayNumber {
	return oracle.DayNumber(event.FloorDiv(int64(t), int64(oracle.Day)))
}

// RegionDay is one row of the table of regions and days.
type RegionDay struct {
	Region        string
	Day           oracle.DayNumber
	Count, MaxMag string
}

// String gives the row as oracle.RegionDay does.
func (d RegionDay) String() string {
	largest := d.MaxMag
	if largest == "" {
		largest = "null"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s", d.Region, d.Day, d.Count, largest)
}

// Table gives what was believed of regions and days at a recorded time, in
// order; of all regions where none is named, of all days where valid is nil.
func (s Source) Table(ctx context.Context, region string, valid *event.EventTime, recorded event.RecordedTime) ([]RegionDay, error) {
	var out []RegionDay
	at := map[RegionDay]int{}
	for f, err := range s.AsOf(ctx, ontology.Question{Type: Region, ID: region, Valid: valid, Recorded: recorded}) {
		if err != nil {
			return nil, err
		}
		k := RegionDay{Region: f.ID, Day: dayOf(f.ValidFrom)}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, k)
		}
		if err := set(f.Property, f.Value, &out[i].Count, &out[i].MaxMag); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b RegionDay) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Day, b.Day))
	})
	return out, nil
}

// Quakes gives what is believed of every quake at a recorded time, in the order
// of their ids.
func (s Source) Quakes(ctx context.Context, recorded event.RecordedTime) ([]oracle.Quake, error) {
	var out []oracle.Quake
	for f, err := range s.AsOf(ctx, ontology.Question{Type: Quake, Current: true, Recorded: recorded}) {
		if err != nil {
			return nil, err
		}
		if n := len(out); n == 0 || out[n-1].ID != f.ID {
			out = append(out, oracle.Quake{ID: f.ID})
		}
		q := &out[len(out)-1]
		switch f.Property {
		case "magnitude":
			q.Mag = f.Value.Text
		case "place":
			q.Place = f.Value.Text
		case "status":
			q.Status = f.Value.Text
		}
	}
	return out, nil
}
