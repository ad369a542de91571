#!/usr/bin/env bash
# Trials that read large files beside trials that hold memory, in a budget of 1 GiB. Page cache fills their cgroups up
# to the limit and must not hold anybody up. Prints which version of cgroups there is, seconds, and trials by state; with
# a folder as the third argument, what the cgroups' files said. Arguments: the binary (bin/memroom), Python (python3).
set -euo pipefail
binary=$(realpath "${1:-bin/memroom}")
python=${2:-python3}
keep=${3:-}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export MEMROOM_HOME=$work/home
head -c 1500M /dev/zero > "$work/large"
cat > "$work/read.py" <<'P'
import sys, time
path, mb = sys.argv[1], int(sys.argv[2])
held = bytearray(mb << 20)
held[::4096] = b"x" * len(held[::4096])
began = time.time()
with open(path, "rb", buffering=0) as f:
    block = bytearray(1 << 20)
    while f.readinto(block):
        pass
time.sleep(1)
print("loss=%.2f" % (time.time() - began))
P
stat -fc 'cgroups: %T' /sys/fs/cgroup
cat /proc/self/cgroup
if [ -n "$keep" ]; then
  (for _ in $(seq 60); do
    for d in $(find /sys/fs/cgroup -maxdepth 6 -type d -name 'memroom-*' 2> /dev/null); do
      echo "== $(date +%T.%N) $d"
      for f in memory.current memory.high memory.max memory.events memory.usage_in_bytes memory.limit_in_bytes; do
        [ ! -e "$d/$f" ] || { echo "$f: $(tr '\n' ' ' < "$d/$f")"; }
      done
      cat "$d/memory.stat" 2> /dev/null | tr '\n' ' '
      echo
    done
    sleep 0.5
  done > "$keep/cgroups.txt" 2>&1) &
  watcher=$!
fi
began=$EPOCHREALTIME
"$binary" tune --quiet --no-probe --name files --host-mem 1GiB --gpus-per-trial 0 --search grid --cpus-per-trial 0.1 \
  --json "$work/out.json" -- "$python" "$work/read.py" "$work/large" 'choice(20,40,80,120,160,200,240,280)' | tail -12
[ -z "$keep" ] || { kill "$watcher" 2> /dev/null || true; cp "$MEMROOM_HOME/studies/files/journal.log" "$keep/files.log"; }
"$python" - "$work/out.json" "$EPOCHREALTIME" "$began" <<'P'
import collections, json, sys
trials = json.load(open(sys.argv[1]))["trials"]
print("RESULT %s, attempts %d, %.1f s" % (dict(collections.Counter(t["state"] for t in trials)),
      sum(t["attempts"] for t in trials), float(sys.argv[2]) - float(sys.argv[3])))
P
