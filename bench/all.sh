#!/usr/bin/env bash
# Prints every figure we claim that can be had on this machine, next to the peer's. What needs a card is bench/gpu/drive.py.
# A part that cannot run here says why and the others go on.
set -uo pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath CGO_ENABLED=0
python=$(testenv/ensure) || python=
export MEMROOM_TEST_PYTHON=$python
part() { printf '\n=== %s\n' "$1"; shift; "$@" || echo "(this part did not finish: exit $?)"; }
for dir in bench/*/; do
  name=$(basename "$dir")
  case $name in
    gpu) continue ;; # needs a card: python3 bench/gpu/drive.py OUT
  esac
  if [ -x "$dir/run" ]; then part "$name" "$dir/run"
  elif ls "$dir"/*.go >/dev/null 2>&1; then part "$name" go run "./$dir"
  fi
done
part "device map: 1,000 units over 64 devices" go test ./plan/place -run xxx -bench .
