"""Masked autoencoder after He et al., one file, float32."""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

small = os.environ.get("SMALL", "") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

IMG, PATCH = (32, 8) if small else (192, 16)
BATCH = 4 if small else 176
STEPS = 10
ENC = dict(dim=32, depth=2, heads=4) if small else dict(dim=640, depth=12, heads=10)
DEC = dict(dim=16, depth=1, heads=2) if small else dict(dim=512, depth=5, heads=8)
KEEP = 0.25


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def sincos(n_side, dim):
    omega = 1.0 / 10000 ** (torch.arange(dim // 4) / (dim / 4))
    ys, xs = torch.meshgrid(torch.arange(n_side), torch.arange(n_side), indexing="ij")
    parts = [f(p.flatten()[:, None] * omega) for p in (ys, xs) for f in (torch.sin, torch.cos)]
    return torch.cat(parts, 1)[None]


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        n = IMG // PATCH
        self.embed = nn.Conv2d(3, ENC["dim"], PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, ENC["dim"]))
        self.register_buffer("pos", sincos(n, ENC["dim"]))
        self.blocks = nn.ModuleList(Block(ENC["dim"], ENC["heads"]) for _ in range(ENC["depth"]))
        self.norm = nn.LayerNorm(ENC["dim"])
        self.to_dec = nn.Linear(ENC["dim"], DEC["dim"])
        self.mask_token = nn.Parameter(torch.zeros(1, 1, DEC["dim"]))
        self.register_buffer("dec_pos", sincos(n, DEC["dim"]))
        self.dec_blocks = nn.ModuleList(
            Block(DEC["dim"], DEC["heads"]) for _ in range(DEC["depth"])
        )
        self.dec_norm = nn.LayerNorm(DEC["dim"])
        self.pred = nn.Linear(DEC["dim"], PATCH * PATCH * 3)
        nn.init.normal_(self.cls, std=0.02)
        nn.init.normal_(self.mask_token, std=0.02)

    def patchify(self, x):
        b, n = x.size(0), IMG // PATCH
        x = x.view(b, 3, n, PATCH, n, PATCH).permute(0, 2, 4, 3, 5, 1)
        return x.reshape(b, n * n, -1)

    def random_masking(self, x):
        b, n, d = x.shape
        keep = int(n * KEEP)
        noise = torch.rand(b, n, device=x.device)
        shuffle = noise.argsort(1)
        restore = shuffle.argsort(1)
        kept = x.gather(1, shuffle[:, :keep, None].expand(-1, -1, d))
        mask = torch.ones(b, n, device=x.device)
        mask[:, :keep] = 0
        return kept, mask.gather(1, restore), restore

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2) + self.pos
        x, mask, restore = self.random_masking(x)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        x = self.to_dec(self.norm(x))
        fill = self.mask_token.expand(len(x), restore.size(1) + 1 - x.size(1), -1)
        y = torch.cat([x[:, 1:], fill], 1)
        y = y.gather(1, restore[:, :, None].expand(-1, -1, y.size(2))) + self.dec_pos
        y = torch.cat([x[:, :1], y], 1)
        for block in self.dec_blocks:
            y = block(y)
        y = self.pred(self.dec_norm(y))[:, 1:]
        target = self.patchify(images)
        mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        target = (target - mean) / (var + 1e-6).sqrt()
        return ((y - target).pow(2).mean(-1) * mask).sum() / mask.sum()


def image_batch(step):
    g = torch.Generator().manual_seed(1000 + step)
    low = torch.randn(BATCH, 3, IMG // 8, IMG // 8, generator=g)
    x = F.interpolate(low, scale_factor=8, mode="bilinear", align_corners=False)
    return (x + 0.1 * torch.randn(x.shape, generator=g)).to(device)


model = MAE().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)
for step in range(STEPS):
    for group in opt.param_groups:
        warm = min(1.0, (step + 1) / 3)
        group["lr"] = 1.5e-4 * warm * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    loss = model(image_batch(step))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.8f}", flush=True)
