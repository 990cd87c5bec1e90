//go:build !unix

package localpg

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
)

// account does not exist where there is no Unix: Start refuses before it matters.
type account struct{ name string }

func serverAccount(string) (*account, error) {
	return nil, fmt.Errorf("a local PostgreSQL cannot be run on %s: name a running server in the mapping file (ontology.postgres)", runtime.GOOS)
}

func (a *account) String() string                       { return "(ourselves)" }
func (a *account) own(string) error                     { return nil }
func (a *account) canUse(context.Context, string) error { return nil }

func sysProcAttr(*account, bool) *syscall.SysProcAttr { return nil }
func killGroup(int)                                   {}
func processExists(int) bool                          { return false }
func processRuns(int) bool                            { return false }
func processName(context.Context, int) string         { return "" }
