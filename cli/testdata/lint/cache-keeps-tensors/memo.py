"""Caches that are asked before they are filled, and hold graphs."""

import torch
from elsewhere import batches
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(10, 10)

    def forward(self, x):
        return self.lin(x)


def with_get(encoder, head, opt):
    cache = {}
    for key, x, y in batches:
        if key in cache:
            z = cache[key]
        else:
            z = encoder(x.cuda())
            cache[key] = z  # expect: graph-kept-in-list
        loss = (head(z) - y.cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


class Memory:
    def __init__(self, net):
        self.net = net
        self.store = {}

    def look(self, key, x):
        if key not in self.store:
            self.store[key] = self.net(x)  # expect: cache-keeps-tensors
        return self.store[key]


def with_object(net, opt):
    memory = Memory(net)
    for key, x, y in batches:
        loss = nn.functional.mse_loss(memory.look(key, x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()


def named_losses(model, opt):
    """The same keys in every round: nothing grows."""
    losses = {}
    for x, targets in batches:
        out = model(x.cuda())
        for name, y in targets.items():
            losses[name] = nn.functional.mse_loss(out, y.cuda())
        opt.zero_grad()
        sum(losses.values()).backward()
        opt.step()
