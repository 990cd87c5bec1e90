package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/forge-platform/strom/internal/apachekafka"
	"github.com/forge-platform/strom/kafka/embedded"
)

// The kinds of brokers that Config.Broker names, beside addresses.
const (
	BrokerApache   = "apache"
	BrokerEmbedded = "embedded"
)

// broker is a Kafka in a process of its own.
type broker struct {
	addrs []string
	name  string // for the report
	stop  func() error
}

// startBroker starts a broker of the kind, or takes the one at the addresses.
func startBroker(ctx context.Context, c *Config) (*broker, error) {
	switch c.Broker {
	case BrokerApache:
		return startApache(ctx)
	case BrokerEmbedded:
		return startEmbedded(ctx, c.Self)
	}
	return &broker{addrs: strings.Split(c.Broker, ","), name: "at " + c.Broker, stop: func() error { return nil }}, nil
}

// startApache starts an Apache Kafka with Java's options of its own start
// script (kafka-server-start.sh, kafka-run-class.sh).
func startApache(ctx context.Context) (*broker, error) {
	inst, err := apachekafka.Install(ctx)
	if u := (*apachekafka.UnavailableError)(nil); errors.As(err, &u) {
		u.Hint = ", or take the embedded one"
	}
	if err != nil {
		return nil, err
	}
	node, err := apachekafka.Start(ctx, inst, apachekafka.Options{Java: []string{
		"-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
		"-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
	}})
	if err != nil {
		return nil, err
	}
	return &broker{
		addrs: node.Brokers(), name: "Apache Kafka " + apachekafka.Version,
		stop: func() error { node.Remove(); return nil },
	}, nil
}

// startEmbedded runs this program again, as a broker.
func startEmbedded(ctx context.Context, self []string) (*broker, error) {
	dir, err := os.MkdirTemp("", "strom-bench-broker-")
	if err != nil {
		return nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	cmd := exec.CommandContext(ctx, self[0], slices.Concat(self[1:], []string{string(PartBroker), dir})...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, remove())
	}
	stop := func() error { return errors.Join(in.Close(), cmd.Wait(), remove()) }
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the broker did not start: %w", err), stop())
	}
	return &broker{addrs: strings.Split(strings.TrimSpace(line), ","), name: "embedded (kfake)", stop: stop}, nil
}

// serveBroker is the other side: it prints the addresses, and ends with its input.
func serveBroker(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("the part %s takes a directory", PartBroker)
	}
	b, err := embedded.Start(ctx, embedded.Options{DataDir: args[0]})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, strings.Join(b.Brokers(), ","))
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, b.Stop())
}
