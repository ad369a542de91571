# A normalizing flow: coupling layers that return their log-determinants, actnorm set from the first
# batch, negative log-likelihood in bits per dimension.
# tiny: --hidden 8 --batch 4 --size 8 --device cpu
import argparse
import math

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--hidden", type=int, default=128)
ap.add_argument("--batch", type=int, default=96)
ap.add_argument("--size", type=int, default=64)
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
torch.manual_seed(0)


class ActNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, c, 1, 1))
        self.logs = nn.Parameter(torch.zeros(1, c, 1, 1))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.bias.copy_(-x.mean((0, 2, 3), keepdim=True))
                self.logs.copy_(-torch.log(x.std((0, 2, 3), keepdim=True) + 1e-6))
                self.ready.fill_(True)
        return (x + self.bias) * self.logs.exp(), self.logs.sum() * x[0, 0].numel()


class Coupling(nn.Module):
    def __init__(self, c, h):
        super().__init__()
        self.norm = ActNorm(c)
        self.net = nn.Sequential(
            nn.Conv2d(c // 2, h, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(h, h, 1),
            nn.ReLU(),
            nn.Conv2d(h, c, 3, padding=1),
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        x, det = self.norm(x)
        a, b = x.chunk(2, 1)
        shift, scale = self.net(a).chunk(2, 1)
        scale = torch.sigmoid(scale + 2)
        b = (b + shift) * scale
        return torch.cat([b, a], 1), det + scale.log().flatten(1).sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze = nn.PixelUnshuffle(2)
        self.layers = nn.ModuleList(Coupling(12, args.hidden) for _ in range(8))

    def forward(self, x):
        z, logdet = self.squeeze(x), torch.zeros(len(x), device=x.device)
        for layer in self.layers:
            z, d = layer(z)
            logdet = logdet + d
        return z, logdet


flow = Flow().to(args.device)
opt = torch.optim.Adamax(flow.parameters(), lr=1e-3)
g = torch.Generator().manual_seed(7)
dims = 3 * args.size**2
for step in range(12):
    x = torch.rand(args.batch, 3, args.size, args.size, generator=g).to(args.device)
    z, logdet = flow(x)
    prior = -0.5 * (z**2 + math.log(2 * math.pi)).flatten(1).sum(1)
    loss = -(prior + logdet).mean() / (math.log(2) * dims)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(flow.parameters(), 5)
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
