"""Compiled once, or for a handful of models."""

import torch
from torch import nn
from torch.nn import functional as F


def once(loader, epochs):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    fast = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(fast(x), y).backward()
            optimizer.step()


class Search:
    """New weights go into the compiled net."""

    def __init__(self, net):
        self.net = net
        self.fast = torch.compile(net)

    def train(self, candidates, loader):
        optimizer = torch.optim.AdamW(self.net.parameters())
        for weights in candidates:
            self.net.load_state_dict(weights)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(self.fast(x), y).backward()
                optimizer.step()


def two_sizes(loader):
    for width in (128, 256):
        net = torch.compile(nn.Linear(64, width))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
