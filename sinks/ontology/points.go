package ontology

import (
	"bytes"
	"context"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Points lists the points of Apply at which Options.At is called.
func Points() []string {
	return []string{
		"db.begun",     // BEGIN was acknowledged
		"db.half",      // assertions are written, the applied numbers are not
		"db.written",   // all is written, COMMIT is next
		"db.sent",      // COMMIT is on the wire, its outcome open
		"db.committed", // COMMIT was acknowledged
	}
}

// watchCommits makes connections that call at("db.sent") when a COMMIT has just
// been written to the server.
func watchCommits(dial pgconn.DialFunc, at func(string)) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &watchedConn{Conn: conn, at: at}, nil
	}
}

type watchedConn struct {
	net.Conn
	at func(string)
}

// Write implements net.Conn.
func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	// A simple query: its kind, four bytes of length, its text. It is written
	// at once, and nothing with it.
	const head = 5
	if err == nil && len(p) > head && p[0] == 'Q' && bytes.HasPrefix(p[head:], []byte("commit")) {
		c.at("db.sent")
	}
	return n, err
}
