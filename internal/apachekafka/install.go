package apachekafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/forge-platform/strom/internal/filelock"
)

// Version is the Apache Kafka that is started.
const Version = "4.4.0"

const (
	scalaVersion = "2.13"
	// log4jVersion is the one that Version brings: Kafka logs through slf4j,
	// and names no binding of it.
	log4jVersion = "2.25.5"
	// pluginVersion is the Maven plugin that copies the jars.
	pluginVersion = "3.8.1"
	minJava       = 17

	resolvePatience = 10 * time.Minute
)

// UnavailableError says that this machine cannot run Apache Kafka.
type UnavailableError struct {
	What string
	Err  error // or nil
	// Hint follows the advice to name a broker: how to, in the caller's terms.
	Hint string
}

// Error says what to do as well.
func (e *UnavailableError) Error() string {
	text := fmt.Sprintf("Apache Kafka is not to be had here: %s; install Maven and a Java %d or later "+
		"(Debian: maven, default-jre-headless), or name a broker that is there%s", e.What, minJava, e.Hint)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap gives the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// Installation is what it takes to run Kafka. Install gives one.
type Installation struct {
	java string // the program
	jars string // the directory
}

// pom asks for Kafka and a binding of slf4j to the log4j that it brings.
const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>strom</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_` + scalaVersion + `</artifactId>
      <version>` + Version + `</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>` + log4jVersion + `</version>
    </dependency>
  </dependencies>
</project>
`

// Install finds Java, and has Maven bring the jars where they are not there
// yet: some 45 MB, once for a user. Where that fails the error is an
// *UnavailableError.
func Install(ctx context.Context) (Installation, error) {
	java, err := FindJava(ctx)
	if err != nil {
		return Installation{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Installation{}, &UnavailableError{What: "no directory to keep it in", Err: err}
	}
	cache = filepath.Join(cache, "strom")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Installation{}, &UnavailableError{What: "no directory to keep it in", Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, resolvePatience)
	defer cancel()
	jars := filepath.Join(cache, "kafka-"+Version)
	if err := filelock.MakeDir(ctx, jars, resolve); err != nil {
		if u := (*UnavailableError)(nil); errors.As(err, &u) {
			return Installation{}, err
		}
		return Installation{}, &UnavailableError{What: "its jars, version " + Version + ", did not come", Err: err}
	}
	return Installation{java: java, jars: jars}, nil
}

// resolve has Maven copy Kafka and all that it needs into the directory whole.
func resolve(ctx context.Context, staging, whole string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return &UnavailableError{What: "there is no Maven", Err: err}
	}
	file := filepath.Join(staging, "pom.xml")
	if err := os.WriteFile(file, []byte(pom), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mvn, "-B", "-q", "-f", file,
		"org.apache.maven.plugins:maven-dependency-plugin:"+pluginVersion+":copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+whole)
	cmd.Dir = staging
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", mvn, err, tail(out))
	}
	return nil
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// FindJava takes JAVA_HOME's Java, as Maven does, else the one on the PATH. One
// that is missing or too old is an *UnavailableError.
func FindJava(ctx context.Context) (string, error) {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	java, err := exec.LookPath(java)
	if err != nil {
		return "", &UnavailableError{What: "there is no Java", Err: err}
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return "", &UnavailableError{What: java + " does not run", Err: fmt.Errorf("%w\n%s", err, tail(out))}
	}
	major, err := majorOf(out)
	if err != nil {
		return "", &UnavailableError{What: java, Err: err}
	}
	if major < minJava {
		return "", &UnavailableError{What: fmt.Sprintf("%s is Java %d", java, major)}
	}
	return java, nil
}

// majorOf reads what java -version prints; "1.8.0_432" is version 1, and too old
// all the same.
func majorOf(out []byte) (int, error) {
	m := javaVersion.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("it names no version: %s", tail(out))
	}
	return strconv.Atoi(string(m[1]))
}

const tailBytes = 4096

// tail is the end of a program's output, from the beginning of a line.
func tail(out []byte) string {
	if extra := len(out) - tailBytes; extra > 0 {
		out = out[extra:]
		if i := bytes.IndexByte(out, '\n'); i >= 0 {
			out = out[i+1:]
		}
	}
	return strings.TrimSpace(string(out))
}
