# Strom. `make` alone lists the targets.

GOLANGCI_LINT_VERSION := v2.15.0

BIN   := $(CURDIR)/bin
STROM := $(BIN)/strom
# One directory per version: another version is another file, so that the
# pinned one is installed when it is missing and never mistaken.
GOLANGCI_LINT := $(BIN)/tools/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint

# Without git, or without a commit, the version is "unknown".
VERSION := $(or $(shell git describe --tags --always --dirty 2>/dev/null),unknown)

# Packages tested at the same time. Each may run a broker and a database.
TEST_PARALLEL ?= 2
TEST_TIMEOUT  ?= 14m
TEST_FLAGS    ?=
# CI never trusts a cached result.
ifeq ($(CI),true)
override TEST_FLAGS += -count=1
endif

# The simulator: so many seeds, or the one to repeat; a bug to plant or to provoke.
SEEDS   ?= 200
SEED    ?=
BUG     ?=
PROVOKE ?=
SIM_FLAGS = -sim.bug="$(BUG)" -sim.provoke="$(PROVOKE)" $(if $(SEED),-sim.seed=$(SEED),-sim.seeds=$(SEEDS))

# What `strom dev` and `strom demo --keep` leave in the work tree.
DATA_DIRS := .strom

COMPOSE ?= docker compose

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo dev build test test-apache lint bench bench-full bench-programs bench-report bench-smoke faults sim vectors up down clean help

demo: build ## Run the demo on real earthquakes: needs nothing but Go, ends by itself
	@$(STROM) demo $(ARGS)

dev: build ## Run a development pipeline with its own broker and database (ARGS="...")
	@$(STROM) dev $(ARGS)

build: ## Build bin/strom
	@mkdir -p "$(BIN)"
	go build -trimpath -ldflags '-X main.version=$(VERSION)' -o "$(STROM)" ./cmd/strom

test: ## Run go vet and all tests on the embedded broker, with the race detector where a C compiler is found
	go vet ./...
	@if [ "$$(go env CGO_ENABLED)" = 1 ] && command -v $$(go env CC | cut -d' ' -f1) >/dev/null 2>&1; then \
	  race=-race; \
	elif [ "$$CI" = true ]; then \
	  echo 'make test: the race detector needs cgo and a C compiler; CI does not run without it' >&2; exit 1; \
	else \
	  race=; echo 'make test: no cgo or no C compiler: running WITHOUT the race detector (install gcc to have it)' >&2; \
	fi; \
	set -x; STROM_TEST_ON=embedded go test $$race -timeout $(TEST_TIMEOUT) -p $(TEST_PARALLEL) $(TEST_FLAGS) ./...
	go test -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./internal/sim

# The tests that ask for a broker of either kind; without the race detector,
# which the half on the embedded broker has had already.
APACHE_TESTS = $(shell sh .ci/apache-tests)

test-apache: ## Run the tests of the engine and of replicas on Apache Kafka; needs Maven and Java 17
	@[ -n "$(APACHE_TESTS)" ] || { echo 'make test-apache: no tests found' >&2; exit 1; }
	STROM_TEST_ON=apache go test -timeout 20m -p 1 $(TEST_FLAGS) ./internal/kafkatest
	STROM_TEST_ON=apache go test -timeout 20m -p 1 $(TEST_FLAGS) -run '^($(APACHE_TESTS))$$' ./kafka ./cmd/strom
	go run ./internal/faults/cmd/faults -on apache -case commit.end_sent

lint: $(GOLANGCI_LINT) ## Check formatting, go vet and golangci-lint (import layers included)
	@bad=$$(gofmt -l -s .); if [ -n "$$bad" ]; then \
	  echo 'make lint: run gofmt -s -w on:' >&2; echo "$$bad" >&2; exit 1; fi
	go vet ./...
	"$(GOLANGCI_LINT)" run --allow-parallel-runners ./...

$(GOLANGCI_LINT):
	@echo 'installing golangci-lint $(GOLANGCI_LINT_VERSION): some minutes, once' >&2
	@mkdir -p "$(@D)"
	GOBIN="$(@D)" GOFLAGS=-buildvcs=false go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

# Events for runs of at least 30 s on two cores; goka is given a part of them.
BENCH_ROUNDS ?= 3
# So many events that each run takes more than 30 s on a machine of today.
BENCH_EVENTS_CONSUME ?= 120000000
BENCH_EVENTS_10K     ?= 60000000
BENCH_EVENTS_100K    ?= 15000000
BENCH_EVENTS_SINK    ?= 1500000
BENCH_EVENTS_1M      ?= 10000000
BENCH_EVENTS_10M     ?= 15000000
BENCH_EVENTS_NEXMARK ?= 20000000
BENCH_EVENTS_OF      ?= kafka-streams=12000000,flink=12000000,goka=5000000
BENCH_FLAGS  ?= --broker apache --seed 1
BENCH_PEERS  := bench/peers/kafka-streams bench/peers/flink

BENCH_AGGREGATE = $(STROM) bench aggregate $(BENCH_FLAGS)
BENCH_ALL_PEERS = --engine strom,kafka-streams,flink,goka --events-of $(BENCH_EVENTS_OF) --rounds $(BENCH_ROUNDS)

bench: bench-programs ## Measure ours beside Kafka Streams, Flink and stock goka, and what ours does alone: most of an hour (needs Maven)
	$(BENCH_AGGREGATE) $(BENCH_ALL_PEERS) --keys 10000 --events $(BENCH_EVENTS_10K) --out bench/results/aggregate-10k.json
	$(BENCH_AGGREGATE) $(BENCH_ALL_PEERS) --keys 100000 --events $(BENCH_EVENTS_100K) --out bench/results/aggregate-100k.json
	$(STROM) bench consume --events $(BENCH_EVENTS_CONSUME) --rounds $(BENCH_ROUNDS) $(BENCH_FLAGS) --out bench/results/consume-10k.json
	$(BENCH_AGGREGATE) --keys 1000000 --events $(BENCH_EVENTS_1M) --rounds $(BENCH_ROUNDS) --out bench/results/aggregate-1m.json
	$(STROM) bench sink --events $(BENCH_EVENTS_SINK) --out bench/results/sink.json
	$(STROM) bench latency --out bench/results/latency.json
	$(STROM) bench recover --rounds $(BENCH_ROUNDS) --out bench/results/recover.json
	$(MAKE) bench-report

bench-full: bench-programs ## Measure what make bench leaves out: 10 M keys, late events, fewer partitions, Nexmark, a database that stalls
	$(BENCH_AGGREGATE) --keys 10000000 --events $(BENCH_EVENTS_10M) --out bench/results/aggregate-10m.json
	$(BENCH_AGGREGATE) $(BENCH_ALL_PEERS) --keys 10000 --events $(BENCH_EVENTS_10K) --late 0.01 --out bench/results/aggregate-10k-late1.json
	$(BENCH_AGGREGATE) $(BENCH_ALL_PEERS) --keys 10000 --events $(BENCH_EVENTS_10K) --late 0.2 --out bench/results/aggregate-10k-late20.json
	for n in 1 2; do $(BENCH_AGGREGATE) --keys 10000 --events $(BENCH_EVENTS_10K) --partitions $$n --out bench/results/aggregate-10k-partitions$$n.json || exit 1; done
	$(STROM) bench nexmark --query q7 $(BENCH_FLAGS) --events $(BENCH_EVENTS_NEXMARK) --rounds $(BENCH_ROUNDS) --out bench/results/nexmark-q7.json
	$(STROM) bench stall --out bench/results/stall.json
	$(MAKE) bench-report

bench-programs: build $(BIN)/bench-goka ## Build ours and the peers for make bench (needs Maven)
	set -e; for peer in $(BENCH_PEERS); do mvn -B -q -f "$$peer" clean package; done
	@mkdir -p bench/results

bench-report: build ## Draw and write bench/REPORT.md from bench/results
	go run ./bench/cmd/plots -out bench/plots bench/results/*.json
	$(STROM) bench report bench/results/*.json --plots plots --out bench/REPORT.md

bench-smoke: build $(BIN)/bench-goka ## Run a tiny round of ours and stock goka, checked, in under a minute
	@$(STROM) bench aggregate --engine strom,goka --events 3000000 --events-of goka=200000 --rounds 2 --timeout 40s --goka $(BIN)/bench-goka

.PHONY: $(BIN)/bench-goka
$(BIN)/bench-goka:
	@mkdir -p "$(BIN)"
	go build -trimpath -o "$@" ./bench/peers/goka

faults: ## Run the full crash and fault matrix (CASE=..., SEED=..., ON=apache, FAULTS_FLAGS=...)
	@mkdir -p "$(BIN)"
	go build -o "$(BIN)/faults" ./internal/faults/cmd/faults
	@"$(BIN)/faults" $(if $(CASE),-case '$(CASE)') $(if $(SEED),-seed $(SEED)) $(if $(ON),-on '$(ON)') $(FAULTS_FLAGS)

sim: ## Run the simulator (SEEDS=n schedules; SEED=n repeats one; BUG="name" plants a bug)
	go test ./internal/sim -count=1 -timeout 0 -run '^TestSimulation$$' -v $(SIM_FLAGS)

vectors: ## Check the published test vectors of other engines
	@echo 'make vectors: not available yet; the vectors are not adapted' >&2; exit 1

up: ## Start Kafka, PostgreSQL and a schema registry in containers, on loopback
	$(COMPOSE) up --detach --wait

down: ## Stop the containers and delete their data
	$(COMPOSE) down --volumes --remove-orphans

clean: ## Delete binaries, tools and local data directories
	rm -rf "$(BIN)" $(DATA_DIRS)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
