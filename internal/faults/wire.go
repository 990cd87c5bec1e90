package faults

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is what lies between a broker and its clients. It can lose the answers
// to a kind of request, whose work the broker has then done all the same, break
// connections, and take its time. All of its methods may be called from any
// goroutine.
type wire struct {
	lost  atomic.Int64 // requests and answers that were lost
	slow  atomic.Int64 // nanoseconds before an answer
	loses atomic.Int64 // key of the requests whose answers are lost, noKey for none
	stops atomic.Int64 // key of the requests that are lost themselves

	mu    sync.Mutex // guards conns
	conns map[*wireConn]bool
}

const noKey = -1

func newWire() *wire {
	w := &wire{conns: map[*wireConn]bool{}}
	w.loses.Store(noKey)
	w.stops.Store(noKey)
	return w
}

func (w *wire) listen(network, address string) (net.Listener, error) {
	//nolint:noctx // the broker's own way of listening hands no context in
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return &wireListener{Listener: l, wire: w}, nil
}

// lose loses requests of a kind, or their answers, until end is called, which
// gives how many.
func (w *wire) lose(which *atomic.Int64, key kmsg.Key) (end func() int) {
	was := w.lost.Load()
	which.Store(int64(key))
	return func() int {
		which.Store(noKey)
		return int(w.lost.Load() - was)
	}
}

// cut breaks every connection.
func (w *wire) cut() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Conn.Close() // its reader notices
	}
	return len(w.conns)
}

type wireListener struct {
	net.Listener
	wire *wire
}

// Accept implements net.Listener.
func (l *wireListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: conn, wire: l.wire, asked: map[int32]int16{}}
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	l.wire.conns[c] = true
	return c, nil
}

// wireConn is a connection as the broker has it: it reads requests and writes
// answers, each whole.
type wireConn struct {
	net.Conn
	wire *wire

	// The reader's own: how much of the frame under way is still to come, and
	// the beginning of it.
	left int
	head []byte

	mu    sync.Mutex // guards asked
	asked map[int32]int16
}

// A request begins with its size, key, version and correlation id.
const (
	sizeBytes = 4
	headBytes = sizeBytes + 2 + 2 + 4
)

// Read implements net.Conn.
func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.parse(p[:n]) {
		c.wire.lost.Add(1)
		_ = c.Close() // the client must notice
		return 0, errLost
	}
	return n, err
}

// parse follows the requests, and says whether one of them is to be lost.
func (c *wireConn) parse(p []byte) (lost bool) {
	for len(p) > 0 {
		if len(c.head) < headBytes {
			n := min(headBytes-len(c.head), len(p))
			c.head = append(c.head, p[:n]...)
			p = p[n:]
			if len(c.head) < headBytes {
				return lost
			}
			c.left = int(binary.BigEndian.Uint32(c.head)) - (headBytes - sizeBytes)
			key := int16(binary.BigEndian.Uint16(c.head[sizeBytes:]))
			lost = lost || int64(key) == c.wire.stops.Load()
			c.mu.Lock()
			c.asked[int32(binary.BigEndian.Uint32(c.head[8:]))] = key
			c.mu.Unlock()
		}
		n := min(c.left, len(p))
		c.left -= n
		p = p[n:]
		if c.left == 0 {
			c.head = c.head[:0]
		}
	}
	return lost
}

var errLost = errors.New("a request or its answer is lost")

// Write implements net.Conn. An answer is written at once.
func (c *wireConn) Write(p []byte) (int, error) {
	if d := time.Duration(c.wire.slow.Load()); d > 0 {
		timer := time.NewTimer(d)
		<-timer.C
	}
	if len(p) >= 2*sizeBytes {
		id := int32(binary.BigEndian.Uint32(p[sizeBytes:]))
		c.mu.Lock()
		key, known := c.asked[id]
		delete(c.asked, id)
		c.mu.Unlock()
		if known && int64(key) == c.wire.loses.Load() {
			c.wire.lost.Add(1)
			_ = c.Close() // the client must notice
			return 0, errLost
		}
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *wireConn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
