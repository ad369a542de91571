"""gradcheck where memory is looked for."""

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F


def each_epoch(model, optimizer, loader, epochs):
    for epoch in range(epochs):
        sample = torch.randn(2, 16, dtype=torch.double, requires_grad=True)
        print(epoch, gradcheck(model.double(), (sample,)))  # expect: gradcheck-is-no-profiler
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


class LeakFinder:
    def __init__(self, model):
        self.model = model

    def leaked(self, sample):
        before = torch.cuda.memory_allocated()
        gradgradcheck(self.model, (sample,))  # expect: gradcheck-is-no-profiler
        return torch.cuda.memory_allocated() - before


def check_step(model, x):
    small = x[:1].double().requires_grad_()
    return gradcheck(model, (small,), eps=1e-6, atol=1e-4)  # expect: gradcheck-is-no-profiler


def train(model, optimizer, loader):
    for x, y in loader:
        check_step(model, x)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
