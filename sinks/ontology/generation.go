package ontology

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
)

// CurrentGeneration gives the generation of a pipeline that writes to the
// ontology; 0 where the ontology knows nothing of the pipeline. It asks once;
// an error of the infrastructure is a *ConnectError.
func CurrentGeneration(ctx context.Context, conn mapping.Ontology, pipeline string) (event.Generation, error) {
	conns, err := newConnector(conn, "strom/"+pipeline)
	if err != nil {
		return 0, err
	}
	defer conns.close()
	var generation int32
	err = conns.once(ctx, func(conn *pgx.Conn) error {
		var there bool
		if err := conn.QueryRow(ctx, "SELECT to_regclass('strom.pipeline') IS NOT NULL").Scan(&there); err != nil || !there {
			return err
		}
		err := conn.QueryRow(ctx, "SELECT generation FROM strom.pipeline WHERE name = $1", pipeline).Scan(&generation)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the generation of pipeline %q: %w", pipeline, err)
	}
	return event.Generation(generation), nil
}

// Succession is one generation of a pipeline taking the place of another.
type Succession struct {
	Pipeline          string
	From, To          event.Generation
	MappingVersion    string
	ResultsPartitions int32
	// Epoch is the last that the ontology has of From, in every results
	// partition, and Recorded its recorded time: To goes on behind it.
	Epoch    event.Epoch
	Recorded event.RecordedTime
}

// Succeed lets a generation take the place of another, in one transaction: the
// older one's progress is gone, so whoever still writes for it is fenced, and the
// newer one begins with the epoch that the older one has reached. It refuses with
// ErrPipeline where the ontology is not exactly there.
func Succeed(ctx context.Context, conn mapping.Ontology, s Succession) error {
	conns, err := newConnector(conn, "strom/"+s.Pipeline)
	if err != nil {
		return err
	}
	defer conns.close()
	err = conns.once(ctx, func(conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
		if err := s.write(ctx, tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
	if err != nil {
		return fmt.Errorf("let generation %s of pipeline %q take the place of generation %s: %w", s.To, s.Pipeline, s.From, err)
	}
	return nil
}

func (s *Succession) write(ctx context.Context, tx pgx.Tx) error {
	var id, generation int32
	err := tx.QueryRow(ctx, "SELECT pipeline_id, generation FROM strom.pipeline WHERE name = $1 AND retired_at IS NULL FOR UPDATE", s.Pipeline).
		Scan(&id, &generation)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: the ontology knows no such pipeline", ErrPipeline)
	}
	if err != nil {
		return err
	}
	if generation != int32(s.From) {
		return fmt.Errorf("%w: generation %d writes", ErrPipeline, generation)
	}
	var elsewhere int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM (SELECT epoch, under_way FROM strom.progress
		WHERE pipeline_id = $1 AND generation = $2 FOR UPDATE) g WHERE g.epoch <> $3 OR g.under_way <> 0`,
		id, generation, int64(s.Epoch)).Scan(&elsewhere); err != nil {
		return err
	}
	if elsewhere > 0 {
		return fmt.Errorf("%w: %d results partitions are not at epoch %s", ErrPipeline, elsewhere, s.Epoch)
	}
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`UPDATE strom.pipeline p SET horizon_before = h.horizon
			FROM strom.pipeline_horizon h WHERE h.pipeline_id = p.pipeline_id AND p.pipeline_id = $1`, []any{id}},
		{"DELETE FROM strom.progress WHERE pipeline_id = $1", []any{id}},
		{`INSERT INTO strom.progress (pipeline_id, generation, partition, epoch, recorded)
			SELECT $1, $2, n, $4, $5 FROM generate_series(0, $3::integer - 1) n`,
			[]any{id, int32(s.To), s.ResultsPartitions, int64(s.Epoch), s.Recorded.Time()}},
		{"UPDATE strom.pipeline SET generation = $2, mapping_version = $3, results_partitions = $4 WHERE pipeline_id = $1",
			[]any{id, int32(s.To), s.MappingVersion, s.ResultsPartitions}},
	} {
		if _, err := tx.Exec(ctx, q.sql, q.args...); err != nil {
			return err
		}
	}
	return nil
}
