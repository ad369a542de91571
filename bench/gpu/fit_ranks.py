"""Two ranks over gloo, with and without `memroom run --fit`: on CPUs under a cap on host memory, or
on one card, which both share, each under 65 % of what it allocated.

python bench/gpu/fit_ranks.py --memroom bin/memroom [--host-mem 2200MiB] [--kinds ddp,fsdp1,fsdp2]
[--card]

Prints for each kind the losses of the uncapped run and of the fitted one, the launches and what was
done. Two processes of PyTorch take about 0.9 GiB of host memory before they train; the whole job
takes about 3 GiB.
"""

import argparse
import functools
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

SHARE = 0.65  # of what a rank allocated, on a card


def train(kind):
    import torch
    import torch.distributed as dist
    from torch import nn

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(d),
                nn.Linear(d, 4 * d),
                nn.Linear(4 * d, d),
            )

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self, d, depth=8):
            super().__init__()
            self.inp, self.out = nn.Linear(32, d), nn.Linear(d, 10)
            self.blocks = nn.ModuleList(Block(d) for _ in range(depth))

        def forward(self, x):
            x = self.inp(x)
            for block in self.blocks:
                x = block(x)
            return self.out(x)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    device = os.environ.get("RANKS_DEVICE", "cpu")
    rows, width = (12000, 128) if device == "cpu" else (48000, 256)
    if os.environ.get("RANKS_CAP"):
        torch.cuda.set_per_process_memory_fraction(float(os.environ["RANKS_CAP"]))
    model = _spread(kind, Net(width).to(device), Block, device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    random = torch.Generator().manual_seed(7 + dist.get_rank())
    for step in range(4):
        x = torch.randn(rows, 32, generator=random).to(device)
        y = torch.randint(0, 10, (rows,), generator=random).to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print("step %d loss %.9g" % (step, loss.item()), flush=True)
    if device != "cpu":
        whole = torch.cuda.get_device_properties(0).total_memory
        print("share %.9g" % (torch.cuda.max_memory_allocated() / whole), flush=True)
    dist.destroy_process_group()


def _spread(kind, model, block, device):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp1":
        wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=wrap, device_id=torch.device(device, 0)
        )
    mesh = init_device_mesh(device, (2,))
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def compare(options, kind):
    """A row for a kind: both runs, and what was done."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    command += ["--nproc-per-node", "2", "--master-port", "29677", __file__, "--train", kind]
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, MEMROOM_HOME=home, OMP_NUM_THREADS="1")
        if options.card:
            env["RANKS_DEVICE"] = "cuda"

        def run(before, **more):
            return subprocess.run(
                before + command,
                env=dict(env, **more),
                capture_output=True,
                text=True,
                timeout=3600,
            )

        whole = run([])
        if whole.returncode:
            return {"kind": kind, "failed": (whole.stdout + whole.stderr)[-2000:]}
        limit = [] if options.card else ["--host-mem", options.host_mem]
        shares = [float(x) for x in re.findall(r"^share (\S+)", whole.stdout, re.M)]
        cap = {"RANKS_CAP": repr(SHARE * max(shares))} if options.card else {}
        fit = run([options.memroom, "run", "--fit", "--forgetful", *limit, "--"], **cap)
        records = [json.load(open(p)) for p in glob.glob(home + "/runs/*/fit.json")]
    said = [s["text"] for r in records for a in r["attempts"] for s in a.get("said", [])]
    row = {
        "kind": kind,
        "device": env.get("RANKS_DEVICE", "cpu"),
        "uncapped": losses(whole.stdout),
        "fitted": losses(fit.stdout)[-4:],
        "exit": fit.returncode,
        "launches": sum(len(r["attempts"]) for r in records),
        "said": list(dict.fromkeys(said)),
    }
    if fit.returncode:
        row["tail"] = (fit.stdout + fit.stderr)[-2000:]
    return row


def tell(row):
    if "failed" in row:
        print("%-6s uncapped: failed: %s" % (row["kind"], row["failed"]))
        return
    print(
        "%-6s uncapped %s\n       fitted   %s, exit %d, %d launches: %s"
        % (
            *[row[what] for what in ("kind", "uncapped", "fitted", "exit", "launches")],
            "; ".join(row["said"]),
        ),
        flush=True,
    )


def losses(text):
    return re.findall(r"step \d+ loss (\S+)", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--host-mem", default="2200MiB")
    parser.add_argument("--kinds", default="ddp,fsdp1,fsdp2")
    parser.add_argument("--card", action="store_true")
    parser.add_argument("--train", default="")
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    options.memroom = os.path.abspath(options.memroom)
    for kind in options.kinds.split(","):
        row = compare(options, kind)
        tell(row)
        if "failed" in row and options.card:  # does gloo do that on a card?
            row = compare(argparse.Namespace(**dict(vars(options), card=False)), kind)
            tell(row)


if __name__ == "__main__":
    main()
