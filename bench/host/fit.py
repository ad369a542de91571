"""Scripts on a CPU: untouched, then `memroom run --fit --host-mem` with a share of what the cgroup
of the untouched run held at most; untouched once more where losses differ.

python bench/host/fit.py --memroom bin/memroom --out FILE [--jobs 1] [--cap 0.75]
--folder SCRIPTS [--table] [SCRIPT...]

A script is a file NAME.py, or NAME.sh for one that starts several ranks; python is first on PATH.
Every number that it prints beside the word "loss" is compared, or every number with a point where
there are fewer than three of those. A row is good when the job ran out once and got through with
one relaunch and losses within 1e-4, or three times what it differs from itself by; or when it was
told what cannot shrink with at most one relaunch (`told`). Rows that are there are not run again.
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
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
SECONDS = 420


def numbers(text):
    found = re.findall(r"(?i)loss\w*[\s=:]+(%s|nan|inf)" % NUMBER, text)
    return [float(x) for x in (found if len(found) > 2 else re.findall(r"-?\d+\.\d+", text))]


def apart(a, b):
    """The last as many of b: attempts that ran out may have printed some."""
    if not a or len(b) < len(a):
        return None
    pairs = zip(a, b[len(b) - len(a) :])
    return max(abs(x - y) / max(abs(x), 1e-12) if x == x else float(y == y) for x, y in pairs)


class Runs:
    def __init__(self, options):
        self.options, self.lock, self.rows = options, threading.Lock(), {}
        if os.path.exists(options.out):
            for line in open(options.out):
                row = json.loads(line)
                self.rows[row["job"], row["run"]] = row

    def script(self, path):
        name, kind = os.path.splitext(os.path.basename(path))
        command = ["bash", path] if kind == ".sh" else [sys.executable, "-W", "ignore", path]
        base = self._run(name, "untouched", [], command)
        if base["exit"] or not base["peak"]:
            return
        limit = int(self.options.cap * base["peak"])
        given = ["--fit", "--forgetful", "--host-mem", str(limit)]
        got = self._run(name, "fit %g" % self.options.cap, given, command, base["numbers"])
        if got["apart"] and not got["good"]:  # does it repeat itself?
            self._run(name, "again", [], command)

    def _run(self, job, name, given, command, base=None):
        if (job, name) in self.rows:
            return self.rows[job, name]
        with tempfile.TemporaryDirectory() as folder:
            row = _finish([self.options.memroom, "run", *given, "--", *command], folder)
        row.update(job=job, run=name)
        if base is not None:
            row.update(apart=apart(base, row["numbers"]), itself=None, limit=given[-1])
            row["good"] = good(row)
        with self.lock:
            self.rows[job, name] = row
            with open(self.options.out, "a") as f:
                f.write(json.dumps(row) + "\n")
        shown = ("job", "run", "exit", "wall", "peak", "attempts", "apart", "impossible", "good")
        print({key: row[key] for key in shown if key in row}, flush=True)
        return row


def _finish(command, folder):
    env = dict(os.environ, MEMROOM_HOME=os.path.join(folder, "home"), OMP_NUM_THREADS="1")
    env["PATH"] = os.path.dirname(sys.executable) + os.pathsep + env["PATH"]
    begin, pipe = time.time(), subprocess.PIPE
    process = subprocess.Popen(
        command, env=env, cwd=folder, text=True, start_new_session=True, stdout=pipe, stderr=pipe
    )
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate()
    row = {"exit": process.returncode, "wall": round(time.time() - begin, 1)}
    row.update(numbers=numbers(out), peak=0)
    for path in glob.glob(os.path.join(folder, "home", "runs", "*", "summary.json")):
        summary = json.load(open(path))
        row["peak"] = summary["peaks"].get("cgroup", 0)
    for path in glob.glob(os.path.join(folder, "home", "runs", "*", "fit.json")):
        row.update(read(json.load(open(path))))
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
        "says": "expected" if expected else "rounding" if rounds else "",
        "said": [
            [i, s["kind"], s["text"]] for i, a in enumerate(attempts) for s in a.get("said", [])
        ],
        "impossible": record.get("impossible", ""),
    }


def good(row):
    if row["exit"] or not row.get("first_ran_out"):
        return bool(row.get("impossible")) and row.get("attempts", 9) <= 2
    equal = row["apart"] is not None and row["apart"] <= max(1e-4, 3 * (row["itself"] or 0))
    return row["attempts"] == 2 and equal


def table(rows):
    for r in rows.values():  # the second run untouched came after the row was written
        base, again = rows.get((r["job"], "untouched")), rows.get((r["job"], "again"))
        if "good" in r and base and again:
            r["itself"] = apart(base["numbers"], again["numbers"])
            r["good"] = good(r)
    fitted = sorted((r for r in rows.values() if "good" in r), key=lambda r: r["job"])
    print("%-20s %6s %8s %4s %8s %8s told" % ("job", "MiB", "launches", "exit", "apart", "itself"))
    for r in fitted:
        figures = ["-" if r.get(k) is None else "%.1e" % r[k] for k in ("apart", "itself")]
        told = r.get("says") or ("cannot fit" if r.get("impossible") else "")
        if not r.get("first_ran_out"):
            told = "never ran out"
        line = (r["job"], int(r["limit"]) >> 20, r.get("attempts"), r["exit"], *figures, told)
        print("%-20s %6d %8s %4s %8s %8s %s%s" % (*line, "" if r["good"] else "  not good"))
    print("good: %d of %d" % (sum(r["good"] for r in fitted), len(fitted)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--out", default="fit-host.jsonl")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--cap", type=float, default=0.75, help="of what the cgroup held at most")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("scripts", nargs="*")
    options = parser.parse_args()
    options.memroom = os.path.abspath(options.memroom)
    runs, folder = Runs(options), os.path.abspath(options.folder)
    paths = sorted(glob.glob(folder + "/*.py") + glob.glob(folder + "/*.sh"))
    names = options.scripts
    paths = [p for p in paths if not names or os.path.basename(p).rsplit(".", 1)[0] in names]
    paths = [p for p in paths if p.endswith(".py") is False or p[:-3] + ".sh" not in paths]
    if not options.table:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(runs.script, paths))
    table(runs.rows)


if __name__ == "__main__":
    main()
