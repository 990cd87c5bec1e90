//go:build unix

package bench

import (
	"os"
	"runtime"
	"syscall"
)

// maxRSS is the most memory that a process had, in bytes.
func maxRSS(p *os.ProcessState) int64 {
	usage, ok := p.SysUsage().(*syscall.Rusage)
	switch {
	case !ok:
		return 0
	case runtime.GOOS == "darwin":
		return usage.Maxrss
	}
	return usage.Maxrss << 10
}
