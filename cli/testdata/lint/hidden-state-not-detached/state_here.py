"""The same module with the loop that trains it: nothing begins the state anew."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.cell = nn.GRU(width, width)
        self.out = nn.Linear(width, 1)
        self.memory = torch.zeros(1, 1, width)

    def forward(self, x):
        y, self.memory = self.cell(x, self.memory)  # expect: hidden-state-not-detached
        return self.out(y[-1])


def train(reader, loader, optimizer):
    for x, y in loader:
        loss = (reader(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()
