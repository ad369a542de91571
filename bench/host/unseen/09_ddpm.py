"""Denoising diffusion: a U-Net with attention, time embedding and a moving average."""

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def embed(t, d):
    f = torch.exp(-math.log(1e4) * torch.arange(d // 2) / (d // 2))
    a = t[:, None].float() * f[None]
    return torch.cat([a.sin(), a.cos()], -1)


class Res(nn.Module):
    def __init__(self, a, b, t):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, padding=1)
        self.t = nn.Linear(t, b)
        self.n2, self.c2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, padding=1)
        self.s = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(F.silu(t))[:, :, None, None]
        return self.c2(F.silu(self.n2(h))) + self.s(x)


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.qkv, self.o = nn.GroupNorm(8, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.n(x)).flatten(2).chunk(3, 1)
        a = torch.softmax(q.transpose(1, 2) @ k / math.sqrt(c), -1)
        return x + self.o((v @ a.transpose(1, 2)).view(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, c=32, t=64):
        super().__init__()
        self.t = nn.Sequential(nn.Linear(c, t), nn.SiLU(), nn.Linear(t, t))
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        self.d1, self.d2 = Res(c, c, t), Res(c, 2 * c, t)
        self.m1, self.ma, self.m2 = Res(2 * c, 2 * c, t), Attn(2 * c), Res(2 * c, 2 * c, t)
        self.u2, self.u1 = Res(4 * c, c, t), Res(2 * c, c, t)
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))
        self.c = c

    def forward(self, x, t):
        t = self.t(embed(t, self.c))
        h1 = self.d1(self.inp(x), t)
        h2 = self.d2(F.avg_pool2d(h1, 2), t)
        h = self.m2(self.ma(self.m1(h2, t)), t)
        h = self.u2(torch.cat([h, h2], 1), t)
        h = self.u1(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), t)
        return self.out(h)


betas = torch.linspace(1e-4, 0.02, 1000)
bar = torch.cumprod(1 - betas, 0)
net, ema = UNet(), UNet()
ema.load_state_dict(net.state_dict())
opt = torch.optim.AdamW(net.parameters(), 2e-4)
for step in range(4):
    x = torch.rand(48, 3, 32, 32) * 2 - 1
    t = torch.randint(0, 1000, (48,))
    noise = torch.randn_like(x)
    a = bar[t][:, None, None, None]
    loss = F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    with torch.no_grad():
        for p, q in zip(ema.parameters(), net.parameters()):
            p.lerp_(q, 0.01)
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
