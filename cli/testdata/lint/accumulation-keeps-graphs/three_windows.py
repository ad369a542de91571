"""Micro-batches that wait for one backward, and the same windows with a backward each."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F


class Trainer:
    def __init__(self, model, optimizer, parts):
        self.model, self.optimizer, self.parts = model, optimizer, parts

    def epoch(self, loader):
        total = 0.0
        for i, (x, y) in enumerate(loader, 1):
            loss = F.cross_entropy(self.model(x.cuda()), y.cuda())
            total = total + loss / self.parts  # expect: accumulation-keeps-graphs
            if i % self.parts == 0 or i == len(loader):
                total.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                total = 0.0


class BackwardEach(Trainer):
    def epoch(self, loader):
        for i, (x, y) in enumerate(loader, 1):
            loss = F.cross_entropy(self.model(x.cuda()), y.cuda())
            (loss / self.parts).backward()
            if i % self.parts == 0 or i == len(loader):
                self.optimizer.step()
                self.optimizer.zero_grad()


def with_accelerate(loader, parts=8):
    accelerator = Accelerator()
    model = nn.Linear(256, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    waiting = []
    for step, (x, y) in enumerate(loader, 1):
        waiting.append(F.cross_entropy(model(x), y))  # expect: accumulation-keeps-graphs
        if step % parts == 0 or step == len(loader):
            accelerator.backward(torch.stack(waiting).mean())
            optimizer.step()
            optimizer.zero_grad()
            waiting = []


def accelerate_as_meant(loader, parts=8):
    accelerator = Accelerator(gradient_accumulation_steps=parts)
    model = nn.Linear(256, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def terms_of_one_batch(model, optimizer, loader, weight):
    for x, y in loader:
        out = model(x.cuda())
        loss = F.cross_entropy(out, y.cuda())
        loss = loss + weight * out.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
