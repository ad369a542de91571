import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

# ---------------------------------------------------------------
# Kaggle style: ConvNeXt-T, cutmix, fp16 + GradScaler, EMA, layer decay
# ---------------------------------------------------------------
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


class CFG:
    seed = 42
    img_size = 224 if CUDA else 32
    batch_size = 80 if CUDA else 4
    epochs = 2
    iters = 5 if CUDA else 2
    n_class = 500 if CUDA else 10
    depths = (3, 3, 9, 3) if CUDA else (1, 1, 1, 1)
    dims = (96, 192, 384, 768) if CUDA else (8, 16, 32, 64)
    lr = 5e-4
    wd = 0.05
    layer_decay = 0.8
    cutmix_alpha = 1.0
    smoothing = 0.1
    ema = 0.99
    fp16 = CUDA


class FakeImages(Dataset):
    def __init__(self, n, offset=0):
        self.n, self.offset = n, offset

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(CFG.seed + self.offset + i)
        y = int(torch.randint(0, CFG.n_class, (1,), generator=g))
        t = torch.linspace(0, 6.28, CFG.img_size)
        wave = torch.sin(t * (1 + y % 7))[None, :] * torch.cos(t * (1 + y % 5))[:, None]
        return wave[None] + 0.5 * torch.randn(3, CFG.img_size, CFG.img_size, generator=g), y


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pw1 = nn.Linear(dim, 4 * dim)
        self.pw2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(1e-1 * torch.ones(dim))

    def forward(self, x):
        h = self.dwconv(x).permute(0, 2, 3, 1)
        h = self.gamma * self.pw2(F.gelu(self.pw1(self.norm(h))))
        return x + h.permute(0, 3, 1, 2)


class LN2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, depths, dims, n_class):
        super().__init__()
        self.stages = nn.ModuleList()
        prev = 3
        for i, (d, c) in enumerate(zip(depths, dims)):
            down = (
                nn.Sequential(nn.Conv2d(3, c, 4, 4), LN2d(c))
                if i == 0
                else nn.Sequential(LN2d(prev), nn.Conv2d(prev, c, 2, 2))
            )
            self.stages.append(nn.Sequential(down, *[Block(c) for _ in range(d)]))
            prev = c
        self.norm = nn.LayerNorm(prev)
        self.head = nn.Linear(prev, n_class)

    def forward(self, x):
        for s in self.stages:
            x = s(x)
        return self.head(self.norm(x.mean((-2, -1))))


def param_groups(model):
    groups = []
    n = len(model.stages)
    for i, s in enumerate(model.stages):
        groups.append(dict(params=list(s.parameters()), lr=CFG.lr * CFG.layer_decay ** (n - i)))
    groups.append(
        dict(params=list(model.norm.parameters()) + list(model.head.parameters()), lr=CFG.lr)
    )
    return groups


def cutmix(x, y, g):
    lam = float(torch.distributions.Beta(CFG.cutmix_alpha, CFG.cutmix_alpha).sample())
    perm = torch.randperm(x.size(0), generator=g).to(x.device)
    s = int(CFG.img_size * math.sqrt(1 - lam))
    cy, cx = torch.randint(0, CFG.img_size, (2,), generator=g).tolist()
    y0, y1 = max(0, cy - s // 2), min(CFG.img_size, cy + s // 2)
    x0, x1 = max(0, cx - s // 2), min(CFG.img_size, cx + s // 2)
    x[:, :, y0:y1, x0:x1] = x[perm][:, :, y0:y1, x0:x1]
    lam = 1 - (y1 - y0) * (x1 - x0) / CFG.img_size**2
    return x, y, y[perm], lam


torch.manual_seed(CFG.seed)
gen = torch.Generator().manual_seed(CFG.seed)
train_loader = DataLoader(
    FakeImages(CFG.batch_size * CFG.iters),
    CFG.batch_size,
    shuffle=True,
    num_workers=4 if CUDA else 0,
    drop_last=True,
    generator=gen,
)
valid_loader = DataLoader(FakeImages(CFG.batch_size, 10**6), CFG.batch_size)

model = ConvNeXt(CFG.depths, CFG.dims, CFG.n_class).to(DEVICE, memory_format=torch.channels_last)
ema_model = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(param_groups(model), weight_decay=CFG.wd)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer,
    max_lr=[g["lr"] for g in optimizer.param_groups],
    total_steps=CFG.epochs * CFG.iters,
    pct_start=0.3,
)
scaler = torch.amp.GradScaler(DEVICE, enabled=CFG.fp16, init_scale=2.0**10)
criterion = nn.CrossEntropyLoss(label_smoothing=CFG.smoothing)

step = 0
for epoch in range(CFG.epochs):
    model.train()
    for images, labels in train_loader:
        images = images.to(DEVICE, memory_format=torch.channels_last)
        labels = labels.to(DEVICE)
        images, ya, yb, lam = cutmix(images, labels, gen)
        with torch.autocast(DEVICE, dtype=torch.float16, enabled=CFG.fp16):
            logits = model(images)
            loss = lam * criterion(logits, ya) + (1 - lam) * criterion(logits, yb)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        with torch.no_grad():
            for pe, p in zip(ema_model.parameters(), model.parameters()):
                pe.lerp_(p, 1 - CFG.ema)
        step += 1
        print(f"epoch {epoch} step {step} loss {loss.item():.8f}", flush=True)

    correct = total = 0
    with torch.inference_mode():
        for images, labels in valid_loader:
            pred = ema_model(images.to(DEVICE)).argmax(1).cpu()
            correct += (pred == labels).sum().item()
            total += len(labels)
    print(f"epoch {epoch} ema acc {correct / total:.4f}", flush=True)
