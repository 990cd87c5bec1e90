package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/forge-platform/strom/cmd/strom/internal/metrics"
	"github.com/forge-platform/strom/cmd/strom/internal/serve"
)

// listening is the flag that says where metrics and health are served.
type listening struct{ address string }

// envListen stands in for --listen.
const envListen = "STROM_LISTEN"

func addListenFlag(c *cobra.Command, f *listening, more string) {
	c.Flags().StringVar(&f.address, "listen", serve.DefaultAddress,
		fmt.Sprintf("HOST:PORT for /metrics, /healthz and /readyz, or off (or %s)%s", envListen, more))
}

// web serves how a pipeline is. The zero value serves nothing.
type web struct {
	metrics *metrics.Metrics
	server  *serve.Server
	address string // host:port; empty: nowhere
}

// serveWeb begins to serve, unless it is told not to. Where nobody names an
// address and the default one is taken, a free port will do if anyPort says so.
func (a *app) serveWeb(ctx context.Context, pipeline string, c *cobra.Command, f listening, anyPort bool) (*web, error) {
	address, named := f.address, c.Flags().Changed("listen")
	if !named {
		address, named = a.env(envListen)
	}
	if !named {
		address = serve.DefaultAddress
	}
	if address == "" || address == "off" {
		return &web{}, nil
	}
	l, err := serve.Listen(ctx, address)
	if anyPort && !named && is[*serve.PortInUseError](err) {
		l, err = serve.Listen(ctx, "127.0.0.1:0")
	}
	if is[*serve.AddressError](err) {
		err = &usageError{err: err}
	}
	if err != nil {
		return nil, err
	}
	w := &web{metrics: metrics.New(pipeline, version), address: l.Addr().String()}
	w.server = serve.Start(l, serve.Options{Snapshot: w.metrics.Snapshot, Metrics: w.metrics.Handler(), Log: a.log})
	if addr, ok := l.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		a.log.Warn("metrics and health are open to the network, and ask nobody who he is", "address", w.address)
	}
	a.log.Info("metrics and health are served", "url", w.url())
	return w, nil
}

func (w *web) url() string { return "http://" + w.address }

func (w *web) close() {
	if w.server != nil {
		w.server.Stop()
	}
}
