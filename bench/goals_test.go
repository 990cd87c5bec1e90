package bench

import (
	"strings"
	"testing"
)

func rates(workload Workload, keys int64, rates map[string]float64, counts bool) *Result {
	r := &Result{Workload: workload, Input: Input{Keys: keys}.WithDefaults()}
	for engine, rate := range rates {
		r.Summaries = append(r.Summaries, Summary{Engine: engine, Median: rate, Counts: counts})
	}
	return r
}

func TestTheReportSaysWhichGoalsAreMetAndByHowMuchOthersAreMissed(t *testing.T) {
	latency := &Result{
		Workload:  Latency,
		Runs:      []Run{{Figures: []Figure{{Name: "p99", Value: 900, Unit: "ms", Goal: 500}, {Name: "p50", Value: 1, Unit: "ms"}}}},
		Summaries: []Summary{{Engine: EngineStrom, Figure: "p99", Unit: "ms", Median: 1000, Counts: true}, {Engine: EngineStrom, Figure: "p50"}},
	}
	few := rates(Aggregate, 10_000, map[string]float64{EngineStrom: 1, EngineKafkaStreams: 200}, true)
	few.Input.Partitions = 1
	text := Report([]*Result{
		few,
		rates(Aggregate, 10_000, map[string]float64{EngineStrom: 1000, EngineKafkaStreams: 200, EngineGoka: 100}, true),
		rates(Aggregate, 100_000, map[string]float64{EngineStrom: 500, EngineKafkaStreams: 100}, false),
		rates(Consume, 10_000, map[string]float64{EngineDecode: 1250}, true),
		latency,
	}, "drawn")
	for _, want := range []string{
		"| windowed aggregate, 10000 keys, against Kafka Streams | ≥ 4 | 5.00 | met |",
		"| windowed aggregate, 10000 keys, against stock goka | ≥ 40 | 10.00 | missed: 0.25 of it |",
		"| windowed aggregate, 10000 keys, against Flink | ≥ 3 |  | not measured |",
		"| windowed aggregate, 100000 keys, against Kafka Streams | ≥ 4 | (5.00) | too short to count |",
		"| 10,000 keys against fetching and decoding alone | ≥ 0.8 | 0.80 | met |",
		"![Events a second, beside peers](drawn/rates.svg)",
		"| latency: p99 | ≤ 500 ms | 1000 ms | missed: 2.00 of it |",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "p50 | ≤") {
		t.Error("a figure without a goal is among the goals")
	}
}
