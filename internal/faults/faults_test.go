package faults

import (
	"context"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forge-platform/strom/internal/localpg/pgtest"
	"github.com/forge-platform/strom/internal/race"
	"github.com/forge-platform/strom/kafka"
)

func TestMain(m *testing.M) {
	if code, ok := Child(os.Stdin, os.Stdout, os.Stderr); ok {
		os.Exit(code)
	}
	os.Exit(pgtest.Main(m))
}

func TestEveryPointHasCasesOnEveryWay(t *testing.T) {
	points := map[string]int{}
	for _, point := range kafka.Points() {
		if _, twice := points[point]; twice {
			t.Errorf("the point %s is named twice", point)
		}
		points[point] = 0
	}
	names := map[string]bool{}
	for _, c := range Matrix(1) {
		if names[c.String()] {
			t.Errorf("the case %s is there twice", c)
		}
		names[c.String()] = true
		if c.Fault != "" {
			continue
		}
		if _, known := points[c.Point]; !known {
			t.Errorf("the matrix has the point %s, and kafka.Points has not", c.Point)
		}
		points[c.Point]++
	}
	for _, s := range specs() {
		if n := points[s.point]; n != len(Ways()) {
			t.Errorf("the point %s has %d cases, want %d", s.point, n, len(Ways()))
		}
	}
}

const (
	// shortRound is how long a short round begins new cases.
	shortRound = 15 * time.Second
	// Small inputs and long sessions: the race detector makes a run ten times as
	// long, and other packages' tests run beside this one.
	shortLines, shortReadings = 500, 1000
	shortSession              = 3 * time.Second
	shortPatience             = 90 * time.Second
)

// TestAShortRoundOfTheMatrix runs some cases, which differ from run to run; the
// whole matrix is `make faults`.
func TestAShortRoundOfTheMatrix(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("STROM_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with: STROM_TEST_SEED=%d go test ./internal/faults -run %s", seed, t.Name())
	cases := Matrix(seed)
	caseRand(seed, "short").Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	h := &Harness{
		NewBroker: NewEmbedded, Dir: t.TempDir(), Seed: seed, Lines: shortLines, Readings: shortReadings,
		Session: shortSession, Patience: shortPatience,
		NewDatabase: func(context.Context) (string, func(), error) { return pgtest.New(t), func() {}, nil },
	}
	began := time.Now()
	var next atomic.Int64
	var workers sync.WaitGroup
	together := 2
	if race.Enabled {
		together = 1
	}
	for range together {
		workers.Go(func() {
			for time.Since(began) < shortRound {
				c := cases[next.Add(1)-1]
				t.Run(c.String(), func(t *testing.T) {
					if err := h.Run(t.Context(), c); err != nil {
						t.Errorf("%v\nin full: make faults CASE=%s SEED=%d", err, c, seed)
					}
				})
			}
		})
	}
	workers.Wait()
}
