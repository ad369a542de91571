#!/usr/bin/env bash
# Real trials on a real card: 12 within 60 GiB, as many at once as fit, for three seeds; then three of them one at a
# time. Prints how many ran at once, attempts that ran out of memory, and seconds; at the end, how much faster 12 packed
# trials are than 12 at the pace of one at a time. About 250 s on an H200. Arguments: the binary (bin/memroom), the
# Python with PyTorch (python3), a folder for the journals (none: they are deleted).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:-bin/memroom}")
python=${2:-python3}
keep=${3:-}
MEMROOM_HOME=$(mktemp -d) && export MEMROOM_HOME && trap 'rm -rf "$MEMROOM_HOME"' EXIT
packed=0
study() { # name, seed, more flags
  local name=$1 seed=$2 began=$EPOCHREALTIME took
  shift 2
  echo "study $name"
  "$binary" tune --quiet --name "$name" --seed "$seed" --metric loss --mode min --gpu-mem 60GiB "$@" -- \
    "$python" "$here/card_train.py" --lr 'loguniform(1e-4,1e-2)' --bs 'choice(16,32,64)' --width 'choice(256,512)' \
    --steps 120 | tail -16
  took=$(echo "$EPOCHREALTIME $began" | awk '{printf "%.1f", $1 - $2}')
  [ -z "$keep" ] || cp "$MEMROOM_HOME/studies/$name/journal.log" "$keep/$name.log"
  "$python" - "$MEMROOM_HOME/studies/$name/journal.log" "$took" <<'P'
import json, sys
most, ran_out, states, now = 0, 0, {}, set()
for line in open(sys.argv[1]):
    e = json.loads(line.split(" ", 1)[1])
    if e["t"] == "start":
        now.add(e["trial"])
        most = max(most, len(now))
    if e["t"] == "end":
        now.discard(e["trial"])
        ran_out += bool(e["end"]["outcome"].get("oom"))
        states[e["trial"]] = e["end"]["state"]
finished = sum(s == "finished" for s in states.values())
print("RESULT finished %d of %d, at once at most %d, attempts out of memory %d, %s s"
      % (finished, len(states), most, ran_out, sys.argv[2]), flush=True)
P
  seconds=$took
}
for seed in 1 2 3; do
  study "many-$seed" "$seed" --samples 12
  packed=$(echo "$packed $seconds" | awk '{print $1 + $2}')
done
study one 1 --samples 3 --concurrent 1
echo "$packed $seconds" | awk '{printf "RESULT 12 packed: %.1f s on average; 12 at the pace of one at a time: %.1f s; %.1f x\n",
  $1 / 3, $2 * 4, $2 * 4 / ($1 / 3)}'
