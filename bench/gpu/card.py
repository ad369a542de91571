"""Everything that is measured of `run --fit` on a card, in one go or in several:

python bench/gpu/card.py [--parts jobs,ranks,shared,compiled,grid] [--seconds 585]
[--jobs 9] [--limit PART=SECONDS ...] [--table]

| part     | runs                                          | alone | seconds |
| jobs     | fit.py: 12 jobs, two caps, --jobs at once;    | no    | 300     |
|          | untouched runs from earlier rows              |       |         |
| ranks    | fit_ranks.py --card: DDP and FSDP2, two ranks | no    | 180     |
| shared   | fit.py --shared: eight jobs, three turns;     | yes   | 300     |
|          | untouched runs from earlier rows              |       |         |
| compiled | fit.py --compiled: three scripts              | yes   | 280     |
| grid     | fit_grid.py --known: twelve jobs, two caps    | yes   | 540     |

Parts run in the order that was asked for, each until its time or the time for all is over; those
that need not be alone on the card run beside the one before. Rows are kept in bin/card, which git
ignores, and rows that are there are not taken again: the same command goes on where it stopped.
They are copied to $OUT every few seconds, where that is set. On a machine that was given back in
between, put the files back into bin/card first. bin/memroom must be there.
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import fit

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ROWS = os.path.join(ROOT, "bin", "card")
MEMROOM = os.path.join(ROOT, "bin", "memroom")
EIGHT = (
    "plain_nanogpt,plain_gpt2_outside,plain_encoder,vision_resnet50,vision_convnext,scaler_gpt2,"
    "scaler_vit,lightning_vit"
)
THREE = "nanogpt_compiled,gpt2_compiled,vit_compiled"
SECONDS = {"jobs": 300, "ranks": 180, "shared": 300, "compiled": 280, "grid": 540}
BESIDE = ("jobs", "ranks")  # need not be alone
LIBRARIES = (
    "torch transformers accelerate lightning torch_geometric peft triton sympy networkx numpy "
    "huggingface_hub tokenizers safetensors torchmetrics aiohttp scipy sklearn pandas"
).split()
ENDING = 12  # seconds that a part gets to end by itself when its time is over


def command(part, options, seconds):
    """The driver of a part, with its rows and its time."""
    out = ["--out", os.path.join(ROWS, part + ".jsonl")]
    known = ["--memroom", MEMROOM, "--seconds", str(int(seconds))] + out
    fit = ["fit.py", "--only", "", *known]
    how = {
        "jobs": ["fit.py", "--jobs", str(options.jobs), *known],
        "ranks": ["fit_ranks.py", "--card", "--kinds", "ddp,fsdp2", *known],
        "shared": fit + ["--shared", EIGHT, "--no-alone"],
        "compiled": fit + ["--compiled", THREE],
        "grid": ["fit_grid.py", "--known", "--seconds", str(int(seconds)), *out],
    }[part]
    more = ["--table"] if options.table else []
    return [sys.executable, "-W", "ignore", os.path.join(HERE, how[0]), *how[1:], *more]


def know_untouched(path):
    """What the jobs do without memroom is known from earlier rows, and by how much two such runs
    differ: no build of ours changes that.
    """
    if os.path.exists(path):
        return
    wanted, known = {*fit.JOBS}, {}
    for line in open(os.path.join(HERE, "fit-jobs-h200.jsonl")):
        row = json.loads(line)
        run, job = row.get("run"), row["job"]
        again = run == "uncapped again" and row.get("noise") is not None
        if job in wanted and (again or run == "uncapped" and row.get("total")):
            known[job, run] = line
    with open(path, "w") as f:
        f.writelines(known.values())


class Copies:
    """Rows and logs, copied to $OUT while they grow."""

    def __init__(self, to):
        self.to, self.over = to, threading.Event()
        self.thread = threading.Thread(target=self._keep_on, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self._copy()

    def _keep_on(self):
        while not self.over.wait(5):
            self._copy()

    def _copy(self):
        for name in os.listdir(ROWS) if self.to else []:
            if name.endswith((".jsonl", ".txt")):
                shutil.copyfile(os.path.join(ROWS, name), os.path.join(self.to, name))


def compile_libraries():
    """Where libraries were installed without bytecode and none may be written, every launch
    compiles torch and transformers anew: 15 seconds of a processor. Here it is done once.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    folders = []
    for name in LIBRARIES:
        found = importlib.util.find_spec(name)
        folders += found.submodule_search_locations if found and found.origin else []
    begin = time.time()
    subprocess.run([sys.executable, "-m", "compileall", "-qq", "-j", "0", *folders])
    print("bytecode of libraries: %.0f s" % (time.time() - begin), flush=True)


def start(part, options, seconds):
    """The part's process. What it prints goes to the one log of all parts, and to the screen."""
    print("%s: %d seconds" % (part, seconds), flush=True)
    return subprocess.Popen(
        command(part, options, seconds - ENDING),
        env=dict(os.environ, PYTHONUNBUFFERED="1"),
        start_new_session=True,
        stdout=open(os.path.join(ROWS, "log.txt"), "a"),
        stderr=subprocess.STDOUT,
    )


def finish(part, process, until):
    """Waits, and ends the whole group when the time is over."""
    try:
        process.wait(max(1, until - time.time()))
    except subprocess.TimeoutExpired:
        print("%s: its time is over" % part, flush=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    print("%s: exit %d" % (part, process.returncode), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(SECONDS))
    parser.add_argument("--jobs", type=int, default=9, help="at once, of jobs")
    parser.add_argument("--seconds", type=float, default=585)
    parser.add_argument("--limit", action="append", default=[], metavar="PART=SECONDS")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    limits = {**SECONDS, **{p: float(s) for p, s in (x.split("=") for x in options.limit)}}
    os.makedirs(ROWS, exist_ok=True)
    parts = options.parts.split(",")
    for part in {"jobs", "shared"} & {*parts}:
        know_untouched(os.path.join(ROWS, part + ".jsonl"))
    if options.table:
        for part in parts:
            subprocess.run(command(part, options, 60))
        return
    end, running = time.time() + options.seconds, {}
    compile_libraries()
    with Copies(os.environ.get("OUT")):
        for part in parts:
            if part not in BESIDE:  # it has to be alone
                for other in list(running):
                    finish(other, *running.pop(other))
            seconds = min(limits[part], end - time.time())
            if seconds < 3 * ENDING:
                print("%s: no time is left" % part, flush=True)
                continue
            until = time.time() + seconds
            running[part] = start(part, options, seconds), until
            if part not in BESIDE:
                finish(part, *running.pop(part))
        for other in list(running):
            finish(other, *running.pop(other))
    print(open(os.path.join(ROWS, "log.txt")).read()[-8000:], flush=True)


if __name__ == "__main__":
    main()
