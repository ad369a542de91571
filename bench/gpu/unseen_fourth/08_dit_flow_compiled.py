"""Flow matching with a DiT on latents. Blocks are compiled one by one (regional compilation),
bfloat16 autocast, logit-normal times, EMA on the device with foreach ops."""

import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL", "0") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, STEPS, CLASSES = (2, 8, 10) if SMALL else (72, 12, 1000)
SIDE, PATCH, CHANNELS = (8, 2, 4) if SMALL else (32, 2, 4)
DIM, DEPTH, HEADS = (32, 2, 4) if SMALL else (768, 12, 12)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.qn, self.kn = nn.RMSNorm(dim // heads), nn.RMSNorm(dim // heads)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.qn(q).to(v.dtype), self.kn(k).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim)
        )
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        nn.init.zeros_(self.ada[1].weight)
        nn.init.zeros_(self.ada[1].bias)

    def forward(self, x, c):
        s1, k1, g1, s2, k2, g2 = self.ada(c).chunk(6, 1)
        x = x + g1.unsqueeze(1) * self.attn(modulate(self.norm1(x), s1, k1))
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, k2))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        self.inp = nn.Conv2d(CHANNELS, DIM, PATCH, PATCH)
        self.pos = nn.Parameter(torch.randn(1, n, DIM) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.label = nn.Embedding(CLASSES + 1, DIM)
        self.blocks = nn.ModuleList(DiTBlock(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.ada = nn.Linear(DIM, 2 * DIM)
        self.out = nn.Linear(DIM, PATCH * PATCH * CHANNELS)

    def forward(self, x, t, y):
        f = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        f = 1000 * t[:, None] * f
        c = self.time(torch.cat([f.cos(), f.sin()], 1)) + self.label(y)
        h = self.inp(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.ada(F.silu(c)).chunk(2, 1)
        h = self.out(modulate(self.norm(h), shift, scale))
        s = SIDE // PATCH
        h = h.view(-1, s, s, PATCH, PATCH, CHANNELS).permute(0, 5, 1, 3, 2, 4)
        return h.reshape(-1, CHANNELS, SIDE, SIDE)


def main():
    torch.manual_seed(7)
    model = DiT().to(DEVICE)
    ema = copy.deepcopy(model).requires_grad_(False)
    for block in model.blocks:
        block.compile()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    g = torch.Generator().manual_seed(70)
    latents = torch.randn(BATCH * 4, CHANNELS, SIDE, SIDE, generator=g) * 0.8
    labels = torch.randint(0, CLASSES, (BATCH * 4,), generator=g)
    for step in range(STEPS):
        pick = torch.randperm(len(latents), generator=g)[:BATCH]
        x1, y = latents[pick].to(DEVICE), labels[pick].to(DEVICE)
        y = torch.where(torch.rand(BATCH, device=DEVICE) < 0.1, CLASSES, y)
        x0 = torch.randn_like(x1)
        t = torch.randn(BATCH, device=DEVICE).sigmoid()
        tt = t[:, None, None, None]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            v = model((1 - tt) * x0 + tt * x1, t, y)
        loss = F.mse_loss(v.float(), x1 - x0)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.001)
        print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
