"""Unconditional DDPM on synthetic images, EMA copy of the weights, epsilon prediction."""

import copy
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

TINY = os.environ.get("TINY") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

IMAGE = 16 if TINY else 64
CH = 8 if TINY else 128
MULTS = (1, 2) if TINY else (1, 2, 2)
BATCH = 2 if TINY else 40
T = 1000
STEPS = 22


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    a = t[:, None].float() * freqs[None]
    return torch.cat([a.cos(), a.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.t = nn.Linear(temb, cout)
        self.n2, self.c2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        self.drop = nn.Dropout(0.1)

    def forward(self, x, emb):
        h = self.c1(F.silu(self.n1(x)))
        h = h + self.t(F.silu(emb))[:, :, None, None]
        h = self.c2(self.drop(F.silu(self.n2(h))))
        return h + self.skip(x)


class Attn(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.h = heads
        self.norm = nn.GroupNorm(8, c)
        self.qkv = nn.Conv1d(c, 3 * c, 1)
        self.proj = nn.Conv1d(c, c, 1)

    def forward(self, x):
        b, c, hh, ww = x.shape
        y = self.norm(x).view(b, c, -1)
        q, k, v = self.qkv(y).view(b, 3, self.h, c // self.h, hh * ww).unbind(1)
        w = torch.softmax(torch.einsum("bhcn,bhcm->bhnm", q, k) / math.sqrt(c // self.h), dim=-1)
        o = torch.einsum("bhnm,bhcm->bhcn", w, v).reshape(b, c, -1)
        return x + self.proj(o).view(b, c, hh, ww)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        temb = CH * 4
        self.temb = nn.Sequential(nn.Linear(CH, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.inp = nn.Conv2d(3, CH, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        c, skips = CH, [CH]
        for i, m in enumerate(MULTS):
            last = i == len(MULTS) - 1
            self.down.append(
                nn.ModuleList(
                    [
                        ResBlock(c, CH * m, temb),
                        Attn(CH * m) if last else nn.Identity(),
                        nn.Identity() if last else nn.Conv2d(CH * m, CH * m, 3, 2, 1),
                    ]
                )
            )
            c = CH * m
            skips.append(c)
        self.mid = nn.ModuleList([ResBlock(c, c, temb), Attn(c), ResBlock(c, c, temb)])
        for i, m in reversed(list(enumerate(MULTS))):
            self.up.append(
                nn.ModuleList(
                    [
                        ResBlock(c + skips.pop(), CH * m, temb),
                        nn.Upsample(scale_factor=2) if i > 0 else nn.Identity(),
                    ]
                )
            )
            c = CH * m
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        emb = self.temb(timestep_embedding(t, CH))
        h, hs = self.inp(x), []
        for res, attn, down in self.down:
            h = attn(res(h, emb))
            hs.append(h)
            h = down(h)
        h = self.mid[2](self.mid[1](self.mid[0](h, emb)), emb)
        for res, up in self.up:
            h = up(res(torch.cat([h, hs.pop()], 1), emb))
        return self.out(h)


class EMA:
    def __init__(self, model, decay=0.995):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


def main():
    torch.manual_seed(21)
    betas = torch.linspace(1e-4, 0.02, T, device=device)
    abar = torch.cumprod(1 - betas, 0)
    net = UNet().to(device)
    ema = EMA(net)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4)
    gen = torch.Generator().manual_seed(4)
    for step in range(STEPS):
        base = torch.randn(BATCH, 3, 4, 4, generator=gen)
        x0 = (
            F.interpolate(base, size=IMAGE, mode="bicubic", align_corners=False)
            .clamp(-1, 1)
            .to(device)
        )
        t = torch.randint(0, T, (BATCH,), device=device)
        noise = torch.randn_like(x0)
        a = abar[t][:, None, None, None]
        pred = net(a.sqrt() * x0 + (1 - a).sqrt() * noise, t)
        loss = F.mse_loss(pred, noise)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        ema.update(net)
        print(f"step {step} loss {loss.item():.10f}", flush=True)


if __name__ == "__main__":
    main()
