"""Rehearses the measured training setups and prints our error beside the peer's, case by case.

python3 bench/rehearse/bench.py --memroom bin/memroom --python PYTHON --truth
../shared/groundtruth/h200-peaks.jsonl [REGEX...]

PYTHON is the test environment's (testenv/ensure). The peer is PyTorch's own MemTracker under
FakeTensorMode, in the same run (--no-peer leaves it out). device is what the card gave up (NVML),
the number a plan must predict.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--memroom", required=True)
    p.add_argument("--python", required=True)
    p.add_argument("--truth", required=True)
    p.add_argument("--no-peer", action="store_true")
    p.add_argument("--json", help="write the rows here as JSON lines")
    p.add_argument("cases", nargs="*")
    return p.parse_args()


def run(command, **env):
    """Runs a command and gives its process, seconds and peak resident MiB (of the largest child so
    far, so run one at a time).
    """
    start = time.time()
    timed = (
        ["/usr/bin/time", "-f", "RSS=%M", *command] if os.path.exists("/usr/bin/time") else command
    )
    done = subprocess.run(
        timed,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **env},
        timeout=900,
    )
    seconds = time.time() - start
    found = re.findall(r"RSS=(\d+)", done.stderr)
    rss = (
        int(found[-1]) / 1024
        if found
        else resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    )
    return done, seconds, rss


def as_measured(case):
    """What the measurement's own script did and its description leaves out."""
    return dict(case, ones_mask=True) if case["family"] == "bert" else case


def rehearse(options, path):
    done, seconds, rss = run(
        [
            options.memroom,
            "plan",
            "--rehearse",
            "--json",
            "--gpu",
            "H200",
            "--",
            options.python,
            HERE + "/train_case.py",
            path,
        ]
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": done.stderr[-300:]}
    return answer, seconds, rss


def peer(options, path):
    done, _, _ = run([options.python, HERE + "/memtracker.py", path])
    lines = done.stdout.strip().splitlines()
    return int(lines[-1]) if done.returncode == 0 and lines and lines[-1].isdigit() else None


def percent(got, want):
    return 100.0 * (got - want) / want


def measure(options, row, folder):
    case, truth = as_measured(row["case"]), row["nvml_end"]["used"] - row["nvml_base"]["used"]
    path = os.path.join(folder, "case.json")
    with open(path, "w") as f:
        json.dump(case, f)
    answer, seconds, rss = rehearse(options, path)
    out = {"id": row["id"], "seconds": round(seconds, 1), "rss_mib": round(rss)}
    if "error" in answer:
        return dict(out, error=answer["error"])
    out.update(
        allocated=percent(answer["allocated_peak"], row["peak_allocated"]),
        reserved=percent(answer["reserved_peak"], row["peak_reserved"]),
        device=percent(answer["device_peak"], truth),
        inside=answer["low"] <= truth <= answer["high"],
        high=answer["high"] / truth,
    )
    if not options.no_peer:
        tracked = peer(options, path)
        out["peer_device"] = percent(tracked, truth) if tracked else None
    return out


def show(r):
    if "error" in r:
        return "%-30s FAILED %s" % (r["id"], r["error"][:120])
    peer_text = (
        "peer failed" if r.get("peer_device") is None else "peer %+6.1f %%" % r["peer_device"]
    )
    return (
        "%-30s allocated %+.3f  reserved %+.3f  device %+.3f %%  %s  high %.3f  %5.1f s  "
        "%4d MiB  %s"
        % (
            r["id"],
            r["allocated"],
            r["reserved"],
            r["device"],
            "inside " if r["inside"] else "OUTSIDE",
            r["high"],
            r["seconds"],
            r["rss_mib"],
            peer_text,
        )
    )


def summary(rows):
    good = [r for r in rows if "error" not in r]
    ours = sorted(abs(r["device"]) for r in good)
    print(
        "%d cases, %d failed; device error: median %.3f %%, 90th percentile %.3f %%, "
        "worst %.3f %%; reserved to the byte in %d; truth inside the interval in %d; "
        "largest high %.3f x truth"
        % (
            len(rows),
            len(rows) - len(good),
            statistics.median(ours),
            ours[int(0.9 * (len(ours) - 1))],
            ours[-1],
            sum(r["reserved"] == 0 for r in good),
            sum(r["inside"] for r in good),
            max(r["high"] for r in good),
        )
    )
    peers = [abs(r["peer_device"]) for r in good if r.get("peer_device") is not None]
    if peers:
        print(
            "MemTracker: median %.1f %% in the %d cases it finished"
            % (statistics.median(peers), len(peers))
        )


def main():
    options = arguments()
    rows = []
    with open(options.truth) as f, tempfile.TemporaryDirectory() as folder:
        for line in f:
            row = json.loads(line)
            if options.cases and not any(re.search(c, row["id"]) for c in options.cases):
                continue
            rows.append(measure(options, row, folder))
            print(show(rows[-1]), flush=True)
    if rows:
        summary(rows)
    if options.json:
        with open(options.json, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
