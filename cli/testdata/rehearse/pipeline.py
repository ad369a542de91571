"""A pipeline by hand: the first rank embeds, the last has the head, those between have layers."""

import os

import torch
import torch.distributed as dist
from torch import nn

WORDS, WIDTH, LENGTH, BATCH = 16000, 512, 128, 4

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
first, last = rank == 0, rank == world - 1
parts = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
if first:
    parts.insert(0, nn.Embedding(WORDS, WIDTH))
if last:
    parts.append(nn.Linear(WIDTH, WORDS))
stage = nn.Sequential(*parts).to("cuda")
optimizer = torch.optim.Adam(stage.parameters())
for _ in range(10):
    if first:
        given = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
    else:
        given = torch.empty(BATCH, LENGTH, WIDTH, device="cuda")
        dist.recv(given, src=rank - 1)
        given.requires_grad_()
    made = stage(given)
    if last:
        words = torch.randint(0, WORDS, (BATCH * LENGTH,), device="cuda")
        nn.functional.cross_entropy(made.flatten(0, 1), words).backward()
    else:
        dist.send(made.detach(), dst=rank + 1)
        gradient = torch.empty_like(made)
        dist.recv(gradient, src=rank + 1)
        made.backward(gradient)
    if not first:
        dist.send(given.grad, dst=rank - 1)
    optimizer.step()
    optimizer.zero_grad()
