package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// settlePatience bounds how long it may take until no transaction is open.
const settlePatience = 5 * time.Second

// atCrash looks at what a crash has left: committed offsets that are not ahead
// of the changelog, and the answers that must be given again.
func (r *run) atCrash(ctx context.Context) (answers, error) {
	// Brokers write the end of a transaction to its partitions one by one.
	err := poll(ctx, "no committed offset is ahead of its changelog", settlePatience, func() (bool, error) {
		tasks, err := r.facts.durables(ctx)
		if err == nil {
			err = checkNotAhead(tasks)
		}
		return err == nil, err
	})
	if err != nil {
		return nil, err
	}
	reader, err := r.facts.reader(ctx)
	if reader == nil || err != nil {
		return answers{}, err
	}
	defer reader.Close()
	times, err := r.facts.recordedTimes(ctx, reader)
	if err != nil {
		return nil, err
	}
	return r.facts.answers(ctx, reader, times)
}

// check runs all checks at the end of a case, and reports all that do not hold.
func (r *run) check(ctx context.Context, before answers) error {
	if err := r.checkSavepoints(ctx); err != nil {
		return err
	}
	if err := r.checkMapping(ctx); err != nil {
		return err
	}
	var faults []error
	note := func(name string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	}
	note("hanging transactions", poll(ctx, "no transaction is open", settlePatience, func() (bool, error) {
		ends, err := r.facts.ends(ctx)
		if err == nil {
			err = checkNoHanging(ends)
		}
		return err == nil, err
	}))
	note("durable offsets", r.checkTasks(ctx))
	note("results", r.checkOutcome(ctx, before))
	note("nothing twice", r.checkTopics(ctx))
	note("horizon", checkHorizon(r.horizon.end()))
	note("recorded intervals", r.checkTables(ctx))
	return errors.Join(faults...)
}

func (r *run) checkTasks(ctx context.Context) error {
	tasks, err := r.facts.durables(ctx)
	if err != nil {
		return err
	}
	if err := checkDurable(tasks); err != nil {
		return err
	}
	log, err := r.facts.control(ctx)
	if err != nil {
		return err
	}
	return checkAnnouncements(announcements(log))
}

// checkOutcome holds the ontology and the dead letters against the oracle, and
// asks again what was asked at the crash.
func (r *run) checkOutcome(ctx context.Context, before answers) error {
	inputs, err := r.facts.inputs(ctx, r.workload.inputs)
	if err != nil {
		return err
	}
	if len(inputs) != len(r.workload.records) {
		return fmt.Errorf("the inputs hold %d records, and %d were produced", len(inputs), len(r.workload.records))
	}
	want, err := r.workload.want(inputs)
	if err != nil {
		return err
	}
	reader, err := r.facts.reader(ctx)
	if err != nil || reader == nil {
		return errors.Join(errors.New("there is no ontology"), err)
	}
	defer reader.Close()
	got, err := r.workload.got(ctx, reader)
	if err != nil {
		return err
	}
	letters, err := r.facts.letters(ctx)
	if err != nil {
		return err
	}
	after, err := r.facts.answers(ctx, reader, slices.Sorted(maps.Keys(before)))
	if err != nil {
		return err
	}
	return errors.Join(checkResults("believed", got, want.believed), checkLetters(letters, want.deadLetters), checkAnswers(before, after))
}

func (r *run) checkTopics(ctx context.Context) error {
	rows, err := r.facts.results(ctx)
	if err != nil {
		return err
	}
	return checkVersions(rows)
}

func (r *run) checkTables(ctx context.Context) error {
	queries := []struct{ what, sql string }{
		{"assertions overlap", overlapQuery},
		{"recorded intervals leave a gap", gapQuery},
		{"a snapshot holds half of an event", r.workload.balance},
	}
	for _, q := range queries {
		if q.sql == "" {
			continue
		}
		found, err := r.facts.ask(ctx, q.sql)
		if err == nil {
			err = checkEmpty(q.what, found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
