"""Class-conditional diffusion: U-Net with attention, v-prediction, min-SNR weights, EMA."""

import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IMG, CH, BS = (16, 16, 2) if SMALL else (64, 128, 32)
MULT, CLASSES, STEPS = ([1, 2] if SMALL else [1, 2, 3]), 10, 16


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.inp = nn.Sequential(nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.emb = nn.Linear(emb, 2 * o)
        self.norm = nn.GroupNorm(8, o)
        self.out = nn.Sequential(nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(o, o, 3, padding=1))
        nn.init.zeros_(self.out[-1].weight)
        self.skip = nn.Identity() if i == o else nn.Conv2d(i, o, 1)

    def forward(self, x, e):
        h = self.inp(x)
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, dim=1)
        return self.skip(x) + self.out(self.norm(h) * (1 + scale) + shift)


class Attention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.norm, self.qkv, self.proj = (
            nn.GroupNorm(8, c),
            nn.Conv1d(c, 3 * c, 1),
            nn.Conv1d(c, c, 1),
        )
        self.heads = heads

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).view(b, c, -1)).chunk(3, dim=1)
        split = lambda t: t.reshape(b * self.heads, c // self.heads, -1)
        q, k, v = split(q), split(k), split(v)
        a = torch.einsum("bct,bcs->bts", q, k).div(math.sqrt(c // self.heads)).softmax(-1)
        o = torch.einsum("bts,bcs->bct", a, v).reshape(b, c, -1)
        return x + self.proj(o).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        emb = CH * 4
        self.time = nn.Sequential(nn.Linear(CH, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.label = nn.Embedding(CLASSES + 1, emb)
        self.first = nn.Conv2d(3, CH, 3, padding=1)
        self.down, chans, c = nn.ModuleList(), [CH], CH
        for i, m in enumerate(MULT):
            for _ in range(2):
                self.down.append(ResBlock(c, CH * m, emb))
                c = CH * m
                chans.append(c)
            if i < len(MULT) - 1:
                self.down.append(nn.Conv2d(c, c, 3, 2, 1))
                chans.append(c)
        self.mid = nn.ModuleList([ResBlock(c, c, emb), Attention(c), ResBlock(c, c, emb)])
        self.up = nn.ModuleList()
        for i, m in reversed(list(enumerate(MULT))):
            for k in range(3):
                self.up.append(ResBlock(c + chans.pop(), CH * m, emb))
                c = CH * m
                if k == 2 and i:
                    up = nn.Upsample(scale_factor=2, mode="nearest")
                    self.up.append(nn.Sequential(up, nn.Conv2d(c, c, 3, padding=1)))
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t, y):
        e = self.time(timestep_embedding(t, CH)) + self.label(y)
        h = self.first(x)
        kept = [h]
        for m in self.down:
            h = m(h, e) if isinstance(m, ResBlock) else m(h)
            kept.append(h)
        for m in self.mid:
            h = m(h, e) if isinstance(m, ResBlock) else m(h)
        for m in self.up:
            h = m(torch.cat([h, kept.pop()], 1), e) if isinstance(m, ResBlock) else m(h)
        return self.out(h)


def main():
    torch.manual_seed(2025)
    model = UNet().to(device)
    shadow = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-4)
    t_grid = torch.linspace(0, 1, 1000, device=device)
    alpha_bar = torch.cos((t_grid + 0.008) / 1.008 * math.pi / 2).pow(2).clamp(1e-5, 1 - 1e-5)
    for step in range(STEPS):
        x0 = torch.rand(BS, 3, IMG, IMG).mul(2).sub(1).to(device)
        y = torch.randint(0, CLASSES, (BS,)).to(device)
        y = torch.where(torch.rand(BS).to(device) < 0.1, torch.full_like(y, CLASSES), y)
        t = torch.randint(0, 1000, (BS,)).to(device)
        ab = alpha_bar[t].view(-1, 1, 1, 1)
        noise = torch.randn_like(x0)
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        v = ab.sqrt() * noise - (1 - ab).sqrt() * x0
        snr = (ab / (1 - ab)).view(-1)
        weight = snr.clamp(max=5.0) / (snr + 1)
        loss = (weight * (model(xt, t, y) - v).pow(2).mean((1, 2, 3))).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            for s, p in zip(shadow.parameters(), model.parameters()):
                s.mul_(0.999).add_(p, alpha=0.001)
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
