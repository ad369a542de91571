"""Gradients of several micro-batches, each loss with its share."""

import torch
from accelerate import Accelerator
from torch.nn import functional as F


def divided(model, loader, optimizer, accum):
    for i, (x, y) in enumerate(loader, 1):
        loss = F.mse_loss(model(x), y) / accum
        loss.backward()
        if i % accum == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()


class Trainer:
    def __init__(self, model, optimizer, parts):
        self.model, self.optimizer, self.share = model, optimizer, 1.0 / parts
        self.parts = parts
        self.scaler = torch.amp.GradScaler("cuda")

    def epoch(self, loader):
        for i, (x, y) in enumerate(loader, 1):
            with torch.autocast("cuda"):
                loss = F.mse_loss(self.model(x.cuda()), y.cuda()) * self.share
            self.scaler.scale(loss).backward()
            if i % self.parts == 0 or i == len(loader):
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()


def by_accelerate(model, loader, optimizer):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
