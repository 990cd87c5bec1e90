package filelock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/forge-platform/strom/internal/filelock"
)

func TestADirectoryIsMadeOnceForAllWhoWantIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	var made atomic.Int64
	fill := func(_ context.Context, _, whole string) error {
		made.Add(1)
		return os.Mkdir(whole, 0o755)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := filelock.MakeDir(t.Context(), dir, fill); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
}

func TestADirectoryThatCouldNotBeFilledIsNotThere(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "dir")
	// What a process that was killed leaves behind.
	if err := os.MkdirAll(dir+".new-1/whole", 0o755); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("the network is gone")
	err := filelock.MakeDir(t.Context(), dir, func(_ context.Context, staging, whole string) error {
		if filepath.Dir(whole) != staging || filepath.Dir(staging) != parent {
			t.Errorf("staging %s, whole %s", staging, whole)
		}
		if err := os.WriteFile(filepath.Join(staging, "half"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return errors.Join(os.Mkdir(whole, 0o755), cause)
	})
	if !errors.Is(err, cause) {
		t.Fatalf("got %v", err)
	}
	left, err := os.ReadDir(parent)
	if err != nil || len(left) != 1 || left[0].Name() != "dir.lock" {
		t.Fatalf("left %v, %v", left, err)
	}
}

func TestWaitingForALockEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := filelock.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = filelock.Wait(ctx, path)
	if held := (*filelock.HeldError)(nil); !errors.As(err, &held) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}
