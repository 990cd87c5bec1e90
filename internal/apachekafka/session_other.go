//go:build !unix

package apachekafka

import "syscall"

// newSession does not exist where there is no Unix: there is no /bin/sh either.
func newSession() *syscall.SysProcAttr { return nil }
