package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/forge-platform/strom/internal/localpg"
)

// databases is a PostgreSQL that has a database for each run.
type databases struct {
	url    string
	name   string // for the report
	server *localpg.Server
}

// startDatabases starts a PostgreSQL, or takes the one at the address.
func startDatabases(ctx context.Context, address string) (*databases, error) {
	d := &databases{url: address}
	if address == "" {
		var err error
		// What a crash of the machine loses no benchmark misses, but a commit that
		// does not wait for the disk would be no commit: Durable keeps fsync on.
		if d.server, err = localpg.Start(ctx, localpg.Options{Durable: true}); err != nil {
			return nil, err
		}
		d.url = d.server.URL()
	}
	err := d.do(ctx, d.url, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT 'PostgreSQL ' || current_setting('server_version')").Scan(&d.name)
	})
	if err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

func (d *databases) stop() error {
	if d == nil || d.server == nil {
		return nil
	}
	return d.server.Stop()
}

// do connects, calls f, and disconnects.
func (d *databases) do(ctx context.Context, address string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("the benchmark's database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // f's error is what counts
	return f(conn)
}

func (d *databases) exec(ctx context.Context, sql string) error {
	return d.do(ctx, d.url, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// create makes an empty database and gives its address.
func (d *databases) create(ctx context.Context, name string) (string, error) {
	if err := d.exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", err
	}
	if !strings.Contains(d.url, "://") {
		return d.url + " dbname='" + name + "'", nil // keywords: the last one holds
	}
	u, err := url.Parse(d.url)
	if err != nil {
		return "", errors.New("the address of the benchmark's database is no URL") // it may hold a password
	}
	u.Path = "/" + name
	return u.String(), nil
}

// drop removes a database, whoever is connected to it.
func (d *databases) drop(ctx context.Context, name string) error {
	return d.exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}
