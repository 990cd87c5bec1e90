package kafka_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/kafkatest"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/state/savepoint"
)

// savers is the pipeline of meters with a checkpoint directory.
type savers struct {
	brokers []string
	url     string
	dir     string // of savepoints
}

func newSavers(t *testing.T, kind kafkatest.Kind) *savers {
	t.Helper()
	return &savers{brokers: kind.New(t, metersTopics()).Brokers(), url: pgtest.New(t), dir: t.TempDir()}
}

func (s *savers) config(t *testing.T, g event.Generation) kafka.Config {
	t.Helper()
	return kafka.Config{
		Topology: processors.NewTopology(metersPlan(t), g), Kafka: mapping.Kafka{Brokers: s.brokers}, DataDir: t.TempDir(),
		CheckpointDir: s.dir, OpenOntology: openPostgres(s.url), Log: testLog(t),
		SessionTimeout: 2 * time.Second, RebalanceTimeout: 4 * time.Second,
	}
}

// runner is an engine that runs.
type runner struct {
	seen  *progress
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, c kafka.Config) *runner {
	t.Helper()
	r := &runner{seen: newProgress(), ended: make(chan error, 1)}
	c.Observe = r.seen.observe
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	r.stop = cancel
	t.Cleanup(cancel)
	go func() { r.ended <- kafka.New(c).Run(ctx) }()
	return r
}

func (r *runner) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
}

func (s *savers) create(t *testing.T, name string, patience time.Duration) (*savepoint.Manifest, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return kafka.CreateSavepoint(ctx, kafka.SavepointRequest{
		Kafka: mapping.Kafka{Brokers: s.brokers}, Topology: processors.NewTopology(metersPlan(t), 1),
		CheckpointDir: s.dir, Name: name, Log: testLog(t),
	})
}

func (s *savers) produce(t *testing.T, records []*kgo.Record) {
	t.Helper()
	produceMeters(t, s.brokers, records)
}

func TestASavepointHoldsEveryTaskAtOneBarrier(t *testing.T) {
	for _, kind := range kafkatest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := newSavers(t, kind)
			data, _ := meterData(3, 3000)
			one, two := start(t, s.config(t, 1)), start(t, s.config(t, 1))
			one.seen.await(t, 3, "at the start")
			s.produce(t, data)
			for _, name := range []string{"first", "second"} {
				m, err := s.create(t, name, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if len(m.Tasks) != 3+3+2+2 || m.Barrier.Epoch == 0 || m.Pipeline.Generation != 1 {
					t.Errorf("manifest: %+v", m)
				}
				if _, err := savepoint.In(s.dir, "meters").Verify(t.Context(), name, nil); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.create(t, "first", time.Minute); err == nil || !strings.Contains(err.Error(), "already") {
				t.Errorf("a name that is taken: %v", err)
			}
			one.end(t)
			two.end(t)
		})
	}
}

func TestASavepointThatDoesNotBecomeWholeSaysWhatIsMissing(t *testing.T) {
	s := newSavers(t, kafkatest.Embedded)
	var never *kafka.NeverRanError
	if _, err := s.create(t, "early", time.Minute); !errors.As(err, &never) {
		t.Errorf("a pipeline that has never run: %v", err)
	}
	c := s.config(t, 1)
	r := start(t, c)
	r.seen.await(t, 3, "at the start")
	r.end(t)
	refused := func(name string, patience time.Duration, text string) *kafka.SavepointError {
		t.Helper()
		_, err := s.create(t, name, patience)
		var why *kafka.SavepointError
		if !errors.As(err, &why) || !strings.Contains(err.Error(), text) {
			t.Fatalf("%s: %v", name, err)
		}
		var unknown *savepoint.UnknownError
		if _, err := savepoint.In(s.dir, "meters").Manifest(name); !errors.As(err, &unknown) {
			t.Errorf("%s is whole: %v", name, err)
		}
		return why
	}
	refused("nobody", time.Second, "is the pipeline running?")
	here := s.dir
	s.dir = t.TempDir()
	r = start(t, c)
	r.seen.await(t, 3, "after a restart")
	if e := refused("elsewhere", 3*time.Second, "need one checkpoint directory"); len(e.Missing) != 10 {
		t.Errorf("missing: %v", e.Missing)
	}
	r.end(t)
	s.dir = here
	var unknown *savepoint.UnknownError
	if _, err := savepoint.In(s.dir, "meters").Manifest("nobody"); !errors.As(err, &unknown) || unknown.Half {
		t.Errorf("a savepoint that nobody waited for any more: %v", err)
	}
	c.CheckpointDir = ""
	r = start(t, c)
	r.seen.await(t, 3, "without a checkpoint directory")
	refused("without", time.Minute, "--checkpoint-dir")
	r.end(t)
}
