package apachekafka

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// have gives an installation. Where there is none the test is skipped, but not in CI.
func have(t *testing.T) Installation {
	t.Helper()
	inst, err := Install(t.Context())
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	return inst
}

// CI runs this one first, so that no other test waits for a download.
func TestApacheKafkaIsToBeHad(t *testing.T) {
	inst := have(t)
	if _, err := os.Stat(filepath.Join(inst.jars, "kafka_"+scalaVersion+"-"+Version+".jar")); err != nil {
		t.Error(err)
	}
	if found, err := filepath.Glob(filepath.Join(inst.jars, "log4j-*-"+log4jVersion+".jar")); err != nil || len(found) != 3 {
		t.Errorf("Kafka %s brings another log4j than %s: %v, %v", Version, log4jVersion, found, err)
	}
}

func TestAFailedStartTellsWhatKafkaSaid(t *testing.T) {
	inst := have(t)
	n, err := Start(t.Context(), inst, Options{Settings: map[string]string{"num.io.threads": "none"}})
	if err == nil {
		n.Remove()
		t.Fatal("it started")
	}
	if !strings.Contains(err.Error(), "num.io.threads") {
		t.Errorf("%v does not name the setting", err)
	}
}

// fakes puts programs on a PATH of their own.
func fakes(t *testing.T, programs map[string]string) (cache string) {
	t.Helper()
	bin, home := t.TempDir(), t.TempDir()
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	t.Setenv("JAVA_HOME", "")
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

const (
	java17 = `echo 'openjdk version "17.0.1" 2021-10-19' >&2`
	// A Maven that is cut off in the middle, until it is let through.
	maven = `PATH=/bin:/usr/bin
for a; do case $a in -DoutputDirectory=*) out=${a#*=};; esac; done
mkdir "$out"; echo half >"$out/a.jar"
[ -e "$HOME/through" ] || { echo 'the network is gone'; exit 1; }
echo whole >"$out/b.jar"`
)

func TestAnInterruptedFetchIsNotTakenForWhole(t *testing.T) {
	fakes(t, map[string]string{"java": java17, "mvn": maven})
	_, err := Install(t.Context())
	if u := (*UnavailableError)(nil); !errors.As(err, &u) || !strings.Contains(err.Error(), "the network is gone") {
		t.Fatalf("got %v", err)
	}
	home, _ := os.UserHomeDir()
	if err := os.WriteFile(filepath.Join(home, "through"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inst, err := Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, jar := range []string{"a.jar", "b.jar"} {
		if _, err := os.Stat(filepath.Join(inst.jars, jar)); err != nil {
			t.Error(err)
		}
	}
	if !strings.HasSuffix(inst.jars, "kafka-"+Version) {
		t.Errorf("kept in %s", inst.jars)
	}
}

func TestWhatIsMissingIsSaidInOneLine(t *testing.T) {
	for name, c := range map[string]struct {
		programs map[string]string
		want     string
	}{
		"no java":  {map[string]string{"mvn": maven}, "no Java"},
		"old java": {map[string]string{"mvn": maven, "java": `echo 'java version "1.8.0_432"' >&2`}, "is Java 1"},
		"no maven": {map[string]string{"java": java17}, "no Maven"},
	} {
		t.Run(name, func(t *testing.T) {
			fakes(t, c.programs)
			_, err := Install(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "install Maven") || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
		})
	}
}
