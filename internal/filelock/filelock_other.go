//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package filelock

import (
	"errors"
	"os"
)

const noFollow = 0

var errWouldBlock = errors.New("locked")

func tryLock(*os.File) error {
	return errors.New("file locks are not supported on this operating system")
}
