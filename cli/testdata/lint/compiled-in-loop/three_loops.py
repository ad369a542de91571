"""Programs compiled anew: a growing net, a search, and a traced copy for each export."""

import torch
from torch import nn
from torch.nn import functional as F


def grow(loader, depth):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    while len(net) < depth:
        net.append(nn.Linear(64, 64))
        fast = torch.compile(net)  # expect: compiled-in-loop
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(fast(x), y).backward()
            optimizer.step()


class Search:
    def __init__(self, build, loader):
        self.build, self.loader = build, loader

    def score(self, net):
        optimizer = torch.optim.AdamW(net.parameters())
        for x, y in self.loader:
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    def train(self, candidates):
        best = float("inf")
        while candidates.left():
            net = self.build(candidates.next())
            net = torch.compile(net, dynamic=True)  # expect: compiled-in-loop
            best = min(best, self.score(net))
            candidates.step(best)
        return best


def with_traces(model, optimizer, loader, example, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        traced = torch.jit.trace(model, example)  # expect: compiled-in-loop
        traced.save(f"epoch_{epoch}.pt")
