package mapping

import (
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
	"github.com/forge-platform/strom/windows"
)

// Plan is a mapping file that has been checked: everything that can be wrong
// with the file itself has been found. It is read-only.
type Plan struct {
	Pipeline string
	// Version is a hash of the mapping's meaning (not of its layout or
	// comments, nor of connection settings): equal versions behave alike.
	Version string

	Kafka    Kafka
	Ontology Ontology
	Epoch    EpochSettings

	Streams    []*Stream
	Types      []*ObjectType // every object type, with every property, sorted by name
	Puts       []*Put
	Aggregates []*Aggregate

	file    string
	missing []Fault // of the connections, see CheckConnections
	text    []byte  // see Text
}

// Kafka holds the connection settings of the brokers. Secrets have been read
// from their environment variable or file; String methods never print them.
type Kafka struct {
	Brokers []string
	TLS     *TLS
	SASL    *SASL
}

// TLS says how to secure a connection to Kafka.
type TLS struct {
	CAFile, CertFile, KeyFile string
	ServerName                string
}

// SASL says how to log in to Kafka.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
	Username  string
	Password  Secret
}

// Secret is a string that never prints itself.
type Secret struct{ value string }

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{value: s} }

// Reveal gives the secret itself; it must not reach a log.
func (s Secret) Reveal() string { return s.value }

// String hides the secret.
func (s Secret) String() string {
	if s.value == "" {
		return ""
	}
	return "********"
}

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Ontology holds the connection settings of PostgreSQL.
type Ontology struct {
	// Postgres is a URL or a keyword/value string as libpq takes it, TLS
	// settings included (sslmode, sslrootcert, ...). It may carry a password,
	// so it is a secret as a whole; empty: no ontology is declared.
	Postgres Secret
	// Password, when set, replaces the one in Postgres.
	Password Secret
}

// ClockKind says where recorded time comes from.
type ClockKind uint8

// The clocks.
const (
	ClockWall ClockKind = iota
	ClockLog
)

// String gives the clock's name as the mapping writes it.
func (c ClockKind) String() string {
	if c == ClockLog {
		return "log"
	}
	return "wall"
}

// EpochSettings is the mapping's epoch section.
type EpochSettings struct {
	Interval time.Duration // default 200 ms
	Clock    ClockKind
	Step     time.Duration // clock: log only; default 1 s
}

// Stream is one input topic with its rules.
type Stream struct {
	Name  string
	Topic string
	// Rank is the stream's place in the mapping file, from 0; it breaks ties.
	Rank int32

	// Decode turns a record's value into the fields that the mapping names.
	Decode formats.Decoder
	// Each: every element of an array is an event, and expressions see the
	// element's fields. EachPath is the path of the array in one spelling.
	Each     bool
	EachPath string

	Key              *Expr
	PartitionedByKey bool
	Identity         *Identity // nil: the stream names none
	EventTime        *Expr
	EventTimeFormat  TimeFormat
	// MaxAhead bounds how far an event may lie in the future; microseconds.
	MaxAhead int64

	OutOfOrderness  int64 // microseconds
	IdleAfter       int64 // microseconds; 0: never idle
	AllowedLateness int64 // microseconds
	Halt            bool  // on_error: halt
}

// Identity names what makes two records the same event.
//
// Either EventID is set, which is known for Horizon (microseconds), or Sequence,
// an integer that counts the events of each key of a stream that is partitioned by
// it.
type Identity struct {
	EventID  *Expr
	Horizon  int64
	Sequence *Expr
}

// TimeFormat says how the event-time field writes time.
type TimeFormat uint8

// The time formats.
const (
	TimeAuto TimeFormat = iota // RFC 3339 text, or epoch milliseconds as a number
	TimeRFC3339
	TimeEpochSeconds
	TimeEpochMillis
	TimeEpochMicros
	TimeEpochNanos
)

// ObjectType is one type of the ontology with all properties that this
// pipeline writes.
type ObjectType struct {
	Name       string
	Properties []PropertyDef // sorted by name
}

// PropertyDef is one property. An aggregate's value is the property
// "<aggregate>.<value>".
type PropertyDef struct {
	Name     string
	Kind     event.Kind
	LinkTo   string // KindLink: the type linked to
	Windowed bool
}

// Put is one object type fed by the events of one stream.
type Put struct {
	Stream   *Stream
	Type     string
	Where    *Expr // nil: every event
	ID       *Expr
	Values   []PutValue
	Snapshot bool // mode: snapshot
}

// PutValue is one property of a Put.
type PutValue struct {
	Property string
	Kind     event.Kind
	Value    *Expr
}

// Aggregate is a windowed aggregate over one stream.
type Aggregate struct {
	Stream *Stream
	Type   string
	// Name is the aggregate's name within its type; Type + "." + Name is unique.
	Name     string
	Where    *Expr // nil: every event
	ID       *Expr
	Assigner windows.Assigner
	// Layout has one function for each of Values, in order.
	Layout *windows.Layout
	Values []AggregateValue
	// Fused: the aggregate's id is the key that its stream is partitioned by,
	// so no repartition topic stands between.
	Fused bool
}

// AggregateValue is one published value of an aggregate.
type AggregateValue struct {
	Name  string
	Kind  event.Kind
	Input *Expr // nil for count()
}

// StageName is the name of the aggregate's stage, which topics and groups carry.
func (a *Aggregate) StageName() string { return a.Type + "." + a.Name }
