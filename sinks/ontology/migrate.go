package ontology

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SchemaVersion is the version of the tables that this build writes. Each
// version has a file that makes it from the one before.
const SchemaVersion = 1

//go:embed schema/*.sql
var schemaFiles embed.FS

// schemaLock is the advisory lock under which tables are created, migrated and
// pipelines registered ("strom" in ASCII).
const schemaLock = 0x7374726f6d

// minServer is the oldest server that the statements are written for.
const minServer = 150000

// migrate brings the tables to SchemaVersion, and refuses newer ones.
func migrate(ctx context.Context, conn *pgx.Conn, where string) error {
	if err := checkServer(ctx, conn, where); err != nil {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(schemaLock)); err != nil {
		return err
	}
	version, err := schemaVersion(ctx, tx)
	if err != nil {
		return err
	}
	if version > SchemaVersion {
		return &NewerSchemaError{Found: version, Known: SchemaVersion}
	}
	if version == SchemaVersion {
		return nil
	}
	for v := version + 1; v <= SchemaVersion; v++ {
		if err := migrateTo(ctx, tx, v); err != nil {
			return denied(err, where)
		}
	}
	return tx.Commit(ctx)
}

func checkServer(ctx context.Context, conn *pgx.Conn, where string) error {
	var version, encoding string
	err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num'), current_setting('server_encoding')").
		Scan(&version, &encoding)
	if err != nil {
		return err
	}
	if n, _ := strconv.Atoi(version); n < minServer {
		return &ConnectError{Where: where, Err: fmt.Errorf("the server has version %s", version), Advice: "PostgreSQL 15 or later is needed"}
	}
	if encoding != "UTF8" {
		return &ConnectError{
			Where: where, Err: fmt.Errorf("the database has encoding %s", encoding),
			Advice: "create the database with encoding UTF8",
		}
	}
	return nil
}

// schemaVersion gives the version of the tables that are there, 0 for none.
func schemaVersion(ctx context.Context, tx pgx.Tx) (int, error) {
	var there bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('strom.schema_version') IS NOT NULL").Scan(&there); err != nil || !there {
		return 0, err
	}
	var version int
	err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM strom.schema_version").Scan(&version)
	return version, err
}

func migrateTo(ctx context.Context, tx pgx.Tx, version int) error {
	if version == 1 {
		// installed_at is for people; no answer shows it.
		const first = `CREATE SCHEMA IF NOT EXISTS strom;
			CREATE TABLE strom.schema_version (version integer PRIMARY KEY, installed_at timestamptz NOT NULL DEFAULT now())`
		if _, err := tx.Exec(ctx, first); err != nil {
			return err
		}
	}
	sql, err := schemaFiles.ReadFile(fmt.Sprintf("schema/%04d.sql", version))
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, string(sql)); err != nil {
		return fmt.Errorf("migrate the ontology's tables to version %d: %w", version, err)
	}
	_, err = tx.Exec(ctx, "INSERT INTO strom.schema_version (version) VALUES ($1)", version)
	return err
}

// denied says what to do where the user may not create what is needed.
func denied(err error, where string) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return &ConnectError{
			Where: where, Err: err,
			Advice: "let the user create schemas (GRANT CREATE ON DATABASE ... TO ...), or run once as the database's owner",
		}
	}
	return err
}
