"""Which gradient is the first that differs, and why: scripts of strangers/ on a real card,
untouched and with remedies, compared by the bits of every gradient at every optimizer step.

python bench/gpu/fit_bits.py --memroom bin/memroom --out FILE [--jobs 8] [--seconds N] SCRIPT...

Runs of each script: untouched; untouched again; untouched with the numbers of autograd's nodes
moved on by 3000 (their order decides in which order gradients are added where a gradient is
differentiated again); untouched with every convolution of its first model run by itself beforehand,
which tells the work space that it wants; each remedy alone without a cap; --fit under 60 % of what
it allocated. A row holds the largest relative difference of a loss, the first gradient that differs
and the requests for memory that failed while training went on. Rows that are there are not run
again.
"""

import argparse
import concurrent.futures
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 200  # of one run, at the most


# --- inside of the process


def inside(script):
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    sys.argv, sys.path[0] = [script], os.path.dirname(os.path.abspath(script))
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    if os.environ.get("FIT_FRACTION"):
        torch.cuda.set_per_process_memory_fraction(float(os.environ["FIT_FRACTION"]))
    steps: list = []
    register_optimizer_step_pre_hook(lambda optimizer, *_: steps.append(gradients(optimizer)))
    attach = torch._C._cuda_attach_out_of_memory_observer
    torch.cuda._lazy_call(lambda: attach(tell_failed))
    move_on(int(os.environ.get("FIT_AHEAD") or 0))
    if os.environ.get("FIT_SPACES"):
        tell_spaces()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        side = {
            "steps": steps,
            "allocated": torch.cuda.max_memory_allocated(),
            "total": torch.cuda.mem_get_info()[1],
        }
        with open(os.environ["FIT_SIDE"], "w") as f:
            json.dump(side, f)


def gradients(optimizer):
    """The sum of the bits of each gradient."""
    import torch

    sums = []
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        if p.grad is not None:
            grad = p.grad.coalesce().values() if p.grad.is_sparse else p.grad
            whole = {2: torch.int16, 4: torch.int32}.get(grad.element_size(), torch.int64)
            sums.append(grad.detach().contiguous().view(whole).sum(dtype=torch.int64))
    return torch.stack(sums).tolist() if sums else []


def tell_failed(device, requested, total, free):
    import torch

    held = torch.cuda.memory_allocated(device)
    print("request failed: %d with %d held" % (requested, held), file=sys.stderr, flush=True)


def move_on(count):
    import torch

    leaf = torch.zeros((), requires_grad=True)
    for _ in range(count):
        leaf.view(())


def tell_spaces():
    """Before the first training call, with what --fit itself measures."""
    sys.path.insert(1, os.path.join(HERE, "..", "..", "probe", "py"))
    import torch
    from _memroom_probe.fit.measure import spaces
    from _memroom_probe.fit.memory import room

    original, done = torch.nn.Module.__call__, []

    def call(self, *args, **kwargs):
        if not done and torch.is_grad_enabled() and any(p.is_cuda for p in self.parameters()):
            done.append(self)
            around = room.of(next(self.parameters()).device)

            def run(*a, **k):
                return original(self, *a, **k)

            for moment in spaces.of(self, run, args, kwargs, around):
                print("space: %d of %d" % (moment.space, moment.bytes), file=sys.stderr)
        return original(self, *args, **kwargs)

    torch.nn.Module.__call__ = call


# --- outside


class Runs:
    def __init__(self, options):
        self.options, self.end = options, time.time() + options.seconds
        self.lock, self.rows = threading.Lock(), {}
        if os.path.exists(options.out):
            for line in open(options.out):
                row = json.loads(line)
                self.rows[row["job"], row["run"]] = row
        self.bases: dict = {}

    def one(self, job, name, fit=None, **env):
        """fit: arguments of `memroom run --fit`, where it is used."""
        if (job, name) in self.rows and name != "untouched":
            return
        plain = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "--inside"]
        plain.append(os.path.join(HERE, "strangers", job + ".py"))
        with_fit = [self.options.memroom, "run", "--fit", "--forgetful", *(fit or []), "--"]
        with tempfile.TemporaryDirectory() as folder:
            side, home = os.path.join(folder, "side"), os.path.join(folder, "home")
            env = dict(os.environ, FIT_SIDE=side, MEMROOM_HOME=home, OMP_NUM_THREADS="2", **env)
            done = self._finish(plain if fit is None else with_fit + plain, env, folder)
            seen = json.load(open(side)) if os.path.exists(side) else {}
            records = [
                json.load(open(os.path.join(home, "runs", run, "fit.json")))
                for run in (os.listdir(os.path.join(home, "runs")) if fit is not None else [])
            ]
        found = [(int(a), float(b)) for a, b in re.findall(r"step (\d+) loss (\S+)", done.stdout)]
        begin = max([i for i, (step, _) in enumerate(found) if step == 0], default=0)
        row = {
            "job": job,
            "run": name,
            "exit": done.returncode,
            "launches": len(records[0]["attempts"]) if records else 1,
            "failed": re.findall(r"^request failed: (.*)", done.stderr, re.M)[:8],
            "spaces": re.findall(r"^space: (.*)", done.stderr, re.M),
            "allocated": seen.get("allocated"),
        }
        losses = [value for _, value in found[begin:]]
        if name == "untouched":
            self.bases[job] = dict(seen, losses=losses)
        elif job in self.bases:
            base = self.bases[job]
            row["apart"] = apart(base["losses"], losses)
            row["first"] = first_difference(base["steps"], seen.get("steps", []))
        self._keep(row)

    def _finish(self, command, env, folder):
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
            limit = max(1.0, min(SECONDS, self.end - time.time()))
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _keep(self, row):
        with self.lock:
            self.rows[row["job"], row["run"]] = row
            with open(self.options.out, "a") as f:
                f.write(json.dumps(row) + "\n")
        print({k: v for k, v in row.items() if v is not None}, flush=True)

    def script(self, job):
        self.one(job, "untouched")
        base = self.bases[job]
        if not base.get("allocated"):
            return
        cap = repr(0.6 * base["allocated"] / base["total"])
        self.one(job, "again")
        self.one(job, "fit 0.6", [], FIT_FRACTION=cap)
        self.one(job, "numbers moved on", FIT_AHEAD="3000")
        self.one(job, "work spaces", FIT_SPACES="1")
        self.one(job, "checkpointing", ["--remedy", "checkpointing"])
        self.one(job, "offload", ["--remedy", "activation_offload"])


def apart(a, b):
    if len(a) != len(b) or not a:
        return None
    return max(abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b))


def first_difference(one, other):
    for step, (a, b) in enumerate(zip(one, other)):
        if a != b:
            which = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
            return "step %d: %d of %d gradients" % (step, len(which), len(a))
    return "equal" if len(one) == len(other) else "%d and %d steps" % (len(one), len(other))


def main():
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--out", default="fit-bits.jsonl")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("scripts", nargs="+")
    options = parser.parse_args()
    options.memroom = os.path.abspath(options.memroom)
    runs = Runs(options)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(runs.script, options.scripts))


if __name__ == "__main__":
    main()
