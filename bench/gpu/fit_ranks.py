"""Two ranks over gloo on CPUs under a cap on host memory, with and without `memroom run --fit`.

python bench/gpu/fit_ranks.py --memroom bin/memroom [--host-mem 2200MiB] [--kinds ddp,fsdp1,fsdp2]

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
        def __init__(self, d=128, depth=8):
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
    model = _spread(kind, Net(), Block)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    random = torch.Generator().manual_seed(7 + dist.get_rank())
    for step in range(4):
        x = torch.randn(12000, 32, generator=random)
        y = torch.randint(0, 10, (12000,), generator=random)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print("step %d loss %.9g" % (step, loss.item()), flush=True)
    dist.destroy_process_group()


def _spread(kind, model, block):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp1":
        wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
        return FullyShardedDataParallel(model, auto_wrap_policy=wrap, device_id=torch.device("cpu"))
    mesh = init_device_mesh("cpu", (2,))
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def compare(memroom, limit, kind):
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    command += ["--nproc-per-node", "2", "--master-port", "29677", __file__, "--train", kind]
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, MEMROOM_HOME=home, OMP_NUM_THREADS="1")
        whole = subprocess.run(command, env=env, capture_output=True, text=True)
        fit = subprocess.run(
            [memroom, "run", "--fit", "--forgetful", "--host-mem", limit, "--"] + command,
            env=env,
            capture_output=True,
            text=True,
        )
        records = [json.load(open(p)) for p in glob.glob(home + "/runs/*/fit.json")]
    said = [s["text"] for r in records for a in r["attempts"] for s in a.get("said", [])]
    print(
        "%-6s uncapped %s\n       fitted   %s, exit %d, %d launches: %s"
        % (
            kind,
            losses(whole.stdout),
            losses(fit.stdout)[-4:],
            fit.returncode,
            sum(len(r["attempts"]) for r in records),
            "; ".join(dict.fromkeys(said)),
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
    parser.add_argument("--train", default="")
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    for kind in options.kinds.split(","):
        compare(os.path.abspath(options.memroom), options.host_mem, kind)


if __name__ == "__main__":
    main()
