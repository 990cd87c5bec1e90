package bench

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/sinks/ontology"
)

// nullStore stands in the ontology's place: it takes what it is given, and
// keeps only how far it has come. The peers write to a topic and nothing else.
type nullStore struct {
	mu       sync.Mutex // guards progress
	progress map[event.Partition]ontology.Progress
}

var _ ontology.Store = (*nullStore)(nil)

func openNull(_ context.Context, p ontology.Pipeline) (ontology.Store, error) {
	s := &nullStore{progress: map[event.Partition]ontology.Progress{}}
	for i := range p.ResultsPartitions {
		s.progress[event.Partition(i)] = ontology.Progress{}
	}
	return s, nil
}

// Progress implements ontology.Store.
func (s *nullStore) Progress(context.Context) (map[event.Partition]ontology.Progress, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.progress), nil
}

// Apply implements ontology.Store.
func (s *nullStore) Apply(_ context.Context, chunks []ontology.Chunk) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range chunks {
		s.progress[chunks[i].Partition] = chunks[i].To
	}
	return nil
}

var errNothingKept = errors.New("an event came later than the workload's bound: the null store has nothing to read back")

// ReadBack fails: no event of the workload is so late that it is asked.
func (s *nullStore) ReadBack(context.Context, []ontology.WindowRef) ([]ontology.WindowState, error) {
	return nil, errNothingKept
}

// Probe implements ontology.Store.
func (s *nullStore) Probe(ctx context.Context) (ontology.Standing, error) {
	p, err := s.Progress(ctx)
	return ontology.Standing{Progress: p, Horizon: event.RecordedUnknown}, err
}

// Close implements ontology.Store.
func (s *nullStore) Close() {}
