package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/forge-platform/strom/internal/filelock"
)

// downloadMajor is the version to fetch where the data does not ask for one.
const downloadMajor = 17

// downloadable are the versions that embedded-postgres knows and we accept.
func downloadable(major int) (embeddedpostgres.PostgresVersion, bool) {
	switch major {
	case 15:
		return embeddedpostgres.V15, true
	case 16:
		return embeddedpostgres.V16, true
	case 17:
		return embeddedpostgres.V17, true
	case 18:
		return embeddedpostgres.V18, true
	default:
		return "", false
	}
}

// download returns a PostgreSQL from the cache directory, and fetches it into
// there first if it is not yet.
func download(ctx context.Context, o Options, f finder, major int) (installation, error) {
	if major == 0 {
		major = downloadMajor
	}
	version, ok := downloadable(major)
	if !ok {
		return installation{}, fmt.Errorf("version %d is not offered for download", major)
	}
	cache, err := cacheDir(o)
	if err != nil {
		return installation{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return installation{}, err
	}
	dir := filepath.Join(cache, "postgresql-"+string(version))
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(o.Log, "downloading PostgreSQL %s to %s (about 15 MB, once)\n", version, dir)
		if err := fetchInto(ctx, dir, version, ""); err != nil {
			return installation{}, err
		}
	}
	inst, err := f.inspect(ctx, filepath.Join(dir, "bin"))
	if err != nil {
		return installation{}, fmt.Errorf("what was downloaded does not run here: %s: %w", dir, err)
	}
	return inst, nil
}

// cacheDir is where downloads are kept. Root's own cache directory will not do:
// the server's user cannot enter it.
func cacheDir(o Options) (string, error) {
	if o.CacheDir != "" {
		return o.CacheDir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/strom", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "strom"), nil
}

// fetchInto makes dir, once for all processes, whole or not at all.
func fetchInto(ctx context.Context, dir string, version embeddedpostgres.PostgresVersion, repository string) error {
	err := filelock.MakeDir(ctx, dir, func(ctx context.Context, staging, whole string) error {
		result := make(chan error, 1)
		// The library takes no context. A download that nobody waits for any more
		// ends with the program, and leaves only the staging directory behind.
		go func() { result <- fetch(ctx, staging, whole, version, repository) }()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-result:
			return err
		}
	})
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		return fmt.Errorf("another process is downloading PostgreSQL: %w", err)
	}
	return err
}

// fetch has embedded-postgres download and unpack, and nothing else.
//
// The library has one entry, Start, which goes on to run a server: not as root,
// not supervised, always on TCP. Its steps are: download, unpack, make the runtime
// directory, initdb, start. We name a runtime directory that cannot be made (below
// a dangling link), so that it ends after unpacking, before it runs anything.
// Whether it worked shows in the files, not in the error. An empty repository is
// the library's own.
func fetch(ctx context.Context, staging, unpacked string, version embeddedpostgres.PostgresVersion, repository string) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	link := filepath.Join(staging, "nowhere")
	if err := os.Symlink(filepath.Join(staging, "missing"), link); err != nil {
		return err
	}
	leftovers := loggerFiles()
	config := embeddedpostgres.DefaultConfig()
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	pg := embeddedpostgres.NewDatabase(config.
		Version(version).
		Port(port).
		CachePath(filepath.Join(staging, "archive")).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(link, "runtime")).
		DataPath(filepath.Join(link, "data")).
		StartTimeout(time.Second).
		Logger(io.Discard))
	err = pg.Start()
	if err == nil {
		// It cannot be; but if a later version of the library got this far, its
		// server must not stay.
		err = errors.Join(errors.New("embedded-postgres started a server of its own"), pg.Stop())
	}
	for name := range loggerFiles() {
		if !leftovers[name] {
			_ = os.Remove(name)
		}
	}
	if executable(filepath.Join(unpacked, "bin", "postgres")) && executable(filepath.Join(unpacked, "bin", "initdb")) {
		return nil
	}
	return err
}

// loggerFiles are the empty files that embedded-postgres leaves in the temporary
// directory, one a start.
func loggerFiles() map[string]bool {
	names, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	files := make(map[string]bool, len(names))
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
			files[name] = true
		}
	}
	return files
}

func freePort(ctx context.Context) (uint32, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("%v is no TCP address", ln.Addr())
	}
	return uint32(addr.Port), nil
}
