// Package serve answers over HTTP how a running pipeline is: /metrics for
// Prometheus, /healthz and /readyz for whoever starts and stops processes.
//
// It changes nothing and asks for no password: it listens on loopback unless
// told otherwise, and its answers hold no secrets and no records.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/forge-platform/strom/kafka"
)

// DefaultAddress is where a pipeline listens unless told otherwise.
const DefaultAddress = "127.0.0.1:7466"

// AddressError says that an address cannot be listened on as it is written.
type AddressError struct {
	Address string
	Why     string
}

// Error says what to do as well.
func (e *AddressError) Error() string {
	return fmt.Sprintf("cannot listen on %q: %s; give HOST:PORT, such as %s, or off", e.Address, e.Why, DefaultAddress)
}

// PortInUseError says that somebody else listens there.
type PortInUseError struct {
	Address string
	Err     error
}

// Error says what to do as well.
func (e *PortInUseError) Error() string {
	host, port, _ := net.SplitHostPort(e.Address) // it was split before
	return fmt.Sprintf("port %s on %s is in use by another program (%v): choose another port for metrics and health with --listen, %s for a free one, or --listen off for none",
		port, host, e.Err, net.JoinHostPort(host, "0"))
}

// Unwrap gives the cause.
func (e *PortInUseError) Unwrap() error { return e.Err }

// Check says whether an address is one, as an *AddressError. A host must be
// named: without one Go listens on every interface.
func Check(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return &AddressError{Address: address, Why: "it is not HOST:PORT"}
	}
	if host == "" {
		return &AddressError{Address: address, Why: "it names no host (0.0.0.0 is every interface)"}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return &AddressError{Address: address, Why: fmt.Sprintf("%q is not a port", port)}
	}
	return nil
}

// Listen takes the address, so that nobody else does. Its errors are an
// *AddressError and a *PortInUseError.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	if err := Check(address); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &PortInUseError{Address: address, Err: syscall.EADDRINUSE}
	case err != nil:
		return nil, &AddressError{Address: address, Why: err.Error()}
	}
	return l, nil
}

// Options say what to serve.
type Options struct {
	// Snapshot says how the engine is; false: there is none yet.
	Snapshot func() (kafka.Snapshot, bool)
	Metrics  http.Handler
	Log      *slog.Logger
}

// Server serves until it is stopped.
type Server struct {
	http  *http.Server
	ended chan struct{}
}

// The bounds of a connection. A scrape of a pipeline of thousands of tasks takes
// well under a second.
const (
	headerBytes   = 16 << 10
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	stopPatience  = 2 * time.Second
)

// Start serves on the listener, which belongs to the server from then on.
func Start(l net.Listener, o Options) *Server {
	s := &Server{ended: make(chan struct{}), http: &http.Server{
		Handler: handler(&o), MaxHeaderBytes: headerBytes,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}}
	go func() {
		defer close(s.ended)
		if err := s.http.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			o.Log.Warn("metrics and health are no longer served", "error", err)
		}
	}()
	return s
}

// Stop lets answers under way end, for a moment, and then ends the server. It is
// safe to call twice.
func (s *Server) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close() // nothing depends on whoever still reads
	}
	<-s.ended
}
