//go:build unix

package apachekafka

import "syscall"

// newSession keeps what a terminal sends to our process group from the program.
func newSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
