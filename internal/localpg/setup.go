package localpg

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// setUp makes the database and, for TCP, the password.
func (s *Server) setUp(ctx context.Context, o Options, l layout) error {
	s.url = socketURL(l.socket, l.port, o.Database)
	conn, err := pgx.Connect(ctx, socketURL(l.socket, l.port, superuser))
	if err != nil {
		return fmt.Errorf("connecting to the local PostgreSQL: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", o.Database).Scan(&exists); err != nil {
		return fmt.Errorf("looking for database %q: %w", o.Database, err)
	}
	if !exists {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{o.Database}.Sanitize()); err != nil {
			return fmt.Errorf("creating database %q: %w", o.Database, err)
		}
	}
	if o.Port == 0 {
		return nil
	}
	secret := make([]byte, 24)
	_, _ = rand.Read(secret) // never fails
	password := hex.EncodeToString(secret)
	verifier, err := scramVerifier(password)
	if err != nil {
		return err
	}
	// The server is told the verifier only: statements may end in its log.
	if _, err := conn.Exec(ctx, "ALTER ROLE "+superuser+" PASSWORD '"+verifier+"'"); err != nil {
		return fmt.Errorf("setting the password: %w", err)
	}
	s.tcpURL = tcpURL(o.Port, password, o.Database)
	return nil
}

// scramVerifier is what PostgreSQL stores for a password (RFC 5803, RFC 7677).
func scramVerifier(password string) (string, error) {
	const iterations = 4096
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("hashing the password: %w", err)
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, b64(salt), b64(stored[:]), b64(sign("Server Key"))), nil
}
