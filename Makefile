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

# What `strom dev` and `strom demo --keep` leave in the work tree.
DATA_DIRS := .strom

COMPOSE ?= docker compose

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo dev build test test-apache lint bench bench-smoke faults sim vectors up down clean help

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

# The tests that ask for a broker of either kind; without the race detector,
# which the half on the embedded broker has had already.
APACHE_TESTS = $(shell sh .ci/apache-tests)

test-apache: ## Run the tests of the engine and of replicas on Apache Kafka; needs Maven and Java 17
	@[ -n "$(APACHE_TESTS)" ] || { echo 'make test-apache: no tests found' >&2; exit 1; }
	STROM_TEST_ON=apache go test -timeout 20m -p 1 $(TEST_FLAGS) ./internal/kafkatest
	STROM_TEST_ON=apache go test -timeout 20m -p 1 $(TEST_FLAGS) -run '^($(APACHE_TESTS))$$' ./kafka ./cmd/strom

lint: $(GOLANGCI_LINT) ## Check formatting, go vet and golangci-lint (import layers included)
	@bad=$$(gofmt -l -s .); if [ -n "$$bad" ]; then \
	  echo 'make lint: run gofmt -s -w on:' >&2; echo "$$bad" >&2; exit 1; fi
	go vet ./...
	"$(GOLANGCI_LINT)" run --allow-parallel-runners ./...

$(GOLANGCI_LINT):
	@echo 'installing golangci-lint $(GOLANGCI_LINT_VERSION): some minutes, once' >&2
	@mkdir -p "$(@D)"
	GOBIN="$(@D)" GOFLAGS=-buildvcs=false go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

bench: ## Measure throughput and latency
	@echo 'make bench: not available yet; the workloads of bench/ are not written' >&2; exit 1

bench-smoke: ## Run every benchmark once, on tiny inputs
	@echo 'make bench-smoke: not available yet; the workloads of bench/ are not written' >&2; exit 1

faults: ## Run the full crash and fault matrix (CASE=..., SEED=..., FAULTS_FLAGS=...)
	@mkdir -p "$(BIN)"
	go build -o "$(BIN)/faults" ./internal/faults/cmd/faults
	@"$(BIN)/faults" $(if $(CASE),-case '$(CASE)') $(if $(SEED),-seed $(SEED)) $(FAULTS_FLAGS)

sim: ## Run the simulator on random schedules
	@echo 'make sim: not available yet; the simulator is not written' >&2; exit 1

vectors: ## Check the published test vectors of other engines
	@echo 'make vectors: not available yet; the vectors are not adapted' >&2; exit 1

up: ## Start Kafka, PostgreSQL and a schema registry in containers, on loopback
	$(COMPOSE) up --detach --wait

down: ## Stop the containers and delete their data
	$(COMPOSE) down --volumes --remove-orphans

clean: ## Delete binaries, tools and local data directories
	rm -rf "$(BIN)" $(DATA_DIRS)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
