#!/usr/bin/env bash
# Prints every figure we claim that can be had on this machine, next to the peer's. What needs a card is bench/gpu/drive.py.
# A part that cannot run here says why and the others go on.
set -uo pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath CGO_ENABLED=0
python=$(testenv/ensure) || python=
export MEMROOM_TEST_PYTHON=$python
part() { printf '\n=== %s\n' "$1"; shift; "$@" || echo "(this part did not finish: exit $?)"; }
part "plan from a configuration, beside accelerate and MemTracker" go run ./bench/plan
part "plan beside figures that others published" go run ./bench/published
part "reading and replaying snapshots, beside pickle.load" go run ./bench/replay -tile 500
part "categories of a snapshot" go test ./diagnose -count=1 -run TestCategories -v
part "savings of remedies, predicted and measured" go run ./bench/savings table bench/savings/h200.jsonl ../shared
part "leaks and forecasts, recorded" go run ./bench/growth ../shared/traces/index.jsonl
part "leaks and forecasts, made" go run ./bench/growth -first 9000 -seeds 10
[ -z "$python" ] || part "leaks and forecasts, real loops" env PYTHON="$python" bench/leaks/run
part "crash logs, beside grep" bench/logs/run
part "cost of the supervisor" bench/overhead/supervisor
[ -z "$python" ] || part "cost of the probe's hooks" "$python" bench/overhead/cpu.py
[ -z "$python" ] || part "rehearsal, beside MemTracker" "$python" bench/rehearse/bench.py --memroom bin/memroom --python "$python" --truth ../shared/groundtruth/h200-peaks.jsonl
[ -z "$python" ] || part "shared samples, beside a list" "$python" bench/feed/share.py
[ -z "$python" ] || part "streams, beside their peers" env MEMROOM_BINARY=bin/memroom "$python" bench/feed/stream.py
part "8 GB in 128 MiB" bench/feed/cap
part "10,000 stored runs" go run ./bench/store
part "the page of memroom serve" bench/serve/run
part "kills of front end, monitor and job" bench/kill/run
part "device map: 1,000 units over 64 devices" go test ./plan/place -run xxx -bench .
