//go:build !unix

package localpg

import "syscall"

// account does not exist where there is no Unix: Start refuses before it matters.
type account struct{ name string }

func serverAccount(string) (*account, error) { return nil, errUnsupported() }

func (a *account) String() string      { return "(ourselves)" }
func (a *account) own(string) error    { return nil }
func (a *account) canUse(string) error { return nil }

func sysProcAttr(*account, bool) *syscall.SysProcAttr { return nil }
func killGroup(int)                                   {}
func processExists(int) bool                          { return false }
func processRuns(int) bool                            { return false }
func processName(int) string                          { return "" }
