import copy
import math

import torch
import torch.nn as nn
from sr.data import PairedPatches
from sr.model import EDSR
from torch.utils.data import DataLoader


class Ema:
    """Exponential moving average of the weights, used for validation."""

    def __init__(self, net, decay=0.999):
        self.decay = decay
        self.shadow = {k: p.detach().clone() for k, p in net.named_parameters()}

    @torch.no_grad()
    def update(self, net):
        for name, param in net.named_parameters():
            old = self.shadow[name]
            self.shadow[name] = self.decay * old + (1.0 - self.decay) * param

    def copy_to(self, net):
        with torch.no_grad():
            for name, param in net.named_parameters():
                param.copy_(self.shadow[name])


def psnr(a, b):
    mse = torch.mean((a - b) ** 2).item()
    return 10 * math.log10(1.0 / max(mse, 1e-10))


def evaluate(net, loader, device):
    net.eval()
    total, n = 0.0, 0
    with torch.inference_mode():
        for low, high in loader:
            out = net(low.to(device)).clamp(0, 1)
            total += psnr(out, high.to(device))
            n += 1
    return total / n


def train(steps=200_000):
    device = torch.device("cuda")
    net = EDSR(blocks=16, width=64).to(device)
    test_net = copy.deepcopy(net)
    ema = Ema(net)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    loader = DataLoader(
        PairedPatches("train"), batch_size=16, shuffle=True, num_workers=8, drop_last=True
    )
    val = DataLoader(PairedPatches("val"), batch_size=1)
    l1 = nn.L1Loss()
    step = 0
    while step < steps:
        for low, high in loader:
            net.train()
            opt.zero_grad(set_to_none=True)
            loss = l1(net(low.to(device)), high.to(device))
            loss.backward()
            opt.step()
            ema.update(net)
            step += 1
            if step % 5000 == 0:
                ema.copy_to(test_net)
                print(step, loss.item(), evaluate(test_net, val, device))
            if step >= steps:
                break


if __name__ == "__main__":
    train()
