# The two commands of the README are `make demo` and `make test`; the rest is for people who change memroom.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
export GOFLAGS := -trimpath
export CGO_ENABLED := 0

.PHONY: build test test-fast lint clean
build:
	go build -o bin/memroom ./cmd/memroom

test: ## everything, against real frameworks
	MEMROOM_TEST_PYTHON=$$(testenv/ensure || true) go test ./...

test-fast: ## the part without frameworks
	go test ./...

lint:
	test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...

clean:
	rm -rf bin dist
