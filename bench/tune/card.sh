#!/usr/bin/env bash
# Real trials on a real card: 12 within 60 GiB, as many at once as fit, for three seeds; then four of them one at a
# time. Prints how many ran at once, attempts that ran out of memory, and seconds. Arguments: the binary (bin/memroom),
# the Python with PyTorch (python3).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:-bin/memroom}")
python=${2:-python3}
MEMROOM_HOME=$(mktemp -d) && export MEMROOM_HOME && trap 'rm -rf "$MEMROOM_HOME"' EXIT
study() { # name, seed, more flags
  local name=$1 seed=$2 began=$SECONDS
  shift 2
  "$binary" tune --quiet --name "$name" --seed "$seed" --metric loss --mode min --gpu-mem 60GiB "$@" -- \
    "$python" "$here/card_train.py" --lr 'loguniform(1e-4,1e-2)' --bs 'choice(16,32,64)' --width 'choice(256,512)'
  "$python" - "$MEMROOM_HOME/studies/$name/journal.log" $((SECONDS - began)) <<'P'
import json, sys
most, ran_out, now = 0, 0, set()
for line in open(sys.argv[1]):
    e = json.loads(line.split(" ", 1)[1])
    if e["t"] == "start":
        now.add(e["trial"])
        most = max(most, len(now))
    if e["t"] == "end":
        now.discard(e["trial"])
        ran_out += bool(e["end"]["outcome"].get("oom"))
print("at once at most %d, attempts out of memory %d, %s s" % (most, ran_out, sys.argv[2]))
P
}
for seed in 1 2 3; do study "many-$seed" "$seed" --samples 12; done
study one 1 --samples 4 --concurrent 1
