package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// changes says that the mapping changes while the case runs: the first replica
// has the old file, all others the new one.
func (c Case) changes() bool { return strings.HasPrefix(c.Point, "mapping.") }

// writeChanged writes the new file. What it changes takes effect in place and
// decides nothing of the results: the oracle's answer holds whenever it comes.
func (r *run) writeChanged() error {
	maxAhead := regexp.MustCompile(`max_ahead: (\d+)h`)
	text := maxAhead.ReplaceAllString(r.workload.mapping, "max_ahead: ${1}h30m")
	if text == r.workload.mapping {
		return fmt.Errorf("the mapping of %s has no max_ahead to be changed", r.c.Workload)
	}
	r.changed = filepath.Join(r.dir, "changed.yaml")
	return os.WriteFile(r.changed, []byte(text), 0o600)
}

// checkMapping makes sure that the new mapping is in force in the end, and that it
// came with one barrier.
func (r *run) checkMapping(ctx context.Context) error {
	if !r.c.changes() {
		return nil
	}
	plan, err := mapping.Load(r.changed, os.LookupEnv)
	if err != nil {
		return err
	}
	in, err := kafka.ReadRegistered(ctx, mapping.Kafka{Brokers: r.broker.Brokers()}, processors.NewTopology(plan, generation), nil)
	if err != nil {
		return err
	}
	if in.Version != plan.Version || in.Epoch == 0 {
		return fmt.Errorf("mapping %s is in force since epoch %s, and the new file is %s", in.Version, in.Epoch, plan.Version)
	}
	return nil
}
