import math
import os
from functools import partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.getenv("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

cfg = {
    "img_size": 32 if SMALL else 224,
    "patch": 8 if SMALL else 16,
    "dim": 48 if SMALL else 512,
    "depth": 2 if SMALL else 12,
    "heads": 2 if SMALL else 8,
    "drop_path": 0.1,
    "classes": 10 if SMALL else 1000,
    "batch": 4 if SMALL else 128,
    "steps": 18,
    "lr": 1e-3,
    "wd": 0.05,
    "mixup_alpha": 0.8,
    "smoothing": 0.1,
}


def drop_path(x, p, training):
    if p == 0.0 or not training:
        return x
    keep = 1 - p
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
    return x * mask / keep


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Layer(nn.Module):
    def __init__(self, dim, heads, dpr, norm):
        super().__init__()
        self.norm1, self.norm2 = norm(dim), norm(dim)
        self.attn = Attention(dim, heads)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.dpr = dpr
        self.gamma1 = nn.Parameter(1e-1 * torch.ones(dim))
        self.gamma2 = nn.Parameter(1e-1 * torch.ones(dim))

    def forward(self, x):
        x = x + drop_path(self.gamma1 * self.attn(self.norm1(x)), self.dpr, self.training)
        h = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + drop_path(self.gamma2 * h, self.dpr, self.training)


class ViT(nn.Module):
    def __init__(self, img_size, patch, dim, depth, heads, classes, drop_path):
        super().__init__()
        n = (img_size // patch) ** 2
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, dim) * 0.02)
        dpr = np.linspace(0, drop_path, depth)
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.Sequential(*[Layer(dim, heads, float(d), norm) for d in dpr])
        self.norm = norm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


def mixup(x, y, num_classes, alpha, smoothing, rng):
    lam = rng.beta(alpha, alpha)
    perm = torch.from_numpy(rng.permutation(x.size(0))).to(x.device)
    off, on = smoothing / num_classes, 1 - smoothing + smoothing / num_classes
    y1 = torch.full((x.size(0), num_classes), off, device=x.device).scatter_(1, y[:, None], on)
    return lam * x + (1 - lam) * x[perm], lam * y1 + (1 - lam) * y1[perm]


def soft_ce(logits, target):
    return torch.sum(-target * F.log_softmax(logits.float(), dim=-1), dim=-1).mean()


def batches(gen, protos):
    while True:
        y = torch.randint(0, cfg["classes"], (cfg["batch"],), generator=gen)
        x = torch.randn(cfg["batch"], 3, cfg["img_size"], cfg["img_size"], generator=gen)
        x = x + protos[y % len(protos)][:, :, None, None]
        yield x.to(device), y.to(device)


torch.manual_seed(0)
rng = np.random.RandomState(0)
gen = torch.Generator().manual_seed(0)
protos = torch.randn(16, 3, generator=gen)
keys = ["img_size", "patch", "dim", "depth", "heads", "classes", "drop_path"]
net = ViT(**{k: cfg[k] for k in keys}).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], weight_decay=cfg["wd"])
warm = 4
sched = torch.optim.lr_scheduler.LambdaLR(
    opt,
    lambda s: (
        (s + 1) / warm
        if s < warm
        else 0.5 * (1 + math.cos(math.pi * (s - warm) / (cfg["steps"] - warm)))
    ),
)

net.train()
for step, (x, y) in enumerate(batches(gen, protos)):
    if step == cfg["steps"]:
        break
    x, t = mixup(x, y, cfg["classes"], cfg["mixup_alpha"], cfg["smoothing"], rng)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = net(x)
        loss = soft_ce(logits, t)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    gn = nn.utils.clip_grad_norm_(net.parameters(), 3.0)
    opt.step()
    sched.step()
    if step % 3 == 0 or step == cfg["steps"] - 1:
        print(f"step {step} loss {loss.item():.6f} gnorm {gn.item():.4f}")
