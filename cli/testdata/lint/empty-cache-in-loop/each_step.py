"""A cache that is emptied at every step."""

import gc

import torch
from accelerate import Accelerator
from torch.nn import functional as F


def plain(model, optimizer, loader):
    for x, y in loader:
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def loss(self, batch):
        with torch.autocast("cuda"):
            return self.model(**batch).loss

    def epoch(self, loader):
        for batch in loader:
            gc.collect()
            torch.cuda.empty_cache()  # expect: empty-cache-in-loop
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(batch)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def with_accelerate(model, optimizer, loader, epochs):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        for x, y in loader:
            accelerator.backward(F.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.empty_cache()  # expect: empty-cache-in-loop
