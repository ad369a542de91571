"""Gradients cleared before the backward, behind the step, and one by one."""

import torch
from torch.nn import functional as F


def before(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


class Trainer:
    def __init__(self, model):
        self.model = model

    def fit(self, loader):
        adam = torch.optim.Adam(self.model.parameters())
        for batch in loader:
            self.model(**batch).loss.backward()
            adam.step()
            self.model.zero_grad()


def by_hand(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        for p in model.parameters():
            p.grad = None
        F.mse_loss(model(x), y).backward()
        optimizer.step()
