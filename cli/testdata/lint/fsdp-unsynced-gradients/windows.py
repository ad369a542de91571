"""Gradient sync that is off between the updates of a sharded model."""

import contextlib

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


def with_context(model, loader, every):
    model = FSDP(model.cuda())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for i, (x, y) in enumerate(loader, 1):
        last = i % every == 0 or i == len(loader)
        with (
            contextlib.nullcontext() if last else model.no_sync()  # expect: fsdp-unsynced-gradients
        ):
            (F.cross_entropy(model(x.cuda()), y.cuda()) / every).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


class Trainer:
    def __init__(self, model, every):
        self.model, self.every = model, every
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)

    def epoch(self, loader):
        for i, batch in enumerate(loader, 1):
            self.model.set_requires_gradient_sync(  # expect: fsdp-unsynced-gradients
                i % self.every == 0
            )
            (self.model(**batch).loss / self.every).backward()
            if i % self.every == 0 or i == len(loader):
                self.optimizer.step()
                self.optimizer.zero_grad()


def window(model, optimizer, batches):
    *early, last = batches
    for batch in early:
        with model.no_sync():  # expect: fsdp-unsynced-gradients
            (model(**batch).loss / len(batches)).backward()
    (model(**last).loss / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def reduced_each_time(model, loader, every):
    model = FSDP(model.cuda())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for i, (x, y) in enumerate(loader, 1):
        (F.cross_entropy(model(x.cuda()), y.cuda()) / every).backward()
        if i % every == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()


class TrainerClean:
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
