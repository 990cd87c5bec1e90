//go:build unix

package localpg

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// repository serves what Maven Central would: an archive that holds one .txz.
// (testdata/postgres.txz holds three shell scripts in bin/.)
func repository(t *testing.T, broken bool) *httptest.Server {
	t.Helper()
	txz, err := os.ReadFile(filepath.Join("testdata", "postgres.txz"))
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	w, err := z.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	if broken {
		txz = txz[:len(txz)/2]
	}
	if _, err := w.Write(txz); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ".jar") || !strings.Contains(r.URL.Path, string(embeddedpostgres.V17)) {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(jar.Bytes())
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestDownloadUnpacksAndStartsNothing(t *testing.T) {
	cache := filepath.Dir(lastingDir(t))
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dir := filepath.Join(cache, "pg")
	for range 2 { // the second finds it there
		if err := fetchInto(t.Context(), dir, embeddedpostgres.V17, repository(t, false).URL); err != nil {
			t.Fatal(err)
		}
	}
	inst, err := finder{}.inspect(t.Context(), filepath.Join(dir, "bin"))
	if err != nil || inst.major != 17 {
		t.Fatalf("got %v, %v", inst, err)
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left in the temporary directory: %v", left)
	}
	if left, _ := os.ReadDir(cache); len(left) != 2 { // the directory and its lock
		t.Errorf("left in the cache: %v", left)
	}
}

func TestFailedDownloadLeavesNoHalfInstallation(t *testing.T) {
	for name, srv := range map[string]*httptest.Server{"broken": repository(t, true), "empty": httptest.NewServer(http.NotFoundHandler())} {
		t.Cleanup(srv.Close)
		dir := filepath.Join(t.TempDir(), "pg")
		if err := fetchInto(t.Context(), dir, embeddedpostgres.V17, srv.URL); err == nil || !gone(dir) {
			t.Errorf("%s: got %v, directory there: %v", name, err, !gone(dir))
		}
	}
}

func TestCancelledDownloadReturnsAtOnce(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	}))
	defer srv.Close()
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if err := fetchInto(ctx, filepath.Join(t.TempDir(), "pg"), embeddedpostgres.V17, srv.URL); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
}
