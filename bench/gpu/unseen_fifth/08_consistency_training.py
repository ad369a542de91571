"""Improved consistency training on 32x32 images: pseudo-Huber, lognormal steps, EMA, RAdam."""

import math
import os

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(8)
torch.backends.cudnn.deterministic = True

if SMALL:
    BATCH, SIZE, CH, MULT, BLOCKS, STEPS = 2, 16, 16, (1, 2), 1, 8
else:
    BATCH, SIZE, CH, MULT, BLOCKS, STEPS = 128, 32, 128, (1, 2, 2), 2, 10
SIGMA_MIN, SIGMA_MAX, SIGMA_DATA, RHO = 0.002, 80.0, 0.5, 7.0
HUBER_C = 0.00054 * math.sqrt(3 * SIZE * SIZE)


class Res(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        self.emb = nn.Linear(emb, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x, e):
        h = self.conv1(silu(self.norm1(x))) + self.emb(e)[:, :, None, None]
        return self.conv2(silu(self.norm2(h))) + self.skip(x)


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, c),
            nn.Conv2d(c, 3 * c, 1),
            nn.Conv2d(c, c, 1),
        )

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
        y = scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(y)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        emb = CH * 4
        self.freq = nn.Parameter(torch.randn(CH) * 4, requires_grad=False)
        self.mlp = nn.Sequential(nn.Linear(2 * CH, emb), nn.SiLU(), nn.Linear(emb, emb), nn.SiLU())
        self.inp = nn.Conv2d(3, CH, 3, padding=1)
        self.down, self.up, skips, c = nn.ModuleList(), nn.ModuleList(), [CH], CH
        for lvl, m in enumerate(MULT):
            if lvl:
                self.down.append(nn.Conv2d(c, c, 3, 2, 1))
                skips.append(c)
            for _ in range(BLOCKS):
                self.down.append(Res(c, CH * m, emb))
                c = CH * m
                skips.append(c)
        self.mid1, self.attn, self.mid2 = Res(c, c, emb), Attn(c), Res(c, c, emb)
        for lvl, m in reversed(list(enumerate(MULT))):
            for _ in range(BLOCKS + 1):
                self.up.append(Res(c + skips.pop(), CH * m, emb))
                c = CH * m
            if lvl:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, 1, 1)))
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, noise):
        a = noise[:, None] * self.freq * 2 * math.pi
        e = self.mlp(torch.cat([a.sin(), a.cos()], 1))
        h = self.inp(x)
        stack = [h]
        for layer in self.down:
            h = layer(h, e) if isinstance(layer, Res) else layer(h)
            stack.append(h)
        h = self.mid2(self.attn(self.mid1(h, e)), e)
        for layer in self.up:
            h = layer(torch.cat([h, stack.pop()], 1), e) if isinstance(layer, Res) else layer(h)
        return self.out(h)


def consistency(net, x, sigma):
    """f(x, sigma), the identity at sigma_min."""
    s = sigma[:, None, None, None]
    c_skip = SIGMA_DATA**2 / ((s - SIGMA_MIN) ** 2 + SIGMA_DATA**2)
    c_out = (s - SIGMA_MIN) * SIGMA_DATA / (s**2 + SIGMA_DATA**2).sqrt()
    c_in = 1 / (s**2 + SIGMA_DATA**2).sqrt()
    return c_skip * x + c_out * net(c_in * x, sigma.log() / 4)


def karras(n):
    i = torch.arange(n, device=device) / (n - 1)
    return (SIGMA_MIN ** (1 / RHO) + i * (SIGMA_MAX ** (1 / RHO) - SIGMA_MIN ** (1 / RHO))) ** RHO


net, ema = UNet().to(device), UNet().to(device)
ema.load_state_dict(net.state_dict())
ema.requires_grad_(False)
params = [p for p in net.parameters() if p.requires_grad]
opt = torch.optim.RAdam(params, lr=1e-4)
g = torch.Generator().manual_seed(80)

for step in range(STEPS):
    n_levels = min(10 * 2 ** (step // 3), 80) + 1
    sig = karras(n_levels)
    edge = torch.erf((sig.log() + 1.1) / (math.sqrt(2) * 2.0))
    pick = torch.multinomial((edge[1:] - edge[:-1]).cpu(), BATCH, True, generator=g).to(device)
    coarse = torch.rand(BATCH, 3, SIZE // 8, SIZE // 8, generator=g) * 2 - 1
    x = coarse.repeat_interleave(8, 2).repeat_interleave(8, 3).to(device) * SIGMA_DATA
    z = torch.randn(x.shape, generator=g).to(device)
    lo, hi = sig[pick], sig[pick + 1]
    with torch.no_grad():
        target = consistency(net, x + lo[:, None, None, None] * z, lo)
    student = consistency(net, x + hi[:, None, None, None] * z, hi)
    huber = ((student - target).pow(2).flatten(1).sum(1) + HUBER_C**2).sqrt() - HUBER_C
    loss = (huber / (hi - lo)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(ema.parameters(), net.parameters()):
            p.lerp_(q, 0.01)
    print(f"step {step} loss {loss.item():.8f}", flush=True)
