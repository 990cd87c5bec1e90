package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/forge-platform/strom/kafka"
)

// stuckAfter is how long a loop may work on one piece. The longest that is known
// takes seconds; whoever is told of a stuck process ends it, which costs a
// take-over.
const stuckAfter = 2 * time.Minute

// verdict is what /healthz and /readyz answer.
type verdict struct {
	Status  string   `json:"status"`
	Reasons []string `json:"reasons,omitempty"`
}

const index = `/metrics  for Prometheus
/healthz  200 while the process works, 503 where a part of it has stopped
/readyz   200 once this replica does its part, 503 and the reasons while it does not
`

func handler(o *Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { health(o).write(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { readiness(o).write(w) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, index)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(w, r)
	})
}

// health says whether the loops turn. What the process waits for outside of
// itself is no fault of its own.
func health(o *Options) verdict {
	s, _ := o.Snapshot()
	return verdictOf("ok", "stuck", stuck(&s))
}

func stuck(s *kafka.Snapshot) []string {
	var reasons []string
	for _, l := range s.Busy {
		if l.For > stuckAfter {
			reasons = append(reasons, fmt.Sprintf("%s: has not gone on for %s", l.Name, l.For.Round(time.Second)))
		}
	}
	return reasons
}

// readiness says whether the replica does its part.
func readiness(o *Options) verdict {
	s, ok := o.Snapshot()
	if !ok {
		return verdictOf("ready", "not ready", []string{"it is starting"})
	}
	return verdictOf("ready", "not ready", s.NotReady)
}

func verdictOf(good, bad string, reasons []string) verdict {
	if len(reasons) == 0 {
		return verdict{Status: good}
	}
	return verdict{Status: bad, Reasons: reasons}
}

func (v verdict) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if len(v.Reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(v) // whoever asked has gone
}
