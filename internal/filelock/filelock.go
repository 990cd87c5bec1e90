// Package filelock keeps a directory for one process at a time, and makes one
// once for many (MakeDir).
//
// A lock is an advisory lock of the operating system on a file. It belongs to
// the open file, so:
//
//  1. it ends when the process ends, however that ends: there is no stale lock;
//  2. a second Acquire in the same process is refused like one elsewhere;
//  3. the file is never reached through a symbolic link;
//  4. child processes do not inherit it, except one that is given File: then the
//     lock is held until that process has ended as well.
//
// The file holds the process id of the holder, for the error message only. It
// stays when the lock is released: removing it would let two processes lock
// two different files of the same name.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// HeldError says that another holder has the lock.
type HeldError struct {
	Path string // the lock file
	PID  int    // the holder's process id; 0 if it is not known
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.PID)
}

// Lock is a held lock. It is for one goroutine at a time.
type Lock struct {
	f *os.File
}

// Acquire locks the file at path, making it where it is not there yet. It does
// not wait: if somebody has the lock, the error is a *HeldError.
func Acquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(f); err != nil {
		defer f.Close()
		if errors.Is(err, errWouldBlock) {
			return nil, &HeldError{Path: path, PID: readPID(f)}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The id is a courtesy to whoever finds the lock held; a full disk must not
	// stop us here.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &Lock{f: f}, nil
}

// File is the locked file, to be passed to a child process that shall share the
// lock.
func (l *Lock) File() *os.File { return l.f }

// Release gives the lock up. It is safe on a nil lock and safe to call twice.
func (l *Lock) Release() error {
	if l == nil || l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return f.Close()
}

func readPID(f *os.File) int {
	buf := make([]byte, 20)
	n, _ := f.ReadAt(buf, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return 0
	}
	return pid
}
