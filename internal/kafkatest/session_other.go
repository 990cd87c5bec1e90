//go:build !unix

package kafkatest

import "syscall"

// newSession does not exist where there is no Unix: there is no /bin/sh either.
func newSession() *syscall.SysProcAttr { return nil }
