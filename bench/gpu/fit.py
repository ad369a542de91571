"""`memroom run --fit` on a real card: jobs of five styles under caps of 60 % and 80 % of their own
peak.

python bench/gpu/fit.py --memroom bin/memroom --out results.jsonl [--jobs 6] [--only NAME,...]
[--caps 0.6,0.8] [--seconds N]
[--timing NAME,...] [--compiled NAME,...] [--shared NAME,... [--no-alone]] [--peers]
[--seeds NAME,...] [--whole-card NAME,...] [--cannot]

Without a choice the jobs of fit_jobs.py run; each of the flags after --seconds adds or, with --only
"", replaces them. A row is appended to the file as soon as it is known, and rows that are there are
not run again, so a run that was cut off goes on where it stopped. Several jobs share the card;
--timing runs the ones that compare speed one after another, with the same remedy written by hand.
--table prints what the file holds.
"""

import argparse
import collections
import concurrent.futures
import glob
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOBS = [
    "plain_nanogpt",
    "plain_gpt2_outside",
    "plain_encoder",
    "hf_gpt2",
    "hf_bert",
    "lightning_vit",
    "lightning_opt",
    "vision_resnet50",
    "vision_convnext",
    "scaler_gpt2",
    "scaler_vit",
    "scaler_gpt2_fp16",
]
FLAGS = {"hf_bert": ["--per_device_train_batch_size", "96"]}
PAGE = 2 << 20  # the allocator counts whole pages, and lets the last one pass its limit
# Bytes beside what the allocator gives: the context of a process, kernels, libraries' handles.
SHARED_CONTEXT = 1 << 30
BLOCKS_BY_HAND = "Block,GPT2Block,EncoderBlock"  # classes of the compiled scripts' blocks
COMPILED_RUNS = ["compiled fit", "compiled hand"]
PIECES_BY_HAND = ("plain_nanogpt", "plain_encoder")  # jobs that know FIT_HAND_PIECES
# The promise of 1e-4 is for fp32; these run under autocast in half precision.
LOOSE = dict.fromkeys(("scaler_gpt2_fp16", "nanogpt_compiled"), 1e-2)


class Clock:
    """When the time that was given is over, nothing new is started and what runs is ended."""

    def __init__(self, seconds):
        self.end = time.time() + seconds

    def left(self):
        return self.end - time.time()


class Results:
    def __init__(self, path):
        self.path, self.lock, self.rows = path, threading.Lock(), {}
        self.locks = collections.defaultdict(
            threading.Lock
        )  # of one row: whoever comes second waits for it
        if os.path.exists(path):
            for line in open(path):
                row = json.loads(line)
                self.rows[(row["job"], row["run"])] = row

    def once(self, job, run, make):
        with self.lock:
            lock = self.locks[(job, run)]
        with lock:
            return self._once(job, run, make)

    def _once(self, job, run, make):
        if (job, run) in self.rows:
            return self.rows[(job, run)]
        if clock.left() < 5:
            raise TimeoutError("%s %s: no time is left" % (job, run))
        row = dict(make(), job=job, run=run)
        with self.lock:
            self.rows[(job, run)] = row
            with open(self.path, "a") as f:
                f.write(json.dumps(row) + "\n")
        print(
            "%-20s %-14s %s"
            % (
                job,
                run,
                {
                    k: v
                    for k, v in row.items()
                    if k
                    not in "job run losses said tail ends errors requests trace profile".split()
                },
            ),
            flush=True,
        )
        return row


def launch(command, **more):
    """Runs a job; gives its losses (of its last beginning), side figures and exit code."""
    with tempfile.TemporaryDirectory() as folder:
        side, home = os.path.join(folder, "side.json"), os.path.join(folder, "home")
        env = dict(
            os.environ,
            FIT_SIDE=side,
            FIT_OUT=os.path.join(folder, "out"),
            MEMROOM_HOME=home,
            TOKENIZERS_PARALLELISM="false",
            OMP_NUM_THREADS="2",
            **more,
        )
        begin = time.time()
        try:
            done = finish(command, env, folder)
        except subprocess.TimeoutExpired:
            tell_unfinished(home)
            raise
        row = {
            "exit": done.returncode,
            "wall": round(time.time() - begin, 1),
            "losses": losses(done.stdout),
            "tries": [
                [int(n), float(at)]
                for n, at in re.findall(r"^try (\d+) at (\S+)", done.stdout, re.M)
            ],
        }
        if os.path.exists(side):
            row.update(json.load(open(side)))
        for path in glob.glob(os.path.join(home, "runs", "*", "fit.json")):
            record = json.load(open(path))
            last = record["attempts"][-1]
            row["attempts"] = len(record["attempts"])
            row["said"] = [
                [s["kind"], s["text"], s.get("predicted", 0), s.get("pieces", 0)]
                for a in record["attempts"]
                for s in a.get("said", [])
            ]
            row["changed"] = last.get("changed")
            row["first_ran_out"] = bool(record["attempts"][0].get("out_of"))
            row["impossible"] = record.get("impossible", "")
            row["ends"] = [
                {
                    k: a[k]
                    for k in (
                        "out_of",
                        "failed",
                        "requested",
                        "held",
                        "allocated",
                        "reserved",
                        "card_free",
                        "step_ms",
                    )
                    if k in a
                }
                for a in record["attempts"]
            ]
        if more.get("FIT_TURN") and not row.get("in_turn"):  # the others need not wait for it
            tempfile.mkstemp(prefix="here-", dir=more["FIT_TURN"])
        if more.get("FIT_WATCH"):
            row["requests"] = re.findall(r"^request failed: (.*)", done.stderr, re.M)[:12]
        if done.returncode:
            row["errors"] = re.findall(r"^\S*(?:Error|Exception|error)\b.*", done.stderr, re.M)[-8:]
            row["tail"] = (done.stdout + done.stderr)[-2500:]
        return row


def tell_unfinished(home):
    """What is known of a run that was ended because the time was over."""
    for path in glob.glob(os.path.join(home, "runs", "*", "fit.json")):
        for a in json.load(open(path))["attempts"]:
            said = "; ".join(s["text"] for s in a.get("said", []))
            held = "%s held, %s asked for" % (a.get("held"), a.get("requested"))
            print("unfinished: %s, %s: %s" % (a.get("out_of"), held, said[:900]), flush=True)


def finish(command, env, folder):
    """Runs a command to its end, or to the end of the time that is left. Its whole group goes with
    it.
    """
    process = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=min(300, clock.left()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # memroom passes it on to the job
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def losses(text):
    found = [(int(a), float(b)) for a, b in re.findall(r"step (\d+) loss (\S+)", text)]
    last = max([i for i, (step, _) in enumerate(found) if step == 0], default=0)
    return [v for _, v in found[last:]]


def apart(a, b):
    if len(a) != len(b) or not a:
        return None
    return max(abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b))


def command_of(name):
    if name in scripts():
        return [
            sys.executable,
            "-W",
            "ignore",
            os.path.join(HERE, "scripts", "host.py"),
            os.path.join(HERE, "scripts", name + ".py"),
        ]
    return [sys.executable, "-W", "ignore", os.path.join(HERE, "fit_jobs.py"), name] + FLAGS.get(
        name, []
    )


def scripts():
    return sorted(
        os.path.basename(p)[:-3]
        for p in glob.glob(os.path.join(HERE, "scripts", "*.py"))
        if not p.endswith("host.py")
    )


def with_fit(options, command, *more):
    return [options.memroom, "run", "--fit", "--forgetful", *more, "--"] + command


def job(results, options, name, cap):
    command = command_of(name)
    base = results.once(name, "uncapped", lambda: launch(command))
    if base["exit"]:
        raise RuntimeError(
            "%s: the uncapped run failed, so there is nothing to compare with: %s"
            % (name, base.get("tail", "")[-120:])
        )

    def noise():
        return dict(noise=apart(base["losses"], launch(command)["losses"]))

    if options.noise:
        results.once(name, "uncapped again", noise)
    # What a script reserves without a cap is more than it needs: its cap is taken from what it
    # allocated.
    limit = int(cap * base.get("allocated" if name in scripts() else "reserved", 0))

    def fitted():
        fraction = {"FIT_FRACTION": repr(limit / base["total"])} if limit else {}
        row = launch(with_fit(options, command), **fraction)
        row.update(cap=cap, limit=limit, apart=apart(base["losses"], row["losses"]))
        # Some do without memory that they take where it is there: those never run out.
        row["good"] = bool(
            row["exit"] == 0
            and row.get("attempts") == (2 if row.get("first_ran_out") else 1)
            and row["apart"] is not None
            and row["apart"] <= LOOSE.get(name, 1e-4)
            and row.get("reserved", 0) <= limit + PAGE
        )
        return row

    row = results.once(name, "fit %g" % cap, fitted)
    if row["apart"] and row["apart"] > LOOSE.get(name, 1e-4):  # does it repeat itself?
        results.once(name, "uncapped again", noise)


def longest_first(results, names):
    """By the seconds that they take without memroom, where that is known: a long one that begins
    last is waited for alone.
    """
    return sorted(names, key=lambda n: -results.rows.get((n, "uncapped"), {}).get("wall", 0))


def verdict(base, row):
    """What a job's user sees of its end, whoever else was on the card."""
    close = apart(base["losses"], row["losses"])
    return {
        "exit": row["exit"],
        "launches": row.get("attempts"),
        "first_ran_out": row.get("first_ran_out"),
        "equal": close is not None and close <= LOOSE.get(row["job"], 1e-4),
        "apart": close,
    }


def shared(results, options, names):
    """Each job under its own --gpu-mem: alone on the card, then all of them at once, started at
    random times, three times. Verdicts must be the same. A name may come more than once.
    """
    bases, limits = {}, {}

    def fitted(name, run, delay=0.0):
        def make():
            time.sleep(delay)
            row = launch(with_fit(options, command_of(name), "--gpu-mem", str(limits[name])))
            return dict(row, delay=round(delay, 1), limit=limits[name])

        return results.once(name, run, make)

    def uncapped(name):
        bases[name] = results.once(name, "uncapped", lambda: launch(command_of(name)))
        limits[name] = int(0.6 * bases[name]["allocated"]) + SHARED_CONTEXT

    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(uncapped, dict.fromkeys(names)))
    usual = {"exit": 0, "launches": 2, "first_ran_out": True, "equal": True, "apart": 0}
    alone = {
        n: usual if options.no_alone else verdict(bases[n], fitted(n, "alone"))
        for n in dict.fromkeys(names)
    }
    for turn in range(3):
        draw = random.Random(turn)
        jobs = [(n, "at once %d.%d" % (turn, i), draw.uniform(0, 8)) for i, n in enumerate(names)]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            rows = list(pool.map(lambda job: fitted(*job), jobs))
        seen = [(n, alone[n], verdict(bases[n], row)) for n, row in zip(names, rows)]
        other = [s for s in seen if {**s[1], "apart": 0} != {**s[2], "apart": 0}]
        print(
            "at once, turn %d: %d of %d as alone; otherwise: %s"
            % (turn, len(seen) - len(other), len(seen), other),
            flush=True,
        )


def whole_card(results, options, name):
    """The cap is memroom's own: --gpu-mem, which counts the context and the libraries too."""
    command = command_of(name)
    base = results.once(name, "uncapped", lambda: launch(command))
    limit = int(0.6 * base["reserved"]) + (1 << 30)

    def fitted():
        row = launch(with_fit(options, command, "--gpu-mem", str(limit)))
        row.update(limit=limit, apart=apart(base["losses"], row["losses"]))
        return row

    results.once(name, "fit --gpu-mem", fitted)


def cannot(results, options):
    """Weights, gradients and optimizer state alone are more than there is: it must end, soon, with
    the figure.
    """
    base = results.once("plain_nanogpt", "uncapped", lambda: launch(command_of("plain_nanogpt")))
    row = results.once(
        "plain_nanogpt",
        "cannot fit",
        lambda: launch(
            with_fit(options, command_of("plain_nanogpt")),
            FIT_FRACTION=repr((1 << 30) / base["total"]),
        ),
    )
    print(
        "a cap of 1 GiB: exit %d after %.0f s and %s launches: %s"
        % (row["exit"], row["wall"], row.get("attempts"), row.get("impossible")),
        flush=True,
    )


def with_dropout(results, options, pool, name):
    """Dropout 0.1, five seeds, uncapped and fitted under 60 %: the means of the losses, in standard
    errors of their difference.
    """
    base = results.once(name, "uncapped", lambda: launch(command_of(name)))
    fraction = {"FIT_FRACTION": repr(0.6 * base["reserved"] / base["total"])}

    def one(seed, fitted):
        command, more = (
            (with_fit(options, command_of(name)), fraction) if fitted else (command_of(name), {})
        )
        return results.once(
            name,
            "seed %d %s" % (seed, "fit" if fitted else "uncapped"),
            lambda: launch(command, FIT_SEED=str(seed), FIT_DROPOUT="0.1", **more),
        )

    rows = list(
        pool.map(
            lambda pair: one(*pair),
            [(seed, fitted) for fitted in (False, True) for seed in range(5)],
        )
    )
    plain, fit = (
        [statistics.mean(r["losses"]) for r in part if r["exit"] == 0]
        for part in (rows[:5], rows[5:])
    )
    if len(plain) == len(fit) == 5:
        error = ((statistics.variance(plain) + statistics.variance(fit)) / 5) ** 0.5
        print(
            (
                "%-20s dropout, 5 seeds: mean loss %.6f uncapped, %.6f fitted, %.2f standard "
                "errors apart"
            )
            % (
                name,
                statistics.mean(plain),
                statistics.mean(fit),
                abs(statistics.mean(plain) - statistics.mean(fit)) / error,
            ),
            flush=True,
        )


def timing(results, options):
    """One after another: with --fit at 60 %, and the same remedy by hand, in turns so that a slow
    moment of the machine hits both.
    """
    for name in filter(None, options.timing.split(",")):
        fit = results.rows.get((name, "fit 0.6"))
        if not fit or fit["exit"]:
            continue
        command = command_of(name)
        fraction = {"FIT_FRACTION": repr(fit["limit"] / fit["total"])}
        ours = results.once(
            name, "fit 0.6 alone", lambda: launch(with_fit(options, command), **fraction)
        )
        hand = by_hand(name, ours)
        theirs = results.once(
            name, "by hand alone", lambda: dict(launch(command, **hand), hand=hand)
        )
        if ours["exit"] == theirs["exit"] == 0:
            print(
                "%-20s fit / by hand %.3f   (%.1f and %.1f ms a step, %s)"
                % (
                    name,
                    ours["seconds"] / theirs["seconds"],
                    1e3 * ours["seconds"],
                    1e3 * theirs["seconds"],
                    hand,
                ),
                flush=True,
            )


def by_hand(name, fit):
    """The environment that makes a job do by hand what --fit did to it."""
    applied = [s for s in fit["said"] if s[0] == "applied"]
    pieces = max([s[3] for s in applied] + [1])
    kept = [
        int(m.group(1))
        for s in applied
        for m in [re.search(r"activations of (\d+) kept", s[1])]
        if m
    ]
    blocks = [
        int(m.group(1)) for s in applied for m in [re.search(r"(\d+) of \d+ blocks", s[1])] if m
    ]
    if name in PIECES_BY_HAND and pieces > 1:
        return {"FIT_HAND_PIECES": str(pieces), "FIT_HAND_KEEP": str(max(kept + [0]))}
    return {"FIT_HAND_BLOCKS": str(max(blocks + [0]))}


def compiled(results, options, name):
    """A compiled script untouched, with --fit at 60 %, and with the same remedy by hand, each
    compiling anew: seconds from launch to the first step. All compile side by side, the fitted ones
    and those by hand then wait for each other, and steps are timed in turn.
    """
    command = command_of(name)
    fresh = lambda: {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp()}
    # Where an earlier run has told the size, the untouched script compiles beside the others.
    untouched = lambda: results.once(name, "compiled", lambda: launch(command, **fresh()))
    size = results.rows.get((name, "size")) or untouched()
    more = dict(options.turn, FIT_FRACTION=repr(0.6 * size["allocated"] / size["total"]))
    # By hand with the same setting of the allocator, too: GPT-2 does not fit without.
    by_hand = {
        "FIT_REGIONS": BLOCKS_BY_HAND,
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    runs = {
        "compiled fit": (with_fit(options, command), {}),
        "compiled hand": (command, by_hand),
    }
    with concurrent.futures.ThreadPoolExecutor(len(runs) + 1) as pool:
        waiting = pool.submit(untouched)

        def one(run):
            what, env = runs[run]
            return results.once(name, run, lambda: launch(what, **env, **more, **fresh()))

        rows = dict(zip(COMPILED_RUNS, pool.map(one, COMPILED_RUNS)))
        base = waiting.result()
    ours, theirs = rows["compiled fit"], rows["compiled hand"]
    if ours["exit"] == theirs["exit"] == 0:
        print(
            "%-20s launches %s, to the first step %.1f s, untouched %.1f s: %.2f; a step %s ms, "
            "to by hand %.3f; losses apart by %s"
            % (
                name,
                ours["attempts"],
                ours["first"],
                base["first"],
                ours["first"] / base["first"],
                {
                    run: round(1e3 * row["seconds"], 2)
                    for run, row in rows.items()
                    if not row["exit"]
                },
                ours["seconds"] / theirs["seconds"],
                apart(base["losses"], ours["losses"]),
            ),
            flush=True,
        )


def peers(results, options, pool):
    """The same caps with what others offer: they find a batch that fits, by crashing, and keep no
    effective batch.
    """

    def one(peer, name, cap):
        base = results.rows.get((name, "uncapped")) or results.once(
            name, "uncapped", lambda: launch(command_of(name))
        )
        row = results.once(
            peer,
            "%g" % cap,
            lambda: launch(
                [sys.executable, "-W", "ignore", os.path.join(HERE, "fit_jobs.py"), peer],
                FIT_FRACTION=repr(cap * base["reserved"] / base["total"]),
            ),
        )
        row["apart"] = apart(base["losses"], row["losses"])
        lost = row["tries"][-1][1] if row["tries"] else 0
        print(
            (
                "%-20s cap %g: exit %d, batches tried %s, %.1f s of %.0f lost before the last, "
                "losses apart by %s"
            )
            % (
                peer,
                cap,
                row["exit"],
                [n for n, _ in row["tries"]],
                lost,
                row["wall"],
                row["apart"],
            ),
            flush=True,
        )

    pairs = [("peer_accelerate", "plain_nanogpt"), ("peer_transformers", "hf_gpt2")]
    return [pool.submit(one, peer, name, cap) for peer, name in pairs for cap in options.caps]


def table(results):
    good = [r for r in results.rows.values() if "good" in r]
    for r in good:  # a job that differs from itself may differ as much
        itself = results.rows.get((r["job"], "uncapped again"), {}).get("noise") or 0
        through = r["exit"] == 0 and r.get("attempts") == (2 if r.get("first_ran_out") else 1)
        within = r.get("reserved", 0) <= r["limit"] + PAGE
        r["good"] = r["good"] or bool(through and within and r["apart"] <= 3 * itself)
    print(
        "%-20s %5s %9s %8s %8s %10s %s"
        % ("job", "cap", "launches", "peak/cap", "exit", "loss apart", "what")
    )
    for r in sorted(good, key=lambda r: (r["job"], r["cap"])):
        what = "; ".join(
            s[1] for s in r.get("said", []) if s[0] == "applied" and "segments" not in s[1]
        )
        print(
            "%-20s %5g %9s %8.3f %8d %10s %s"
            % (
                r["job"],
                r["cap"],
                r.get("attempts"),
                r.get("reserved", 0) / max(1, r["limit"]),
                r["exit"],
                "-" if r["apart"] is None else "%.1e" % r["apart"],
                what[:110],
            )
        )
    print("good: %d of %d" % (sum(r["good"] for r in good), len(good)))


def work(results, options):
    # those that wait for each other must all have begun
    compiling = len([n for n in options.compiled.split(",") if n])
    with concurrent.futures.ThreadPoolExecutor(options.jobs + compiling) as pool:
        names = [n for n in options.only.split(",") if n]
        waiting = [
            pool.submit(job, results, options, name, cap)
            for name in longest_first(results, names)
            for cap in options.caps
        ]
        waiting += [
            pool.submit(whole_card, results, options, name)
            for name in options.whole_card.split(",")
            if name
        ]
        waiting += [
            pool.submit(compiled, results, options, name)
            for name in options.compiled.split(",")
            if name
        ]
        waiting += [pool.submit(cannot, results, options)] if options.cannot else []
        waiting += peers(results, options, pool) if options.peers else []
        for done in waiting:
            tell_failure(done.result)
    with concurrent.futures.ThreadPoolExecutor(
        min(options.jobs, 5)
    ) as pool:  # ten uncapped jobs at once are more than a card holds
        for name in filter(None, options.seeds.split(",")):
            tell_failure(lambda: with_dropout(results, options, pool, name))
    tell_failure(lambda: timing(results, options))  # alone on the card
    if options.shared:
        tell_failure(lambda: shared(results, options, options.shared.split(",")))


def tell_failure(do):
    try:
        do()
    except Exception as why:
        print("failed: %s: %s" % (type(why).__name__, str(why)[:200]), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--out", default="fit-results.jsonl")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument(
        "--seconds",
        type=float,
        default=3600,
        help="nothing is started after so many seconds, and what runs then is ended",
    )
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--caps", default="0.6,0.8")
    parser.add_argument(
        "--timing",
        default="",
        help="jobs whose speed is compared: plain_nanogpt,plain_encoder,vision_resnet50,scaler_vit",
    )
    parser.add_argument(
        "--compiled",
        default="",
        help="compiled scripts: nanogpt_compiled,gpt2_compiled,vit_compiled",
    )
    parser.add_argument("--peers", action="store_true")
    parser.add_argument(
        "--seeds", default="", help="jobs with dropout over five seeds: plain_nanogpt,hf_bert"
    )
    parser.add_argument(
        "--whole-card", default="", help="jobs under --gpu-mem instead of the allocator's own cap"
    )
    parser.add_argument(
        "--shared", default="", help="jobs that run alone, then all at once three times"
    )
    parser.add_argument(
        "--no-alone",
        action="store_true",
        help="with --shared: what --fit should come to stands for the runs alone",
    )
    parser.add_argument("--cannot", action="store_true", help="a job that no remedy makes fit")
    parser.add_argument(
        "--noise",
        action="store_true",
        help="run each job uncapped twice, to see what differs anyway",
    )
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    options.caps = [float(c) for c in options.caps.split(",")]
    options.memroom = os.path.abspath(options.memroom)
    turns = len(COMPILED_RUNS) * len([n for n in options.compiled.split(",") if n])
    options.turn = {"FIT_TURN": tempfile.mkdtemp(), "FIT_TURNS": str(turns), "FIT_PROFILE": "1"}
    global clock
    clock = Clock(options.seconds)
    results = Results(options.out)
    if not options.table:
        work(results, options)
    table(results)


if __name__ == "__main__":
    main()
