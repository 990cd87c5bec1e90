package bench

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// asPart makes the test binary play a part in place of running tests.
const asPart = "STROM_BENCH_TEST_PART"

func TestMain(m *testing.M) {
	if os.Getenv(asPart) == "" || len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	if err := Play(context.Background(), Part(os.Args[1]), os.Args[2:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// self is the test binary, as what plays parts.
func self(t testing.TB) []string {
	t.Helper()
	t.Setenv(asPart, "1")
	return []string{os.Args[0]}
}
