"""SimCLR pretraining with NT-Xent; LARS written by hand because torch has none."""

import argparse
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=4 if os.environ.get("TINY") else 160)
p.add_argument("--width", type=int, default=4 if os.environ.get("TINY") else 64)
p.add_argument("--size", type=int, default=16 if os.environ.get("TINY") else 64)
p.add_argument("--steps", type=int, default=20)
p.add_argument("--temperature", type=float, default=0.2)
p.add_argument("--lr", type=float, default=0.6)
p.add_argument("--seed", type=int, default=31)
args = p.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(args.seed)


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        idn = x if self.down is None else self.down(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)) + idn, inplace=True)


class Encoder(nn.Module):
    def __init__(self, w):
        super().__init__()
        layers = [nn.Conv2d(3, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True)]
        cin = w
        for i, n in enumerate((2, 2, 2, 2)):
            for j in range(n):
                layers.append(BasicBlock(cin, w * 2**i, 2 if (i > 0 and j == 0) else 1))
                cin = w * 2**i
        self.f = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.g = nn.Sequential(
            nn.Linear(cin, cin), nn.BatchNorm1d(cin), nn.ReLU(), nn.Linear(cin, 128)
        )

    def forward(self, x):
        h = self.f(x)
        return h, F.normalize(self.g(h), dim=-1)


def augment(x):
    """Random flip, brightness, crop-shift, per sample, on the device."""
    n = x.size(0)
    flip = torch.rand(n, device=x.device) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(-1), x)
    x = x * (0.6 + 0.8 * torch.rand(n, 1, 1, 1, device=x.device))
    theta = torch.zeros(n, 2, 3, device=x.device)
    s = 0.5 + 0.5 * torch.rand(n, device=x.device)
    theta[:, 0, 0] = s
    theta[:, 1, 1] = s
    theta[:, :, 2] = (torch.rand(n, 2, device=x.device) * 2 - 1) * (1 - s)[:, None]
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def nt_xent(z1, z2, tau):
    z = torch.cat([z1, z2])
    n = z1.size(0)
    sim = z @ z.t() / tau
    sim.fill_diagonal_(float("-inf"))
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return F.cross_entropy(sim, target)


class LARS:
    def __init__(self, params, lr, momentum=0.9, wd=1e-6, eta=0.001):
        self.params = [q for q in params if q.requires_grad]
        self.lr, self.m, self.wd, self.eta = lr, momentum, wd, eta
        self.buf = [torch.zeros_like(q) for q in self.params]

    def zero_grad(self):
        for q in self.params:
            q.grad = None

    @torch.no_grad()
    def step(self):
        for q, b in zip(self.params, self.buf):
            d = q.grad
            if q.dim() > 1:
                d = d.add(q, alpha=self.wd)
                pn, un = q.norm(), d.norm()
                d = d * torch.where((pn > 0) & (un > 0), self.eta * pn / un, torch.ones_like(pn))
            b.mul_(self.m).add_(d)
            q.add_(b, alpha=-self.lr)


model = Encoder(args.width).to(device)
optim = LARS(model.parameters(), args.lr)
gen = torch.Generator().manual_seed(args.seed)
for step in range(args.steps):
    optim.lr = args.lr * 0.5 * (1 + math.cos(math.pi * step / args.steps))
    x = torch.rand(args.batch_size, 3, args.size, args.size, generator=gen).to(device)
    with torch.no_grad():
        v1, v2 = augment(x), augment(x)
    _, z1 = model(v1)
    _, z2 = model(v2)
    loss = nt_xent(z1, z2, args.temperature)
    optim.zero_grad()
    loss.backward()
    optim.step()
    print(f"step {step} loss {loss.item():.9f}", flush=True)
