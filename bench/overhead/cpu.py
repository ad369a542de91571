"""What the probe's hooks cost on a CPU, by their own counters, and that losses do not change by a
bit.

    python bench/overhead/cpu.py [--steps 150,500] [--only "2 ms"]

Loops with steps of very different length, and short and long runs of each: the bar is 0.5 % of step
time, whatever the length. Short steps are not all read, which is how the share is held; the last
columns say how many were, and how far apart.
"""

import argparse
import json
import os
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


def train(name, steps):
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, batch, layers = LOOPS[name]
    model = torch.nn.Sequential(
        *[m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    )
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    start = time.perf_counter()
    for _ in range(steps):
        loss = model(torch.randn(batch, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(json.dumps({"seconds": time.perf_counter() - start, "losses": [x.hex() for x in losses]}))


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
    for name in LOOPS:
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
        "steps of about %-6s: %.2f ms with the probe, hooks take %.3f %% of %d steps "
        "(bar 0.5 %%), losses bit-identical: %s, "
        "%d read, at most %d apart, %d in the first 60"
        % (
            name,
            1e3 * probed["seconds"] / steps,
            100 * ended["spent_us"] / ended["elapsed_us"],
            steps,
            bare["losses"] == probed["losses"],
            len(read),
            max(gaps),
            max(early),
        ),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
