//go:build unix

package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is the user whom initdb and the server run as, where that is not ours.
// The nil account means: as we are. Its methods then do nothing.
type account struct {
	name     string
	uid, gid uint32
}

func (a *account) String() string {
	if a == nil {
		return "(ourselves)"
	}
	return a.name
}

// serverAccount is nil unless we are root. Data that is there already decides,
// then the user that packages of PostgreSQL make, then the one with the fewest
// rights.
func serverAccount(dataDir string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if dataDir != "" {
		uid, err := ownerOf(filepath.Join(dataDir, "data"))
		if err != nil {
			return nil, err
		}
		if uid != 0 {
			u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
			if err != nil {
				return nil, &AccessError{User: strconv.FormatUint(uint64(uid), 10), Err: err}
			}
			return newAccount(u)
		}
	}
	var err error
	for _, name := range []string{"postgres", "nobody"} {
		var u *user.User
		if u, err = user.Lookup(name); err == nil {
			return newAccount(u)
		}
	}
	return nil, &AccessError{User: "nobody", Err: err}
}

// ownerOf is 0 (root) also for a path that is not there.
func ownerOf(path string) (uint32, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("PostgreSQL data directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, nil
	}
	return st.Uid, nil
}

func newAccount(u *user.User) (*account, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, &AccessError{User: u.Username, Err: err}
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, &AccessError{User: u.Username, Err: err}
	}
	return &account{name: u.Username, uid: uint32(uid), gid: uint32(gid)}, nil
}

// own gives a file or a directory, not what it holds, to the account. It follows
// no symbolic link.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// canUse tells whether the account can enter and change a directory. It asks the
// system, as that user: permission bits alone miss parents and access lists.
func (a *account) canUse(ctx context.Context, dir string) error {
	if a == nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `cd -- "$1" && test -w .`, "sh", dir)
	cmd.Dir = "/"
	cmd.Env = serverEnv()
	cmd.SysProcAttr = sysProcAttr(a, false)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if why := blockingParent(dir, a); why != "" {
			return errors.New(why)
		}
		if msg := strings.TrimSpace(string(out)); msg != "" {
			return errors.New(msg)
		}
		return errors.New("not writable")
	}
	return err
}

// blockingParent names the directory on the way that lets nobody else through,
// because that is what the reader of the error can change.
func blockingParent(dir string, a *account) string {
	for p := dir; ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil {
			return ""
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && st.Uid != a.uid && st.Gid != a.gid && info.Mode().Perm()&0o001 == 0 {
			return fmt.Sprintf("%s has mode %04o and lets other users through only after chmod o+x", p, info.Mode().Perm())
		}
		if p == filepath.Dir(p) {
			return ""
		}
	}
}

func sysProcAttr(a *account, session bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: session}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// killGroup ends a supervisor that does not react, and all that it started.
func killGroup(leader int) {
	_ = syscall.Kill(-leader, syscall.SIGKILL)
}

// processExists is true for a process of any user, also for one that has ended but
// that its parent has not asked for yet.
func processExists(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// processRuns is true for a process that exists and has not ended.
func processRuns(pid int) bool {
	if !processExists(pid) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // Linux only
	if err != nil {
		return true
	}
	// "pid (name) state ...", and the name may hold anything.
	_, after, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return !ok || !strings.HasPrefix(after, "Z")
}

// processName is the name of the program that a process runs; "" if unknown.
func processName(ctx context.Context, pid int) string {
	out, err := exec.CommandContext(ctx, "ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSpace(string(out)))
}
