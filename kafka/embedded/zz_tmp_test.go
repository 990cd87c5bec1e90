package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand"
	"os"
	osexec "os/exec"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forge-platform/strom/kafka/embedded"
)

func TestZZSnapshotThenKill(t *testing.T) {
	ctx, dir := withTimeout(t), t.TempDir()
	first, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Topics: map[string]int32{"out": 2, "in": 1}})
	if err != nil {
		t.Fatal(err)
	}
	history(t, ctx, first)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	o := startElsewhere(t, dir)
	o.kill()
	b, err := embedded.Start(ctx, embedded.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop()
	h, s := ends(t, ctx, b)
	t.Log("before", h["out"], s["out"])
	if _, _, err := newClient(t, b, kgo.TransactionalID("open")).ProducerID(ctx); err != nil {
		t.Fatal(err)
	}
	h, s = ends(t, ctx, b)
	t.Log("after init", h["out"], s["out"])
}

func init() {
	if dir := os.Getenv("ZZ_LOAD"); dir != "" {
		ctx := context.Background()
		b, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Topics: map[string]int32{"out": 8, "in": 1}})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		cl, _ := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.TransactionalID("load"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		fmt.Println(b.Addr())
		for i := 0; ; i++ {
			if err := cl.BeginTransaction(); err != nil {
				panic(err)
			}
			for p := range int32(8) {
				cl.Produce(ctx, &kgo.Record{Topic: "out", Partition: p, Value: []byte(fmt.Sprint(i))}, nil)
			}
			if err := cl.Flush(ctx); err != nil {
				panic(err)
			}
			if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
				panic(err)
			}
		}
	}
}

func TestZZTorn(t *testing.T) {
	torn, leak := 0, 0
	const N = 150
	for i := range N {
		dir := t.TempDir()
		self, _ := os.Executable()
		cmd := osexec.Command(self)
		cmd.Env = append(os.Environ(), "ZZ_LOAD="+dir)
		out, _ := cmd.StdoutPipe()
		cmd.Start()
		sc := bufio.NewScanner(out)
		sc.Scan()
		time.Sleep(50*time.Millisecond + time.Duration(rand.Intn(50000))*time.Microsecond)
		cmd.Process.Kill()
		cmd.Wait()
		ctx := context.Background()
		b, err := embedded.Start(ctx, embedded.Options{DataDir: dir})
		if err != nil {
			t.Fatal(i, err)
		}
		v := committed(t, ctx, b)
		n := len(v[0])
		bad := false
		for p := range int32(8) {
			if len(v[p]) != n {
				bad = true
			}
			for j, x := range v[p] {
				if x != fmt.Sprint(j) {
					leak++
					t.Log("gap", p, j, x)
					break
				}
			}
		}
		if bad {
			torn++
			s := ""
			for p := range int32(8) {
				s += fmt.Sprint(len(v[p]), " ")
			}
			t.Log("torn:", s)
		}
		if i < 3 {
			t.Log("txns", n)
		}
		b.Stop()
	}
	t.Logf("torn %d of %d", torn, N)
}

func TestZZSpeed(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for _, mem := range []bool{true, false} {
			if mem && sync {
				continue
			}
			o := embedded.Options{SyncWrites: sync, Topics: map[string]int32{"out": 4}}
			if !mem {
				o.DataDir = t.TempDir()
			}
			ctx := context.Background()
			b, err := embedded.Start(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			cl := newClient(t, b, kgo.TransactionalID("x"))
			t0 := time.Now()
			n := 0
			for time.Since(t0) < 2*time.Second {
				cl.BeginTransaction()
				for p := range int32(4) {
					cl.Produce(ctx, &kgo.Record{Topic: "out", Partition: p, Value: make([]byte, 140)}, nil)
				}
				cl.Flush(ctx)
				cl.EndTransaction(ctx, kgo.TryCommit)
				n++
			}
			t.Logf("sync=%v mem=%v: txn of 4 partitions %v each", sync, mem, time.Since(t0)/time.Duration(n))
			cl2 := newClient(t, b, kgo.ProducerBatchCompression(kgo.NoCompression()))
			t0 = time.Now()
			n = 0
			for time.Since(t0) < 2*time.Second {
				for range 1000 {
					cl2.Produce(ctx, &kgo.Record{Topic: "out", Partition: int32(n % 4), Value: make([]byte, 140)}, nil)
					n++
				}
			}
			cl2.Flush(ctx)
			t.Logf("   plain produce %.0f rec/s", float64(n)/time.Since(t0).Seconds())
			b.Stop()
		}
	}
	_ = kadm.Offsets{}
}
