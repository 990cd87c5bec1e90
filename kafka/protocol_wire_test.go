package kafka_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is the network between one replica and the brokers. It reads what the
// replica asks for, and can lose, keep back or falsify single messages.
type wire struct {
	stage   string // the stage's consumer group
	input   string // its input topic
	inputID [16]byte

	mu      sync.Mutex // guards all below
	conns   map[*wireConn]bool
	cut     bool
	deaf    map[string]bool     // groups of whose answers to heartbeats the replica hears only good ones
	loss    *loss               // what happens to the next EndTxn of the stage
	members map[string]memberOf // by group
	// transaction is the transactional id in the stage's last EndTxn.
	transaction string
	// fetched is the offset that was last asked for, by partition of the input.
	fetched map[int32]int64
}

// memberOf is a replica's membership as it says itself.
type memberOf struct {
	id         string
	generation int32
}

// loss is what happens to an EndTxn: it is lost itself, or its answer is; in
// both cases the repeats wait until they are let through.
type loss struct {
	request bool
	done    chan struct{} // closed when it is lost
	resume  chan struct{} // closed when the repeats are let through
}

var errCut = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func newWire(stage, input string, inputID [16]byte) *wire {
	return &wire{
		stage: stage, input: input, inputID: inputID, conns: map[*wireConn]bool{}, deaf: map[string]bool{},
		members: map[string]memberOf{}, fetched: map[int32]int64{},
	}
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = conn.Close()
		return nil, errCut
	}
	c := &wireConn{Conn: conn, wire: w, answers: map[int32]answer{}, beats: map[string]bool{}, closed: make(chan struct{})}
	w.conns[c] = true
	return c, nil
}

// cutOff ends all connections, and there are no more.
func (w *wire) cutOff() {
	w.mu.Lock()
	w.cut = true
	conns := w.conns
	w.conns = map[*wireConn]bool{}
	w.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

// setDeaf lets the replica take every heartbeat in the group for a good one, or
// no longer.
func (w *wire) setDeaf(group string, deaf bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf[group] = deaf
}

// beats reports whether the group's own connection has carried a heartbeat.
func (w *wire) beats(group string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		if c.beats[group] {
			return true
		}
	}
	return false
}

// lose arms a loss of the stage's next EndTxn.
func (w *wire) lose(request bool) *loss {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loss = &loss{request: request, done: make(chan struct{}), resume: make(chan struct{})}
	return w.loss
}

func (w *wire) member(group string) memberOf {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.members[group]
}

func (w *wire) lastTransaction() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.transaction
}

func (w *wire) fetchedTo(p int32) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fetched[p]
}

// asked looks at a request before it is sent. It gives what is to be done with
// the answer, if anything; wait is to be waited for before the request is sent;
// lost says that it is not sent at all.
func (w *wire) asked(c *wireConn, req kmsg.Request) (a answer, wait <-chan struct{}, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r := req.(type) {
	case *kmsg.FetchRequest:
		w.fetches(r)
	case *kmsg.JoinGroupRequest:
		w.belongs(r.Group, memberOf{id: r.MemberID, generation: w.members[r.Group].generation})
	case *kmsg.SyncGroupRequest:
		w.belongs(r.Group, memberOf{id: r.MemberID, generation: r.Generation})
	case *kmsg.HeartbeatRequest:
		// A connection that carries its first one now is not the group's: the
		// engine asks by itself whether its generation is the current one.
		if w.deaf[r.Group] && c.beats[r.Group] {
			return goodHeartbeat(r), nil, false
		}
		c.beats[r.Group] = true
	case *kmsg.EndTxnRequest:
		if strings.HasPrefix(r.TransactionalID, w.stage+".") {
			w.transaction = r.TransactionalID
			return w.ends()
		}
	}
	return nil, nil, false
}

func (w *wire) belongs(group string, m memberOf) {
	if m.id != "" {
		w.members[group] = m
	}
}

func (w *wire) fetches(r *kmsg.FetchRequest) {
	for i := range r.Topics {
		if t := &r.Topics[i]; t.Topic == w.input || t.TopicID == w.inputID {
			for _, p := range t.Partitions {
				w.fetched[p.Partition] = p.FetchOffset
			}
		}
	}
}

func (w *wire) ends() (a answer, wait <-chan struct{}, lost bool) {
	l := w.loss
	if l == nil {
		return nil, nil, false
	}
	select {
	case <-l.done:
		return nil, l.resume, false // a repeat
	default:
	}
	if l.request {
		close(l.done)
		return nil, nil, true
	}
	return func([]byte) ([]byte, error) {
		close(l.done)
		return nil, io.ErrUnexpectedEOF
	}, nil, false
}

// answer takes the frame of an answer (without its size) and gives the one that
// the replica gets, or the error with which the connection breaks.
type answer func(frame []byte) ([]byte, error)

func goodHeartbeat(req *kmsg.HeartbeatRequest) answer {
	return func(frame []byte) ([]byte, error) {
		head := 4 // correlation id
		if req.IsFlexible() {
			head++ // no tags
		}
		resp := kmsg.NewPtrHeartbeatResponse()
		resp.SetVersion(req.GetVersion())
		if err := resp.ReadFrom(frame[head:]); err != nil {
			return nil, err
		}
		resp.ErrorCode = 0
		return resp.AppendTo(frame[:head:head]), nil
	}
}

// wireConn is one connection. Every Write is a whole request: franz-go writes so.
type wireConn struct {
	net.Conn
	wire *wire

	mu      sync.Mutex       // guards answers
	answers map[int32]answer // by correlation id
	beats   map[string]bool  // groups whose heartbeats came by; guarded by wire.mu

	rest   []byte // of the frame that is being read; the reader's only
	once   sync.Once
	closed chan struct{}
}

// Write implements net.Conn.
func (c *wireConn) Write(b []byte) (int, error) {
	req, correlation := parseRequest(b)
	if req == nil {
		return c.Conn.Write(b)
	}
	a, wait, lost := c.wire.asked(c, req)
	if lost {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	if wait != nil {
		select {
		case <-wait:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	if a != nil {
		c.mu.Lock()
		c.answers[correlation] = a
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn.
func (c *wireConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		if err := c.frame(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// frame reads the next answer.
func (c *wireConn) frame() error {
	var size [4]byte
	if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c.Conn, body); err != nil {
		return err
	}
	correlation := int32(binary.BigEndian.Uint32(body))
	c.mu.Lock()
	a := c.answers[correlation]
	delete(c.answers, correlation)
	c.mu.Unlock()
	if a != nil {
		var err error
		if body, err = a(body); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	c.rest = append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	return nil
}

// Close implements net.Conn.
func (c *wireConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.wire.mu.Lock()
		delete(c.wire.conns, c)
		c.wire.mu.Unlock()
	})
	return c.Conn.Close()
}

// parseRequest gives the request, where it is one that a wire looks at, and its
// correlation id.
func parseRequest(b []byte) (kmsg.Request, int32) {
	const head = 4 + 2 + 2 + 4 + 2 // size, key, version, correlation id, length of the client id
	if len(b) < head {
		return nil, 0
	}
	var req kmsg.Request
	switch kmsg.Key(binary.BigEndian.Uint16(b[4:])) {
	case kmsg.Fetch:
		req = kmsg.NewPtrFetchRequest()
	case kmsg.JoinGroup:
		req = kmsg.NewPtrJoinGroupRequest()
	case kmsg.SyncGroup:
		req = kmsg.NewPtrSyncGroupRequest()
	case kmsg.Heartbeat:
		req = kmsg.NewPtrHeartbeatRequest()
	case kmsg.EndTxn:
		req = kmsg.NewPtrEndTxnRequest()
	default:
		return nil, 0
	}
	req.SetVersion(int16(binary.BigEndian.Uint16(b[6:])))
	body := b[head+int(binary.BigEndian.Uint16(b[12:])):]
	if req.IsFlexible() {
		body = body[1:] // no tags
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, 0
	}
	return req, int32(binary.BigEndian.Uint32(b[8:]))
}
