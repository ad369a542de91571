"""What the probe's hooks cost on a CPU, by their own counters, and that losses do not change by a bit.

    python bench/overhead/cpu.py [--steps 200]

Three loops with steps of very different length: the bar is 0.5 % of step time, whatever the length. Steps shorter than a
millisecond are read less often, which is how the share is held; the last column says how many were.
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


def train(name, steps):
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, batch, layers = {"0.5 ms": (16, 8, 2), "5 ms": (256, 128, 3), "50 ms": (768, 256, 6)}[name]
    model = torch.nn.Sequential(*[m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())])
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
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", name, "--steps", str(steps)], env=env,
                          stdout=subprocess.PIPE, check=True)
    time.sleep(0.2)
    return json.loads(done.stdout.decode().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return train(args.child, args.steps)
    for name, factor in (("0.5 ms", 20), ("5 ms", 2), ("50 ms", 1)):
        monitor, steps = Monitor(), args.steps * factor
        bare, probed = run(name, steps), run(name, steps, monitor)
        told = [m for m in monitor.heard if m["t"] == "steps"]
        spent, rows = told[-1]["spent_us"], sum(len(m["rows"]) for m in told)
        print("steps of about %s: %.2f ms with the probe, hooks take %.3f %% (bar 0.5 %%), losses bit-identical: %s, %d of %d steps read" % (
            name, 1e3 * probed["seconds"] / steps, 100 * spent / (1e6 * probed["seconds"]), bare["losses"] == probed["losses"],
            rows, steps), flush=True)


if __name__ == "__main__":
    sys.exit(main())
