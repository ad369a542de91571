"""What another file of the project takes away: project_trainer.py empties `scores` and calls
`pass_over` under no_grad. Nobody empties `hidden_losses`.
"""

import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.scores = []
        self.hidden_losses = []

    def forward(self, x):
        h = self.body(x)
        self.scores.append(h.mean())  # hint: module-keeps-tensors
        self.hidden_losses.append(h.pow(2).mean())  # expect: module-keeps-tensors
        return h


def pass_over(net, loader):
    net.eval()
    total = 0.0
    for x in loader:
        total += net(x.cuda()).sum().item()  # hint: eval-without-no-grad
    return total


def look_over(net, loader):
    net.eval()
    total = 0.0
    for x in loader:
        total += net(x.cuda()).sum().item()  # expect: eval-without-no-grad
    return total
