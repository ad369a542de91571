"""Schedules of optimizer steps that step with every micro-batch."""

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
            self.scheduler.step()  # expect: scheduler-each-micro-step


def share(model, x, y, accum):
    return F.cross_entropy(model(x.cuda()), y.cuda()) / accum


def with_helper(model, loader, accum, updates):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sched = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=updates)
    for i, (x, y) in enumerate(loader, 1):
        share(model, x, y, accum).backward()
        sched.step()  # expect: scheduler-each-micro-step
        if i % accum == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()
