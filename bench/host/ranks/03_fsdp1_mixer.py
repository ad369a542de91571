"""The older FSDP over gloo: an MLP-Mixer wrapped by size."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2)


class Mix(nn.Module):
    def __init__(self, tokens=64, d=160):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.token = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
        self.channel = nn.Sequential(nn.Linear(d, 640), nn.GELU(), nn.Linear(640, d))

    def forward(self, x):
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.body = nn.Linear(48, 160), nn.Sequential(*[Mix() for _ in range(6)])
        self.head = nn.Linear(160, 10)

    def forward(self, x):
        return self.head(self.body(self.inp(x)).mean(1))


wrap = functools.partial(size_based_auto_wrap_policy, min_num_params=100000)
model = FullyShardedDataParallel(
    Mixer(),
    auto_wrap_policy=wrap,
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
random = torch.Generator().manual_seed(17 + rank)
for step in range(4):
    x = torch.randn(96, 64, 48, generator=random)
    y = torch.randint(0, 10, (96,), generator=random)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("step %d loss %.8g" % (step, loss.item()), flush=True)
dist.destroy_process_group()
