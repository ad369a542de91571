"""Losses reach a list through an event bus: whoever trains only emits."""

import collections

import torch
from torch import nn


class Bus:
    def __init__(self):
        self.listeners = collections.defaultdict(list)

    def on(self, event, listener):
        self.listeners[event].append(listener)

    def emit(self, event, *values):
        for listener in self.listeners[event]:
            listener(*values)


class History:
    def __init__(self):
        self.rows = []

    def note(self, step, loss):
        self.rows.append((step, loss))  # expect: graph-kept-here


def fit(net: nn.Module, loader, lr=1e-3):
    bus, history = Bus(), History()
    bus.on("loss", history.note)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        bus.emit("loss", step, loss)  # expect: graph-kept-in-list
    return history.rows
