"""A warm-up with made-up input holds the graph of one pass: nobody's batches."""

import numpy as np
import torch


def serve(model, loader, device):
    model = model.to(device).eval()
    dummy = torch.randn(1, 3, 512, 512, device=device)
    for _ in range(100):
        model(dummy)  # hint: eval-without-no-grad
    with torch.no_grad():
        for x in loader:
            yield model(x.to(device)).cpu()


def heat(model, size, rounds):
    model.eval()
    for _ in range(rounds):
        x = torch.zeros(1, 3, size, size).cuda()
        print(model(x).shape)  # hint: eval-without-no-grad


class Engine:
    def __init__(self, net, device):
        self.net = net.to(device)
        self.device = device

    def warm_up(self, rounds):
        fake = {"image": torch.rand(1, 3, 64, 64).to(self.device)}
        self.net.eval()
        for _ in range(rounds):
            self.net(**fake)  # hint: eval-without-no-grad

    def shapes(self, sizes):
        self.net.eval()
        for size in sizes:
            x = torch.from_numpy(np.zeros((1, 3, size, size), dtype=np.float32)).to(self.device)
            mask = torch.ones_like(x)
            self.net(x, mask)  # hint: eval-without-no-grad


def score(model, loader, device):
    model.eval()
    right = 0
    for x, y in loader:
        x = x.to(device)
        mask = torch.ones_like(x)
        right += (model(x, mask).argmax(1).cpu() == y).sum().item()  # expect: eval-without-no-grad
    return right
