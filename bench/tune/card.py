#!/usr/bin/env python3
"""Real trials on a real card: twelve perceptrons of 1 to 12 GiB within 24 GiB.

    python bench/tune/card.py [--memroom bin/memroom] [--out FOLDER] [--steps 80]

Each runs alone first: its bytes and its time are what an oracle packs from the first second on, and
their sum is what one trial at a time takes. Then `memroom tune`, with rehearsals and without; then
a study that is interrupted, whose --json must list all trials. About five minutes on an H200.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
BUDGET = 24 * GIB
REHEARSED = ["--rehearse", "2m"]
# further flags, and after how many seconds it is interrupted
STUDIES: dict[str, tuple[list[str], float | None]] = {
    "rehearsed": (REHEARSED, None),
    "learnt": ([], None),
    "interrupted": (REHEARSED, 20),
}
# four layers of 64 bytes a pair of units, beside a context of 0.55 GiB
WIDTHS = [round(((n - 0.55) * GIB / 64) ** 0.5 / 32) * 32 for n in range(1, 13)]


def alone(width: int, steps: int) -> tuple[float, int]:
    began = time.monotonic()
    line = [sys.executable, os.path.join(HERE, "card_train.py"), "--width", str(width), "--bytes"]
    done = subprocess.run(
        [*line, "--steps", str(steps)], capture_output=True, text=True, check=True
    )
    return time.monotonic() - began, int(done.stdout.split()[-1])


def packed(jobs: list[tuple[float, int]]) -> float:
    """The least time of any order in which all jobs begin as soon as there is room."""
    source, best = random.Random(0), float("inf")
    for _ in range(20000):
        source.shuffle(jobs)
        waiting, active, room, now = list(jobs), [], BUDGET, 0.0
        while waiting or active:
            for job in [*waiting]:
                if job[1] <= room:
                    waiting.remove(job)
                    active.append((now + job[0], job[1]))
                    room -= job[1]
            now, freed = min(active)
            active.remove((now, freed))
            room += freed
        best = min(best, now)
    return best


def study(
    memroom: str, out: str, name: str, steps: int, more: list[str], until: float | None
) -> float:
    began = time.monotonic()
    line = [memroom, "tune", "--quiet", "--json=" + os.path.join(out, name + ".json")]
    line += ["--name", name, "--metric", "loss", "--mode", "min", "--gpu-mem", "24GiB"]
    line += ["--samples", "1", "--seed", "1", *more, "--"]
    line += [sys.executable, os.path.join(HERE, "card_train.py"), "--steps", str(steps)]
    line += ["--width", "grid_search([%s])" % ",".join(map(str, shuffled))]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    try:
        process.wait(until)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait()
    return time.monotonic() - began


def ran_out(journal: str) -> int:
    with open(journal) as lines:
        entries = [json.loads(line.split(" ", 1)[1]) for line in lines]
    return sum(bool(e["end"]["outcome"].get("oom")) for e in entries if e["t"] == "end")


shuffled = random.Random(7).sample(WIDTHS, len(WIDTHS))  # people's lists are in no useful order


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--out", default=".", help="a folder for results and journals")
    parser.add_argument("--steps", type=int, default=80)
    asked = parser.parse_args()
    memroom = os.path.abspath(asked.memroom)
    rows: dict[str, Any] = {}
    path = os.path.join(asked.out, "tune.json")
    if os.path.exists(path):  # those alone are not run again
        with open(path) as file:
            rows["alone"] = json.load(file)["alone"]
    else:
        rows["alone"] = [alone(width, asked.steps) for width in WIDTHS]
    for width, (seconds, size) in zip(WIDTHS, rows["alone"]):
        print("width %5d alone: %.1f s, %.2f GiB" % (width, seconds, size / GIB))
    best, each = packed(rows["alone"]), sum(seconds for seconds, _ in rows["alone"])
    print("oracle %.1f s, one at a time %.1f s" % (best, each), flush=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["MEMROOM_HOME"] = home
        for name, (more, until) in STUDIES.items():
            took = study(memroom, asked.out, name, asked.steps, more, until)
            journal = os.path.join(home, "studies", name, "journal.log")
            shutil.copy(journal, os.path.join(asked.out, name + ".log"))
            with open(os.path.join(asked.out, name + ".json")) as file:
                states = [trial["state"] for trial in json.load(file)["trials"]]
            rows[name] = {"seconds": took, "states": states, "ran_out": ran_out(journal)}
            with open(path, "w") as file:
                json.dump(rows, file)
            print(
                "RESULT %s: %.1f s, %.2f x the oracle, %.2f x as fast as one at a time; %d trials, "
                "%d finished, attempts out of memory: %d"
                % (
                    *(name, took, took / best, each / took, len(states)),
                    *(states.count("finished"), rows[name]["ran_out"]),
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
