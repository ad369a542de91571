"""`memroom run --fit` on a real card: jobs of five styles under caps of 60 % and 80 % of their own peak.

    python bench/gpu/fit.py --memroom bin/memroom --out results.jsonl [--jobs 5] [--only NAME,...] [--caps 0.6,0.8] [--timing] [--peers]

A row is appended to the file as soon as it is known, and rows that are there are not run again, so a run that was cut off goes
on where it stopped. Several jobs share the card; --timing runs the ones that compare speed one after another, with the
same remedy written by hand. --table prints what the file holds.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOBS = ["plain_nanogpt", "plain_gpt2_outside", "plain_encoder", "hf_gpt2", "hf_bert", "lightning_vit", "lightning_opt", "vision_resnet50",
        "vision_convnext", "scaler_gpt2", "scaler_vit", "scaler_gpt2_fp16"]
FLAGS = {"hf_bert": ["--per_device_train_batch_size", "96"]}
LOOSE = {"scaler_gpt2_fp16": 1e-2}  # the promise of 1e-4 is for fp32


class Results:
    def __init__(self, path):
        self.path, self.lock, self.rows = path, threading.Lock(), {}
        if os.path.exists(path):
            for line in open(path):
                row = json.loads(line)
                self.rows[(row["job"], row["run"])] = row

    def once(self, job, run, make):
        if (job, run) in self.rows:
            return self.rows[(job, run)]
        row = dict(make(), job=job, run=run)
        with self.lock:
            self.rows[(job, run)] = row
            with open(self.path, "a") as f:
                f.write(json.dumps(row) + "\n")
        print("%-20s %-14s %s" % (job, run, {k: v for k, v in row.items() if k not in ("job", "run", "losses", "said", "tail")}), flush=True)
        return row


def launch(command, **more):
    """Runs a job; gives its losses (of its last beginning), side figures and exit code."""
    with tempfile.TemporaryDirectory() as folder:
        side, home = os.path.join(folder, "side.json"), os.path.join(folder, "home")
        env = dict(os.environ, FIT_SIDE=side, FIT_OUT=os.path.join(folder, "out"), MEMROOM_HOME=home, TOKENIZERS_PARALLELISM="false",
                   OMP_NUM_THREADS="2", **more)
        begin = time.time()
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, timeout=300)
        row = {"exit": done.returncode, "wall": round(time.time() - begin, 1), "losses": losses(done.stdout), "tries": [int(n) for n in re.findall(r"^try (\d+)", done.stdout, re.M)]}
        if os.path.exists(side):
            row.update(json.load(open(side)))
        for path in glob.glob(os.path.join(home, "runs", "*", "fit.json")):
            record = json.load(open(path))
            last = record["attempts"][-1]
            row["attempts"] = len(record["attempts"])
            row["said"] = [[s["kind"], s["text"], s.get("predicted", 0), s.get("pieces", 0)] for a in record["attempts"] for s in a.get("said", [])]
            row["changed"] = last.get("changed")
            row["first_ran_out"] = bool(record["attempts"][0].get("out_of"))
        if done.returncode:
            row["tail"] = (done.stdout + done.stderr)[-1500:]
        return row


def losses(text):
    found = [(int(a), float(b)) for a, b in re.findall(r"step (\d+) loss (\S+)", text)]
    last = max([i for i, (step, _) in enumerate(found) if step == 0], default=0)
    return [v for _, v in found[last:]]


def apart(a, b):
    if len(a) != len(b) or not a:
        return None
    return max(abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b))


def job(results, options, name):
    command = [sys.executable, "-W", "ignore", os.path.join(HERE, "fit_jobs.py"), name] + FLAGS.get(name, [])
    base = results.once(name, "uncapped", lambda: launch(command))
    again = results.once(name, "uncapped again", lambda: dict(noise=apart(base["losses"], launch(command)["losses"]))) if options.noise else {}
    for cap in options.caps:
        limit = int(cap * base.get("reserved", 0))

        def fitted():
            fraction = {"FIT_FRACTION": repr(limit / base["total"])} if limit else {}
            row = launch([options.memroom, "run", "--fit", "--forgetful", "--"] + command, **fraction)
            row.update(cap=cap, limit=limit, apart=apart(base["losses"], row["losses"]))
            row["good"] = bool(row["exit"] == 0 and row.get("attempts") == 2 and row.get("first_ran_out") and row["apart"] is not None
                               and row["apart"] <= LOOSE.get(name, 1e-4) and row.get("reserved", 0) <= limit)
            return row

        results.once(name, "fit %g" % cap, fitted)
    return again


def timing(results, options):
    """One after another: uncapped, with --fit at 60 %, and the same remedy by hand."""
    for name in options.timing.split(","):
        fit = results.rows.get((name, "fit 0.6"))
        if not fit or fit["exit"]:
            continue
        command = [sys.executable, "-W", "ignore", os.path.join(HERE, "fit_jobs.py"), name]
        fraction = {"FIT_FRACTION": repr(fit["limit"] / fit["total"])}
        pieces = max([s[3] for s in fit["said"] if s[0] == "applied"] + [1])
        blocks = [int(m.group(1)) for s in fit["said"] for m in [re.search(r"(\d+) of \d+ blocks|, (\d+) blocks", s[1])] if m and m.group(1)]
        hand = {"FIT_HAND_PIECES": str(pieces)} if name == "plain_nanogpt" and pieces > 1 else {"FIT_HAND_BLOCKS": str(max(blocks + [0]))}
        alone = results.once(name, "alone", lambda: launch(command))
        ours = results.once(name, "fit 0.6 alone", lambda: launch([options.memroom, "run", "--fit", "--forgetful", "--"] + command, **fraction))
        theirs = results.once(name, "by hand alone", lambda: dict(launch(command, **hand), hand=hand))
        if ours["exit"] == theirs["exit"] == 0:
            print("%-20s fit / uncapped %.3f   by hand / uncapped %.3f   fit / by hand %.3f" % (
                name, ours["seconds"] / alone["seconds"], theirs["seconds"] / alone["seconds"], ours["seconds"] / theirs["seconds"]), flush=True)


def peers(results, options):
    """The same caps with what others offer: they find a batch that fits, by crashing, and keep no effective batch."""
    for peer, name in (("peer_accelerate", "plain_nanogpt"), ("peer_transformers", "hf_gpt2")):
        base = results.rows.get((name, "uncapped"))
        for cap in options.caps:
            if base and base.get("reserved"):
                command = [sys.executable, "-W", "ignore", os.path.join(HERE, "fit_jobs.py"), peer]
                row = results.once(peer, "%g" % cap, lambda: launch(command, FIT_FRACTION=repr(cap * base["reserved"] / base["total"])))
                row["apart"] = apart(base["losses"], row["losses"])
                print("%-20s cap %g: batches tried %s in %.0f s, losses apart by %s" % (peer, cap, row["tries"], row["wall"], row["apart"]), flush=True)


def table(results):
    good = [r for r in results.rows.values() if "good" in r]
    print("%-20s %5s %9s %8s %8s %10s %s" % ("job", "cap", "launches", "peak/cap", "exit", "loss apart", "what"))
    for r in sorted(good, key=lambda r: (r["job"], r["cap"])):
        what = "; ".join(s[1] for s in r.get("said", []) if s[0] == "applied" and "segments" not in s[1])
        print("%-20s %5g %9s %8.3f %8d %10s %s" % (r["job"], r["cap"], r.get("attempts"), r.get("reserved", 0) / max(1, r["limit"]), r["exit"],
                                                   "-" if r["apart"] is None else "%.1e" % r["apart"], what[:110]))
    print("good: %d of %d" % (sum(r["good"] for r in good), len(good)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--out", default="fit-results.jsonl")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--caps", default="0.6,0.8")
    parser.add_argument("--timing", default="", help="jobs whose speed is compared: plain_nanogpt,plain_encoder,vision_resnet50,scaler_vit")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--noise", action="store_true", help="run each job uncapped twice, to see what differs anyway")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    options.caps = [float(c) for c in options.caps.split(",")]
    options.memroom = os.path.abspath(options.memroom)
    results = Results(options.out)
    if not options.table:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for done in [pool.submit(job, results, options, name) for name in options.only.split(",")]:
                try:
                    done.result()
                except Exception as why:
                    print("failed: %s: %s" % (type(why).__name__, why), flush=True)
        if options.timing:
            timing(results, options)
        if options.peers:
            peers(results, options)
    table(results)


if __name__ == "__main__":
    main()
