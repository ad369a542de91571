"""Comparisons of three values, and lists that are added: the run goes on behind them."""

import torch
import torch.nn.functional as F


def train(model, loader, optimizer, low, high):
    trace, pairs = [], ()
    for step, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if low < step < high:
            trace += [loss]  # expect: graph-kept-in-list
        pairs = pairs + ((step, loss),)  # expect: graph-kept-in-list
    return trace, pairs


def count(model, loader, low, high):
    inside = 0
    with torch.no_grad():
        for x, _ in loader:
            out = model(x)
            inside += ((low < out) & (out < high)).sum().item() if 0 < low < 1 else 0
    return inside
