#!/usr/bin/env python3
"""Runs the GPU cases of cases.json by priority on a machine with a card and nothing but PyTorch.

    python3 bench/gpu/drive.py OUT [--budget SECONDS] [--only PREFIX ...] [--list]

Each case is a command that writes its result to the file named by $RESULT (JSON). A result that
exists is not measured again, so a driver that was stopped, or whose OUT was carried to the next
machine, goes on where it ended. Cases marked "alone" are timed and run by themselves; the others
share the card, several at once. A case that fails or outlives its limit leaves OUT/ID.log and is
tried again by the next call; it never stops the others.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOGETHER = 6  # cases at once where nothing is timed: the card has room, the host 16 cores


def run(case, out, deadline):
    """Runs one case; returns a line that says how it ended."""
    left = deadline - time.monotonic()
    if left < min(20, case["seconds"]):
        return "no time left"
    result, log = os.path.join(out, case["id"] + ".json"), os.path.join(out, case["id"] + ".log")
    partial = result + ".partial"
    env = dict(
        os.environ,
        RESULT=partial,
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        PYTHONUNBUFFERED="1",
    )
    env["PATH"] = os.path.abspath(os.path.join(HERE, "..", "..", "bin")) + os.pathsep + env["PATH"]
    start = time.monotonic()
    with open(log, "wb") as f:
        # A group of its own: a case that hangs is ended with everything it started.
        child = subprocess.Popen(
            case["command"],
            shell=True,
            cwd=os.path.join(HERE, "..", ".."),
            env=env,
            stdout=f,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=min(case["seconds"], left))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = "outlived its %d s" % min(case["seconds"], left)
    took = time.monotonic() - start
    if code == 0 and os.path.exists(partial):
        os.replace(partial, result)
        return "done in %.0f s" % took
    return "failed (%s) after %.0f s, see %s" % (code, took, log)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--only", nargs="*", default=[], help="prefixes of case ids")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    with open(os.path.join(HERE, "cases.json")) as f:
        cases = sorted(json.load(f), key=lambda c: c["priority"])
    cases = [c for c in cases if not args.only or any(c["id"].startswith(p) for p in args.only)]
    os.makedirs(args.out, exist_ok=True)
    todo = [c for c in cases if not os.path.exists(os.path.join(args.out, c["id"] + ".json"))]
    if args.list:
        for c in cases:
            print("%-28s %s  %s" % (c["id"], "todo" if c in todo else "done", c["proves"]))
        return 0
    deadline = time.monotonic() + args.budget
    failed = 0

    def report(case, how):
        nonlocal failed
        failed += not how.startswith("done")
        print("%-28s %s" % (case["id"], how), flush=True)

    for case in [c for c in todo if c.get("alone")]:
        report(case, run(case, args.out, deadline))
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        futures = {pool.submit(run, c, args.out, deadline): c for c in todo if not c.get("alone")}
        for future in concurrent.futures.as_completed(futures):
            report(futures[future], future.result())
    print("%d of %d cases have a result" % (len(cases) - failed, len(cases)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
