# The two commands of the README are `make demo` and `make test`; the rest is for people who change memroom.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
export GOFLAGS := -trimpath
export CGO_ENABLED := 0

DIST := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build demo test test-fast bench lint dist clean
build: bin/memroom
bin/memroom: $(shell git ls-files -co --exclude-standard '*.go' '*.py' 'web/*' go.mod go.sum 2>/dev/null)
	go build -o $@ ./cmd/memroom

demo: bin/memroom ## the main job, on a machine without a GPU
	@examples/demo

test: ## everything, against real frameworks; what this machine lacks is skipped and counted
	@export MEMROOM_TEST_PYTHON=$$(testenv/ensure || true); \
	 [ -n "$$MEMROOM_TEST_PYTHON" ] || echo "SKIPPING everything that needs PyTorch or TensorFlow: see the lines above"; \
	 { go test -json -timeout 25m ./... 2>&1 || true; (cd web/browsertest && go test -json ./... 2>&1) || true; } | go run ./testenv/count

test-fast: ## the part without frameworks
	@{ MEMROOM_TEST_PYTHON= go test -json ./... 2>&1 || true; } | go run ./testenv/count

bench: bin/memroom ## every figure we claim, next to the peer's
	@bench/all.sh

lint:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt'd:"; gofmt -l .; exit 1; }
	go vet ./...
	GOOS=darwin go vet ./cmd/... ./cli/...
	go run $(STATICCHECK) ./...

dist: ## release binaries: reproducible, version from build info
	@rm -rf dist && mkdir dist
	@for p in $(DIST); do out=dist/memroom-$${p/\//-}; echo $$out; \
	  GOOS=$${p%/*} GOARCH=$${p#*/} go build -ldflags='-s -w' -o $$out ./cmd/memroom; done
	@for a in amd64 arm64; do out=dist/memroom-linux-$$a-static; echo "$$out (no NVML)"; \
	  GOOS=linux GOARCH=$$a go build -tags nogpu -ldflags='-s -w' -o $$out ./cmd/memroom; done
	@cd dist && sha256sum memroom-* > SHA256SUMS && cat SHA256SUMS

clean:
	rm -rf bin dist
