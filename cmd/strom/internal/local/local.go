// Package local runs a Kafka and a PostgreSQL inside this process, on loopback,
// and writes records into topics.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/internal/localpg"
	"github.com/forge-platform/strom/kafka/embedded"
	"github.com/forge-platform/strom/mapping"
)

// Options says what to start.
type Options struct {
	// Dir keeps the data across runs; empty: nothing outlives the process.
	Dir string
	// KafkaPort is a port on 127.0.0.1; 0: a free one.
	KafkaPort int
	// PostgresPort is one on 127.0.0.1; 0: a Unix socket only.
	PostgresPort int
	// Topics to have, with their number of partitions; 0: as many as the topic
	// has, or one where it is made.
	Topics map[string]int32
	Log    *slog.Logger
}

// Services are a running broker and database.
type Services struct {
	broker   *embedded.Broker
	postgres *localpg.Server
	// told: a context of While has the database's end as its cause.
	told atomic.Bool
}

// Start starts both, side by side. Its errors are those of embedded.Start and
// localpg.Start.
func Start(ctx context.Context, o Options) (*Services, error) {
	s := &Services{}
	var kafkaErr, postgresErr error
	started := make(chan struct{})
	go func() {
		defer close(started)
		po := localpg.Options{Port: o.PostgresPort, Log: logWriter{o.Log}}
		if o.Dir != "" {
			po.DataDir = filepath.Join(o.Dir, "postgres")
		}
		s.postgres, postgresErr = localpg.Start(ctx, po)
	}()
	ko := embedded.Options{Port: o.KafkaPort, Topics: map[string]int32{}, Log: func(level slog.Level, message string) {
		// The broker's warnings are about its clients, which tell of them.
		o.Log.Debug("embedded Kafka: "+message, "level", level.String()) //nolint:sloglint // the broker's own words
	}}
	if o.Dir != "" {
		ko.DataDir = filepath.Join(o.Dir, "kafka")
	}
	var loose []string
	for topic, n := range o.Topics {
		if n > 0 {
			ko.Topics[topic] = n
		} else {
			loose = append(loose, topic)
		}
	}
	if s.broker, kafkaErr = embedded.Start(ctx, ko); kafkaErr == nil {
		kafkaErr = s.makeTopics(ctx, loose)
	}
	<-started
	if err := errors.Join(kafkaErr, postgresErr); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// makeTopics makes those topics that are missing.
func (s *Services) makeTopics(ctx context.Context, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.broker.Brokers()...))
	if err != nil {
		return err
	}
	defer client.Close()
	for _, topic := range topics {
		_, err := kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, topic)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return &embedded.TopicError{Topic: topic, Err: err}
		}
	}
	return nil
}

// logWriter passes the server's lines on at debug level.
type logWriter struct{ log *slog.Logger }

// Write implements io.Writer.
func (w logWriter) Write(p []byte) (int, error) {
	w.log.Debug("PostgreSQL", "output", string(p))
	return len(p), nil
}

// While gives a context that also ends when the database ends by itself; its
// cause is then the database's error, a *localpg.StartError.
func (s *Services) While(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.postgres.Done():
			err := s.postgres.Stop()
			s.told.Store(err != nil)
			cancel(err)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Stop stops both. It is safe to call twice. An end of the database that While
// has told of is not told again.
func (s *Services) Stop() error {
	var err error
	if s.broker != nil {
		err = s.broker.Stop()
	}
	if s.postgres == nil {
		return err
	}
	if ended := s.postgres.Stop(); !s.told.Load() {
		err = errors.Join(err, ended)
	}
	return err
}

// Kafka says how to connect to the broker.
func (s *Services) Kafka() mapping.Kafka { return mapping.Kafka{Brokers: s.broker.Brokers()} }

// Ontology says how to connect to the database, through its socket.
func (s *Services) Ontology() mapping.Ontology {
	return mapping.Ontology{Postgres: mapping.NewSecret(s.postgres.URL())}
}

// PostgresTCP is the database's address on loopback, with its password; empty
// where there is no port.
func (s *Services) PostgresTCP() mapping.Secret { return mapping.NewSecret(s.postgres.TCPURL()) }

// Records is the number of records that a topic holds or has held.
func (s *Services) Records(ctx context.Context, topic string) (int64, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.broker.Brokers()...))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return 0, fmt.Errorf("find the end of topic %s: %w", topic, err)
	}
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n, nil
}
