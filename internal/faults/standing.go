package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// standing describes where a pipeline stands, for whoever looks into a case
// that does not go on: what is announced, who has acknowledged it, how far the
// ontology is, who holds what, and which transactions are open.
func (r *run) standing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var b strings.Builder
	r.describeLog(ctx, &b)
	r.describeGroups(ctx, &b)
	if open, err := r.facts.adm.ListTransactions(ctx, nil, []string{"Ongoing"}); err == nil {
		for _, t := range open.Sorted() {
			fmt.Fprintf(&b, "  open transaction of %s\n", t.TxnID)
		}
	}
	progress, err := r.facts.ask(ctx, `SELECT format('results partition %s applied up to epoch %s, offset %s, under way %s %s', partition, epoch, results_offset, under_way, seen)
		FROM strom.progress ORDER BY partition`)
	if err != nil {
		fmt.Fprintf(&b, "  progress: %v\n", err)
	}
	waits, err := r.facts.ask(ctx, `SELECT format('database: %s for %s: %s', state, now() - state_change, left(query, 60))
		FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'`)
	if err != nil {
		fmt.Fprintf(&b, "  sessions: %v\n", err)
	}
	for _, line := range slices.Concat(progress, waits) {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	return fmt.Errorf("it stands here:\n%s", b.String())
}

func (r *run) describeLog(ctx context.Context, b *strings.Builder) {
	log, err := r.facts.control(ctx)
	if err != nil {
		fmt.Fprintf(b, "  control topic: %v\n", err)
		return
	}
	if all := announcements(log); len(all) > 0 {
		fmt.Fprintf(b, "  newest barrier %s\n", all[len(all)-1].Epoch)
	}
	tasks, err := r.facts.durables(ctx)
	if err != nil {
		fmt.Fprintf(b, "  tasks: %v\n", err)
	}
	slices.SortFunc(tasks, func(x, y durable) int { return strings.Compare(fmt.Sprint(x.Task), fmt.Sprint(y.Task)) })
	for _, d := range tasks {
		fmt.Fprintf(b, "  %s/%s: acknowledged %s, progress %s at %s, committed %s\n", d.Task.Stage, d.Task.Partition, d.AckedEpoch, d.ProgressEpoch, d.Progress, d.Committed)
	}
}

func (r *run) describeGroups(ctx context.Context, b *strings.Builder) {
	names := []string{r.topology.CoordinatorGroup(), r.topology.SinkGroup()}
	for _, s := range r.topology.Stages {
		names = append(names, r.topology.Group(s))
	}
	groups, err := r.facts.adm.DescribeGroups(ctx, names...)
	if err != nil {
		fmt.Fprintf(b, "  groups: %v\n", err)
	}
	for _, g := range groups.Sorted() {
		var members []string
		for i := range g.Members {
			members = append(members, g.Members[i].ClientID+assigned(&g.Members[i]))
		}
		fmt.Fprintf(b, "  group %s: %s, %s\n", g.Group, g.State, strings.Join(members, ", "))
	}
}

func assigned(m *kadm.DescribedGroupMember) string {
	a, ok := m.Assigned.AsConsumer()
	if !ok {
		return ""
	}
	var out []string
	for _, t := range a.Topics {
		out = append(out, fmt.Sprint(t.Partitions))
	}
	return " " + strings.Join(out, " ")
}
