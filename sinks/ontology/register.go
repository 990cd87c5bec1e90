package ontology

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/event"
)

// register stores the pipeline with its types and properties, checks them
// against what is stored, and brings the views up to date: all in one
// transaction under the schema's lock.
func (s *Postgres) register(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(schemaLock)); err != nil {
		return err
	}
	if err := s.registerPipeline(ctx, tx); err != nil {
		return err
	}
	if err := s.registerTypes(ctx, tx); err != nil {
		return err
	}
	if err := s.registerProperties(ctx, tx); err != nil {
		return err
	}
	if err := refreshViews(ctx, tx); err != nil {
		return denied(err, s.conns.where)
	}
	s.topics = make(map[string]int32)
	rows, err := tx.Query(ctx, "SELECT topic_id, name FROM strom.topic")
	if err != nil {
		return err
	}
	var id int32
	var name string
	if _, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		s.topics[name] = id
		return nil
	}); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (s *Postgres) registerPipeline(ctx context.Context, tx pgx.Tx) error {
	p := &s.pipeline
	var generation, partitions int32
	var retired bool
	err := tx.QueryRow(ctx, `SELECT pipeline_id, generation, results_partitions, retired_at IS NOT NULL
		FROM strom.pipeline WHERE name = $1 FOR UPDATE`, p.Name).Scan(&s.pipelineID, &generation, &partitions, &retired)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err := tx.QueryRow(ctx, `INSERT INTO strom.pipeline (name, generation, mapping_version, results_partitions)
			VALUES ($1, $2, $3, $4) RETURNING pipeline_id`,
			p.Name, int32(p.Generation), p.MappingVersion, p.ResultsPartitions).Scan(&s.pipelineID)
		if err != nil {
			return err
		}
		return s.startProgress(ctx, tx)
	case err != nil:
		return err
	case retired:
		return fmt.Errorf("%w: pipeline %q was retired", ErrPipeline, p.Name)
	case generation > int32(p.Generation):
		return fmt.Errorf("%w: generation %d of pipeline %q writes, generation %s is over", ErrPipeline, generation, p.Name, p.Generation)
	case generation == int32(p.Generation) && partitions != p.ResultsPartitions:
		return fmt.Errorf("%w: the results of pipeline %q, generation %d, have %d partitions, not %d: another number needs a new generation",
			ErrPipeline, p.Name, generation, partitions, p.ResultsPartitions)
	}
	return s.goOn(ctx, tx, generation)
}

// goOn registers a pipeline that is known: the same generation, or a newer one
// that takes over.
func (s *Postgres) goOn(ctx context.Context, tx pgx.Tx, generation int32) error {
	p := &s.pipeline
	if generation < int32(p.Generation) {
		// The horizon that was reached stays. Deleting the older progress
		// fences whoever still writes: its compare-and-set finds nothing.
		if _, err := tx.Exec(ctx, `UPDATE strom.pipeline p SET horizon_before = h.horizon
			FROM strom.pipeline_horizon h WHERE h.pipeline_id = p.pipeline_id AND p.pipeline_id = $1`, s.pipelineID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "DELETE FROM strom.progress WHERE pipeline_id = $1", s.pipelineID); err != nil {
			return err
		}
		if err := s.startProgress(ctx, tx); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `UPDATE strom.pipeline SET generation = $2, mapping_version = $3, results_partitions = $4
		WHERE pipeline_id = $1 AND (generation, mapping_version, results_partitions) IS DISTINCT FROM ($2, $3, $4)`,
		s.pipelineID, int32(p.Generation), p.MappingVersion, p.ResultsPartitions)
	return err
}

func (s *Postgres) startProgress(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO strom.progress (pipeline_id, generation, partition)
		SELECT $1, $2, n FROM generate_series(0, $3::integer - 1) n`,
		s.pipelineID, int32(s.pipeline.Generation), s.pipeline.ResultsPartitions)
	return err
}

func (s *Postgres) registerTypes(ctx context.Context, tx pgx.Tx) error {
	s.typeIDs = make(map[string]int32)
	for _, t := range s.pipeline.Types {
		var id int32
		err := tx.QueryRow(ctx, "SELECT type_id FROM strom.object_type WHERE name = $1", t.Name).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			err = tx.QueryRow(ctx, "INSERT INTO strom.object_type (name) VALUES ($1) RETURNING type_id", t.Name).Scan(&id)
		}
		if err != nil {
			return err
		}
		s.typeIDs[t.Name] = id
	}
	return nil
}

func (s *Postgres) registerProperties(ctx context.Context, tx pgx.Tx) error {
	s.propertyIDs = make([]int32, len(s.catalog.properties))
	for i := range s.catalog.properties {
		id, err := s.registerProperty(ctx, tx, &s.catalog.properties[i])
		if err != nil {
			return err
		}
		s.propertyIDs[i] = id
	}
	// What the mapping no longer declares is hidden from the views.
	_, err := tx.Exec(ctx, `UPDATE strom.property SET hidden = NOT property_id = ANY ($2)
		WHERE pipeline_id = $1 AND hidden = (property_id = ANY ($2))`, s.pipelineID, s.propertyIDs)
	return err
}

func (s *Postgres) registerProperty(ctx context.Context, tx pgx.Tx, p *property) (int32, error) {
	typeID := s.typeIDs[p.typ]
	var id, owner int32
	var was property
	var kind int16
	var ownerName string
	err := tx.QueryRow(ctx, `SELECT p.property_id, p.kind, coalesce(p.link_to, ''), coalesce(p.aggregate, ''), p.aggregate IS NOT NULL,
			p.pipeline_id, l.name
		FROM strom.property p JOIN strom.pipeline l USING (pipeline_id) WHERE p.type_id = $1 AND p.name = $2`, typeID, p.name).
		Scan(&id, &kind, &was.linkTo, &was.aggregate, &was.windowed, &owner, &ownerName)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = tx.QueryRow(ctx, `INSERT INTO strom.property (type_id, name, kind, link_to, aggregate, pipeline_id)
			VALUES ($1, $2, $3, nullif($4, ''), $5, $6) RETURNING property_id`,
			typeID, p.name, int16(p.kind), p.linkTo, aggregateColumn(p), s.pipelineID).Scan(&id)
		return id, err
	case err != nil:
		return 0, err
	case owner != s.pipelineID:
		return 0, &OwnerError{Type: p.typ, Property: p.name, Owner: ownerName, Pipeline: s.pipeline.Name}
	}
	was.kind = event.Kind(kind)
	if was.kind != p.kind || was.linkTo != p.linkTo || was.windowed != p.windowed || was.aggregate != p.aggregate {
		return 0, &KindError{Type: p.typ, Property: p.name, Was: was.declaration(), Now: p.declaration()}
	}
	return id, nil
}

func aggregateColumn(p *property) any {
	if !p.windowed {
		return nil
	}
	return p.aggregate
}

func (p *property) declaration() string {
	s := p.kind.String()
	if p.linkTo != "" {
		s += " to " + p.linkTo
	}
	if p.windowed {
		s += " of an aggregate"
	}
	return s
}
