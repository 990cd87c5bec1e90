package ontology

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/forge-platform/strom/mapping"
)

// ConnectError says that the database could not be reached or used: what was
// tried, where, why it failed, and what to do. It never holds a password.
type ConnectError struct {
	Where  string // host:port/database, or what is wrong with the setting
	Advice string
	Err    error
}

// Error gives the whole.
func (e *ConnectError) Error() string {
	return fmt.Sprintf("cannot use the ontology's database at %s: %v; %s", e.Where, e.Err, e.Advice)
}

// Is matches ErrConnect.
func (e *ConnectError) Is(target error) bool { return target == ErrConnect }

// Unwrap gives the reason.
func (e *ConnectError) Unwrap() error { return e.Err }

// connector opens connections, all set up alike, and keeps idle ones.
type connector struct {
	config *pgx.ConnConfig
	where  string
	// setup runs on each new connection.
	setup []string
	// statements are prepared on each new connection: name → SQL.
	statements map[string]string

	mu     sync.Mutex // guards what follows
	idle   []*pgx.Conn
	closed bool
}

// maxIdle bounds the connections that are kept open without use.
const maxIdle = 3

func newConnector(conn mapping.Ontology, name string) (*connector, error) {
	dsn := conn.Postgres.Reveal()
	if dsn == "" {
		return nil, &ConnectError{
			Where: "(nowhere)", Err: errors.New("no connection is declared"),
			Advice: "set ontology.postgres in the mapping",
		}
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, &ConnectError{
			Where: "(unreadable setting)", Err: parseReason(dsn, err),
			Advice: "give a URL like postgres://user@host:5432/database, or keywords as libpq takes them",
		}
	}
	if pw := conn.Password.Reveal(); pw != "" {
		config.Password = pw
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = name
	}
	config.RuntimeParams["client_encoding"] = "UTF8"
	return &connector{config: config, where: where(config), setup: []string{
		"SET timezone = 'UTC'", "SET search_path = pg_catalog",
	}}, nil
}

func where(c *pgx.ConnConfig) string {
	if strings.HasPrefix(c.Host, "/") {
		return fmt.Sprintf("%s (port %d)/%s", c.Host, c.Port, c.Database)
	}
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))) + "/" + c.Database
}

// parseReason says why a setting cannot be read. The driver's error may quote
// the setting, so only its inner reason is taken, and whatever in it could be
// a part of a password hides the whole.
func parseReason(dsn string, err error) error {
	if urlErr := (*url.Error)(nil); errors.As(err, &urlErr) {
		err = urlErr.Err
	} else if parseErr := (*pgconn.ParseConfigError)(nil); errors.As(err, &parseErr) && parseErr.Unwrap() != nil {
		err = parseErr.Unwrap()
	}
	reason := err.Error()
	for _, secret := range secrets(dsn) {
		if strings.Contains(reason, secret) {
			return errors.New("it is neither a PostgreSQL URL nor a keyword string")
		}
	}
	return errors.New(reason)
}

// secrets gives every part of a setting that may be a password, as written and
// as decoded.
func secrets(dsn string) []string {
	out := []string{dsn}
	if _, rest, ok := strings.Cut(dsn, "://"); ok {
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			if _, pw, ok := strings.Cut(rest[:i], ":"); ok {
				out = append(out, pw)
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?i)password\s*=\s*('[^']*'?|[^\s&]*)`).FindAllStringSubmatch(dsn, -1) {
		out = append(out, strings.Trim(m[1], "'"))
	}
	for _, s := range out {
		if d, err := url.PathUnescape(s); err == nil {
			out = append(out, d)
		}
	}
	all := out[:0]
	for _, s := range out {
		if s != "" {
			all = append(all, s)
		}
	}
	return all
}

// get gives a connection that nobody else uses, and opens one if need be.
func (c *connector) get(ctx context.Context) (*pgx.Conn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errClosed
	}
	if n := len(c.idle); n > 0 {
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	conn, err := pgx.ConnectConfig(ctx, c.config)
	if err != nil {
		return nil, c.wrap(err)
	}
	if err := c.prepare(ctx, conn); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

var errClosed = errors.New("the ontology's connections are closed")

func (c *connector) prepare(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range c.setup {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("set up the connection: %w", err)
		}
	}
	for name, sql := range c.statements {
		if _, err := conn.PgConn().Prepare(ctx, name, sql, nil); err != nil {
			return fmt.Errorf("prepare %s: %w", name, err)
		}
	}
	return nil
}

// put takes a connection back. One that is broken, or stands in a transaction,
// is closed.
func (c *connector) put(conn *pgx.Conn) {
	healthy := !conn.IsClosed() && conn.PgConn().TxStatus() == 'I'
	c.mu.Lock()
	if healthy && !c.closed && len(c.idle) < maxIdle {
		c.idle = append(c.idle, conn)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	closeConn(conn)
}

// close ends the idle connections; one in use ends when it is put back.
func (c *connector) close() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, conn := range idle {
		closeConn(conn)
	}
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // best effort: the server notices a broken one by itself
}

// wrap makes a failure to connect one that says what to do.
func (c *connector) wrap(err error) error {
	e := &ConnectError{Where: c.where, Err: plain(err), Advice: "check ontology.postgres in the mapping and that the server runs"}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case strings.HasPrefix(pg.Code, "28"):
			e.Advice = "check user and password, and the server's pg_hba.conf"
		case pg.Code == "3D000":
			e.Advice = fmt.Sprintf("create it (createdb %s), or name another in ontology.postgres", c.config.Database)
		case strings.HasPrefix(pg.Code, "53"):
			e.Advice = "the server is out of connections or memory: free some, or raise max_connections"
		case strings.HasPrefix(pg.Code, "57"):
			e.Advice = "the server is starting or stopping: try again"
		}
	} else if strings.Contains(err.Error(), "tls") {
		e.Advice = "check sslmode and sslrootcert in ontology.postgres"
	}
	return e
}

// plain cuts the driver's preamble off, which repeats where and who.
func plain(err error) error {
	var ce *pgconn.ConnectError
	if errors.As(err, &ce) && ce.Unwrap() != nil {
		return once(ce.Unwrap())
	}
	return err
}

// once puts several attempts that failed (of each address, with and without
// TLS) on one line, and what failed for the same reason there once.
func once(err error) error {
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var all error
	told := map[string]bool{}
	for _, e := range several.Unwrap() {
		switch text := e.Error(); {
		case told[text]:
			continue
		case all == nil:
			all = e
		default:
			all = fmt.Errorf("%w; %w", all, e)
		}
		told[e.Error()] = true
	}
	return all
}
