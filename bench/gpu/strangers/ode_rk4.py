"""A neural ordinary differential equation: the same small network is called four times in each of
twelve Runge-Kutta steps before one backward pass."""

# tiny: --dim 4 --batch 4 --size 8 --device cpu
import argparse

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--dim", type=int, default=64)
p.add_argument("--batch", type=int, default=128)
p.add_argument("--size", type=int, default=28)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(1)


class Field(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(2, d), nn.GroupNorm(2, d)
        self.c1, self.c2 = nn.Conv2d(d + 1, d, 3, padding=1), nn.Conv2d(d + 1, d, 3, padding=1)

    def forward(self, t, y):
        at = torch.full_like(y[:, :1], t)
        h = self.c1(torch.cat([torch.relu(self.n1(y)), at], 1))
        return self.c2(torch.cat([torch.relu(self.n2(h)), at], 1))


def rk4(f, y, steps=12):
    h = 1.0 / steps
    for i in range(steps):
        t = i * h
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h / 2, y + h / 2 * k2)
        k4 = f(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


stem = nn.Conv2d(1, a.dim, 3, padding=1).to(a.device)
field = Field(a.dim).to(a.device)
head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a.dim, 10)).to(a.device)
params = [*stem.parameters(), *field.parameters(), *head.parameters()]
opt = torch.optim.SGD(params, lr=0.1, momentum=0.9)
g = torch.Generator().manual_seed(2)
for step in range(12):
    x = torch.randn(a.batch, 1, a.size, a.size, generator=g).to(a.device)
    y = torch.randint(0, 10, (a.batch,), generator=g).to(a.device)
    opt.zero_grad()
    loss = nn.functional.cross_entropy(head(rk4(field, stem(x))), y)
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
