"""What the probe's hooks around an optimizer's step take while they rest, between real steps.

    python bench/overhead/resting.py [--steps 2000] [--probe FOLDER]

Medians of calls in the process, which a busy machine hardly moves: after each step of a small model
what torch would call is called once more and timed, and an empty function before it, whose time is
taken off. --probe is the probe/py of another build, to be compared in the same turn.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from gpu import PROBE, Monitor  # noqa: E402

now = time.perf_counter_ns


def nothing(optimizer, args, kwargs):
    return None


def took(hook, optimizer):
    start = now()
    nothing(optimizer, (), {})
    between = now()
    hook(optimizer, (), {})
    return (now() - between) - (between - start)


def train(count):
    import torch
    from _memroom_probe.watch import steps

    torch.set_num_threads(1)
    module = sys.modules["torch.optim.optimizer"]
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    times: dict = {"before a step": [], "after a step": []}
    for _ in range(count):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if steps.resting > 1:
            hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
            for name, table in zip(times, hooks):
                times[name].append(sum(took(hook, optimizer) for hook in list(table.values())))
    wrapped = hasattr(torch.autograd.backward, "__wrapped__") and steps.resting > 0
    print(
        ", ".join("%s %.2f us" % (n, statistics.median(t) / 1000) for n, t in times.items()),
        "(%d rests); backward is %s"
        % (len(times["after a step"]), "ours" if wrapped else "torch's"),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--probe", default=PROBE)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        return train(args.steps)
    env = dict(os.environ, PYTHONPATH=args.probe, MEMROOM_PROBE=Monitor().path, OMP_NUM_THREADS="1")
    command = [sys.executable, os.path.abspath(__file__), "--child", "--steps", str(args.steps)]
    return subprocess.run(command, env=env, check=True).returncode


if __name__ == "__main__":
    sys.exit(main())
