"""Sharded models whose gradients are reduced at every micro-batch."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


def reduced_each_time(model, loader, every):
    model = FSDP(model.cuda())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for i, (x, y) in enumerate(loader, 1):
        (F.cross_entropy(model(x.cuda()), y.cuda()) / every).backward()
        if i % every == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()


class Trainer:
    def __init__(self, model):
        self.model = model
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)

    def epoch(self, loader):
        for batch in loader:
            self.model.set_requires_gradient_sync(True)
            self.model(**batch).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def no_window(model, loader):
    model = FSDP(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
