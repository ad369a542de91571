"""Once an epoch, behind a failure, and behind the training."""

import torch
from torch.nn import functional as F


def train_epoch(model, optimizer, loader):
    for x, y in loader:
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(model, optimizer, loader, validation, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        torch.cuda.empty_cache()
        validation(model)


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self, loader, epochs):
        for _ in range(epochs):
            train_epoch(self.model, self.optimizer, loader)
        del self.optimizer
        torch.cuda.empty_cache()


def skips_what_does_not_fit(model, optimizer, loader):
    for x, y in loader:
        try:
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
        optimizer.zero_grad()
