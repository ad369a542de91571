"""A graph that a second backward needs, and losses with a graph of their own."""

import torch
from torch.nn import functional as F


def two_backwards(model, optimizer, loader, weight):
    for x, y in loader:
        out = model(x)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward(retain_graph=True)
        (weight * out.square().mean()).backward()
        optimizer.step()


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def epoch(self, loader):
        for batch in loader:
            loss = self.model(**batch).loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def gradient_only(model, loader):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        print(torch.autograd.grad(loss, model.weight)[0].norm())
