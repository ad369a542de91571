"""What the probe costs on a CPU, by its own account and by samples of the code that runs, and that
losses do not change by a bit.

    python bench/overhead/cpu.py [--steps 150,500] [--only "2 ms"]

Loops with steps of very different length, short and long runs of each, and programs in which work
that grows with their objects, modules, passes or processes would show: the bar is 0.5 % of step
time in all of them. Short steps are not all read, which is how the share is held; the last columns
say how many were, and how far apart. Two runs differ by more than the probe takes, so what it takes
is sampled: a signal after every millisecond of processor time looks which file's code runs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from gpu import PROBE, Monitor  # noqa: E402

LOOPS = {
    "0.5 ms": (16, 8, 2),
    "2 ms": (256, 96, 2),
    "5 ms": (256, 192, 3),
    "20 ms": (512, 256, 4),
    "100 ms": (1024, 384, 6),
}  # width, batch, layers
# a loop, and what makes it hard: objects on the heap, modules, compiled, passes a step, workers
CASES = {name: (name, {}) for name in LOOPS}
CASES.update(
    {
        "1 ms": ("0.5 ms", {"passes": 2}),
        "a million objects": ("5 ms", {"objects": 1000000}),
        "10,000 modules": ("20 ms", {"modules": 10000}),
        "compiled, 2 passes": ("5 ms", {"passes": 2, "compiled": True, "objects": 1000000}),
        "compiled step, 3 passes": ("5 ms", {"passes": 3, "compiled": True, "whole": True}),
        "by hand": ("2 ms", {"by_hand": True}),
        "16 workers": ("20 ms", {"workers": 16}),
    }
)


def batches(steps, batch, width, workers):
    import torch

    if not workers:
        return (torch.randn(batch, width) for _ in range(steps))
    rows = torch.utils.data.TensorDataset(torch.randn(steps * batch, width))
    loader = torch.utils.data.DataLoader(rows, batch_size=batch, num_workers=workers)
    return (rows for (rows,) in loader)


def train(name, steps):
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loop, hard = CASES[name]
    width, batch, layers = LOOPS[loop]
    kept = [[] for _ in range(hard.get("objects", 0))]
    kept.append([torch.nn.Linear(1, 1) for _ in range(hard.get("modules", 0))])
    model = torch.nn.Sequential(
        *[m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    )
    if hard.get("by_hand"):
        step, clear = lambda: update(model), model.zero_grad
    else:
        optimizer = torch.optim.AdamW(model.parameters())
        step, clear = optimizer.step, optimizer.zero_grad
    forward = torch.compile(model, backend="eager") if hard.get("compiled") else model
    step = torch.compile(step, backend="eager") if hard.get("whole") else step
    passes = hard.get("passes", 1)
    losses = []
    start, hits = 0, [0, 0]

    def sample(number, frame):
        hits[0] += 1
        hits[1] += "_memroom_probe" in frame.f_code.co_filename

    signal.signal(signal.SIGPROF, sample)
    for x in batches(steps, batch, width, hard.get("workers", 0)):
        clear()
        for _ in range(passes):
            loss = forward(x).square().mean()
            loss.backward()
        step()
        losses.append(loss.item())
        if len(losses) == 5:  # what compiles and starts has done so
            start = time.perf_counter()
            signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(
        json.dumps(
            {
                "seconds": (time.perf_counter() - start) * steps / (steps - 5),
                "sampled": [hits[1], hits[0]],
                "losses": [x.hex() for x in losses],
            }
        )
    )


def update(model):
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.01)


def run(name, steps, monitor=None):
    env = dict(os.environ, OMP_NUM_THREADS="1")
    if monitor is not None:
        env.update(PYTHONPATH=PROBE, MEMROOM_PROBE=monitor.path)
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--child", name, "--steps", str(steps)],
        env=env,
        stdout=subprocess.PIPE,
        check=True,
    )
    time.sleep(0.2)
    return json.loads(done.stdout.decode().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", default="150,500")
    parser.add_argument("--only", default="")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return train(args.child, int(args.steps))
    for name in CASES:
        for steps in map(int, args.steps.split(",")) if args.only in name else ():
            compare(name, steps)


def compare(name, steps):
    monitor = Monitor()
    bare, probed = run(name, steps), run(name, steps, monitor)
    told = [m for m in monitor.heard if m["t"] == "steps"]
    ended = [m for m in monitor.heard if m["t"] == "exit"][0]
    read = [row[0] for m in told for row in m["rows"]]
    gaps = [b - a for a, b in zip(read, read[1:])]
    early = [gap for a, gap in zip(read, gaps) if a <= 60]
    print(
        "%-23s: %.2f ms a step with the probe, which takes %.3f %% of %d steps by its account "
        "(bar 0.5 %%), %.3f %% by %d samples, losses bit-identical: %s, "
        "%d read, at most %d apart, %d in the first 60"
        % (
            name,
            1e3 * probed["seconds"] / steps,
            100 * ended["spent_us"] / ended["elapsed_us"],
            steps,
            100 * probed["sampled"][0] / probed["sampled"][1],
            probed["sampled"][1],
            bare["losses"] == probed["losses"],
            len(read),
            max(gaps),
            max(early),
        ),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
