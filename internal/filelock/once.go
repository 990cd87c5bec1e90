package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const waitInterval = 100 * time.Millisecond

// Wait locks the file at path as Acquire does, and waits for as long as another
// holder has it. When ctx ends first, the error wraps both a *HeldError and
// ctx's error.
func Wait(ctx context.Context, path string) (*Lock, error) {
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	for {
		lock, err := Acquire(path)
		if held := (*HeldError)(nil); !errors.As(err, &held) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// MakeDir makes the directory dir whole or not at all, once for all processes
// that want it: one makes it, and the others wait and find it. A process that is
// killed on the way leaves nothing that looks like the directory.
//
// fill makes the directory whole, a path that does not exist yet, inside of the
// directory staging, which may hold whatever else the work needs and is removed
// at the end. The parent of dir must exist; beside dir stays the file dir.lock.
func MakeDir(ctx context.Context, dir string, fill func(ctx context.Context, staging, whole string) error) error {
	if there, err := exists(dir); there || err != nil {
		return err
	}
	lock, err := Wait(ctx, dir+".lock")
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }()
	if there, err := exists(dir); there || err != nil {
		return err
	}
	stale, _ := filepath.Glob(dir + ".new-*") // of a program that was killed
	for _, s := range stale {
		_ = os.RemoveAll(s)
	}
	staging, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(staging) }()
	whole := filepath.Join(staging, "whole")
	if err := fill(ctx, staging, whole); err != nil {
		return err
	}
	return os.Rename(whole, dir)
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
