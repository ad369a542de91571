"""FSDP2 of a small stack, as torchrun starts it. The first rank holds a buffer of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
kept = torch.zeros(64 << 20, device="cuda") if dist.get_rank() == 0 else None
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
