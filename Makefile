# The two commands of the README are `make demo` and `make test`; the rest is for people who change memroom.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
export GOFLAGS := -trimpath
export CGO_ENABLED := 0

VERSION := $(shell sed -n 's/^const release = "\(.*\)"/\1/p' cli/version.go)
DIST := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
# Packages whose tests use our goroutines in their own process: they run under the race detector where there is a C
# compiler, but files marked `!race`, which drive the built binary.
RACE := ./supervise/... ./meter/... ./trial/local/...
# Packages whose tests take minutes: each test is a job of its own.
SPLIT := ./probe ./cli ./supervise ./attack ./trial/conformance ./feed/serve
# The Python environments of `make test-real` beside the main one: a file of pins each. peers is for bench/feed alone.
ENVIRONMENTS := $(filter-out peers examples,$(patsubst testenv/requirements-%.txt,%,$(wildcard testenv/requirements-*.txt)))

.PHONY: build demo test test-real test-fast check attack fuzz mutate bench lint dist wheel release docs clean
build: bin/memroom
bin/memroom: $(shell git ls-files -co --exclude-standard '*.go' '*.py' 'web/*' go.mod go.sum 2>/dev/null)
	go build -o $@ ./cmd/memroom

demo: bin/memroom ## the main job, on a machine without a GPU
	@examples/demo

# Linters run beside the tests. testenv/suite/real.txt lists what `make test` leaves to `make test-real`, which installs
# further environments in the background; a test that needs one waits for it. The page's tests share one browser: starting one costs more than most of them. Ray's workers
# run at niceness 15 by themselves: beside other tests they would wait for all of these while Ray's servers go on.
test: ## linters, types, the page in a browser, and tests against one PyTorch and one TensorFlow
	@export MEMROOM_TEST_PYTHON=$$(testenv/ensure || true) OMP_NUM_THREADS=1; \
	 export MEMROOM_TEST_GUARD_PYTHON=$$(testenv/ensure guard || true); \
	 [ -n "$$MEMROOM_TEST_PYTHON" ] || echo "SKIPPING everything that needs PyTorch or TensorFlow: see the lines above"; \
	 mkdir -p bin; \
	 go run ./testenv/suite -times bin/times.txt $(addprefix -split ,$(SPLIT)) $(addprefix -race ,$(RACE)) \
	   -beside 'cd web/browsertest && go test -json -timeout 3h .' -beside 'testenv/checks style' | \
	   go run ./testenv/count

test-real: ## the rest: other releases, Ray, Slurm, PostgreSQL, an object store, staticcheck, fuzzing, release builds
	@export MEMROOM_TEST_PYTHON=$$(testenv/ensure || true) MEMROOM_TEST_ENSURE=1 OMP_NUM_THREADS=1 \
	   RAY_worker_niceness=0; \
	 { for name in $(ENVIRONMENTS); do testenv/ensure $$name || true; done; } >/dev/null & \
	 mkdir -p bin; \
	 go run ./testenv/suite -real -times bin/times-real.txt $(addprefix -split ,$(SPLIT)) \
	   -beside 'testenv/checks release' -beside 'testenv/checks fuzz_all' | go run ./testenv/count

test-fast: ## the part without frameworks
	@{ MEMROOM_TEST_PYTHON= go test -json ./... 2>&1 || true; } | go run ./testenv/count

check lint: ## formatting, linters, types, short fuzzing, release builds
	@testenv/checks | go run ./testenv/count

attack: ## hostile files, another user, full disks, kills: the long form of what `make test` tries
	@MEMROOM_ATTACK=long go test -count=1 -v -timeout 3h ./attack/...

FUZZTIME ?= 1m
fuzz: ## every fuzz target for FUZZTIME
	@FUZZTIME=$(FUZZTIME) FUZZCORES=$$(nproc) testenv/checks fuzz_all | go run ./testenv/count

mutate: ## small wrong changes, one at a time: how many do the tests notice? PKG=./remedy N=20
	@go run ./bench/mutate -n $(or $(N),20) $(or $(PKG),./allocsim ./diagnose ./meter ./remedy ./store ./trace)

bench: bin/memroom ## every figure we claim, next to the peer's
	@bench/all.sh

dist: ## release binaries: reproducible, version from build info
	@rm -rf dist && mkdir dist
	@for p in $(DIST); do out=dist/memroom-$${p/\//-}; echo $$out; \
	  GOOS=$${p%/*} GOARCH=$${p#*/} go build -ldflags='-s -w' -o $$out ./cmd/memroom; done
	@for a in amd64 arm64; do out=dist/memroom-linux-$$a-static; echo "$$out (no NVML)"; \
	  GOOS=linux GOARCH=$$a go build -tags nogpu -ldflags='-s -w' -o $$out ./cmd/memroom; done
	@cd dist && sha256sum memroom-* > SHA256SUMS && cat SHA256SUMS

wheel: dist ## Python wheels: the command, the probe and `import memroom` in one file a platform
	@go run ./probe/wheel -version $(VERSION)

RELEASE ?= file://$(CURDIR)/dist
release: wheel ## wheel, and the rest of a publication; RELEASE=ADDRESS under which its files will be found
	@go run ./probe/wheel -version $(VERSION) -release $(RELEASE) && ls dist

docs: ## the site: documents, a page a lint rule, a page a remedy, in dist/site
	@rm -rf dist/pages && go run ./docs/site dist/pages
	@$$(testenv/ensure docs) -m mkdocs build --quiet && echo dist/site/index.html

clean:
	rm -rf bin dist
