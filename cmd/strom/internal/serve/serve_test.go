package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forge-platform/strom/kafka"
)

// serving starts a server over a snapshot.
func serving(t *testing.T, o Options) (base string, s *Server) {
	t.Helper()
	if o.Metrics == nil {
		o.Metrics = http.NotFoundHandler()
	}
	o.Log = slog.New(slog.DiscardHandler)
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = Start(l, o)
	t.Cleanup(s.Stop)
	return "http://" + l.Addr().String(), s
}

func answer(s kafka.Snapshot, ok bool) func() (kafka.Snapshot, bool) {
	return func() (kafka.Snapshot, bool) { return s, ok }
}

func ask(t *testing.T, method, url string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func TestHealthAndReadinessSayWhy(t *testing.T) {
	busy := func(d time.Duration) kafka.Snapshot {
		return kafka.Snapshot{Busy: []kafka.BusyLoop{{Name: "stage ingest.orders", For: time.Second}, {Name: "task ingest.orders/1", For: d}}}
	}
	for _, c := range []struct {
		path     string
		snapshot kafka.Snapshot
		none     bool
		code     int
		body     string
	}{
		{"/healthz", kafka.Snapshot{}, true, 200, `{"status":"ok"}`},
		{"/readyz", kafka.Snapshot{}, true, 503, `{"status":"not ready","reasons":["it is starting"]}`},
		{"/healthz", kafka.Snapshot{NotReady: []string{"x"}}, false, 200, `{"status":"ok"}`},
		{"/readyz", kafka.Snapshot{NotReady: []string{"a", "b"}}, false, 503, `{"status":"not ready","reasons":["a","b"]}`},
		{"/readyz", kafka.Snapshot{}, false, 200, `{"status":"ready"}`},
		{"/healthz", busy(stuckAfter), false, 200, `{"status":"ok"}`},
		{"/healthz", busy(stuckAfter + 3*time.Second), false, 503, `{"status":"stuck","reasons":["task ingest.orders/1: has not gone on for 2m3s"]}`},
		{"/readyz", busy(time.Hour), false, 200, `{"status":"ready"}`},
	} {
		base, _ := serving(t, Options{Snapshot: answer(c.snapshot, !c.none)})
		if code, body := ask(t, http.MethodGet, base+c.path); code != c.code || body != c.body {
			t.Errorf("%s of %+v: %d %s, want %d %s", c.path, c.snapshot, code, body, c.code, c.body)
		}
	}
}

func TestOnlyWhatIsServedIsAnswered(t *testing.T) {
	base, _ := serving(t, Options{Snapshot: answer(kafka.Snapshot{}, true)})
	if code, body := ask(t, http.MethodGet, base+"/"); code != 200 || !strings.Contains(body, "/readyz") {
		t.Errorf("the index: %d %s", code, body)
	}
	for path, want := range map[string]int{"/debug/pprof/": 404, "/readyz/x": 404} {
		if code, _ := ask(t, http.MethodGet, base+path); code != want {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := ask(t, http.MethodPost, base+"/readyz"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	if code, _ := ask(t, http.MethodGet, base+"/readyz", "X-Large", strings.Repeat("x", 4*headerBytes)); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %d", code)
	}
	if code, _ := ask(t, http.MethodHead, base+"/healthz"); code != http.StatusOK {
		t.Errorf("HEAD: %d", code)
	}
}

// An answer under way is given; a stop does not wait for one that takes for ever.
func TestAStopIsGracefulAndPrompt(t *testing.T) {
	for _, c := range []struct {
		name     string
		answered bool
	}{{"an answer under way", true}, {"an answer that never comes", false}} {
		asked := make(chan struct{})
		release := make(chan struct{})
		slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(asked)
			select {
			case <-release:
			case <-r.Context().Done():
			}
			fmt.Fprint(w, "late")
		})
		base, s := serving(t, Options{Snapshot: answer(kafka.Snapshot{}, true), Metrics: slow})
		got := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, base+"/metrics", http.NoBody)
			if err == nil {
				var resp *http.Response
				if resp, err = http.DefaultClient.Do(req); err == nil {
					_, err = io.ReadAll(resp.Body)
					err = errors.Join(err, resp.Body.Close())
				}
			}
			got <- err
		}()
		<-asked
		if c.answered {
			time.AfterFunc(100*time.Millisecond, func() { close(release) })
		}
		started := time.Now()
		s.Stop()
		s.Stop()
		if took := time.Since(started); took > stopPatience+3*time.Second {
			t.Errorf("%s: stopped after %s", c.name, took)
		}
		if err := <-got; (err == nil) != c.answered {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.answered {
			continue
		}
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(base, "http://")); err == nil {
			_ = conn.Close()
			t.Error("somebody still listens")
		}
	}
}

func TestTheDefaultAddressIsLoopback(t *testing.T) {
	host, _, err := net.SplitHostPort(DefaultAddress)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("%s: %v", DefaultAddress, err)
	}
}
