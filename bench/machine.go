package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// Machine is what the figures were measured on. What cannot be found out is empty.
type Machine struct {
	OS     string `json:"os"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	Go     string `json:"go"`
}

func thisMachine() Machine {
	m := Machine{OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	m.CPU = fieldOf("/proc/cpuinfo", "model name")
	m.Memory = bytesOf("/proc/meminfo", "MemTotal")
	return m
}

// resident is the memory of a process now, in bytes; 0 where it cannot be found out.
func resident(pid int) int64 { return bytesOf(fmt.Sprintf("/proc/%d/status", pid), "VmRSS") }

// bytesOf gives the value of a line `name: value kB` of a file, in bytes.
func bytesOf(path, name string) int64 {
	kb, _, _ := strings.Cut(fieldOf(path, name), " ")
	n, _ := strconv.ParseInt(kb, 10, 64) // 0 where the file is not as we know it
	return n << 10
}

// fieldOf gives the value of the first line `name: value` of a file.
func fieldOf(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// loadAverage is that of the last minute; 0 where it cannot be found out.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	var v float64
	_, _ = fmt.Sscan(string(b), &v)
	return v
}

// moduleVersion is the version of a module that this program is built with.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "unknown"
}
