# The control plane and the lint tools are built once and kept outside the checkout, in $UNSTALE_CACHE, else in
# $XDG_CACHE_HOME/unstale, else in ~/.cache/unstale.

.DEFAULT_GOAL := help
.PHONY: help build test lint demo bench cover controlplane clean

# Without git, or outside a repository, the program says dev and unknown.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  := $(shell git rev-parse --verify HEAD 2>/dev/null || echo unknown)
DATE    := $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo unknown)
# grpc's traces are never looked at, and cost 7 MB: golang.org/x/net/trace keeps the linker from leaving out what nobody calls.
TAGS    := -tags=grpcnotrace
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)

# Tests that change kernel tables, in namespaces of their own, need root.
KERNEL := $(shell [ "$$(id -u)" = 0 ] && [ "$$(uname)" = Linux ] && echo "-tags=kernel")

# Where the tests, the demo and the benchmarks find the programs they run.
PROGRAMS = UNSTALE="$(CURDIR)/bin/unstale" UNSTALE_CONTROLPLANE="$$(test/controlplane/build.sh)"

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

build: ## build bin/unstale
	@test/preflight.sh go
	CGO_ENABLED=0 go build $(TAGS) -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o bin/unstale ./cmd/unstale

test: ## run all tests, under the race detector (ARGS="-run Name -v" is passed on)
	@test/preflight.sh go cc $(if $(KERNEL),ipset containerd)
	@test/controlplane/build.sh >/dev/null
	@[ -n "$(KERNEL)" ] || echo "Without root on Linux the tests of kernel tables are left out; sudo make test runs them too." >&2
	$(PROGRAMS) CGO_ENABLED=1 go test -race -timeout 15m $(KERNEL) $(ARGS) ./...

lint: ## check the format, vet for Linux, Windows and macOS, staticcheck, go.mod files
	@test/preflight.sh go
	@test/lint/lint.sh

demo: build controlplane ## show plan and sweep on a real API server (ARGS=--keep leaves it running)
	$(PROGRAMS) go run ./test/demo $(ARGS)

bench: build controlplane ## measure, and write bench.json (B=NAME: only that one)
	$(PROGRAMS) B="$(B)" go run ./test/bench $(ARGS)

cover: ## run all tests and say how much of the product they reach (bin/cover.out)
	@test/preflight.sh go $(if $(KERNEL),ipset containerd)
	@test/controlplane/build.sh >/dev/null
	@mkdir -p bin
	$(PROGRAMS) go test -timeout 15m $(KERNEL) -coverprofile=bin/cover.out \
		-coverpkg="$$(go list ./... | grep -v /test/ | paste -sd, -)" ./...
	go tool cover -func=bin/cover.out | tail -1

controlplane: ## build etcd and kube-apiserver for the tests (about 10 minutes the first time)
	@test/preflight.sh go
	@test/controlplane/build.sh

clean: ## remove bin; what is kept outside the checkout stays
	rm -rf bin
