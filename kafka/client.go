package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/forge-platform/strom/mapping"
)

// UnreachableError says that no broker answered.
type UnreachableError struct {
	Brokers []string
	Err     error
}

// Error says what to do as well.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("cannot reach Kafka at %s: %v; check kafka.brokers in the mapping (or --brokers), that the broker runs, and its TLS and SASL settings",
		strings.Join(e.Brokers, ", "), e.Err)
}

// Unwrap gives the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// ClientOptions turns connection settings into franz-go options.
func ClientOptions(k mapping.Kafka, log *slog.Logger) ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(k.Brokers...),
		kgo.ClientID("strom"),
		kgo.WithLogger(clientLogger{log}),
		kgo.RetryTimeout(30 * time.Second),
	}
	if k.TLS != nil {
		config, err := tlsConfig(k.TLS)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(config))
	}
	if k.SASL != nil {
		mechanism, err := saslMechanism(k.SASL)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

func tlsConfig(t *mapping.TLS) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls.ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka.tls.ca: %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls.cert and kafka.tls.key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func saslMechanism(s *mapping.SASL) (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("kafka.sasl.mechanism %q is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", s.Mechanism)
}

// newClient makes a client of the engine's own settings plus opts.
func (e *Engine) newClient(opts ...kgo.Opt) (*kgo.Client, error) {
	base, err := ClientOptions(e.config.Kafka, e.log)
	if err != nil {
		return nil, err
	}
	base = append(base, kgo.ClientID(ClientID(e.config.Replica)))
	if e.config.Dial != nil {
		base = append(base, kgo.Dialer(e.config.Dial))
	}
	return kgo.NewClient(append(base, opts...)...)
}

// clientPrefix stands before a replica's name in the ids of its clients, by
// which the groups' members are known.
const clientPrefix = "strom."

// ClientID is the client id of a replica, by which groups name their members.
func ClientID(replica string) string { return clientPrefix + replica }

// leavePatience bounds how long the end of a client may take: with the broker
// away it would wait for it.
const leavePatience = 3 * time.Second

// groupOptions are what the engine's group consumers have in common: classic
// protocol, eager, sticky.
func (e *Engine) groupOptions(group string, b *stickyBalancer) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(b.topic), kgo.Balancers(b), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(e.config.SessionTimeout), kgo.HeartbeatInterval(e.config.SessionTimeout / 4),
		kgo.RebalanceTimeout(e.config.RebalanceTimeout),
	}
	if id := e.instanceID(); id != nil {
		opts = append(opts, kgo.InstanceID(*id))
	}
	return opts
}

// instanceID names this replica as a static member of its groups, nil where
// membership is dynamic.
func (e *Engine) instanceID() *string {
	if !e.config.StaticMembership {
		return nil
	}
	return &e.config.Replica
}

// leave closes a client. A dynamic member leaves its group with that; a static
// one only if the replica stops as planned, else it would not find its tasks again.
func (e *Engine) leave(client *kgo.Client) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		group, _ := client.OptValue(kgo.ConsumerGroup).(string)
		client.CloseAllowingRebalance()
		// Only now: a member that lives would join again.
		if id := e.instanceID(); id != nil && group != "" && e.stopping.Load() {
			e.leaveAsStatic(group, *id)
		}
	}()
	timer := time.NewTimer(leavePatience)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		e.log.Info("left a group without the broker's answer: it notices by itself")
	}
}

// leaveAsStatic says to a group what the close of a static member does not.
func (e *Engine) leaveAsStatic(group, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
	defer cancel()
	_, err := kadm.NewClient(e.client).LeaveGroup(ctx, kadm.LeaveGroup(group).Reason("the replica stops").InstanceIDs(id))
	if err != nil {
		e.log.Debug("leave a group", "group", group, "error", err)
	}
}

// replaced gives FENCED_INSTANCE_ID if another process is the static member
// that this client was. Whoever joins again without asking would throw that
// one out in turn, and two processes of one name would never come to rest.
func (e *Engine) replaced(ctx context.Context, client *kgo.Client) error {
	if e.instanceID() == nil {
		return nil
	}
	group, _ := client.OptValue(kgo.ConsumerGroup).(string)
	memberID, generation := client.GroupMetadata()
	// Any other answer says nothing of a successor.
	if errors.Is(e.heartbeat(ctx, group, memberID, generation), kerr.FencedInstanceID) {
		return kerr.FencedInstanceID
	}
	return nil
}

// heartbeat asks a group's coordinator whether a member is one of its current
// generation.
func (e *Engine) heartbeat(ctx context.Context, group, memberID string, generation int32) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation, req.InstanceID = group, memberID, generation, e.instanceID()
	resp, err := req.RequestWith(ctx, e.client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// connect makes the engine's plain client and makes sure that a broker answers.
func (e *Engine) connect(ctx context.Context) error {
	client, err := e.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	if err := Ping(ctx, client, e.config.Kafka.Brokers); err != nil {
		client.Close()
		return err
	}
	e.client = client
	return nil
}

// Ping makes sure that a broker answers; its error is an *UnreachableError.
func Ping(ctx context.Context, client *kgo.Client, brokers []string) error {
	const patience = 10 * time.Second
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := client.Ping(limited)
	if err == nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return &UnreachableError{Brokers: brokers, Err: err}
}

// clientLogger passes franz-go's warnings and errors on, and the rest at debug
// level. franz-go logs no secrets.
type clientLogger struct{ log *slog.Logger }

// Level implements kgo.Logger.
func (l clientLogger) Level() kgo.LogLevel {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

// Log implements kgo.Logger. A client's warning is the engine's debugging: what
// matters comes back as an error.
func (l clientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	if level == kgo.LogLevelError {
		to = slog.LevelWarn
	}
	l.log.With(keyvals...).Log(context.Background(), to, "kafka client", "says", msg)
}

// gokaLogger passes what goka says on at debug level.
type gokaLogger struct{ log *slog.Logger }

// Print implements goka.Logger.
func (l gokaLogger) Print(args ...any) { l.log.Debug("goka", "says", fmt.Sprint(args...)) }

// Println implements goka.Logger.
func (l gokaLogger) Println(args ...any) { l.log.Debug("goka", "says", fmt.Sprint(args...)) }

// Printf implements goka.Logger.
func (l gokaLogger) Printf(format string, args ...any) {
	l.log.Debug("goka", "says", fmt.Sprintf(format, args...))
}
