package localpg

import (
	"fmt"
	"strings"
)

// NotFoundError says that no PostgreSQL is to be had: none installed that would
// do, and none downloaded. Its text says what to install.
type NotFoundError struct {
	Seen     []string // what was found and why it would not do, one a line
	Download error    // why none was downloaded
	OS       string   // as runtime.GOOS
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no PostgreSQL %d or newer is to be had on this machine", MinMajor)
	if len(e.Seen) > 0 {
		fmt.Fprintf(&b, " (found, but not usable: %s)", strings.Join(e.Seen, "; "))
	} else {
		b.WriteString(" (none in PATH nor in the usual places)")
	}
	if e.Download != nil {
		fmt.Fprintf(&b, ", and none could be downloaded (%v)", e.Download)
	}
	fmt.Fprintf(&b, ". %s", installHint(e.OS))
	return b.String()
}

func (e *NotFoundError) Unwrap() error { return e.Download }

func installHint(goos string) string {
	const rest = " Or name a running server in the mapping file (ontology.postgres)."
	switch goos {
	case "darwin":
		return "Install it: brew install postgresql@17, or Postgres.app from https://postgresapp.com." + rest
	case "linux":
		return "Install it: apt-get install postgresql (Debian, Ubuntu), dnf install postgresql-server (Fedora, Red Hat)," +
			" apk add postgresql (Alpine), pacman -S postgresql (Arch), zypper install postgresql-server (SUSE)." + rest
	case "freebsd":
		return "Install it: pkg install postgresql17-server." + rest
	default:
		return "Install it from https://www.postgresql.org/download/." + rest
	}
}

// PortInUseError says that the port is taken.
type PortInUseError struct {
	Port int
	Err  error
}

func (e *PortInUseError) Error() string {
	return fmt.Sprintf("port %d on 127.0.0.1 is in use by another program (%v): choose another port for PostgreSQL, or 0 for a Unix socket only", e.Port, e.Err)
}

func (e *PortInUseError) Unwrap() error { return e.Err }

// DataDirInUseError says that another program has the data directory.
type DataDirInUseError struct {
	Dir    string
	PID    int  // the process that has it; 0 if it is not known
	Server bool // PID is a PostgreSQL server, not a program that runs one
}

func (e *DataDirInUseError) Error() string {
	who := "another program"
	switch {
	case e.Server:
		who = fmt.Sprintf("a PostgreSQL server (process %d) that no program of ours is running", e.PID)
	case e.PID != 0:
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("the PostgreSQL data directory %s is in use by %s: stop that one first, or choose another data directory", e.Dir, who)
}

// VersionError says that the data directory was made by a major version that is
// not at hand.
type VersionError struct {
	Dir   string
	Major int      // the data directory's
	Found []string // the installations at hand
}

func (e *VersionError) Error() string {
	if e.Major < MinMajor {
		return fmt.Sprintf("the data directory %s was made by PostgreSQL %d, which is older than %d: upgrade it with pg_upgrade, or choose another data directory", e.Dir, e.Major, MinMajor)
	}
	return fmt.Sprintf("the data directory %s was made by PostgreSQL %d, but this machine has only %s: install PostgreSQL %d, upgrade the directory with pg_upgrade, or choose another data directory",
		e.Dir, e.Major, strings.Join(e.Found, ", "), e.Major)
}

// AccessError says that the user whom the server runs as cannot use a directory
// or that the program cannot become that user.
type AccessError struct {
	Path string // "" where the user itself is the trouble
	User string
	Err  error
}

func (e *AccessError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("PostgreSQL refuses to run as root, and running it as user %q is not possible (%v): run this program as an ordinary user, or create a user named postgres", e.User, e.Err)
	}
	return fmt.Sprintf("PostgreSQL runs as user %q, who cannot use %s (%v): choose a directory that this user can reach, or run this program as an ordinary user who owns it", e.User, e.Path, e.Err)
}

func (e *AccessError) Unwrap() error { return e.Err }

// PathTooLongError says that the path of the Unix socket would exceed what the
// operating system allows.
type PathTooLongError struct {
	Path  string
	Limit int // bytes
}

func (e *PathTooLongError) Error() string {
	return fmt.Sprintf("the Unix socket %s would have a path of %d bytes, and the operating system allows %d: choose a shorter runtime directory, or none", e.Path, len(e.Path), e.Limit)
}

// StartError says that initdb or the server itself failed. Log holds the last
// lines that it wrote.
type StartError struct {
	What string
	Err  error
	Log  string
}

func (e *StartError) Error() string {
	msg := e.What
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	if log := strings.TrimSpace(e.Log); log != "" {
		msg += "; it wrote last:\n" + log
	}
	return msg
}

func (e *StartError) Unwrap() error { return e.Err }
