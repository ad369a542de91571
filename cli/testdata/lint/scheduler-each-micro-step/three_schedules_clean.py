"""Schedules that step with the optimizer, with the epoch, or count batches."""

import torch
from torch.nn import functional as F


class Trainer:
    def __init__(self, model, steps, accum):
        self.model, self.accum = model, accum
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def epoch(self, loader):
        for i, batch in enumerate(loader, 1):
            (self.model(**batch).loss / self.accum).backward()
            if i % self.accum == 0 or i == len(loader):
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()


def each_epoch(model, loader, accum, epochs):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sched = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader, 1):
            (F.cross_entropy(model(x), y) / accum).backward()
            if i % accum == 0 or i == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        sched.step()


def counts_batches(model, loader, accum, epochs):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sched = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))
    for i, (x, y) in enumerate(loader, 1):
        (F.mse_loss(model(x), y) / accum).backward()
        if i % accum == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        sched.step()
