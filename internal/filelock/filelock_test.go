package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/forge-platform/strom/internal/filelock"
)

func TestSecondHolderIsRefusedAndToldWho(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := filelock.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = filelock.Acquire(path)
	var held *filelock.HeldError
	if !errors.As(err, &held) || held.PID != os.Getpid() || held.Path != path {
		t.Fatalf("second Acquire: got %v, want a HeldError that names process %d", err, os.Getpid())
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	second, err := filelock.Acquire(path)
	if err != nil {
		t.Fatalf("Acquire after Release: %v", err)
	}
	if err := second.Release(); err != nil {
		t.Fatal(err)
	}
	if err := second.Release(); err != nil {
		t.Fatalf("second Release: %v", err)
	}
}

func TestMissingDirectoryIsNotAHeldLock(t *testing.T) {
	_, err := filelock.Acquire(filepath.Join(t.TempDir(), "none", "lock"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v, want ErrNotExist", err)
	}
}
