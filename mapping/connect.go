package mapping

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

var (
	brokerAddress = regexp.MustCompile(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):\d{1,5}$`)
	dsnPassword   = regexp.MustCompile(`(?i)\bpassword\s*=`)
	dsnKeyword    = regexp.MustCompile(`^\s*[a-z_]+\s*=`)
)

// maxSecret bounds a secret's file, in bytes.
const maxSecret = 64 << 10

// CheckConnections tells what of the connection settings is missing for a
// pipeline that runs: brokers, a database, secrets whose variable or file
// could not be read. It is empty where everything is there.
func (p *Plan) CheckConnections() []Fault {
	faults := append([]Fault(nil), p.missing...)
	file := p.file
	if len(p.Kafka.Brokers) == 0 {
		faults = append(faults, Fault{
			File: file, Key: "kafka.brokers", Message: "no brokers are given",
			Advice: `add kafka: {brokers: ["localhost:9092"]}`,
		})
	}
	if p.Ontology.Postgres.Reveal() == "" && !hasKey(p.missing, "ontology.postgres") {
		faults = append(faults, Fault{
			File: file, Key: "ontology.postgres", Message: "no database is given",
			Advice: `add ontology: {postgres: "postgres:///NAME"}`,
		})
	}
	sortFaults(faults)
	return faults
}

func hasKey(faults []Fault, key string) bool {
	for _, f := range faults {
		if f.Key == key {
			return true
		}
	}
	return false
}

func (l *loader) kafka(top *section) {
	s := top.sub("kafka", kafkaKeys())
	if s == nil {
		return
	}
	if s.require("brokers", `add brokers: ["localhost:9092"]`) {
		l.plan.Kafka.Brokers = s.brokers()
	}
	l.tls(s)
	l.sasl(s)
}

func (s *section) brokers() []string {
	n := s.value["brokers"]
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		s.fault("brokers", `write a list, as in ["localhost:9092"]`, "this must be a list of brokers, it is %s", describe(n))
		return nil
	}
	var brokers []string
	for _, b := range n.Content {
		if b.Kind != yaml.ScalarNode || !brokerAddress.MatchString(b.Value) {
			s.r.fault(b, s.path("brokers"), "write HOST:PORT, as in localhost:9092", "%s is not the address of a broker", describe(b))
			continue
		}
		brokers = append(brokers, b.Value)
	}
	return brokers
}

func (l *loader) tls(kafka *section) {
	n := kafka.value["tls"]
	switch {
	case n == nil:
		return
	case n.Kind == yaml.ScalarNode && n.Value == "true":
		l.plan.Kafka.TLS = &TLS{}
		return
	case n.Kind == yaml.ScalarNode && n.Value == "false":
		return
	case n.Kind == yaml.ScalarNode:
		kafka.fault("tls", "write true, or the keys "+strings.Join(tlsKeys(), ", "), "%s does not say how to use TLS", describe(n))
		return
	}
	s := kafka.sub("tls", tlsKeys())
	if s == nil {
		return
	}
	t := &TLS{CAFile: s.file("ca"), CertFile: s.file("cert"), KeyFile: s.file("key")}
	t.ServerName, _ = s.text("server_name")
	if s.has("cert") != s.has("key") {
		l.r.fault(s.node, s.key, "give both, or neither", "cert and key go together")
	}
	l.plan.Kafka.TLS = t
}

// file gives a path, relative ones from the mapping file's directory.
func (s *section) file(name string) string {
	path, ok := s.text(name)
	if !ok {
		return ""
	}
	path = s.r.resolve(path)
	if _, err := os.Stat(path); err != nil {
		s.lacks(name, "", "the file cannot be read: %v", err)
	}
	return path
}

func (r *reader) resolve(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.dir(), path)
}

func (l *loader) sasl(kafka *section) {
	s := kafka.sub("sasl", saslKeys())
	if s == nil {
		return
	}
	a := &SASL{}
	if s.require("mechanism", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512") {
		a.Mechanism = s.oneOf("mechanism", "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
	}
	if s.require("username", "") {
		a.Username, _ = s.text("username")
	}
	if s.require("password", "write password: {env: NAME} or {file: PATH}") {
		a.Password = s.secret("password")
	}
	l.plan.Kafka.SASL = a
}

func (l *loader) ontology(top *section) {
	s := top.sub("ontology", ontologyKeys())
	if s == nil {
		return
	}
	if s.require("postgres", `add postgres: "postgres:///NAME"`) {
		if n := s.value["postgres"]; n.Kind == yaml.ScalarNode {
			l.plan.Ontology.Postgres = s.postgres()
		} else {
			l.plan.Ontology.Postgres = s.secret("postgres")
		}
	}
	if s.has("password") {
		l.plan.Ontology.Password = s.secret("password")
	}
}

// postgres reads the address of the database as it stands in the file, where
// no password may be.
func (s *section) postgres() Secret {
	text, ok := s.text("postgres")
	if !ok {
		return Secret{}
	}
	const advice = "leave it out, and add password: {env: NAME} or {file: PATH}; or give the whole address as {env: NAME}"
	u, err := url.Parse(text)
	isURL := strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
	switch {
	case isURL && err != nil:
		// The text itself may hold a password, so it is not shown.
		s.fault("postgres", "write postgres://HOST:PORT/NAME", "this is not a URL")
	case isURL:
		_, inUser := u.User.Password()
		if inUser || u.Query().Has("password") {
			s.fault("postgres", advice, "a password must not stand in the file")
		}
	case dsnPassword.MatchString(text):
		s.fault("postgres", advice, "a password must not stand in the file")
	case !dsnKeyword.MatchString(text):
		s.fault("postgres", "write postgres://HOST:PORT/NAME, or host=... dbname=...", "this is not an address of a database")
	}
	return NewSecret(text)
}

// secret reads {env: NAME} or {file: PATH}. What cannot be read is noted for
// CheckConnections.
func (s *section) secret(name string) Secret {
	n := s.value[name]
	if n.Kind == yaml.ScalarNode {
		s.fault(name, "write {env: NAME} or {file: PATH}", "a secret must not stand in the file")
		return Secret{}
	}
	from := s.sub(name, secretKeys())
	if from == nil {
		return Secret{}
	}
	if from.has("env") == from.has("file") {
		s.r.fault(n, s.path(name), "write {env: NAME} or {file: PATH}", "exactly one of env and file says where the secret is")
		return Secret{}
	}
	if variable, ok := from.text("env"); ok {
		value, found := s.r.env(variable)
		if !found || value == "" {
			s.lacks(name, "set it", "the environment variable %s is not set", variable)
		}
		return NewSecret(value)
	}
	path, ok := from.text("file")
	if !ok {
		return Secret{}
	}
	data, err := readBounded(s.r.resolve(path), maxSecret)
	switch {
	case err != nil:
		s.lacks(name, "", "the secret's file cannot be read: %v", err)
	case len(data) > maxSecret:
		s.lacks(name, "", "the secret's file %s is longer than %d bytes", path, maxSecret)
		data = nil
	}
	return NewSecret(strings.TrimRight(string(data), "\r\n"))
}

// lacks notes a fault that only matters to who connects.
func (s *section) lacks(name, advice, format string, args ...any) {
	kept := s.r.faults
	s.r.faults = nil
	s.fault(name, advice, format, args...)
	s.r.missing = append(s.r.missing, s.r.faults...)
	s.r.faults = kept
}
