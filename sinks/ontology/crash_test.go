package ontology

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/internal/localpg/pgtest"
)

// cutter is a proxy in front of the server that breaks a connection at one
// message from the client: before it reaches the server, or after it (then the
// answer is lost).
type cutter struct {
	t        testing.TB
	listener net.Listener
	network  string
	address  string
	url      string

	mu      sync.Mutex
	seen    int // messages from clients since arm
	at      int // the message to cut at; 0: none
	commits bool
	forward bool
	cut     bool
}

func newCutter(t testing.TB, databaseURL string) *cutter {
	t.Helper()
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{t: t}
	c.network, c.address = pgconn.NetworkAddress(config.Host, config.Port)
	c.listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.listener.Close() })
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password),
		Host: c.listener.Addr().String(), Path: config.Database, RawQuery: "sslmode=disable",
	}
	c.url = u.String()
	go c.serve()
	return c
}

func (c *cutter) serve() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(c.network, c.address)
		if err != nil {
			_ = client.Close()
			return
		}
		go func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		}()
		go func() {
			defer server.Close()
			defer client.Close()
			c.pass(client, server)
		}()
	}
}

// pass forwards the client's messages one by one.
func (c *cutter) pass(client, server net.Conn) {
	first := true // the startup message has no type byte
	for {
		head := make([]byte, 5)
		if first {
			head = head[:4]
		}
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[len(head)-4:])-4)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		cut, forward := c.decide(first, head[0], body)
		if !cut || forward {
			if _, err := server.Write(slices.Concat(head, body)); err != nil {
				return
			}
		}
		if cut {
			_ = client.Close() // whatever the server answers is lost
			time.AfterFunc(50*time.Millisecond, func() { _ = server.Close() })
			_, _ = io.Copy(io.Discard, client)
			return
		}
		first = false
	}
}

func (c *cutter) decide(startup bool, kind byte, body []byte) (cut, forward bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	commit := !startup && kind == 'Q' && strings.HasPrefix(strings.ToLower(string(body)), "commit")
	if startup || c.commits && !commit {
		return false, false
	}
	c.seen++
	if c.seen == c.at {
		c.cut = true
		return true, c.forward
	}
	return false, false
}

// arm cuts at the nth message from now; commits counts only those.
func (c *cutter) arm(n int, commits, forward bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen, c.at, c.commits, c.forward, c.cut = 0, n, commits, forward, false
}

func (c *cutter) wasCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func quick() Options {
	return Options{Retry: Retry{First: time.Millisecond, Most: 20 * time.Millisecond}, RowsPerStatement: 5}
}

func openThrough(t testing.TB, c *cutter, p Pipeline) *Postgres {
	t.Helper()
	s, err := Open(t.Context(), connection(c.url), p, quick())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestALostAnswerToCommitIsResolvedByWhatIsStored(t *testing.T) {
	for _, forward := range []bool{true, false} {
		t.Run(fmt.Sprint("commit reached the server: ", forward), func(t *testing.T) {
			url := pgtest.New(t)
			c := newCutter(t, url)
			l := newLog("")
			s, direct := openThrough(t, c, l.p), postgresSubject(t, url, l.p)
			for epoch := 1; epoch <= 4; epoch++ {
				l.put("a0", int64(epoch), prop("status", fmt.Sprint(epoch)))
				l.window("b1", 0, uint32(epoch), event.CauseCorrection, epoch)
				l.end()
				c.arm(1, true, forward)
				if err := s.Apply(t.Context(), l.all()); err != nil {
					t.Fatal(err)
				}
				if !c.wasCut() {
					t.Fatal("no commit was cut")
				}
			}
			direct.believed(t, 4, "a0 status=1 [1,2) on_time", "a0 status=2 [2,3) on_time", "a0 status=3 [3,4) on_time",
				"a0 status=4 [4,open) on_time", "b1 hourly.avg=8 [0,10) correction", "b1 hourly.count=4 [0,10) correction")
			if n := len(direct.history("", "b1", "hourly.count")); n != 4 {
				t.Errorf("%d versions of four", n)
			}
		})
	}
}

func TestAConnectionCutAtAnyMessageLosesAndDoublesNothing(t *testing.T) {
	url := pgtest.New(t)
	c := newCutter(t, url)
	l := newLog("")
	s, direct, mem := openThrough(t, c, l.p), postgresSubject(t, url, l.p), memorySubject(l.p)
	apply := func() {
		e := int(l.epoch)
		l.put("a0", int64(1000-e), prop("status", "placed"), prop("total", fmt.Sprint(e)))
		l.put("a1", int64(e), prop("status", "x"))
		l.put(fmt.Sprint("new", e), 1, prop("status", "new"))
		l.window("b1", 0, uint32(e), event.CauseCorrection, e)
		l.window("b1", int64(20*e), 1, event.CauseOnTime, e)
		l.end()
		chunks := l.all()
		if err := s.Apply(t.Context(), chunks); err != nil {
			t.Fatal(err)
		}
		mem.apply(t, chunks...)
	}
	apply()
	for _, forward := range []bool{true, false} {
		n := 1
		for ; ; n++ {
			c.arm(n, false, forward)
			apply()
			if !c.wasCut() {
				break
			}
		}
		if n < 12 {
			t.Fatalf("only %d messages", n)
		}
		t.Logf("%d places to cut at", n-1)
		if got, want := jsonLines(t, direct.history("", "", "")), jsonLines(t, mem.history("", "", "")); got != want {
			t.Fatalf("forwarded %v: got\n%s\nwant\n%s", forward, got, want)
		}
	}
}

func TestADatabaseThatIsAwayIsWaitedForUntilTheContextEnds(t *testing.T) {
	c := newCutter(t, pgtest.New(t))
	l := newLog("")
	s := openThrough(t, c, l.p)
	if err := c.listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Progress(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A process that is stopped in the middle of a transaction does not keep the
// others from its partitions for ever, and goes on when it wakes.
func TestAWriterThatSleepsInATransactionHoldsUpNobodyForLong(t *testing.T) {
	url := pgtest.New(t)
	l := newLog("")
	asleep, wake := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o := quick()
	o.At = func(point string) {
		if point == "db.half" {
			once.Do(func() {
				close(asleep)
				<-wake
			})
		}
	}
	sleeper, err := Open(t.Context(), connection(url), l.p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sleeper.Close)
	other := openPostgres(t, url, l.p)
	l.put("a0", 1, prop("status", "placed"))
	l.end()
	chunks := l.all()
	slept := make(chan error, 1)
	go func() { slept <- sleeper.Apply(t.Context(), chunks) }()
	<-asleep
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := other.Apply(ctx, chunks); err != nil {
		t.Errorf("the other one: %v", err)
	}
	close(wake)
	// It finds that somebody else has written.
	var fenced *FencedError
	if err := <-slept; !errors.As(err, &fenced) {
		t.Errorf("the one that slept: %v, want that it is fenced", err)
	}
}
