package ontology

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// closeTimeout bounds the polite end of a connection.
const closeTimeout = 2 * time.Second

// Retry says how errors of the infrastructure are retried. Its zero value is
// the default.
type Retry struct {
	First time.Duration // wait before the second attempt; default 50 ms
	Most  time.Duration // the wait doubles up to this; default 5 s
}

func (r Retry) withDefaults() Retry {
	if r.First <= 0 {
		r.First = 50 * time.Millisecond
	}
	if r.Most <= 0 {
		r.Most = 5 * time.Second
	}
	return r
}

// passing says whether an error is of the infrastructure, so that the same
// call may succeed later: SQLSTATE classes 08 (connection), 53 (resources), 57
// (intervention), 58 (system), the conflicts 40001 and 40P01, 25P03 (the
// transaction was idle for too long), and a connection that broke or could not
// be made.
func passing(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if len(pg.Code) != 5 {
			return false
		}
		switch pg.Code[:2] {
		case "08", "53", "57", "58":
			return true
		}
		return pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "25P03"
	}
	var netErr net.Error
	return errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, errUnknownOutcome) || pgconn.SafeToRetry(err)
}

// retry calls f with a connection until it succeeds, fails for good, or the
// context ends.
func (c *connector) retry(ctx context.Context, o *Options, what string, f func(*pgx.Conn) error) error {
	wait := o.Retry.First
	for attempt := 1; ; attempt++ {
		err := c.once(ctx, f)
		if err == nil || !passing(err) || errors.Is(err, errClosed) {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		// Between half and all of the wait, so that members do not come back
		// in step.
		pause := wait/2 + rand.N(wait/2+1)
		o.OnRetry(what)
		o.Logger.WarnContext(ctx, "ontology database: trying again", slog.String("what", what),
			slog.Int("attempt", attempt), slog.Duration("wait", pause), slog.String("error", err.Error()))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
		wait = min(2*wait, o.Retry.Most)
	}
}

func (c *connector) once(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := c.get(ctx)
	if err != nil {
		return err
	}
	defer c.put(conn)
	return f(conn)
}
