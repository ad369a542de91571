"""A meter that is fed with +=."""

import torch
from torch import nn


class Mean:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def __iadd__(self, value):
        self.total = self.total + value
        self.count += 1
        return self

    def __float__(self):
        return float(self.total) / max(self.count, 1)


def epoch(net, loader, optimizer, device):
    net.train()
    mean = Mean()
    for images, masks in loader:
        out = net(images.to(device))
        loss = nn.functional.binary_cross_entropy_with_logits(out, masks.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean += loss.detach()
    return float(mean)


def main(net, loader, epochs):
    device = torch.device("cuda")
    optimizer = torch.optim.SGD(net.to(device).parameters(), lr=0.1)
    for _ in range(epochs):
        print(epoch(net, loader, optimizer, device))
