import time
from collections import OrderedDict

import torch
import torch.nn as nn
from deblur.data import GoProPairs
from deblur.nafnet import NAFNet
from torch.utils.data import DataLoader


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.total = 0.0
        self.weight = 0

    def update(self, value, n=1):
        self.total = self.total + value * n
        self.weight += n

    @property
    def mean(self):
        return self.total / max(self.weight, 1)


class MeterBoard:
    def __init__(self, *names):
        self.meters = OrderedDict((n, Meter()) for n in names)

    def feed(self, n, **values):
        for name, value in values.items():
            self.meters[name].update(value, n)  # expect: graph-kept-here

    def line(self):
        return " | ".join(f"{k} {float(m.mean):.4f}" for k, m in self.meters.items())

    def reset(self):
        for m in self.meters.values():
            m.reset()


class Charbonnier(nn.Module):
    def forward(self, a, b):
        return torch.sqrt((a - b) ** 2 + 1e-6).mean()


def train_epoch(net, loader, opt, board, device):
    net.train()
    pixel, edge = Charbonnier(), nn.L1Loss()
    start = time.time()
    for blurred, sharp in loader:
        blurred, sharp = blurred.to(device), sharp.to(device)
        out = net(blurred)
        p = pixel(out, sharp)
        e = edge(out.diff(dim=-1), sharp.diff(dim=-1))
        loss = p + 0.05 * e
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        board.feed(blurred.size(0), pixel=p, edge=e)  # expect: graph-kept-in-list
    print(board.line(), f"{time.time() - start:.0f}s")
    board.reset()


def main():
    device = torch.device("cuda")
    net = NAFNet(width=32).to(device)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    loader = DataLoader(GoProPairs("train", crop=256), 16, shuffle=True, num_workers=8)
    board = MeterBoard("pixel", "edge")
    for epoch in range(300):
        train_epoch(net, loader, opt, board, device)


if __name__ == "__main__":
    main()
