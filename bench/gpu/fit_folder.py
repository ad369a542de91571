"""Scripts that nobody here has looked at, on a real card: untouched, then
`memroom run --fit --gpu-mem` with a share of what they allocated and a context; untouched once more
where losses differ: on a card as small as that where they never ran out, without cuDNN where it
was told that a library did without its work space.

python bench/gpu/fit_folder.py --memroom bin/memroom --out FILE [--jobs 9] [--seconds N]
--folder SCRIPTS [--cap 0.6] [--table] [SCRIPT...]

What a script prints beside the word "loss" is compared, or every number with a point where there
are fewer than three of those. A row is good when the job ran out once, got through with one
relaunch and its losses are within 1e-4, or three times what it differs from itself by; or when it
never ran out and its losses are as equal: its peak was then a work space that a library does
without, and no remedy was needed. The table names those. `told` is
what the report says where they are not: rounding, or the same on average (expected). Rows that are
there are not run again.
"""

import argparse
import concurrent.futures
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = os.path.join(HERE, "scripts", "host.py")
CONTEXT = 1 << 30  # bytes beside what the allocator gives
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
UNTOUCHED_SECONDS, FIT_SECONDS = 150, 210


def numbers(text):
    found = re.findall(r"(?i)\bloss\w*[\s=:]+(%s|nan|inf)" % NUMBER, text)
    return [float(x) for x in (found if len(found) > 2 else re.findall(r"-?\d+\.\d+", text))]


def apart(a, b):
    """The last as many of b: attempts that ran out may have printed some."""
    if not a or len(b) < len(a):
        return None
    pairs = zip(a, b[len(b) - len(a) :])
    return max(abs(x - y) / max(abs(x), 1e-12) if x == x else float(y == y) for x, y in pairs)


class Runs:
    def __init__(self, options):
        self.options, self.end = options, time.time() + options.seconds
        self.lock, self.rows = threading.Lock(), {}
        if os.path.exists(options.out):
            for line in open(options.out):
                row = json.loads(line)
                self.rows[row["job"], row["run"]] = row

    def script(self, path):
        name = os.path.basename(path)[:-3]
        plain = [sys.executable, "-W", "ignore", HOST, path]
        base = self._run(name, "untouched", plain, UNTOUCHED_SECONDS)
        if not base or base["exit"] or not base.get("allocated"):
            return
        limit = int(self.options.cap * base["allocated"]) + CONTEXT
        fit = [self.options.memroom, "run", "--fit", "--forgetful", "--gpu-mem", str(limit), "--"]
        run = "fit %g" % self.options.cap
        got = self._run(name, run, fit + plain, FIT_SECONDS, base["numbers"], limit)
        if got and got["apart"] and not got["good"]:  # does it repeat itself?
            other, environment = self._otherwise(got, limit, base)
            again = self._run(name, other, plain, UNTOUCHED_SECONDS, environment=environment)
            got["itself"] = apart(base["numbers"], again["numbers"]) if again else None
            got["good"] = good(got)

    def _otherwise(self, got, limit, base):
        """(name, environment) of the untouched run that tells what a script differs from itself by:
        on a card as small where it never ran out, without cuDNN where that took other algorithms.
        """
        if not got.get("first_ran_out"):
            return "capped", {"FIT_FRACTION": str((limit - CONTEXT / 2) / base["total"])}
        return ("native", {"FIT_NATIVE": "1"}) if got.get("did_without") else ("again", {})

    def _run(self, job, name, command, limit, base=None, memory=0, environment=None):
        if (job, name) in self.rows:
            return self.rows[job, name]
        left = self.end - time.time()
        if left < 15:
            return None
        with tempfile.TemporaryDirectory() as folder:
            row = self._finish(command, folder, min(limit, left), environment)
        if row["exit"] == -signal.SIGKILL and left < limit:
            print("%s, %s: no time was left" % (job, name), flush=True)
            return None  # the next run begins with it anew
        row.update(job=job, run=name)
        if base is not None:
            row.update(apart=apart(base, row["numbers"]), itself=None, limit=memory)
            row["good"] = good(row)
        with self.lock:
            self.rows[job, name] = row
            with open(self.options.out, "a") as f:
                f.write(json.dumps(row) + "\n")
        shown = ("job", "run", "exit", "wall", "attempts", "apart", "itself", "told", "good")
        print({key: row[key] for key in shown if key in row}, flush=True)
        return row

    def _finish(self, command, folder, seconds, environment):
        side, home = os.path.join(folder, "side"), os.path.join(folder, "home")
        env = dict(os.environ, FIT_SIDE=side, MEMROOM_HOME=home, FIT_WATCH="1", OMP_NUM_THREADS="2")
        env.update(environment or {})
        begin = time.time()
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        row = {
            "exit": process.returncode,
            "wall": round(time.time() - begin, 1),
            "numbers": numbers(out),
            "requests": re.findall(r"^request failed: (.*)", err, re.M)[:8],
        }
        if os.path.exists(side):
            row.update(json.load(open(side)))
        for path in glob.glob(os.path.join(home, "runs", "*", "fit.json")):
            row.update(read(json.load(open(path))))
        if process.returncode:
            row["tail"] = (out + err)[-2500:]
        return row


def read(record):
    """What a record of --fit tells."""
    attempts = record["attempts"]
    last = [s for s in attempts[-1].get("said", []) if s["kind"] != "declined"]
    rounds = any(s.get("amplifies") for s in last)
    expected = any(s.get("equivalence") == "expected" for s in last)
    return {
        "attempts": len(attempts),
        "first_ran_out": bool(attempts[0].get("out_of")),
        "did_without": any("did without" in s.get("amplifies", "") for s in last),
        "told": "expected" if expected else "rounding" if rounds else "",
        "said": [
            [i, s["kind"], s["text"]] for i, a in enumerate(attempts) for s in a.get("said", [])
        ],
        "impossible": record.get("impossible", ""),
    }


def good(row):
    through = row.get("attempts") == (2 if row.get("first_ran_out") else 1)
    return bool(
        row["exit"] == 0
        and through
        and row["apart"] is not None
        and row["apart"] <= max(1e-4, 3 * (row["itself"] or 0))
    )


def table(rows):
    for r in rows.values():  # the second run untouched came after the row was written
        base = rows.get((r["job"], "untouched"))
        others = [rows.get((r["job"], run)) for run in ("again", "capped", "native")]
        again = [o for o in others if o and not o["exit"]]
        if "good" in r and base and again:
            r["itself"] = max(apart(base["numbers"], o["numbers"]) or 0 for o in again)
            r["good"] = good(r)
    fitted = sorted((r for r in rows.values() if "good" in r), key=lambda r: r["job"])
    print("%-22s %8s %4s %9s %9s %-9s" % ("job", "launches", "exit", "apart", "itself", "told"))
    for r in fitted:
        figures = ["-" if r.get(k) is None else "%.1e" % r[k] for k in ("apart", "itself")]
        told = r.get("told", "")
        if r["exit"] == 0 and not r.get("first_ran_out"):
            told = (told + " never ran out").strip()
        if (r["job"], "native") in rows:
            told += ", itself without cuDNN"
        line = (r["job"], r.get("attempts"), r["exit"], *figures, told)
        print("%-22s %8s %4s %9s %9s %-9s%s" % (*line, "" if r["good"] else " not good"))
    through = sum(r["exit"] == 0 and r.get("attempts") == 2 for r in fitted)
    print(
        "good: %d of %d, of them never ran out: %d; with one relaunch: %d; of the others told that "
        "results differ: %d"
        % (
            sum(r["good"] for r in fitted),
            len(fitted),
            sum(r["good"] and not r.get("first_ran_out") for r in fitted),
            through,
            sum(bool(r.get("told")) and r["exit"] == 0 and not r["good"] for r in fitted),
        )
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--out", default="fit-first.jsonl")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--cap", type=float, default=0.6, help="of what a script allocated")
    parser.add_argument("--jobs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("scripts", nargs="*")
    options = parser.parse_args()
    options.memroom = os.path.abspath(options.memroom)
    runs = Runs(options)
    paths = sorted(glob.glob(os.path.join(os.path.abspath(options.folder), "*.py")))
    paths = [p for p in paths if not options.scripts or os.path.basename(p)[:-3] in options.scripts]
    if not options.table:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(runs.script, paths))
    table(runs.rows)


if __name__ == "__main__":
    main()
