"""Records that point to the record before them."""

from dataclasses import dataclass
from typing import Any, Optional

import torch


@dataclass
class Record:
    loss: Any
    before: Optional["Record"] = None


class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.last = None

    def step(self, batch):
        loss = self.net(batch["x"].cuda(), batch["y"].cuda())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.last = Record(loss, self.last)  # expect: graph-kept-in-list

    def run(self, loader):
        for batch in loader:
            self.step(batch)
        at, total = self.last, torch.zeros(())
        while at is not None:
            total, at = total + float(at.loss), at.before
        return total


class TrainerClean:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.last = None

    def step(self, batch):
        loss = self.net(batch["x"].cuda(), batch["y"].cuda())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.last = Record(loss.item(), self.last)

    def run(self, loader):
        for batch in loader:
            self.step(batch)
        at, total = self.last, torch.zeros(())
        while at is not None:
            total, at = total + float(at.loss), at.before
        return total
