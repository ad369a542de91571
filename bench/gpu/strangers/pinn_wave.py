"""A physics-informed network: second derivatives of the output by its inputs make up the loss,
together with boundary points; one Adam."""

# tiny: --width 16 --points 50 --device cpu
import argparse

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--width", type=int, default=256)
p.add_argument("--points", type=int, default=40000)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(11)


class Sine(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x):
        return torch.sin(self.lin(x))


class Pinn(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.body = nn.Sequential(Sine(2, w), *[Sine(w, w) for _ in range(5)], nn.Linear(w, 1))

    def forward(self, x, t):
        return self.body(torch.stack([x, t], 1)).squeeze(1)


net = Pinn(a.width).to(a.device)
opt = torch.optim.Adam(net.parameters(), 1e-3)
g = torch.Generator().manual_seed(12)


def d(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


for step in range(12):
    x = torch.rand(a.points, generator=g).to(a.device).requires_grad_()
    t = torch.rand(a.points, generator=g).to(a.device).requires_grad_()
    u = net(x, t)
    residual = d(d(u, t), t) - 4 * d(d(u, x), x)
    x0 = torch.rand(a.points // 8, generator=g).to(a.device)
    start = net(x0, torch.zeros_like(x0)) - torch.sin(torch.pi * x0)
    loss = residual.square().mean() + 10 * start.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
