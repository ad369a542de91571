"""The parts of a loss are brought to the host in a helper, then differentiated there."""

import torch
from torch import nn


class Criterion(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, parts):
        return sum(w * parts[name] for name, w in self.weights.items())


def on_host(loss):
    return loss.to("cpu")  # expect: loss-to-cpu-before-backward


def train(net, loader, optimizer, weights):
    criterion = Criterion(weights)
    for batch in loader:
        parts = net({k: v.cuda() for k, v in batch.items()})
        loss = on_host(criterion(parts))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(torch.round(loss.detach(), decimals=3))


def train_clean(net, loader, optimizer, weights):
    criterion = Criterion(weights)
    for batch in loader:
        parts = net({k: v.cuda() for k, v in batch.items()})
        loss = criterion(parts)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(torch.round(on_host(loss.detach()), decimals=3))
