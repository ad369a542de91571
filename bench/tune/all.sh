#!/usr/bin/env bash
# Every figure of `memroom tune` that a machine without a card can give, one after the other, on a quiet machine with
# root and memory cgroups. About 14 minutes in all: the simulated clock 0.5, founding 2.5 with Ray, packing 7, recovery
# 1.5, crash 1.5, scale 1.5. Arguments: the binary (bin/memroom), a Python with ray and optuna (`testenv/ensure`),
# the parts (all).
set -euo pipefail
cd "$(dirname "$0")/../.."
binary=$(realpath "${1:-bin/memroom}")
python=${2:-$(testenv/ensure)}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
go build -o "$work/bench" ./bench/tune
shift $(($# > 2 ? 2 : $#))
for part in ${*:-clock founding packing recovery crash scale}; do
  echo "== $part, $(date +%T), load $(cut -d' ' -f1 /proc/loadavg)"
  case $part in
    clock) go test ./trial/engine -count=1 -v -run 'Packing|Large' | grep -E 'RUN|mean|oracle|^ok|FAIL' |
      grep -E 'mean|ok|FAIL|RUN.*/|Few' ;;
    *) "$work/bench" -binary "$binary" -python "$python" "$part" ;;
  esac
done
